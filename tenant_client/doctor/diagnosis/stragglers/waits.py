"""Which rank do the others wait for in collectives, and do transfers take longer? From logs of NCCL's Inspector.

The kernel of a collective runs on a rank from when the rank comes until all have come and the data is there. Of ranks
that wait for each other the slow one waits least (C4D, HPCA 2025), and its time is what the transfer takes. So in each
communicator, over the collectives that all its ranks logged, cut into five parts one after the other:

- a **slow rank**: its peers' median time exceeds its own by `OWN` of theirs in four of the parts, and by `LEAST_US` in
  each collective on average. Not named if it waits in another communicator for one that is slow there;
- a **slow transfer**: the least time of all ranks is `LONGER` times that of collectives of the same kind and size in
  the first half, in most of the last quarter.

Only collectives in which all ranks end together are compared (no broadcast or reduction to one rank). Times are
differences on one clock each, so the clocks of hosts need not agree. A transfer that was slow from the start is not
seen, nor is one that never ended: Inspector logs what completed.

>>> [one.tolist() for one in _of_others(np.array([[1.0, 5.0, 9.0]]))]
[[7.0, 5.0, 3.0]]
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tenant_client.doctor.sources.flight_recorder import Positions
from tenant_client.doctor.sources.nccl_inspector import Collective, Record

OWN, LEAST_US = 0.3, 500.0
LONGER, LONGER_US = 1.5, 100.0
_SYMMETRIC = ("AllReduce", "AllGather", "ReduceScatter")
_PARTS, _SLOW_PARTS = 5, 4
_LEAST, _BEFORE, _LATE = 20, 10, 5
_MOST = 0.7
Floats = NDArray[np.float64]
Process = tuple[str, int]


class WaitCause(StrEnum):
    """What the collectives' times show."""

    NONE = "none"
    RANK = "rank"
    TRANSFER = "transfer"
    UNDECIDED = "undecided"  # too few collectives that all ranks logged


@dataclass(frozen=True)
class SlowRank:
    """A rank of a communicator for whom the others wait: `lost_us` in each collective, `share` of what they spend."""

    communicator: str
    rank: int
    host: str
    pid: int
    lost_us: float
    share: float


@dataclass(frozen=True)
class SlowTransfer:
    """A communicator whose collectives take longer than they did, on every rank; medians of the least times."""

    communicator: str
    before_us: float
    now_us: float
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Waits:
    """What was found in how many communicators and collectives; `left_out` are those that some rank did not log."""

    cause: WaitCause
    sentence: str
    slow_ranks: tuple[SlowRank, ...]
    slow_transfers: tuple[SlowTransfer, ...]
    communicators: int
    collectives: int
    left_out: int


def waits(records: Iterable[Record]) -> Waits:
    """Compares the ranks' times, whatever order the logs come in."""
    logged: dict[tuple[str, int], Log] = {}
    for record in records:
        if record.coll_perf is not None and record.coll_perf.coll in _SYMMETRIC:
            name = record.header.id, record.header.n_ranks
            logged.setdefault(name, Log(*name)).add(record, record.coll_perf)
    tables = [table for log in logged.values() if len((table := log.table()).times_us) >= _LEAST]
    slow = _begin([(table, _slow_ranks(table)) for table in tables])
    transfers = [one for table in tables for one in _slow_transfer(table)]
    compared = sum(len(table.times_us) for table in tables)
    cause = WaitCause.UNDECIDED if not tables else WaitCause.NONE
    cause = WaitCause.RANK if slow else WaitCause.TRANSFER if transfers else cause
    left_out = sum(log.collectives for log in logged.values()) - compared
    return Waits(
        cause, _sentence(cause, slow, transfers), tuple(slow), tuple(transfers), len(tables), compared, left_out
    )


@dataclass(frozen=True)
class Table:
    """The collectives of a communicator that all ranks logged, in order: time on each rank, and what each one is."""

    name: str
    times_us: Floats
    alike: NDArray[np.int64]  # equal for the same kind and size
    processes: tuple[Process, ...]


class Log:
    """The records of one communicator, as they come."""

    def __init__(self, name: str, n_ranks: int) -> None:
        self.name = name
        self._n_ranks = n_ranks
        self._calls, self._kinds = Positions(), Positions()
        self._columns = array("q")
        self._alike = array("q")
        self._processes: dict[int, Process] = {}

    @property
    def collectives(self) -> int:
        """How many different ones some rank logged."""
        return len(self._calls)

    def add(self, record: Record, one: Collective) -> None:
        """Take the record of one collective."""
        rank = record.header.rank
        call = self._calls[one.coll, one.coll_sn]
        if call == len(self._alike):
            self._alike.append(self._kinds[one.coll, one.coll_msg_size_bytes])
        self._columns.extend((call, rank, one.coll_exec_time_us))
        self._processes.setdefault(rank, (record.metadata.hostname, record.metadata.pid))

    def table(self) -> Table:
        """The collectives that every rank logged; of a rank that logged one twice the later time."""
        call, rank, time_us = np.array(self._columns, np.int64).reshape(-1, 3)[::-1].T
        cell, first = np.unique(call * self._n_ranks + rank, return_index=True)
        whole = np.bincount(cell // self._n_ranks) == self._n_ranks  # never a cell that nobody logged
        if self._n_ranks < 2 or not whole.any():
            return Table(self.name, np.empty((0, 0)), np.empty(0, np.int64), ())
        times_us = time_us[first][whole[cell // self._n_ranks]].reshape(-1, self._n_ranks).astype(np.float64)
        processes = tuple(self._processes[one] for one in range(self._n_ranks))
        return Table(self.name, times_us, np.array(self._alike, np.int64)[whole], processes)


def _slow_ranks(table: Table) -> list[SlowRank]:
    others_us = _of_others(table.times_us)
    parts = np.array_split(np.arange(len(others_us)), _PARTS)
    lost_us = others_us - table.times_us
    shares = np.array([lost_us[part].sum(axis=0) / np.maximum(others_us[part].sum(axis=0), 1.0) for part in parts])
    slow = ((shares >= OWN).sum(axis=0) >= _SLOW_PARTS) & (lost_us.mean(axis=0) >= LEAST_US)
    share = lost_us.sum(axis=0) / np.maximum(others_us.sum(axis=0), 1.0)
    if 2 * slow.sum() > len(slow):
        return []
    return [
        SlowRank(table.name, rank, *table.processes[rank], float(lost_us[:, rank].mean()), float(share[rank]))
        for rank in np.flatnonzero(slow).tolist()
    ]


def _of_others(times_us: Floats) -> Floats:
    """For each rank the median of all others, a row at a time."""
    ordered, last = np.sort(times_us, axis=1), times_us.shape[1] - 1
    position = np.argsort(np.argsort(times_us, axis=1, kind="stable"), axis=1, kind="stable")

    def other(at: int) -> Floats:
        return np.where(position > at, ordered[:, [at]], ordered[:, [at + 1]])

    found: Floats = (other((last - 1) // 2) + other(last // 2)) / 2
    return found


def _slow_transfer(table: Table) -> Iterator[SlowTransfer]:
    least_us = table.times_us.min(axis=1)
    half, late = len(least_us) // 2, 3 * len(least_us) // 4
    usual_us = {
        kind: float(np.median(least_us[:half][table.alike[:half] == kind]))
        for kind, count in zip(*np.unique(table.alike[:half], return_counts=True), strict=True)
        if count >= _BEFORE
    }
    pairs = [
        (usual_us[kind], now) for kind, now in zip(table.alike[late:], least_us[late:], strict=True) if kind in usual_us
    ]
    longer = [now >= LONGER * before and now - before >= LONGER_US for before, now in pairs]
    if len(pairs) >= _LATE and sum(longer) >= _MOST * len(pairs):
        before_us, now_us = np.median(np.array(pairs), axis=0).tolist()
        yield SlowTransfer(table.name, before_us, now_us, tuple(sorted({host for host, _ in table.processes})))


def _begin(found: Sequence[tuple[Table, list[SlowRank]]]) -> list[SlowRank]:
    """Those that wait for no slow rank elsewhere; all of them if each does. The most lost time first."""
    waiting: dict[Process, set[str]] = defaultdict(set)
    for table, slow in found:
        if slow:
            for process in set(table.processes) - {(one.host, one.pid) for one in slow}:
                waiting[process].add(table.name)
    named = [one for _, slow in found for one in slow]
    first = [one for one in named if not waiting.get((one.host, one.pid))]
    return sorted(first or named, key=lambda one: -one.lost_us)


def _sentence(cause: WaitCause, slow: Sequence[SlowRank], transfers: Sequence[SlowTransfer]) -> str:
    if cause is WaitCause.RANK:
        one = slow[0]
        who = f"rank {one.rank} of communicator {one.communicator} (process {one.pid} on {one.host})"
        return f"{who} is slow: the others wait {one.lost_us / 1e3:.1f} ms for it in each collective"
    if cause is WaitCause.TRANSFER:
        worst = max(transfers, key=lambda one: one.now_us / max(one.before_us, 1.0))
        took = f"{worst.now_us / 1e3:.1f} ms on every rank, before {worst.before_us / 1e3:.1f} ms"
        return f"communication is slow: collectives of communicator {worst.communicator} take {took}"
    if cause is WaitCause.UNDECIDED:
        return f"undecided: no communicator has {_LEAST} collectives that all its ranks logged"
    return "no rank and no transfer is slow"
