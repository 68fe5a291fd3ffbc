"""What a server bears, and who is let in: pure counting on one event loop, without any gRPC.

An open call has one of three places. From its first byte until it ends it is one of `calls`; a blocking method is
besides one of `workers` that run or of `waiting` that wait; and a watch, once its question is here, is one of
`watchers` and no longer one of `calls`, so that ten thousand who listen keep nobody from asking.

Promised: whoever finds no place is told so at once; a question that does not come in `receive_s` loses its place; a
call that is given up while it waits is not begun; a worker counts as busy until its method has really ended.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from crypto.codec import MAX_MESSAGE_BYTES
from crypto.errors import PharoahError
from crypto.services import BUG, Told, told

logger = logging.getLogger(__name__)

Method = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Limits:
    """What one server bears. `workers` run, `waiting` more wait, and `calls` are open, half-sent ones included.

    `watchers` listen besides. A question has `request_bytes` at most, an answer `message_bytes`.
    Each connection keeps room for a TLS record, so that small ones suit a server with many that are idle.
    """

    message_bytes: int = MAX_MESSAGE_BYTES
    request_bytes: int | None = None  # as `message_bytes`
    workers: int = 8
    waiting: int = 24
    calls: int = 64
    watchers: int = 10_000
    receive_s: float = 20.0
    deadline_s: float = 60.0
    connection_age_s: float = 600.0
    stop_s: float = 10.0
    tls_record_bytes: int = 16_384

    def __post_init__(self) -> None:
        if not 0 < self.workers + self.waiting < self.calls:
            raise ValueError("some calls must be left over for those who ask after the server's health")


DEFAULT_LIMITS = Limits()


class NoPlace(Exception):
    """Every place of a kind is taken."""


class NoTime(Exception):
    """No worker was free in time."""


def answered(method: Method, request: bytes) -> bytes | Told:
    """What `method` answers or tells; a bug stays a bug, in this log, and its text must not reach a stranger."""
    try:
        return method(request)
    except PharoahError as error:
        return told(error)
    except Exception:
        logger.exception("no answer: a bug of this server")
        return BUG


class Gate:
    """Lets blocking methods into threads: `workers` at a time, while `waiting` more wait. Used on one loop."""

    def __init__(self, limits: Limits, name: str) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.workers, thread_name_prefix=name)
        self._running = asyncio.Semaphore(limits.workers)
        self._admitted = 0

    async def answer(self, method: Method, request: bytes, left_s: float = math.inf) -> bytes | Told:
        """What `method` answers, as `answered`; NoPlace or NoTime, and nothing was begun, where it cannot be asked."""
        if self._admitted >= self._limits.workers + self._limits.waiting:
            logger.warning("turned away: %d calls run and %d wait", self._limits.workers, self._limits.waiting)
            raise NoPlace("all workers are busy and all places to wait are taken")
        self._admitted += 1
        try:
            async with asyncio.timeout(min(self._limits.deadline_s, left_s)):
                await self._running.acquire()
        except TimeoutError as error:
            self._admitted -= 1
            raise NoTime("no worker was free in time") from error
        except asyncio.CancelledError:
            self._admitted -= 1
            raise
        running = asyncio.get_running_loop().run_in_executor(self._threads, answered, method, request)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)  # a caller who goes away frees no thread

    def close(self) -> None:
        """Returns when the last method has ended. Not for the loop's own thread."""
        self._threads.shutdown()

    def _ended(self, _running: "asyncio.Future[bytes | Told]") -> None:
        self._admitted -= 1
        self._running.release()


class Entrance:
    """Counts those who are inside. Used on one loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls = 0
        self._watches: set[asyncio.Task[object] | None] = set()
        self.is_closing = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """A place for a call from its first byte on; NoPlace if all are taken."""
        if self._calls >= self._limits.calls:
            raise NoPlace("as many calls as this server bears are open")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def begin_watch(self) -> None:
        """A place for a watch, which the current task serves; NoPlace if all are taken."""
        if len(self._watches) >= self._limits.watchers:
            raise NoPlace("as many watch as this server bears")
        self._watches.add(asyncio.current_task())

    def end_watch(self) -> None:
        """Gives the place of the current task back."""
        self._watches.discard(asyncio.current_task())

    def close(self) -> None:
        """Cancels every watch."""
        self.is_closing = True
        for task in self._watches:
            if task is not None:
                task.cancel()
