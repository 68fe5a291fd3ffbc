"""The release of a round: the only step from an unmasked sum to numbers that a person or a model sees.

- A release combines the noisy counts of a round with the provider's own exposure, and states the noise variance.
- It is made once per round, from a sum of at least the cohort minimum, and never changes.
- In a series it holds the running total since the series began, for which the noise is correlated.
- One group of a round carries the earlier weeks. If that group is left out, the sum covers only its own week and is
  added to the earlier total.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import continual_counting
from crypto.codec import Count, Many, Message, Record, decode, encode
from crypto.continual_counting import WEIGHT_ONE
from crypto.errors import CohortTooSmall, DecodeError
from crypto.ids import TenantId
from crypto.masking import Words
from federation.protocol import life_table, noise
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.plan import Plan
from federation.protocol.subjects import Subject
from provider_server.fleet.exposure import Slices
from provider_server.fleet.leases import Lease


class Answered(Record, frozen=True):
    """A tenant whose contribution is part of a release, and the hour from which it counted."""

    tenant: TenantId
    start_hour: Count


class LateAnswer(Record, frozen=True):
    """A tenant whose contribution to an earlier round came late and counts in a release, and the hours it counted."""

    tenant: TenantId
    start_hour: Count
    end_hour: Count


@dataclass(frozen=True)
class Release:
    """Noisy life tables of one round, one per marginal of its plan and in its order.

    `observed` is the unmasked sum, shape (plan.cells,): in a series a weighted sum of its weeks, or of this week only,
    where the group that carries the others was left out (`carries` is False). `smallest_group` is the size of the
    smallest group of the round, by which its noise was opened.
    """

    plan: Plan
    answered: tuple[Answered, ...]
    tables: tuple[LifeTable, ...]
    observed: Floats
    smallest_group: int
    carries: bool = True
    late: tuple[LateAnswer, ...] = ()

    @property
    def first_hour(self) -> int:
        """The first hour that any answer in it counts."""
        starts = [answer.start_hour for answer in self.answered] + [late.start_hour for late in self.late]
        return min(starts, default=self.plan.start_hour)

    def slices(self, leases: Sequence[Lease]) -> Slices:
        """The exposure, of these leases, that it counted anew, by job-week."""
        spans: dict[int, dict[TenantId, float]] = {self.plan.end_hour: {}}
        for late in self.late:
            spans.setdefault(late.end_hour, {})[late.tenant] = float(late.start_hour)
        spans[self.plan.end_hour] |= {answer.tenant: float(answer.start_hour) for answer in self.answered}
        edges = self.plan.band_edges_hours
        return Slices.joined([Slices.by_week(since, leases, end, edges) for end, since in spans.items()])

    @property
    def fresh_variances(self) -> tuple[float, ...]:
        """Variance per cell, in counts², of the noise that this round opened; one per marginal."""
        return noise.noise_variances(self.plan, self.contributors, self.smallest_group)

    @property
    def contributors(self) -> int:
        """How many contributions were summed."""
        return len(self.answered)

    def counts(self, subject: Subject) -> bool:
        """Whether it has a table of an optional subject, under whose name it is."""
        return any(marginal.counts is subject for marginal in self.plan.marginals)

    def table(self, marginal: str) -> LifeTable:
        """The table called `marginal`; KeyError where the plan has none of that name."""
        for candidate, table in zip(self.plan.marginals, self.tables, strict=True):
            if candidate.name == marginal:
                return table
        raise KeyError(marginal)


def release(
    plan: Plan,
    noisy_sum: Words,
    answered: Sequence[Answered],
    exposure: tuple[LifeTable, ...],
    earlier: Sequence[Release] = (),
    *,
    smallest_group: int | None = None,
    carries: bool = True,
    late: Sequence[LateAnswer] = (),
) -> Release:
    """Makes the release. `noisy_sum` has shape (plan.cells,); `exposure` has the plan's tables, as `expose` fills them.

    `earlier` are the releases of the plan's series so far, oldest first; `carries` says whether their weeks are in the
    sum, `smallest_group` how small a group of the round was, if it had several. `late` are answers to earlier rounds
    whose counts are in the sum, and whose noise is not. Raises CohortTooSmall for fewer contributions than the plan's
    cohort minimum.
    """
    if len(answered) < plan.cohort_minimum:
        raise CohortTooSmall(f"round {plan.round_id}: a sum of {len(answered)} contributions is never released")
    observed = np.concatenate([values.reshape(-1) for values in noise.from_ring(plan, noisy_sum)])
    smallest = len(answered) if smallest_group is None else smallest_group
    weeks = [*((made.plan, made.observed) for made in earlier), (plan, observed)]
    fresh = [*(made.fresh_variances for made in earlier), noise.noise_variances(plan, len(answered), smallest)]
    openings = [life_table.embed(of.tables, plan.tables, seen) * WEIGHT_ONE for of, seen in weeks]
    carried = [*(made.carries for made in earlier), carries]
    total = continual_counting.running_total(openings, carried)
    births = _split(plan, life_table.births([of.tables for of, _ in weeks]))
    before = earlier[-1].tables if earlier else ()
    tables = []
    for number, (table, events) in enumerate(zip(exposure, _split(plan, total), strict=True)):
        variances = [WEIGHT_ONE**2 * week[number] for week in fresh]
        past = before[number].aligned(table.dimensions) if before else LifeTable.zeros(table.dimensions)
        tables.append(
            LifeTable(
                table.dimensions,
                events,
                past.exposure_node_hours + table.exposure_node_hours,
                past.at_risk + table.at_risk,
                continual_counting.running_variance(variances, births[number], carried),
            )
        )
    return Release(plan, tuple(answered), tuple(tables), observed, smallest, carries, tuple(late))


def newly_counted(
    plan: Plan, opened: Sequence[Floats], variances: Sequence[float], earlier: Sequence[Release]
) -> tuple[tuple[Floats, ...], tuple[float, ...]]:
    """The new week's counts of the group that carries earlier weeks, and their variances; `variances` is its own noise.

    Subtracts the earlier releases' counts of those weeks, with their noise.
    """
    before = [life_table.embed(made.plan.tables, plan.tables, made.observed) * WEIGHT_ONE for made in earlier]
    now = np.concatenate([values.reshape(-1) for values in opened]) * WEIGHT_ONE
    carried = [made.carries for made in earlier]
    alone = continual_counting.running_total([*before, now], [*carried, True]) - continual_counting.running_total(
        before, carried
    )
    steps = WEIGHT_ONE * (
        continual_counting.decoding((*carried, True))[:-1] - continual_counting.decoding(tuple(carried))
    )
    older = zip(*(made.fresh_variances for made in earlier), strict=True)
    grown = (own + float(np.dot(steps**2, before)) for own, before in zip(variances, older, strict=True))
    return tuple(_split(plan, alone)), tuple(grown)


class StoredRelease(Message, frozen=True, tag="pharoah/release/4"):
    """A release as it is kept: float64 arrays, little-endian, all marginals one after the other."""

    plan: bytes
    answered: Many[Answered]
    events: bytes
    exposure_node_hours: bytes
    at_risk: bytes
    noise_variance: bytes
    observed: bytes
    smallest_group: Count
    carries: bool
    late: Many[LateAnswer] = ()


_COLUMNS = ("events", "exposure_node_hours", "at_risk", "noise_variance")


def to_bytes(made: Release) -> bytes:
    """The release for the store."""
    events, exposure, at_risk, variance = (
        b"".join(_packed(getattr(table, name)) for table in made.tables) for name in _COLUMNS
    )
    observed, how = _packed(made.observed), (made.smallest_group, made.carries, made.late)
    return encode(StoredRelease(encode(made.plan), made.answered, events, exposure, at_risk, variance, observed, *how))


def from_bytes(data: bytes) -> Release:
    """Inverse of `to_bytes`; DecodeError for anything else."""
    stored = decode(StoredRelease, data)
    plan = decode(Plan, stored.plan)
    columns = [_split(plan, _column(plan, getattr(stored, name))) for name in _COLUMNS]
    tables = [LifeTable(empty.dimensions, *arrays) for empty, *arrays in zip(plan.tables, *columns, strict=True)]
    observed = _column(plan, stored.observed)
    how = stored.smallest_group, stored.carries, stored.late
    return Release(plan, stored.answered, tuple(tables), observed, *how)


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
