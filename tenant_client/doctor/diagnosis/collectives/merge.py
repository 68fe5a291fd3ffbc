"""All dumps in one table, and what each rank is known to have called and completed.

Guarantees: one dump per rank (a second one is a SourceError), and the same table in whatever order they come. Calls
that one rank coalesced under one sequence number are one row. A rank's own status, which some writers let count
something else, is used only where all that is recorded agrees with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federation.base.reading import SourceError
from tenant_client.doctor.diagnosis.collectives.findings import Call, CollectiveVerdict, GroupFinding
from tenant_client.doctor.sources.flight_recorder import CollectiveState, Dump, Group, Operation, Positions

NO_STATUS = (-1, -1)
Rows = NDArray[np.int64]
_Tables = tuple[Positions, Positions, Positions]  # of groups, operations and source lines


class Job:
    """Columns with one row per record, by rank and then as recorded; group, operation and place are positions.

    `rows` are the collectives by group, sequence number and rank, one row each. The rest is by (group, rank): `top`
    the last sequence number, `pending` the last unfinished one, `status` the last enqueued and completed as told.
    """

    def __init__(self, dumps: Iterable[Dump]) -> None:
        self.dumps = _by_rank(dumps)
        tables = groups, operations, places = Positions(), Positions(), Positions()
        parts = [_columns(dump, tables) for dump in self.dumps.values()]
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)] or [np.empty(0, np.int64)] * 9
        self.rank, self.record, self.group, self.seq, self.operation, self.place, self.state, self.p2p, self.ns = (
            columns
        )
        self.rows = self._one_per_call(operations)
        self.groups, self.operations, self.places = list[Group](groups), list[Operation](operations), list[str](places)
        self.starts = np.searchsorted(self.group[self.rows], np.arange(len(groups) + 1))
        self.members = self._members()
        self.no_dump = tuple(sorted({rank for ranks in self.members for rank in ranks} - self.dumps.keys()))
        self.top = self._last_seq(self.rows)
        self.pending = self._last_seq(self.rows[self.state[self.rows] != CollectiveState.COMPLETED])
        self.status = self._trusted_status(_numbers(self.dumps.values(), groups))

    def _one_per_call(self, operations: Positions) -> Rows:
        """The collectives; coalesced ones become one row, whose operation is all of theirs."""
        known = list[Operation](operations)
        rows = np.flatnonzero(self.p2p == 0)
        rows = rows[np.lexsort((self.record[rows], self.rank[rows], self.seq[rows], self.group[rows]))]
        begins = np.flatnonzero(_changes(self.group[rows], self.seq[rows], self.rank[rows]))
        counts = np.diff(begins, append=len(rows))
        for begin, count in zip(begins[counts > 1], counts[counts > 1], strict=True):
            same = rows[begin : begin + count]
            self.operation[same[0]] = operations[_coalesced([known[one] for one in self.operation[same]])]
            self.state[same[0]] = self.state[same].min()
        return rows[begins]

    def _members(self) -> list[tuple[int, ...]]:
        """The ranks of each group; where no dump says, those that recorded something in it."""
        seen: dict[int, set[int]] = defaultdict(set)
        for group, rank in self._last_seq(np.arange(len(self.rank))):
            seen[group].add(rank)
        return [tuple(sorted(seen[at])) if one.ranks is None else one.ranks for at, one in enumerate(self.groups)]

    def _last_seq(self, rows: Rows) -> dict[tuple[int, int], int]:
        """The largest sequence number among `rows` by group and rank."""
        rows = rows[np.lexsort((self.seq[rows], self.rank[rows], self.group[rows]))]
        pairs = zip(self.group[rows].tolist(), self.rank[rows].tolist(), strict=True)
        return dict(zip(pairs, self.seq[rows].tolist(), strict=True))  # the last one stays

    def _trusted_status(self, numbers: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], tuple[int, int]]:
        """What the ranks tell of the groups where this agrees with all that is recorded.

        Elsewhere it counts something else: sends and receives too, or Gloo's operations.
        """
        mixed = set(self.group[self.p2p != 0].tolist())
        trusted: dict[tuple[int, int], tuple[int, int]] = {}
        for group in range(len(self.groups)):
            told = self._told(group, numbers)
            recorded = [key for key in told if key in self.top]
            if group not in mixed and all(told[key][0] == self.top[key] for key in recorded):
                trusted |= {key: status for key, status in told.items() if status != NO_STATUS}
        return trusted

    def _told(self, group: int, numbers: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], tuple[int, int]]:
        """A group's number is local to a rank; one that records nothing in it is taken to use its peers' if equal."""
        keys = [(group, rank) for rank in self.members[group] if rank in self.dumps]
        used = {numbers.get(key, -1) for key in keys if key in self.top}
        shared = used.pop() if len(used) == 1 else -1
        own = {key: numbers.get(key, -1) for key in keys}
        return {
            key: self.dumps[key[1]].status.get(shared if number == -1 else number, NO_STATUS)
            for key, number in own.items()
        }

    def rows_of(self, group: int) -> Rows:
        """The collectives of one group."""
        return self.rows[self.starts[group] : self.starts[group + 1]]

    def last_row(self, rank: int) -> int | None:
        """What the rank recorded last."""
        end = int(np.searchsorted(self.rank, rank, side="right"))
        return end - 1 if end and self.rank[end - 1] == rank else None

    def call(self, row: int) -> Call:
        """A record, for a person."""
        operation, peers = self.operations[self.operation[row]], self.peers(row)
        return Call(
            f"{operation.kind} {peers[0]} -> {peers[1]}" if peers else operation.kind,
            self.groups[self.group[row]],
            int(self.seq[row]),
            CollectiveState(int(self.state[row])).name.lower(),
            self.places[self.place[row]],
            float(self.ns[row]) / 1e9,
        )

    def peers(self, row: int) -> tuple[int, int] | None:
        """The ranks between which a record sends or receives, None where it does not or they are not known."""
        ends, members = self.operations[self.operation[row]].peers, self.members[self.group[row]]
        return (members[ends[0]], members[ends[1]]) if ends and max(ends) < len(members) else None

    def file(self, row: int) -> str:
        """The dump that the record is from."""
        return self.dumps[int(self.rank[row])].file

    def finding(
        self, verdict: CollectiveVerdict, row: int, ranks: Iterable[int], reason: str, *, excusable: bool = False
    ) -> GroupFinding:
        """`verdict` on `ranks` at a record, with the others whose own call there or later is unfinished."""
        group, seq, named = int(self.group[row]), int(self.seq[row]), set(ranks)
        pending = [rank for rank in self.members[group] if self.pending.get((group, rank), -1) >= seq]
        waiting = tuple(rank for rank in pending if rank not in named)
        return GroupFinding(verdict, self.call(row), self.file(row), tuple(sorted(named)), waiting, reason, excusable)


def _by_rank(dumps: Iterable[Dump]) -> dict[int, Dump]:
    ordered: dict[int, Dump] = {}
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        if dump.rank in ordered:
            raise SourceError(dump.file, "rank", f"a second dump of rank {dump.rank}")
        ordered[dump.rank] = dump
    return ordered


def _columns(dump: Dump, tables: _Tables) -> tuple[Rows, ...]:
    """One dump's records, with the positions of all dumps' tables in place of its own."""
    groups, operations, places = (
        np.array([table[value] for value in values], np.int64)
        for table, values in zip(tables, (dump.groups, dump.operations, dump.places), strict=True)
    )
    records = dump.records
    return (
        np.full(len(records.seq), dump.rank),
        records.record_id,
        groups[records.group],
        records.seq,
        operations[records.operation],
        places[records.place],
        records.state.astype(np.int64),
        records.p2p.astype(np.int64),
        records.created_ns,
    )


def _numbers(dumps: Iterable[Dump], groups: Positions) -> dict[tuple[int, int], int]:
    """What each rank calls a group, by group and rank."""
    return {
        (groups[group], dump.rank): number
        for dump in dumps
        for group, number in zip(dump.groups, dump.numbers, strict=True)
    }


def _changes(*keys: Rows) -> NDArray[np.bool_]:
    """Whether a row differs from the one before; the first one does."""
    differs = np.ones(len(keys[0]), bool)
    differs[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return differs


def _coalesced(parts: Sequence[Operation]) -> Operation:
    def joined(name: str) -> tuple[Any, ...]:
        return tuple(item for part in parts for item in getattr(part, name))

    kinds = "+".join(dict.fromkeys(part.kind for part in parts if part.kind != "coalesced"))
    fields = ("input_sizes", "output_sizes", "input_types", "output_types")
    return Operation(parts[0].backend, f"coalesced {kinds}".rstrip(), None, *map(joined, fields))
