"""What the operator's own machine may ask of a running provider, under /pharoah/ on the loopback listener.

    GET  /pharoah/healthz   200 while the process lives
    GET  /pharoah/readyz    200 while it can hold rounds, else 503 with the reason
    GET  /pharoah/metrics   Prometheus' text format
    POST /pharoah/round     holds the week [start, end) or, without one, the last whole week; needs the admin token

The token is in the provider's home, mode 0600: other accounts of the machine see metrics and cannot start a round.
"""

import hmac
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from crypto.errors import PharoahError
from provider_server.metrics import Metrics
from provider_server.schedule import Window

Hold = Callable[[Window | None], dict[str, Any]]


def admin_app(metrics: Metrics, not_ready: Callable[[], str], hold: Hold, token: str) -> FastAPI:
    """The ASGI app. `not_ready` gives the reason, empty if there is none; `hold` holds a week and tells its outcome."""
    app = FastAPI(openapi_url=None)

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
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), token.encode()):
            return JSONResponse({"error": "NotAllowed", "what": "the admin token is missing or wrong", "hint": ""}, 403)
        try:
            return JSONResponse(hold((start, end) if start is not None and end is not None else None))
        except PharoahError as error:
            told = {"error": type(error).__name__, "what": error.what, "hint": error.hint}
            return JSONResponse(told, 409)

    return app
