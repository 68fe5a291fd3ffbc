"""HTTP interfaces of a running provider on its own machine, for its operator and for monitoring.

At the Unix socket `control.sock` in the provider's home, which only its own account can open:

    POST /pharoah/round     holds the window [start, end) or, without one, the last whole window
    POST /pharoah/give-up   abandons the open round

On the loopback interface, or where `metrics_host` says, read-only, for Prometheus and any account:

    GET  /pharoah/healthz   200 while the process runs
    GET  /pharoah/readyz    200 while it can hold rounds, else 503 with the reason; then what the next round lacks
    GET  /pharoah/metrics   Prometheus' text format

The loopback interface answers only requests with its own name as host (`federation.base.web.guard`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypedDict

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from crypto.errors import PharoahError
from federation.base.web.guard import Asgi, guarded
from provider_server.program.metrics import Metrics
from provider_server.rounds.readiness import Lack
from provider_server.rounds.schedule import BadWindow, Window


class HeldRound(TypedDict):
    """A round that ended with a release; its window is number `position`, from 0, of the `windows` of its epoch."""

    round_id: str
    start_hour: int
    end_hour: int
    contributors: int
    cells: int
    epsilon: float
    delta: float
    position: int
    windows: int
    suspects: int
    seconds: float
    seconds_by_stage: dict[str, float]


class GivenUp(TypedDict):
    """The round that was abandoned; empty where none was open."""

    given_up: str


class Holder(Protocol):
    """Holds rounds; see `round_runner.Rounds`."""

    def hold(self, window: Window | None) -> HeldRound:
        """Holds a window and returns its outcome."""

    def give_up(self) -> str:
        """Abandons the open round; its id, or an empty text."""


def operator_app(ready: Callable[[], Holder]) -> FastAPI:
    """The operator's interface; `ready` returns the holder of rounds or raises a refusal."""
    app = FastAPI(openapi_url=None)

    def answer(work: Callable[[Holder], HeldRound | GivenUp]) -> Response:
        try:
            return JSONResponse(work(ready()))
        except PharoahError as error:
            return JSONResponse({"error": type(error).__name__, "what": error.what, "hint": error.hint}, 409)

    @app.post("/pharoah/round")
    def round_(start: int | None = None, end: int | None = None) -> Response:
        return answer(lambda rounds: rounds.hold(_window(start, end)))

    @app.post("/pharoah/give-up")
    def give_up() -> Response:
        return answer(lambda rounds: {"given_up": rounds.give_up()})

    return app


def watching_app(
    metrics: Metrics,
    not_ready: Callable[[], str],
    lacked: Callable[[], Sequence[Lack]] = tuple,
    *,
    for_other_machines: bool = False,
) -> Asgi:
    """Health and metrics; `not_ready` says why no round can be held, empty if one can, `lacked` what the next lacks."""
    app = FastAPI(openapi_url=None)

    @app.get("/pharoah/healthz")
    def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/pharoah/readyz")
    def readyz() -> Response:
        reason = not_ready()
        lines = [reason or "ready", *(f"lacking {lack}" for lack in lacked())]
        return PlainTextResponse("".join(f"{line}\n" for line in lines), 503 if reason else 200)

    @app.get("/pharoah/metrics")
    def scrape() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return guarded(app, (), for_other_machines=for_other_machines)


def _window(start: int | None, end: int | None) -> Window | None:
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise BadWindow("a window needs both a start and an end")
    return start, end
