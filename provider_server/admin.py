"""What the operator's own machine may ask of a running provider, under /pharoah/ on the loopback listener.

    GET  /pharoah/healthz   200 while the process lives
    GET  /pharoah/readyz    200 while it can hold rounds, else 503 with the reason
    GET  /pharoah/metrics   Prometheus' text format
    POST /pharoah/round     holds the week [start, end) or, without one, the last whole week; needs the admin token
    POST /pharoah/give-up   refuses the round that is under way; needs the admin token

The token is in the provider's home, mode 0600: other accounts of the machine see metrics and cannot start a round.
"""

import hmac
from collections.abc import Callable
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from crypto.errors import PharoahError
from provider_server.metrics import Metrics
from provider_server.schedule import BadWindow, Window


class Holder(Protocol):
    """Who holds rounds."""

    def hold(self, window: Window | None) -> dict[str, Any]:
        """Holds a week and tells its outcome."""

    def give_up(self) -> str:
        """Refuses the round that is under way; its name, or nothing."""


def admin_app(metrics: Metrics, not_ready: Callable[[], str], ready: Callable[[], Holder], token: str) -> FastAPI:
    """The ASGI app. `not_ready` gives the reason, empty if there is none; `ready` who holds rounds, or a refusal."""
    app = FastAPI(openapi_url=None)

    def answer(request: Request, work: Callable[[Holder], dict[str, Any]]) -> Response:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), token.encode()):
            return JSONResponse({"error": "NotAllowed", "what": "the admin token is missing or wrong", "hint": ""}, 403)
        try:
            return JSONResponse(work(ready()))
        except PharoahError as error:
            return JSONResponse({"error": type(error).__name__, "what": error.what, "hint": error.hint}, 409)

    @app.get("/pharoah/healthz")
    def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/pharoah/readyz")
    def readyz() -> Response:
        reason = not_ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", 503 if reason else 200)

    @app.get("/pharoah/metrics")
    def scrape() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/pharoah/round")
    def round_(request: Request, start: int | None = None, end: int | None = None) -> Response:
        return answer(request, lambda rounds: rounds.hold(_window(start, end)))

    @app.post("/pharoah/give-up")
    def give_up(request: Request) -> Response:
        return answer(request, lambda rounds: {"given_up": rounds.give_up()})

    return app


def _window(start: int | None, end: int | None) -> Window | None:
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise BadWindow("a window has a start and an end")
    return start, end
