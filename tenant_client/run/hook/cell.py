"""Where one rank is at this moment: a page of memory that the rank writes and the observer reads.

The page is anonymous memory, sealed against shrinking, which the rank hands over through the observer's socket: writing
costs no system call, and neither a full disk nor a truncated file can turn a write into SIGBUS. A record that was read
while it was written shows two different times, and is not believed.

The time since the start of the rank is split over `PLACES` without overlap; each finished step leaves one record.

>>> cell = Cell(memoryview(bytearray(SIZE)), Who(3, 4, 4711, 4712, 0), now_ns=5)
>>> cell.enter(WAIT, now_ns=7)
>>> cell.step(1, now_ns=9)
>>> found = decode(cell.page)
>>> found.place, found.step, found.records[0].spent_ns[PLACES.index("wait")]
('wait', 1, 2)
"""

import struct
from dataclasses import dataclass
from typing import Any

PLACES = ("start", "outside", "backward", "wait", "loader", "checkpoint", "eval", "end")
START, OUTSIDE, BACKWARD, WAIT, LOADER, CHECKPOINT, EVAL, END = range(len(PLACES))

_MAGIC = b"pharoahC"
_WHO = struct.Struct("<8sIIIII")  # magic, rank, world size, process, thread, restart
_NOW = struct.Struct("<qqqqBxxxxxxxq")  # time, since, step, entries, place, the time again
_RECORD = struct.Struct(f"<qqq{len(PLACES)}qq")  # step, time, CPU time in backward, time in each place, the step again
_NOW_AT, _RECORDS_AT = 64, 128
RECORDS = 64
SIZE = _RECORDS_AT + RECORDS * _RECORD.size


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
    """One finished step: when it ended (monotonic clock), and what its time was spent on.

    `backward_cpu_ns` is what the training thread computed in backward; there, it waited for the rest.
    """

    step: int
    ended_ns: int
    backward_cpu_ns: int
    spent_ns: tuple[int, ...]


@dataclass(frozen=True)
class CellState:
    """What a cell says. `entries` counts changes of place: as long as it stays, the rank did nothing visible."""

    who: Who
    place: str
    since_ns: int
    step: int
    entries: int
    records: tuple[StepRecord, ...]


class Cell:
    """The writer's side; one thread only. `now_ns` is the monotonic clock, which all processes of a host share."""

    def __init__(self, page: Any, who: Who, now_ns: int) -> None:
        self.page = page
        self.place = START
        self._since_ns = now_ns
        self._step = 0
        self._entries = 0
        self._spent_ns = [0] * len(PLACES)
        self._backward_cpu_ns = 0
        _WHO.pack_into(page, 0, _MAGIC, who.rank, who.world, who.pid, who.thread, who.restart)
        self.enter(START, now_ns)

    def enter(self, place: int, now_ns: int) -> None:
        """Books the time since the last change and goes to `place`."""
        self._spent_ns[self.place] += now_ns - self._since_ns
        self.place, self._since_ns = place, now_ns
        self._entries += 1
        _NOW.pack_into(self.page, _NOW_AT, now_ns, now_ns, self._step, self._entries, place, now_ns)

    def computed_in_backward(self, cpu_ns: int) -> None:
        """Adds CPU time."""
        self._backward_cpu_ns += cpu_ns

    def step(self, step: int, now_ns: int) -> None:
        """A step has ended: one record, and the sums begin anew."""
        self.enter(self.place, now_ns)
        self._step = step
        at = _RECORDS_AT + step % RECORDS * _RECORD.size
        _RECORD.pack_into(self.page, at, step, now_ns, self._backward_cpu_ns, *self._spent_ns, step)
        self._spent_ns = [0] * len(PLACES)
        self._backward_cpu_ns = 0
        _NOW.pack_into(self.page, _NOW_AT, now_ns, now_ns, step, self._entries, self.place, now_ns)


def decode(page: Any) -> CellState | None:
    """What the page says; None while it is written, and for what is no cell."""
    magic, *who = _WHO.unpack_from(page, 0)
    now_ns, since_ns, step, entries, place, again_ns = _NOW.unpack_from(page, _NOW_AT)
    if magic != _MAGIC or now_ns != again_ns or place >= len(PLACES):
        return None
    records = map(_record, _RECORD.iter_unpack(page[_RECORDS_AT:SIZE]))
    return CellState(Who(*who), PLACES[place], since_ns, step, entries, tuple(sorted_by_step(records)))


def sorted_by_step(records: Any) -> list[StepRecord]:
    """The whole ones, in order."""
    return sorted((one for one in records if one is not None), key=lambda one: one.step)


def _record(values: tuple[int, ...]) -> StepRecord | None:
    step, ended_ns, cpu_ns, *spent_ns, again = values
    return StepRecord(step, ended_ns, cpu_ns, tuple(spent_ns)) if step == again and step > 0 else None
