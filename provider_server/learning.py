"""What the releases say together: mismatches and hazards, from noisy counts and the provider's own exposure.

Releases add up cell by cell, and so do the variances of their noise; of a series the last release stands for all. A
job-week counts at most F failures, so the exposure behind the counts is corrected for the cap (`analysis.effective`):
the rates are fitted, the exposure is scaled by what the rates say, and the rates are fitted again.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from crypto.causes import Domain
from crypto.ids import RoundId
from crypto.life_table import Floats, LifeTable
from crypto.messages import finest_row
from provider_server.analysis.effective import cap_factor
from provider_server.analysis.hazard import Cells, Model, fit_hazard, predict
from provider_server.analysis.mismatch import Mismatches, find_mismatches
from provider_server.leases import Lease, Slices, expose_table
from provider_server.release import Release

CORRECTIONS = 2
CONTEXT_SD = 1.0  # of the log hazard between contexts and build-up levels, and between bands: factors, not decades


@dataclass(frozen=True)
class PairFinding:
    """A workload row on a context, both as tokens; see `analysis.mismatch`."""

    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float
    expected_failures: float


@dataclass(frozen=True)
class RateFinding:
    """Infrastructure failures per node-hour of a context at a build-up level in an age band, with its 95% interval."""

    context_level: str
    band: str
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Findings:
    """Everything learnt from a set of releases."""

    pairs: tuple[PairFinding, ...]
    rates: tuple[RateFinding, ...]


def learn(releases: Sequence[Release], leases: Sequence[Lease]) -> Findings:
    """Findings from all `releases` so far; `leases` are those of their windows."""
    last = {made.plan.series.name: made.plan.round_id for made in releases if made.plan.series}
    weeks = [_Week.of(made, leases, is_last=_is_last(made, last)) for made in releases]
    risks = [np.ones(len(week.slices.leases)) for week in weeks]
    hazards = _fit_hazards(weeks, risks, None)
    pairs = _fit_pairs(weeks, risks, hazards)
    for _ in range(CORRECTIONS):
        risks = [pairs.risk(week) for week in weeks]
        hazards = _fit_hazards(weeks, risks, hazards)
        pairs = _fit_pairs(weeks, risks, hazards)
    return Findings(pairs.findings(), hazards.findings())


def _is_last(made: Release, last: Mapping[RoundId, RoundId]) -> bool:
    """Whether a release holds counts that no later one holds too: in a series the last has the running total."""
    return made.plan.series is None or last[made.plan.series.name] == made.plan.round_id


@dataclass(frozen=True)
class _Week:
    """A release beside the exposure of what it newly counts, lease by lease."""

    release: Release
    slices: Slices
    is_last: bool

    @classmethod
    def of(cls, made: Release, leases: Sequence[Lease], *, is_last: bool) -> "_Week":
        plan = made.plan
        start_hours = {answer.tenant: float(answer.start_hour) for answer in made.answered}
        return cls(made, Slices.since(start_hours, leases, plan.end_hour, plan.band_edges_hours), is_last)

    def table(self, marginal: str, weight: Floats) -> LifeTable:
        """The released counts over exposure that is scaled by `weight`, which is broadcast to (leases, bands)."""
        released = self.release.table(marginal)
        if not self.is_last:
            released = LifeTable.zeros(released.dimensions)
        return expose_table(released, self.slices, self.slices.node_hours * weight)

    def cap(self, expected: Floats) -> Floats:
        """By how much the cap shrinks the counts of each lease, given its `expected` failures; shape (leases, 1)."""
        return cap_factor(expected, self.release.plan.failures_per_unit)[:, None]


@dataclass(frozen=True, eq=False)
class _Hazards:
    """Infrastructure failures per node-hour, (3, context levels, bands): lower 95% bound, rate, upper bound."""

    levels: tuple[str, ...]
    bands: tuple[str, ...]
    rates: Floats

    def per_lease(self, week: _Week) -> Floats:
        """The rates that each lease was under, shape (leases, bands); average ones where its context has no row."""
        places = {level: place for place, level in enumerate(self.levels)}
        rows = [places.get(lease.labels["context_level"], len(places)) for lease in week.slices.leases]
        middle = self.rates[1]
        return np.vstack([middle, middle.mean(axis=0)])[np.array(rows, np.intp)]

    def findings(self) -> tuple[RateFinding, ...]:
        low, middle, high = self.rates
        return tuple(
            RateFinding(self.levels[c], self.bands[b], float(middle[c, b]), float(low[c, b]), float(high[c, b]))
            for c, b in np.argwhere(middle > 0)
        )


def _fit_hazards(weeks: Sequence[_Week], risks: Sequence[Floats], before: _Hazards | None) -> _Hazards:
    """Hazards of contexts and build-up levels by age, corrected for the cap as far as `before` and `risks` know."""
    counted = _sum(_hazard_table(week, risk, before) for week, risk in zip(weeks, risks, strict=True))
    infrastructure = counted.at("domain", Domain.INFRASTRUCTURE)
    return _Hazards(infrastructure.levels("context_level"), infrastructure.levels("band"), _fit_rates(infrastructure))


def _hazard_table(week: _Week, risk: Floats, before: _Hazards | None) -> LifeTable:
    """One week's hazard table. A lease of high risk is capped most, so the correction is weighted by risk."""
    plain = week.table("hazard", np.ones((1, 1)))
    if before is None:
        return plain
    expected = (before.per_lease(week) * week.slices.node_hours).sum(axis=1) * risk
    weighted = week.table("hazard", risk[:, None]).exposure_node_hours
    capped = week.table("hazard", risk[:, None] * week.cap(expected)).exposure_node_hours
    share = np.divide(capped, weighted, out=np.ones(plain.shape), where=weighted > 0)
    return replace(plain, exposure_node_hours=plain.exposure_node_hours * share)


def _fit_rates(table: LifeTable) -> Floats:
    """Rates over (context_level, band) with their bounds, shape (3, levels, bands); zero where there is no exposure."""
    cells = Cells.from_table(table)
    estimate = predict(fit_hazard(cells, [table], Model((("context_level",), ("band",)), prior_sd=CONTEXT_SD)), cells)
    low, high = estimate.interval()
    rates = np.zeros((3, *table.shape))
    rates[:, cells.index[0], cells.index[1]] = low, estimate.value, high
    return rates


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Mismatches, and the table that they were found in: its exposure is in failures that the hazards explain."""

    table: LifeTable
    found: Mismatches

    def risk(self, week: _Week) -> Floats:
        """Failures of each lease's pair over those that the hazards explain, shape (leases,); 1 where it has no row."""
        by_pair = np.ones(tuple(length + 1 for length in self.table.shape))
        explained = self.table.exposure_node_hours[self.found.workload, self.found.context]
        by_pair[self.found.workload, self.found.context] = self.found.expected * self.found.ratio / explained
        workloads = {token: row for row, token in enumerate(self.table.levels("workload"))}
        contexts = {token: column for column, token in enumerate(self.table.levels("context"))}
        rows = [workloads.get(finest_row(lease.labels, workloads), -1) for lease in week.slices.leases]
        return by_pair[rows, [contexts.get(lease.labels["context"], -1) for lease in week.slices.leases]]

    def findings(self) -> tuple[PairFinding, ...]:
        found = self.found
        workloads, contexts = self.table.levels("workload"), self.table.levels("context")
        columns = (found.probability_worse, found.ratio, found.ratio_low, found.ratio_high, found.expected)
        return tuple(
            PairFinding(workloads[a], contexts[c], *numbers)
            for a, c, numbers in zip(found.workload, found.context, np.transpose(columns).tolist(), strict=True)
        )


def _fit_pairs(weeks: Sequence[_Week], risks: Sequence[Floats], hazards: _Hazards) -> _Pairs:
    """Which pairs fail more often than the hazards of context, build-up and age, and the workload itself, explain."""
    tables = []
    for week, risk in zip(weeks, risks, strict=True):
        rates = hazards.per_lease(week)
        expected = (rates * week.slices.node_hours).sum(axis=1) * risk
        tables.append(week.table("pairs", rates * week.cap(expected)))
    total = _sum(tables)
    return _Pairs(total, find_mismatches(total))


def _sum(tables: Iterable[LifeTable]) -> LifeTable:
    return reduce(operator.add, tables)
