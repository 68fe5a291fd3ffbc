"""What a server bears, and how methods that block are let into threads. On one event loop, no gRPC.

A call goes from place to place, each of which is bounded: it is silent until its first part is here; if it has more
parts, it holds one of the `large` places until it is answered; a method that blocks makes it one of `workers` that run,
of `long_workers` too if its question had more parts, or of `waiting` that wait; and its answer is unread until its
caller takes it. The first two and the last are `Room`s (`federation.transport.places`). A watch, once its question is
here, is one of `watchers` instead.

Promised: whoever finds no place is told so at once; a call that is given up while it waits is not begun; a worker
counts as busy until its method has really ended; where callers introduce themselves, strangers have half of the workers
and half of the places to wait, and no more.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass

from crypto.codec import MAX_MESSAGE_BYTES
from crypto.errors import PharoahError
from federation.protocol.services import BUG, Told, told
from federation.transport.places import Caller, NoPlace, NoTime
from federation.transport.question import PART_BYTES

logger = logging.getLogger(__name__)

Method = Callable[[bytes], bytes]
Awaited = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True)
class ServerLimits:
    """What one server bears. Each of these many places is described above; `standard` are of the standard services.

    A handshake, the first part of a question, and each further part have `begin_s`; a whole question has `receive_s`; a
    worker, and then whoever takes the answer, has `deadline_s`. A connection has `streams` calls at a time and ends
    when it was idle for `idle_s`, or `connection_age_s` old. It keeps room for a TLS record, so that small ones suit a
    server with many that are idle. An answer has `message_bytes` at most.
    """

    message_bytes: int = MAX_MESSAGE_BYTES
    silent: int = 256
    large: int = 8
    workers: int = 8
    long_workers: int = 1
    waiting: int = 24
    unread: int = 64
    standard: int = 16
    watchers: int = 10_000
    connections: int = 4096
    streams: int = 64
    begin_s: float = 5.0
    receive_s: float = 20.0
    deadline_s: float = 60.0
    idle_s: float = 60.0
    connection_age_s: float = 600.0
    stop_s: float = 10.0
    tls_record_bytes: int = 16_384


DEFAULT_LIMITS = ServerLimits()


def half(places: int) -> int:
    """What strangers may have of so many places: at least one."""
    return max(1, places // 2)


def answered(method: Method, request: bytes) -> bytes | Told:
    """What `method` answers or tells; a bug stays a bug, in this log, and its text must not reach a stranger."""
    try:
        return method(request)
    except PharoahError as error:
        return told(error)
    except Exception:
        logger.exception("no answer: a bug of this server")
        return BUG


async def awaited(method: Awaited, request: bytes) -> bytes | Told:
    """The same of a method that waits on the loop."""
    try:
        return await method(request)
    except PharoahError as error:
        return told(error)
    except Exception:
        logger.exception("no answer: a bug of this server")
        return BUG


class Gate:
    """Lets blocking methods into threads: `workers` at a time, while `waiting` more wait. Used on one loop."""

    def __init__(self, limits: ServerLimits, name: str) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.workers, thread_name_prefix=name)
        self._workers = asyncio.Semaphore(limits.workers)
        self._for_strangers = asyncio.Semaphore(half(limits.workers))
        self._for_long = asyncio.Semaphore(limits.long_workers)
        self._admitted = self._strangers = 0

    async def answer(
        self, method: Method, request: bytes, left_s: float = math.inf, *, is_stranger: bool = False
    ) -> bytes | Told:
        """What `method` answers, as `answered`; NoPlace or NoTime, and nothing was begun, where it cannot be asked."""
        turns = [self._workers]
        if len(request) > PART_BYTES:
            turns.insert(0, self._for_long)
        if is_stranger:
            turns.insert(0, self._for_strangers)
        self._admit(is_stranger=is_stranger)
        try:
            async with asyncio.timeout(min(self._limits.deadline_s, left_s)):
                await _acquire(turns)
        except TimeoutError as error:
            self._leave(is_stranger=is_stranger)
            raise NoTime("no worker was free in time") from error
        except asyncio.CancelledError:
            self._leave(is_stranger=is_stranger)
            raise
        run = copy_context().run  # a method may ask what its caller speaks
        running = asyncio.get_running_loop().run_in_executor(self._threads, run, answered, method, request)
        running.add_done_callback(lambda _: self._ended(turns, is_stranger=is_stranger))
        return await asyncio.shield(running)  # a caller who goes away frees no thread

    def close(self) -> None:
        """Returns when the last method has ended. Not for the loop's own thread."""
        self._threads.shutdown()

    def _admit(self, *, is_stranger: bool) -> None:
        most = self._limits.workers + self._limits.waiting
        if self._admitted >= most or (is_stranger and self._strangers >= half(most)):
            logger.warning("turned away: %d calls run or wait, %d of strangers", self._admitted, self._strangers)
            raise NoPlace("all workers are busy and the queue is full")
        self._admitted += 1
        self._strangers += is_stranger

    def _leave(self, *, is_stranger: bool) -> None:
        self._admitted -= 1
        self._strangers -= is_stranger

    def _ended(self, turns: Sequence[asyncio.Semaphore], *, is_stranger: bool) -> None:
        self._leave(is_stranger=is_stranger)
        for turn in turns:
            turn.release()


async def _acquire(turns: Sequence[asyncio.Semaphore]) -> None:
    """Each in its order, all of them or none."""
    taken: list[asyncio.Semaphore] = []
    try:
        for turn in turns:
            await turn.acquire()
            taken.append(turn)
    except asyncio.CancelledError:
        for turn in taken:
            turn.release()
        raise


class Watchers:
    """Counts those who watch. Used on one loop."""

    def __init__(self, limits: ServerLimits) -> None:
        self._most = limits.watchers
        self._callers: dict[asyncio.Task[object] | None, Caller] = {}
        self.is_closing = False

    def begin(self, caller: Caller) -> None:
        """A place for a watch, which the current task serves; NoPlace if all are taken."""
        if len(self._callers) >= self._most:
            raise NoPlace("the limit of open streams is reached")
        self._callers[asyncio.current_task()] = caller

    def end(self) -> None:
        """Gives the place of the current task back."""
        self._callers.pop(asyncio.current_task(), None)

    def close(self) -> None:
        """Cancels every watch. One in the middle of a message ends after it: gRPC cannot say two things."""
        self.is_closing = True
        for task, caller in self._callers.items():
            if task is not None and not caller.is_being_told:
                task.cancel()
