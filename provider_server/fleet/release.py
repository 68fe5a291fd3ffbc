"""A release: noisy life tables of one round, beside the provider's own exposure. Pure, and as it is kept.

A release never changes. Releases are of disjoint windows, with independent noise: counts, exposure and variances add.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.codec import Count, Many, Message, Record, decode, encode
from crypto.errors import DecodeError
from crypto.ids import TenantId
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.plan import Plan
from federation.protocol.subjects import Subject
from provider_server.fleet.exposure import Slices, counted_edges
from provider_server.fleet.leases import Lease


class Answered(Record, frozen=True):
    """A tenant whose contribution is part of a release, and the hour from which it counted."""

    tenant: TenantId
    start_hour: Count


@dataclass(frozen=True)
class Release:
    """Noisy life tables of one round, one per marginal of its plan and in its order.

    `smallest_group` is the size of the smallest group of the round, by which its noise was opened.
    """

    plan: Plan
    answered: tuple[Answered, ...]
    tables: tuple[LifeTable, ...]
    smallest_group: int

    @property
    def first_hour(self) -> int:
        """The first hour that any answer in it counts."""
        return min((answer.start_hour for answer in self.answered), default=self.plan.start_hour)

    def slices(self, leases: Sequence[Lease]) -> Slices:
        """The exposure, of these leases, that it counted, by lease and window."""
        return slices_of(self.plan, self.answered, leases)

    @property
    def contributors(self) -> int:
        """How many contributions were summed."""
        return len(self.answered)

    def counts(self, subject: Subject) -> bool:
        """Whether it has a table of an optional subject, under whose name it is."""
        return self.plan.counts(subject)

    def table(self, marginal: str) -> LifeTable:
        """The table called `marginal`; KeyError where the plan has none of that name."""
        for candidate, table in zip(self.plan.marginals, self.tables, strict=True):
            if candidate.name == marginal:
                return table
        raise KeyError(marginal)


def slices_of(plan: Plan, answered: Iterable[Answered], leases: Sequence[Lease]) -> Slices:
    """The exposure of those who answered a plan, by lease and window, each from the first hour that it counts."""
    since: dict[TenantId, float] = {answer.tenant: float(answer.start_hour) for answer in answered}
    return Slices.by_window(since, leases, counted_edges(plan), plan.band_edges_hours)


class StoredRelease(Message, frozen=True, tag="pharoah/release/5"):
    """A release as it is kept: float64 arrays, little-endian, all marginals one after the other."""

    plan: bytes
    answered: Many[Answered]
    events: bytes
    exposure_node_hours: bytes
    at_risk: bytes
    noise_variance: bytes
    smallest_group: Count


_COLUMNS = ("events", "exposure_node_hours", "at_risk", "noise_variance")


def to_bytes(made: Release) -> bytes:
    """The release for the store."""
    events, exposure, at_risk, variance = (
        b"".join(_packed(getattr(table, name)) for table in made.tables) for name in _COLUMNS
    )
    columns = events, exposure, at_risk, variance
    return encode(StoredRelease(encode(made.plan), made.answered, *columns, made.smallest_group))


def from_bytes(data: bytes) -> Release:
    """Inverse of `to_bytes`; DecodeError for anything else."""
    stored = decode(StoredRelease, data)
    plan = decode(Plan, stored.plan)
    columns = [_split(plan, _column(plan, getattr(stored, name))) for name in _COLUMNS]
    tables = [LifeTable(empty.dimensions, *arrays) for empty, *arrays in zip(plan.tables, *columns, strict=True)]
    return Release(plan, stored.answered, tuple(tables), stored.smallest_group)


def _packed(values: Floats) -> bytes:
    return values.astype("<f8").tobytes()


def _column(plan: Plan, column: bytes) -> Floats:
    if len(column) != 8 * plan.cells:
        raise DecodeError(f"a column of this release has {8 * plan.cells} bytes, here it has {len(column)}")
    return np.frombuffer(column, "<f8").astype(np.float64)


def _split(plan: Plan, values: NDArray[Any]) -> list[NDArray[Any]]:
    """One array per marginal, shaped like its table."""
    ends = np.cumsum([table.events.size for table in plan.tables])
    parts = np.split(values, ends[:-1])
    return [part.reshape(table.shape) for part, table in zip(parts, plan.tables, strict=True)]
