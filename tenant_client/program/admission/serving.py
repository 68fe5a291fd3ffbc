"""Serves the webhook over HTTPS: `POST /pods`, an AdmissionReview, and its answer.

Whoever reaches it may ask, as whoever may make pods in the namespace may: answers tell what the patch of a pod tells.
What is no review is answered 400, and one that is too long 413 or too slow 408; under failurePolicy Ignore the API
server then goes on without an answer. The certificate is read again when its file changes.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from crypto.errors import DecodeError, PharoahError
from federation.base.addresses import host_and_port, listening_socket
from federation.base.settings import BadSettings
from federation.base.web.serving import serving

logger = logging.getLogger(__name__)

LONGEST_BODY = 3 << 20  # as the API server takes of one object, k8s.io/apiserver DefaultMaxRequestBodyBytes
BODY_S = 5.0
MOST_CONNECTIONS = 256


class AdmissionNotServed(PharoahError):
    """The webhook cannot be served."""

    default_hint = "check --listen, and that --certificate and --key name a certificate and its key, both PEM"


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and its key, both PEM."""

    certificate: Path
    key: Path

    def changed(self) -> tuple[int, ...]:
        """When the files were written; zeros where they are not there."""
        files = (self.certificate, self.key)
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)

    def load(self, tls: ssl.SSLContext) -> None:
        """Connections from now on are under this certificate; AdmissionNotServed, and under the old one."""
        try:
            tls.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise AdmissionNotServed(f"no certificate with its key: {self.certificate}") from error


@dataclass
class Listening:
    """A webhook that is served at a port."""

    port: int
    _tls: ssl.SSLContext
    _certificate: Certificate
    _loaded: tuple[int, ...]

    def renew(self) -> None:
        """Takes the certificate anew if a file of it changed; where it cannot be read, the old one stays."""
        changed = self._certificate.changed()
        if changed == self._loaded:
            return
        self._loaded = changed
        try:
            self._certificate.load(self._tls)
            logger.info("a new certificate", extra={"event": "certificate"})
        except AdmissionNotServed as error:
            fields = {"event": "certificate", "error": type(error).__name__, "hint": error.hint}
            logger.warning("the old certificate stays: %s", error.what, extra=fields)


def admission_app(answer: Callable[[bytes], bytes]) -> FastAPI:
    """The app; `answer` takes a review and gives it back with its answer, or raises DecodeError."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.post("/pods")
    async def pods(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(request)
        except TimeoutError:
            return PlainTextResponse("too slow\n", 408)
        if len(body) > LONGEST_BODY:
            return PlainTextResponse(f"longer than {LONGEST_BODY} bytes\n", 413)
        try:
            return Response(await run_in_threadpool(answer, body), media_type="application/json")
        except DecodeError as error:
            return PlainTextResponse(f"{error.what}\n", 400)

    return app


@contextmanager
def listening(answer: Callable[[bytes], bytes], listen: str, certificate: Certificate) -> Iterator[Listening]:
    """The webhook while it is served at host:port; BadSettings, AdmissionNotServed."""
    address = host_and_port(listen)
    if address is None:
        raise BadSettings("--listen is no host:port", hint="for example 0.0.0.0:8446")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    loaded = certificate.changed()
    certificate.load(tls)
    config = uvicorn.Config(
        admission_app(answer),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=2,
        ssl_context_factory=lambda _config, _default: tls,
    )
    try:
        at = listening_socket(*address)
    except OSError as error:
        raise AdmissionNotServed(f"cannot listen at {listen}") from error
    with at, serving(config, at):
        yield Listening(at.getsockname()[1], tls, certificate, loaded)


async def _body(request: Request) -> bytes:
    """The body, up to just beyond its longest."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            break
    return body


def _no_password() -> bytes:
    """Without this a key under a password would ask for it at the terminal."""
    raise ValueError("the key is under a password")
