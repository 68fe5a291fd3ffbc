"""The one gate between a sum and anything that a person or a model sees.

A release joins the noisy counts of a round with the provider's own exposure and states the variance of the noise. It is
made once per round, from a sum of at least the cohort minimum, and never changes. Nothing else turns words of the ring
into numbers.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from crypto import noise
from crypto.codec import decode, encode
from crypto.errors import CohortTooSmall, DecodeError
from crypto.life_table import Floats, LifeTable
from crypto.masking import Words
from crypto.plan import Plan


@dataclass(frozen=True)
class Release:
    """Noisy life tables of one round, one per marginal of its plan and in its order."""

    plan: Plan
    contributors: int
    tables: tuple[LifeTable, ...]

    def table(self, marginal: str) -> LifeTable:
        """The table called `marginal`; KeyError where the plan has none of that name."""
        for candidate, table in zip(self.plan.marginals, self.tables, strict=True):
            if candidate.name == marginal:
                return table
        raise KeyError(marginal)


def release(plan: Plan, noisy_sum: Words, contributors: int, exposure: tuple[LifeTable, ...]) -> Release:
    """Opens the gate. `noisy_sum` has shape (plan.cells,); `exposure` holds the plan's tables as `expose` fills them.

    Raises CohortTooSmall for a sum of fewer contributions than the plan asks for.
    """
    if contributors < plan.cohort_minimum:
        raise CohortTooSmall(f"round {plan.round_id}: a sum of {contributors} contributions is never released")
    events = noise.from_ring(plan, noisy_sum)
    variances = noise.noise_variances(plan, contributors)
    tables = (
        replace(table, events=counts, noise_variance=np.full(table.shape, variance))
        for table, counts, variance in zip(exposure, events, variances, strict=True)
    )
    return Release(plan, contributors, tuple(tables))


@dataclass(frozen=True)
class StoredRelease:
    """A release as it is kept: float64 arrays, little-endian, all marginals one after the other."""

    LABEL: ClassVar[str] = "pharoah/release/1"
    plan: bytes
    contributors: int
    events: bytes
    exposure_node_hours: bytes
    at_risk: bytes


def to_bytes(made: Release) -> bytes:
    """The release for the store."""
    columns = [
        b"".join(getattr(table, name).astype("<f8").tobytes() for table in made.tables)
        for name in ("events", "exposure_node_hours", "at_risk")
    ]
    return encode(StoredRelease(encode(made.plan), made.contributors, *columns))


def from_bytes(data: bytes) -> Release:
    """Inverse of `to_bytes`; DecodeError for anything else."""
    stored = decode(StoredRelease, data)
    plan = decode(Plan, stored.plan)
    columns = (_split(plan, column) for column in (stored.events, stored.exposure_node_hours, stored.at_risk))
    variances = noise.noise_variances(plan, stored.contributors)
    tables = (
        LifeTable(empty.dimensions, events, exposure, at_risk, np.full(empty.shape, variance))
        for empty, events, exposure, at_risk, variance in zip(plan.tables, *columns, variances, strict=True)
    )
    return Release(plan, stored.contributors, tuple(tables))


def _split(plan: Plan, column: bytes) -> list[Floats]:
    if len(column) != 8 * plan.cells:
        raise DecodeError(f"a column of this release has {8 * plan.cells} bytes, here it has {len(column)}")
    values = np.frombuffer(column, "<f8").astype(np.float64)
    ends = np.cumsum([table.events.size for table in plan.tables])
    parts = np.split(values, ends[:-1])
    return [part.reshape(table.shape) for part, table in zip(parts, plan.tables, strict=True)]
