"""The server's side of every online service: methods that take bytes and give bytes, behind TLS.

Each method runs in a worker thread; `Limits` says how many at once, how many more may wait, and for how long. Beyond
that a call is turned away at once (RESOURCE_EXHAUSTED), and whoever sends slowly holds up nobody else. A call that its
caller has given up is not begun. Errors cross as `crypto.services` describes; the text of a bug stays in this log. The
standard health service (grpc.health.v1) answers beside the methods, also when all workers are busy.

Not promised: that a caller is who it says, which is for signatures inside the bytes; that a method which has begun is
ever cut short, which Python cannot do; or that a stranger who floods the port with open calls is kept out, which is for
the network in front. Memory is at most `calls` times `message_bytes`. A lost answer makes the caller ask again, so
methods must bear being called twice.

    with serve(TRUSTEE, {TrusteeMethod.UNMASK: trustee.unmask}, "0.0.0.0:7100", certificate_pem, key_pem) as server:
        ...  # until told to stop
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore
from types import TracebackType
from typing import NoReturn, Self, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crypto.codec import MAX_MESSAGE_BYTES
from crypto.errors import PharoahError
from crypto.services import BUG, Told, told

logger = logging.getLogger(__name__)

Method = Callable[[bytes], bytes]
_Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


@dataclass(frozen=True)
class Limits:
    """What one server bears. `workers` run, `waiting` more wait, and `calls` are open, half-sent ones included."""

    message_bytes: int = MAX_MESSAGE_BYTES
    workers: int = 8
    waiting: int = 24
    calls: int = 64
    deadline_s: float = 60.0
    connection_age_s: float = 600.0
    stop_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.workers + self.waiting < self.calls:
            raise ValueError("some calls must be left over for those who ask after the server's health")


DEFAULT_LIMITS = Limits()


def serve(
    service: str,
    methods: Mapping[str, Method],
    address: str,
    certificate_pem: bytes,
    key_pem: bytes,
    limits: Limits = DEFAULT_LIMITS,
) -> "Server":
    """Serves `methods`, by path, at host:port until stopped; port 0 takes a free one. OSError if it cannot listen."""
    return Server(service, methods, address, grpc.ssl_server_credentials([(key_pem, certificate_pem)]), limits)


class Server:
    """A running server. `port` is where it listens; `stop` lets calls that have begun end, and takes no new ones."""

    def __init__(
        self,
        service: str,
        methods: Mapping[str, Method],
        address: str,
        credentials: grpc.ServerCredentials,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._gate = _Gate(limits)
        self._threads = ThreadPoolExecutor(limits.calls, thread_name_prefix=service)
        self._server = grpc.server(self._threads, options=_options(limits), maximum_concurrent_rpcs=limits.calls)
        self._server.add_generic_rpc_handlers((_ByPath({path: self._handler(methods[path]) for path in methods}),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for name in (service, health.OVERALL_HEALTH):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.port = self._listen(address, credentials)
        logger.info("%s serves at port %d", service, self.port)

    def stop(self) -> None:
        """Returns when the last call has ended; callers have `stop_s` to take their answers. Twice is harmless."""
        self._health.enter_graceful_shutdown()
        self._server.stop(self._limits.stop_s).wait()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _listen(self, address: str, credentials: grpc.ServerCredentials) -> int:
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            self._threads.shutdown()
            raise OSError(f"cannot listen at {address} with this certificate and key") from error
        self._server.start()
        return port

    def _handler(self, method: Method) -> _Handler:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            with self._gate.passed(context):
                try:
                    return method(request)
                except PharoahError as error:
                    failure = told(error)
                except Exception:  # a bug stays a bug, in this log; its text must not reach a stranger
                    logger.exception("no answer: a bug of this server")
                    failure = BUG
            _abort(context, failure)

        return grpc.unary_unary_rpc_method_handler(answer)


class _Gate:
    """Lets `workers` calls through at a time and `waiting` more wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._admitted = BoundedSemaphore(limits.workers + limits.waiting)
        self._running = BoundedSemaphore(limits.workers)

    @contextmanager
    def passed(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Waits for a worker; aborts the call if there is no room, no time, or nobody left who wants the answer."""
        if not self._admitted.acquire(blocking=False):
            logger.warning("turned away: %d calls run and %d wait", self._limits.workers, self._limits.waiting)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "all workers are busy and all places to wait are taken")
        try:
            if not self._running.acquire(timeout=min(self._limits.deadline_s, context.time_remaining())):
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no worker was free in time")
            try:
                if not context.is_active():
                    context.abort(grpc.StatusCode.CANCELLED, "the caller has gone")
                yield
            finally:
                self._running.release()
        finally:
            self._admitted.release()


class _ByPath(grpc.GenericRpcHandler):
    """Finds the handler of a call by its whole path."""

    def __init__(self, handlers: Mapping[str, _Handler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "_Handler | None":
        """None for a path that is not served."""
        return self._handlers.get(handler_call_details.method)


def _abort(context: grpc.ServicerContext, failure: Told) -> NoReturn:
    context.abort(grpc.StatusCode[failure.status], failure.message)


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a share of the load
        ("grpc.max_connection_age_ms", int(1000 * limits.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", int(1000 * limits.deadline_s)),
        ("grpc.keepalive_time_ms", 60_000),  # a caller that vanished without a word frees its calls
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # callers ping every 30 s
    ]
