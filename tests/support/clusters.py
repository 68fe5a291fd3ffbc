"""A small cluster for tests of the collectives: what each rank records, as the dumps that the analysis reads."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenant_client.doctor.diagnosis.collectives import CollectiveFindings, analyse
from tenant_client.doctor.sources.flight_recorder import CollectiveState, Dump, Group, Operation, Records

S, R, C = CollectiveState.SCHEDULED, CollectiveState.STARTED, CollectiveState.COMPLETED


def call(
    kind: str = "all_reduce", into: int = 8, out: int | None = None, *, types: str = "Float", ends: Any = None
) -> Operation:
    return Operation("nccl", kind, ends, ((into,),), ((into if out is None else out,),), (types,), (types,))


@dataclass
class Rank:
    """What one rank records, in its order; ids and times follow from the place in the list."""

    rank: int
    rows: list[tuple[Group, int, Operation, CollectiveState]] = field(default_factory=list)
    first_id: int = 0
    late_s: float = 0.0
    status: dict[Group, tuple[int, int]] = field(default_factory=dict)
    knows: tuple[Group, ...] = ()

    def add(self, group: Group, seq: int, operation: Operation, state: CollectiveState = C) -> "Rank":
        self.rows.append((group, seq, operation, state))
        return self

    def dump(self) -> Dump:
        groups = list(dict.fromkeys([*self.knows, *(row[0] for row in self.rows)]))
        operations = list(dict.fromkeys(row[2] for row in self.rows))
        count = len(self.rows)

        def column(values: Iterable[int], kind: Any) -> Any:
            return np.array(list(values), kind)

        records = Records(
            np.arange(self.first_id, self.first_id + count),
            column((groups.index(row[0]) for row in self.rows), np.int32),
            column((row[1] for row in self.rows), np.int64),
            column((operations.index(row[2]) for row in self.rows), np.int32),
            np.ones(count, np.int32),
            column((row[3] for row in self.rows), np.int8),
            column((row[2].peers is not None for row in self.rows), np.bool_),
            column((int(1e18 + (self.late_s + at) * 1e9) for at in range(count)), np.int64),
        )
        status = {groups.index(group): told for group, told in self.status.items()}
        numbers = tuple(range(len(groups)))
        tables = tuple(groups), tuple(operations), ("", "train.py:9")
        return Dump(self.rank, f"dump_{self.rank}", *tables, records, status, numbers)


def world(size: int) -> Group:
    return Group("0", "default_pg", tuple(range(size)))


def judged(ranks: Sequence[Rank]) -> CollectiveFindings:
    """The findings, which no order of the dumps changes."""
    dumps = [rank.dump() for rank in ranks]
    found = analyse(dumps)
    assert str(found.sentence)
    for seed in range(3):
        random.Random(seed).shuffle(dumps)
        assert analyse(dumps) == found
    return found


def cluster(size: int, calls: int, state: CollectiveState = C) -> list[Rank]:
    group = world(size)
    ranks = [Rank(rank, knows=(group,)) for rank in range(size)]
    for rank in ranks:
        for seq in range(1, calls + 1):
            rank.add(group, seq, call(), state)
    return ranks
