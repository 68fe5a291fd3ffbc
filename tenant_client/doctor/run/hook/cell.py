"""Where one rank is at this moment: a page of memory that the rank writes and the observer reads.

The page is anonymous memory, sealed against shrinking, which the rank hands over through the observer's socket: writing
costs no system call, and neither a full disk nor a truncated file can turn a write into SIGBUS. A record that was read
while it was written shows two different times, and is not believed.

Two threads write: the one that looks writes where the rank is, the one that trains a record of each stretch of steps.
Their parts do not overlap. One byte is the observer's: what it asks, until the rank takes it; the answer
comes behind (`answers`).

>>> cell = Cell(memoryview(bytearray(SIZE)), Who(3, 4, 4711, 4712, 0), now_ns=5)
>>> cell.move(WAIT, step=1, now_ns=7)
>>> cell.record(StepRecord(1, 9, 2, 0, 1))
>>> found = decode(cell.page)
>>> found.place, found.step, found.records[0].waited_ns
('wait', 1, 2)
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

PLACES = ("start", "outside", "backward", "wait", "loader", "checkpoint", "eval", "end")
START, OUTSIDE, BACKWARD, WAIT, LOADER, CHECKPOINT, EVAL, END = range(len(PLACES))

_MAGIC = b"pharoahC"
_WHO = struct.Struct("<8sIIIII")  # magic, rank, world size, process, thread, restart
_NOW = struct.Struct("<qqqBxxxxxxxq")  # since, step, entries, place, since again
_RECORD = struct.Struct("<qqqqqq")  # step, time, waited, aside, looks, the step again
_NOW_AT, _RECORDS_AT = 64, 128
RECORDS = 64
MOST_BYTES = 64 << 20  # of an answer
ASKED_AT = _RECORDS_AT + RECORDS * _RECORD.size
_ANSWER_AT, _ANSWER = ASKED_AT + 8, struct.Struct("<II")  # question, length
SIZE = 1 << 20


@dataclass(frozen=True)
class Who:
    """The process behind a cell; `thread` is the one that trains."""

    rank: int
    world: int
    pid: int
    thread: int
    restart: int


@dataclass(frozen=True)
class StepRecord:
    """When a step ended (monotonic clock), and how long the rank had waited for others and been aside by then.

    Both are sums since the rank began, estimated from so many `looks`; aside are checkpoints and evaluations.
    """

    step: int
    ended_ns: int
    waited_ns: int
    aside_ns: int
    looks: int


@dataclass(frozen=True)
class CellState:
    """What a cell says. `entries` counts movements: as long as it stays, the rank did nothing visible."""

    who: Who
    place: str
    since_ns: int
    step: int
    entries: int
    records: tuple[StepRecord, ...]


class Cell:
    """The writer's side. `now_ns` is the monotonic clock, which all processes of a host share."""

    def __init__(self, page: Any, who: Who, now_ns: int) -> None:
        self.page = page
        self._entries = 0
        self._records = 0
        _WHO.pack_into(page, 0, _MAGIC, who.rank, who.world, who.pid, who.thread, who.restart)
        self.move(START, 0, now_ns)

    def move(self, place: int, step: int, now_ns: int) -> None:
        """The rank is at `place` now, or moved there."""
        self._entries += 1
        _NOW.pack_into(self.page, _NOW_AT, now_ns, step, self._entries, place, now_ns)

    def record(self, record: StepRecord) -> None:
        """One more record, in the place of the oldest."""
        at = _RECORDS_AT + self._records % RECORDS * _RECORD.size
        self._records += 1
        sums = record.waited_ns, record.aside_ns, record.looks
        _RECORD.pack_into(self.page, at, record.step, record.ended_ns, *sums, record.step)

    def take_asked(self) -> bytes:
        """The byte that the observer has put there since the last call; a zero if it has not."""
        asked, self.page[ASKED_AT] = self.page[ASKED_AT], 0
        return bytes([asked])

    def answer(self, asked: bytes, answer: bytes) -> None:
        """Leaves the answer there for the observer, if there is room."""
        begin = _ANSWER_AT + _ANSWER.size
        data = zlib.compress(answer, 1)
        if begin + len(data) <= SIZE:
            self.page[begin : begin + len(data)] = data
            _ANSWER.pack_into(self.page, _ANSWER_AT, asked[0], len(data))

    @property
    def is_void(self) -> bool:
        """Whether nobody writes any more."""
        return not self.page[0]

    def void(self) -> None:
        """Nobody writes any more: this is no cell."""
        self.page[: len(_MAGIC)] = bytes(len(_MAGIC))


def ask(page: Any, what: bytes) -> None:
    """Asks the rank, and forgets what it has answered."""
    _ANSWER.pack_into(page, _ANSWER_AT, 0, 0)
    page[ASKED_AT] = what[0]


def answer_to(page: Any, what: bytes) -> bytes | None:
    """What the rank has answered, None before it has."""
    asked, length = _ANSWER.unpack_from(page, _ANSWER_AT)
    begin = _ANSWER_AT + _ANSWER.size
    if asked != what[0] or begin + length > SIZE:
        return None
    try:
        return zlib.decompressobj().decompress(page[begin : begin + length], MOST_BYTES)
    except zlib.error:  # while it is written
        return None


def decode(page: Any) -> CellState | None:
    """What the page says; None while it is written, and for what is no cell."""
    magic, *who = _WHO.unpack_from(page, 0)
    since_ns, step, entries, place, again_ns = _NOW.unpack_from(page, _NOW_AT)
    if magic != _MAGIC or since_ns != again_ns or place >= len(PLACES):
        return None
    records = map(_record, _RECORD.iter_unpack(page[_RECORDS_AT:ASKED_AT]))
    whole = (one for one in records if one is not None)
    return CellState(Who(*who), PLACES[place], since_ns, step, entries, tuple(sorted(whole, key=_step_of)))


def _record(values: tuple[int, ...]) -> StepRecord | None:
    step, ended_ns, waited_ns, aside_ns, looks, again = values
    return StepRecord(step, ended_ns, waited_ns, aside_ns, looks) if step == again and step > 0 else None


def _step_of(record: StepRecord) -> int:
    return record.step
