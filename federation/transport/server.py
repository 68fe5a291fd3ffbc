"""The server's side of every online service: methods that take bytes and give bytes, behind TLS 1.3.

Four kinds of methods. One that blocks runs in a worker thread; `ServerLimits` says how many at once, how many more may
wait, and for how long. One that is quick, microseconds without any wait, is answered on the event loop itself, and one
that is awaited may wait there. A stream is an asynchronous generator and costs no thread for as long as it lasts.

A question is refused by its announced length, before it is read, above the ceiling of its method
(`federation.transport.question`; DecodeError). Beyond its limits a call is turned away at once (RESOURCE_EXHAUSTED),
and who is silent or slow loses its place to who is not (`federation.transport.places`) and is cut off in time. A call
that its caller has given up is not begun. With `known`, callers who introduce themselves have places that strangers
cannot take (`federation.transport.introductions`). Errors cross as `federation.protocol.services` describes; the text
of a bug stays in this log. The standard health service (grpc.health.v1) answers beside the methods, also when all
workers are busy, and standard reflection lists the services.

Memory for questions is at most `large` times the largest ceiling, what `long_workers` need for theirs, and 64 KiB for
each that is silent or waits; gRPC is told to buffer no more than one part of each, and to unpack nothing. A connection
that does not finish its handshake in `begin_s`, or has no call for `idle_s`, is closed; one has `streams` calls at a
time. Where too many connections are open, those that nobody uses make way (`federation.transport.connections`).

Not promised: that a caller is who it says, which is for signatures and sessions inside the bytes; that a method which
has begun is ever cut short, which Python cannot do; or that a stranger who floods the port is kept out, which is for
the network in front: handshakes cost CPU, and a call now and then keeps a connection. A lost answer makes the caller
ask again, so methods must bear being called twice. A server that stops ends its streams; whoever watches begins again
where it was.

All servers of a process share one thread with one event loop, for grpc.aio polls badly for several.

    with serve(TRUSTEE, {TrusteeMethod.UNMASK: trustee.unmask}, "0.0.0.0:7100", certificate_pem, key_pem) as server:
        ...  # until told to stop
"""

import asyncio
import logging
import resource
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import grpc

from federation.base import tls
from federation.protocol.services import CEILINGS
from federation.transport.admission import DEFAULT_LIMITS, Awaited, Method, ServerLimits
from federation.transport.handlers import Handler, Handlers, Stream
from federation.transport.health import StandardServices
from federation.transport.introductions import Introductions, Known, server_digest
from federation.transport.question import MESSAGE_BYTES

__all__ = ["DEFAULT_LIMITS", "Method", "Server", "ServerLimits", "Stream", "serve"]

logger = logging.getLogger(__name__)

Beside = Callable[[], Coroutine[Any, Any, None]]
T = TypeVar("T")

NONE: Mapping[str, Any] = MappingProxyType({})
OTHER_FILES = 1024  # beside connections: databases, logs, threads' pipes
IDENTITY_ONLY = 1  # the bit of "no compression" in gRPC's set of algorithms


def serve(
    service: str,
    methods: Mapping[str, Method],
    address: str,
    certificate_pem: bytes,
    key_pem: bytes,
    limits: ServerLimits = DEFAULT_LIMITS,
    *,
    quick: Mapping[str, Method] = NONE,
    awaited: Mapping[str, Awaited] = NONE,
    streams: Mapping[str, Stream] = NONE,
    beside: Beside | None = None,
    known: Known | None = None,
    ceilings: Mapping[str, int] = CEILINGS,
) -> "Server":
    """Serves methods, by path, at host:port until stopped; port 0 takes a free one. OSError if it cannot listen.

    `methods` may block; `quick` and `awaited` ones and `streams` run on the loop and must not, nor must `beside`, which
    runs from the beginning until it is cancelled at the end, nor `known`, which says whose key introduces itself.
    """
    tls.require()
    credentials = grpc.ssl_server_credentials([(key_pem, certificate_pem)])
    introductions = Introductions(known, server_digest(certificate_pem), time.time) if known else None
    handlers = Handlers(service, limits, ceilings, introductions)
    by_path = (
        {path: handlers.blocking(path, method) for path, method in methods.items()}
        | {path: handlers.quick(path, method) for path, method in quick.items()}
        | {path: handlers.awaited(path, method) for path, method in awaited.items()}
        | {path: handlers.stream(path, stream) for path, stream in streams.items()}
    )
    return Server(service, by_path, handlers, address, credentials, limits, beside)


class Server:
    """A running server. `port` is where it listens; `stop` lets calls that have begun end, and takes no new ones."""

    def __init__(
        self,
        service: str,
        by_path: Mapping[str, Handler],
        handlers: Handlers,
        address: str,
        credentials: grpc.ServerCredentials,
        limits: ServerLimits,
        beside: Beside | None,
    ) -> None:
        self._limits = limits
        self._handlers = handlers
        self._standard = StandardServices(service)
        self._beside_of = beside
        self._beside: list[asyncio.Task[None]] = []
        self.port = _on_loop(self._begin(by_path, address, credentials))
        logger.info("%s serves at port %d", service, self.port)

    def stop(self) -> None:
        """Returns when the last call has ended; callers have `stop_s` to take their answers. Twice is harmless."""
        _on_loop(self._end())
        self._handlers.gate.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _begin(self, by_path: Mapping[str, Handler], address: str, credentials: grpc.ServerCredentials) -> int:
        standard = {path: self._handlers.standard(method) for path, method in self._standard.methods.items()}
        self._server = grpc.aio.server(options=_options(self._limits))
        self._server.add_generic_rpc_handlers((_ByPath({**by_path, **standard}),))
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address} with this certificate and key") from error
        await self._server.start()
        self._beside.append(asyncio.create_task(self._handlers.connections.watch_over(port)))
        if self._beside_of is not None:
            self._beside.append(asyncio.create_task(self._beside_of()))
        return port

    async def _end(self) -> None:
        for task in self._beside:
            task.cancel()
        self._standard.end()
        stopping = asyncio.create_task(self._server.stop(self._limits.stop_s))
        await asyncio.sleep(0)  # nobody new comes in from here on
        self._handlers.watchers.close()
        await stopping


class _ByPath(grpc.GenericRpcHandler):
    """Finds the handler of a call by its whole path."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        """None for a path that is not served."""
        return self._handlers.get(handler_call_details.method)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of this process's servers, running for ever in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


def _on_loop(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(what, _loop()).result()


def _connections(limits: ServerLimits) -> int:
    """How many connections this process can bear, after it has allowed itself the files for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits.connections
    fewer = max(1, soft - OTHER_FILES)
    logger.warning("only %d connections, for want of open files (ulimit -n)", fewer)
    return fewer


def _options(limits: ServerLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.per_message_decompression", 0),  # nobody of ours compresses, and a bomb would
        ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
        ("grpc.http2.lookahead_bytes", MESSAGE_BYTES),  # what a caller may send that nobody has asked for
        ("grpc.http2.bdp_probe", 0),  # or a fast caller would be granted megabytes
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.max_allowed_incoming_connections", _connections(limits)),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a share of the load
        ("grpc.max_connection_idle_ms", int(1000 * limits.idle_s)),
        ("grpc.max_connection_age_ms", int(1000 * limits.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", int(1000 * limits.deadline_s)),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.begin_s)),  # TLS, and the first frame of HTTP/2
        ("grpc.tsi.max_frame_size", limits.tls_record_bytes),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", 60_000),  # a caller that vanished without a word frees its calls
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # callers ping every 30 s
    ]
