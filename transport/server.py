"""The server's side of every online service: methods that take bytes and give bytes, behind TLS.

Three kinds of methods. One that blocks runs in a worker thread; `Limits` says how many at once, how many more may wait,
and for how long. One that is quick, microseconds without any wait, is answered on the event loop itself. A stream is an
asynchronous generator and costs no thread for as long as it lasts.

Beyond its limits a call is turned away at once (RESOURCE_EXHAUSTED). Whoever sends slowly holds up nobody else and is
cut off after `receive_s`. A call that its caller has given up is not begun. Errors cross as `crypto.services`
describes; the text of a bug stays in this log. The standard health service (grpc.health.v1) answers beside the methods,
also when all workers are busy, and standard reflection lists the services (`transport.standard`).

Not promised: that a caller is who it says, which is for signatures and sessions inside the bytes; that a method which
has begun is ever cut short, which Python cannot do; or that a stranger who floods the port with connections and calls
is kept out, which is for the network in front. Memory is at most `calls` times the size of a message, and what an idle
connection takes (docs/online.md) for each watcher. A lost answer makes the caller ask again, so methods must bear being
called twice. A server that stops ends its streams; whoever watches begins again where it was.

All servers of a process share one thread with one event loop, for grpc.aio polls badly for several.

    with serve(TRUSTEE, {TrusteeMethod.UNMASK: trustee.unmask}, "0.0.0.0:7100", certificate_pem, key_pem) as server:
        ...  # until told to stop
"""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import cache
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import grpc

from crypto.errors import DecodeError, PharoahError
from crypto.services import BUG, Told, told
from transport.gate import DEFAULT_LIMITS, Entrance, Gate, Limits, Method, NoPlace, NoTime, answered
from transport.standard import Standard, StandardServices

__all__ = ["DEFAULT_LIMITS", "Limits", "Method", "Server", "Stream", "serve"]

logger = logging.getLogger(__name__)

Stream = Callable[[bytes], "AsyncGenerator[bytes, None]"]
Beside = Callable[[], Coroutine[Any, Any, None]]
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_Answer: TypeAlias = "Callable[[Any, _Context], Awaitable[None]]"
T = TypeVar("T")

NONE: Mapping[str, Any] = MappingProxyType({})


def serve(
    service: str,
    methods: Mapping[str, Method],
    address: str,
    certificate_pem: bytes,
    key_pem: bytes,
    limits: Limits = DEFAULT_LIMITS,
    *,
    quick: Mapping[str, Method] = NONE,
    streams: Mapping[str, Stream] = NONE,
    beside: Beside | None = None,
) -> "Server":
    """Serves methods, by path, at host:port until stopped; port 0 takes a free one. OSError if it cannot listen.

    `methods` may block; `quick` ones and `streams` run on the loop and must not, nor must `beside`, which runs from the
    beginning until it is cancelled at the end.
    """
    credentials = grpc.ssl_server_credentials([(key_pem, certificate_pem)])
    handlers = Handlers(service, limits)
    by_path = (
        {path: handlers.blocking(method) for path, method in methods.items()}
        | {path: handlers.quick(method) for path, method in quick.items()}
        | {path: handlers.stream(stream) for path, stream in streams.items()}
    )
    return Server(service, by_path, handlers, address, credentials, limits, beside)


class Handlers:
    """Turns methods into what gRPC calls, each behind the same entrance and the same gate.

    To gRPC each is a stream both ways, whatever it is to its caller, for only then is the server's the choice how long
    it waits for the question.
    """

    def __init__(self, service: str, limits: Limits) -> None:
        self.entrance = Entrance(limits)
        self.gate = Gate(limits, service)
        self._limits = limits

    def blocking(self, method: Method) -> _Handler:
        """Runs it in a worker thread."""

        async def answer(_requests: object, context: _Context) -> None:
            request = await self._question(context)
            await _say(await self.gate.answer(method, request, _left_s(context)), context)

        return grpc.stream_stream_rpc_method_handler(_entering(answer, self.entrance))

    def quick(self, method: Method) -> _Handler:
        """Runs it on the loop."""

        async def answer(_requests: object, context: _Context) -> None:
            await _say(answered(method, await self._question(context)), context)

        return grpc.stream_stream_rpc_method_handler(_entering(answer, self.entrance))

    def stream(self, stream: Stream) -> _Handler:
        """Sends what it yields, as fast as the caller takes it. It is a call until its question is here."""

        async def answer(_requests: object, context: _Context) -> None:  # one frame: ten thousand of them wait
            try:
                with self.entrance.call():
                    request = await self._question(context)
                self.entrance.begin_watch()
                try:
                    async with aclosing(stream(request)) as messages:
                        async for message in messages:
                            await context.write(message)
                finally:
                    self.entrance.end_watch()
            except (NoPlace, NoTime, asyncio.CancelledError) as end:
                await _turn_away(end, self.entrance, context)
            except PharoahError as error:
                await _say(told(error), context)
            except grpc.aio.InternalError:
                logger.debug("a stream ends: its caller has gone in the middle of a message")
            except Exception:
                logger.exception("a stream ends: a bug of this server")
                await _say(BUG, context)

        return grpc.stream_stream_rpc_method_handler(answer)

    def standard(self, method: Standard) -> "grpc.RpcMethodHandler[Any, Any]":
        """A method of a standard service: a call that lasts `deadline_s` at most."""

        async def answer(questions: Any, context: Any) -> None:
            try:
                async with asyncio.timeout(self._limits.deadline_s):
                    await method.answer(questions, context)
            except TimeoutError as error:
                raise NoTime("such a call lasts no longer; begin again") from error

        return grpc.stream_stream_rpc_method_handler(
            _entering(answer, self.entrance), method.asked.FromString, method.said.SerializeToString
        )

    async def _question(self, context: _Context) -> bytes:
        try:
            async with asyncio.timeout(self._limits.receive_s):
                question: Any = await context.read()
        except TimeoutError as error:
            raise NoTime("the question did not come in time") from error
        if question is grpc.aio.EOF:
            raise DecodeError("a call without a question")
        return bytes(question)


def _entering(answer: _Answer, entrance: Entrance) -> _Answer:
    """`answer`, as a call that has a place."""

    async def entered(questions: Any, context: _Context) -> None:
        try:
            with entrance.call():
                await answer(questions, context)
        except (NoPlace, NoTime, asyncio.CancelledError) as end:
            await _turn_away(end, entrance, context)
        except PharoahError as error:
            await _say(told(error), context)

    return entered


async def _turn_away(end: BaseException, entrance: Entrance, context: _Context) -> None:
    """Says why a call ends: to its caller, or by raising `end` again where nobody is left to hear it."""
    if isinstance(end, NoPlace):
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(end))
    if isinstance(end, NoTime):
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(end))
    if entrance.is_closing:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
    raise end


class Server:
    """A running server. `port` is where it listens; `stop` lets calls that have begun end, and takes no new ones."""

    def __init__(
        self,
        service: str,
        by_path: Mapping[str, _Handler],
        handlers: Handlers,
        address: str,
        credentials: grpc.ServerCredentials,
        limits: Limits,
        beside: Beside | None,
    ) -> None:
        self._limits = limits
        self._handlers = handlers
        self._standard = StandardServices(service)
        self._beside_of = beside
        self._beside: asyncio.Task[None] | None = None
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

    async def _begin(self, by_path: Mapping[str, _Handler], address: str, credentials: grpc.ServerCredentials) -> int:
        standard = {path: self._handlers.standard(method) for path, method in self._standard.methods.items()}
        self._server = grpc.aio.server(options=_options(self._limits))
        self._server.add_generic_rpc_handlers((_ByPath({**by_path, **standard}),))
        await self._standard.begin()
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address} with this certificate and key") from error
        await self._server.start()
        if self._beside_of is not None:
            self._beside = asyncio.create_task(self._beside_of())
        return port

    async def _end(self) -> None:
        if self._beside is not None:
            self._beside.cancel()
        await self._standard.end()
        stopping = asyncio.create_task(self._server.stop(self._limits.stop_s))
        await asyncio.sleep(0)  # nobody new comes in from here on
        self._handlers.entrance.close()
        await stopping


class _ByPath(grpc.GenericRpcHandler):
    """Finds the handler of a call by its whole path."""

    def __init__(self, handlers: Mapping[str, _Handler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "_Handler | None":
        """None for a path that is not served."""
        return self._handlers.get(handler_call_details.method)


async def _say(said: bytes | Told, context: _Context) -> None:
    if isinstance(said, Told):
        await context.abort(grpc.StatusCode[said.status], said.message)
    await context.write(said)


def _left_s(context: _Context) -> float:
    left_s: float | None = context.time_remaining()
    return math.inf if left_s is None else left_s


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of this process's servers, running for ever in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


def _on_loop(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(what, _loop()).result()


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes or limits.message_bytes),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a share of the load
        ("grpc.max_connection_age_ms", int(1000 * limits.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", int(1000 * limits.deadline_s)),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.receive_s)),  # whoever begins TLS and does not go on
        ("grpc.tsi.max_frame_size", limits.tls_record_bytes),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", 60_000),  # a caller that vanished without a word frees its calls
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # callers ping every 30 s
    ]
