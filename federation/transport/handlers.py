"""From methods that take bytes and give bytes to what gRPC calls: a question is read, answered, and taken.

To gRPC each method is a stream both ways, whatever it is to its caller, for only then it is the server that chooses how
much it reads and how long it waits. The lengths and the parts are those of `federation.transport.question`, the places
of `federation.transport.places` and `federation.transport.admission`.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from crypto.errors import DecodeError, PharoahError, VersionsApart
from crypto.ids import VerifyKey
from federation.protocol.services import BUG, Told, told
from federation.protocol.versions import METADATA_KEY as HELLO_KEY, OWN, Hello, asked_in
from federation.transport.admission import Awaited, Gate, Method, ServerLimits, Watchers, answered, awaited, half
from federation.transport.connections import Connections
from federation.transport.health import Standard
from federation.transport.introductions import METADATA_KEY, Introductions
from federation.transport.places import Caller, NoPlace, NoTime, Place, Room
from federation.transport.question import PART_BYTES, Arriving, of_one_part

logger = logging.getLogger(__name__)

Stream = Callable[[bytes], "AsyncGenerator[bytes, None]"]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_Answer: TypeAlias = "Callable[[Any, Caller, _Context], Awaitable[None]]"

LONGEST_CUT_S = 30.0


class Handlers:
    """Makes them for one server. `ceilings` has the longest question of each path; one part where it has none."""

    def __init__(
        self, service: str, limits: ServerLimits, ceilings: Mapping[str, int], introductions: Introductions | None
    ) -> None:
        self.gate = Gate(limits, service)
        self._name = f"the {service.rpartition('.')[2].lower()}"
        self.watchers = Watchers(limits)
        self.connections = Connections(limits.connections)
        self._limits = limits
        self._ceilings = ceilings
        self._introductions = introductions
        self._silent = Room("silent callers", limits.silent, limits.begin_s)
        kept = None if introductions is None else half(limits.large)
        self._large = Room("long questions on their way", limits.large, limits.receive_s, kept)
        self._unread = Room("answers that nobody takes", limits.unread, limits.deadline_s)
        self._standard = Room("calls of standard services", limits.standard, limits.deadline_s)

    def blocking(self, path: str, method: Method) -> Handler:
        """Runs it in a worker thread."""
        ceiling = self._ceiling(path)

        async def answer(_requests: object, caller: Caller, context: _Context) -> None:
            first = await self._first(caller, context)
            question = of_one_part(first, ceiling)
            if question is None:
                said = await self._long(first, method, caller, context)
            else:
                said = await self._asked(method, question, caller, context)
            del first, question
            await self._say(said, caller, context)

        return self._handler(answer)

    def quick(self, path: str, method: Method) -> Handler:
        """Runs it on the loop. Its questions have one part."""
        ceiling = min(PART_BYTES, self._ceiling(path))

        async def answer(_requests: object, caller: Caller, context: _Context) -> None:
            question = await self._only_part(ceiling, caller, context)
            await self._say(answered(method, question), caller, context)

        return self._handler(answer)

    def awaited(self, path: str, method: Awaited) -> Handler:
        """Runs it on the loop, where it may wait, and bounds by itself how many do. Its questions have one part."""
        ceiling = min(PART_BYTES, self._ceiling(path))

        async def answer(_requests: object, caller: Caller, context: _Context) -> None:
            question = await self._only_part(ceiling, caller, context)
            await self._say(await awaited(method, question), caller, context)

        return self._handler(answer)

    def stream(self, path: str, stream: Stream) -> Handler:
        """Sends what it yields, as fast as the caller takes it. Its questions have one part."""
        ceiling = min(PART_BYTES, self._ceiling(path))

        async def answer(_requests: object, context: _Context) -> None:  # one frame: ten thousand of them wait
            caller = self._caller(context)
            self.connections.begin(caller.peer)
            try:
                self._greet(context)
                question = await self._only_part(ceiling, caller, context)
                self.watchers.begin(caller)
                try:
                    async with aclosing(stream(question)) as messages:
                        async for message in messages:
                            await _write(message, caller, context)
                            if self.watchers.is_closing:  # it was spared in the middle of this message
                                raise asyncio.CancelledError
                finally:
                    self.watchers.end()
            except (NoPlace, NoTime, asyncio.CancelledError) as end:
                await self._turn_away(end, caller, context)
            except PharoahError as error:
                await _tell(told(error), context)
            except grpc.aio.InternalError:
                logger.debug("a stream ends: its caller has gone in the middle of a message")
            except Exception:
                logger.exception("a stream ends: a bug of this server")
                await _tell(BUG, context)
            finally:
                self.connections.end(caller.peer)

        return grpc.stream_stream_rpc_method_handler(answer)

    def standard(self, method: Standard) -> "grpc.RpcMethodHandler[Any, Any]":
        """A method of a standard service: a call that lasts `deadline_s` at most."""

        async def answer(questions: Any, caller: Caller, context: Any) -> None:
            with self._standard.place(caller):
                await method.answer(questions, _Told(caller, context))

        return self._handler(answer, method.asked.FromString, method.said.SerializeToString)

    def _ceiling(self, path: str) -> int:
        return self._ceilings.get(path, PART_BYTES)

    def _handler(self, answer: _Answer, *codec: Any) -> Handler:
        """`answer` as a handler, where whoever loses its place hears why."""

        async def handle(questions: Any, context: _Context) -> None:
            caller = self._caller(context)
            self.connections.begin(caller.peer)
            try:
                self._greet(context)
                await answer(questions, caller, context)
            except (NoPlace, NoTime, asyncio.CancelledError) as end:
                await self._turn_away(end, caller, context)
            except PharoahError as error:
                await _tell(told(error), context)
            finally:
                self.connections.end(caller.peer)

        return grpc.stream_stream_rpc_method_handler(handle, *codec)

    # ---- the way of a call -------------------------------------------------------------------------------------------

    def _caller(self, context: _Context) -> Caller:
        def introduced() -> VerifyKey | None:
            if self._introductions is None:
                return None
            shown = dict(context.invocation_metadata() or ()).get(METADATA_KEY)
            return self._introductions.known(shown) if isinstance(shown, bytes) else None

        return Caller(context.peer(), introduced)

    def _greet(self, context: _Context) -> None:
        """Says what this server speaks, and notes what the caller does; VersionsApart where they have none in common.

        A caller that does not say is written to in the oldest version.
        """
        context.set_trailing_metadata(((HELLO_KEY, OWN.to_bytes()),))
        shown = dict(context.invocation_metadata() or ()).get(HELLO_KEY)
        if isinstance(shown, bytes):
            try:
                asked_in.set(Hello.from_bytes(shown).spoken_with("the caller", self._name))
            except VersionsApart as error:
                logger.warning("a call from %s is refused: %s; %s", context.peer(), error.what, error.hint)
                raise

    async def _first(self, caller: Caller, context: _Context) -> bytes:
        with self._silent.place(caller):
            return await _part(context)

    async def _only_part(self, ceiling: int, caller: Caller, context: _Context) -> bytes:
        question = of_one_part(await self._first(caller, context), ceiling)
        if question is None:
            raise DecodeError(f"a question of one part was expected, {ceiling} bytes at most")
        return question

    async def _long(self, first: bytes, method: Method, caller: Caller, context: _Context) -> bytes | Told:
        """What is answered to a question that goes on after its first part; its memory has a place of its own."""
        with self._large.place(caller) as place:
            question = await self._rest(first, place, context)
            place.is_kept = True
            return await self._asked(method, question, caller, context)

    async def _rest(self, first: bytes, place: Place, context: _Context) -> bytes:
        arriving = Arriving(first)
        while arriving.missing:
            try:
                async with asyncio.timeout(self._limits.begin_s):
                    part = await _part(context)
            except TimeoutError as error:
                raise NoTime("the question did not come in time") from error
            arriving.add(part)
            place.sent_bytes += len(part)
        return arriving.whole()

    async def _asked(self, method: Method, question: bytes, caller: Caller, context: _Context) -> bytes | Told:
        is_stranger = self._introductions is not None and caller.key is None
        left_s = context.time_remaining()
        return await self.gate.answer(method, question, math.inf if left_s is None else left_s, is_stranger=is_stranger)

    async def _say(self, said: bytes | Told, caller: Caller, context: _Context) -> None:
        if isinstance(said, Told):
            await _tell(said, context)
        else:
            with self._unread.place(caller):
                await _write(said, caller, context)

    async def _turn_away(self, end: BaseException, caller: Caller, context: _Context) -> None:
        """Says why a call ends: to its caller, or by raising `end` again where nobody is left to hear it.

        gRPC ends no call to which something is said that its caller does not take; its connection is cut instead.
        """
        if caller.is_being_told and isinstance(end, (NoPlace, NoTime)):
            self.connections.cut(caller.peer)
            await asyncio.sleep(LONGEST_CUT_S)  # gRPC cancels this, when it sees that the connection has gone
        if isinstance(end, NoPlace):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(end))
        if isinstance(end, NoTime):
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(end))
        if self.watchers.is_closing and not caller.is_being_told:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
        raise end


class _Told:
    """The context of a call of a standard service, whose methods write by themselves."""

    def __init__(self, caller: Caller, context: Any) -> None:
        self._caller = caller
        self._context = context

    async def write(self, message: Any) -> None:
        await _write(message, self._caller, self._context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def _write(message: Any, caller: Caller, context: Any) -> None:
    caller.is_being_told = True
    await context.write(message)
    caller.is_being_told = False


async def _part(context: _Context) -> bytes:
    """The next part; DecodeError if the caller has ended instead."""
    part: Any = await context.read()
    if part is grpc.aio.EOF:
        raise DecodeError("a question ended before it was whole")
    return bytes(part)


async def _tell(fault: Told, context: _Context) -> None:
    await context.abort(grpc.StatusCode[fault.status], fault.message)
