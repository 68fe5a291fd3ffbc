"""Serves a trustee over TLS, with one log line per request.

The line has the method, the outcome (`answered`, or the class of the error), the milliseconds, and the bytes in and
out. Requests and answers are not logged.

    with serve_trustee(trustee, "0.0.0.0:7100", certificate_pem, key_pem):
        ...  # until stopped
"""

import logging
import time
from typing import Protocol

from federation.protocol.services import TRUSTEE, TrusteeMethod
from federation.transport.introductions import Known
from federation.transport.server import DEFAULT_LIMITS, Method, Server, ServerLimits, serve

logger = logging.getLogger(__name__)


class Answering(Protocol):
    """The served object: `trustee.trustee.Trustee`, or a stand-in. Threads share it."""

    def follow(self, update: bytes) -> bytes:
        """DirectoryUpdate in, Receipt out."""

    def evaluate(self, request: bytes) -> bytes:
        """Signed EvaluationRequest in, EvaluationResponse out."""

    def endorse(self, request: bytes) -> bytes:
        """Signed request for a set of contributors in, endorsement out."""

    def unmask(self, request: bytes) -> bytes:
        """Request to unmask in, UnmaskShare out."""

    def anchor(self, request: bytes) -> bytes:
        """Signed AnchorRequest in, signed Anchor out."""


def serve_trustee(
    trustee: Answering,
    address: str,
    certificate_pem: bytes,
    key_pem: bytes,
    limits: ServerLimits = DEFAULT_LIMITS,
    *,
    known: Known | None = None,
) -> Server:
    """Serves `trustee` at host:port until the server is stopped; close the trustee after that, not before.

    Callers whose key is `known` have reserved connections.
    """
    methods: dict[TrusteeMethod, Method] = {
        TrusteeMethod.FOLLOW: trustee.follow,
        TrusteeMethod.EVALUATE: trustee.evaluate,
        TrusteeMethod.ENDORSE: trustee.endorse,
        TrusteeMethod.UNMASK: trustee.unmask,
        TrusteeMethod.ANCHOR: trustee.anchor,
    }
    logged: dict[str, Method] = {path: _logged(path, method) for path, method in methods.items()}
    return serve(TRUSTEE, logged, address, certificate_pem, key_pem, limits, known=known)


def _logged(path: TrusteeMethod, method: Method) -> Method:
    def answer(request: bytes) -> bytes:
        start_s, outcome, answered = time.perf_counter(), "answered", b""
        try:
            answered = method(request)
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            _log(path.name.lower(), outcome, 1000.0 * (time.perf_counter() - start_s), len(request), len(answered))
        return answered

    return answer


def _log(method: str, outcome: str, took_ms: float, bytes_in: int, bytes_out: int) -> None:
    logger.info(
        "%s: %s in %.1f ms, %d B in, %d B out",
        *(method, outcome, took_ms, bytes_in, bytes_out),
        extra={
            "method": method,
            "outcome": outcome,
            "took_ms": took_ms,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        },
    )
