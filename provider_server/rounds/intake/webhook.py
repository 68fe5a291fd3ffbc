"""The webhook for events of leases: `POST /pharoah/leases`, a body of JSON lines, and a bearer token.

Every line is taken or refused by itself. The answer is 200 where all were taken, else 422, with the lines that were
refused (`lines.Taken`); the sender keeps those, and may repeat all. Off unless `[leases] listen` names an address. On
another address than a loopback one it speaks TLS under the provider's certificate.
"""

import hmac
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from crypto.errors import PharoahError
from federation.base.addresses import host_and_port, listening_socket
from federation.base.key_files import read
from federation.base.settings import BadSettings
from provider_server.rounds.intake.lines import take_each, total
from provider_server.rounds.intake.recorder import LeaseRecorder
from provider_server.rounds.network.connections import ConnectionLimits
from provider_server.rounds.network.listeners import Listener
from provider_server.rounds.settings import Leases
from provider_server.rounds.store.store import StoreFailed, reporting

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LIMITS = ConnectionLimits(strangers=64, of_one_address=32)
LONGEST_BODY = 4 << 20
FEWEST_LETTERS = 16


@contextmanager
def listening(home: Path, recorder: LeaseRecorder, settings: Leases) -> Iterator[str]:
    """The address of the webhook while it is served, empty where it is off; BadSettings, OSError."""
    if not settings.listen:
        yield ""
        return
    address = host_and_port(settings.listen)
    if address is None:
        raise BadSettings("[leases] listen is no host:port")
    token_of(settings)
    pem = None if address[0] in LOOPBACK else (home / "tls.pem", home / "tls.key")
    at = listening_socket(*address)
    with closing(Listener(webhook_app(recorder, settings), at, pem, LIMITS)) as listener:
        yield listener.address


def token_of(settings: Leases) -> bytes:
    """The token that senders show; BadSettings without one of some length."""
    token = read(Path(settings.token_file)).strip() if settings.token_file else b""
    if len(token) < FEWEST_LETTERS:
        raise BadSettings(f"[leases] token_file must name a file with a token of {FEWEST_LETTERS} letters or more")
    return token


def webhook_app(recorder: LeaseRecorder, settings: Leases) -> FastAPI:
    """The app; the token is read anew for each request, so that it may be replaced."""
    app = FastAPI(openapi_url=None)

    @app.post("/pharoah/leases")
    async def leases(request: Request) -> Response:
        shown = request.headers.get("authorization", "").encode("latin-1")
        try:
            token = token_of(settings)
        except PharoahError as error:  # the file is being replaced, or is gone
            return PlainTextResponse(f"{type(error).__name__}: try again later\n", 503)
        if not hmac.compare_digest(shown, b"Bearer " + token):
            return PlainTextResponse("a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_BODY:
                return PlainTextResponse(f"longer than {LONGEST_BODY} bytes: send fewer lines\n", 413)
        return await run_in_threadpool(_answer, body, recorder)

    return app


def _answer(body: bytes, recorder: LeaseRecorder) -> Response:
    try:
        with reporting():
            taken = total(take_each(body.splitlines(), recorder))
    except StoreFailed as error:  # what was recorded so far is known when the sender repeats all
        return PlainTextResponse(f"{error.what}\n", 503)
    return JSONResponse(taken, 422 if taken["refused"] else 200)
