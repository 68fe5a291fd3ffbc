"""Findings from all releases: mismatches and hazards, from noisy counts and the provider's own exposure.

- *Input.* Releases add up cell by cell, and so do their noise variances; the last release of a series covers the whole
  series. A job-week counts at most F failures (`analysis.cap_correction`), and how many that hides depends on its
  hazard and its pair, so both models have the cap in their likelihood.
- *Fits.* Hazards (`analysis.capped_hazard`), then pairs (`analysis.mismatch`), then hazards given the pairs' risks,
  then pairs again: four fits without further iteration. Each converges, or `learn` raises `Unsettled`.
- *Rates* are those of the workloads that ran there: the hazard times their mean risk.
- *Versions* of an archetype (`analysis.versions`) and factors of size and season (`learning.factors`) are derived
  afterwards and change no rate or verdict.
"""

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from crypto.ids import RoundId
from federation.protocol.causes import Domain
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.round_messages import finest_row
from provider_server.analysis.cap_correction import capped_mean, capped_slope
from provider_server.analysis.capped_hazard import JobWeeks, fit_capped
from provider_server.analysis.factors import Factor
from provider_server.analysis.hazard import Estimate
from provider_server.analysis.mismatch import LOG_FACTOR, Mismatches, find_mismatches
from provider_server.analysis.rules import Rule
from provider_server.analysis.versions import PairPrior, Partition, partitions
from provider_server.fleet.leases import Lease
from provider_server.learning.verdicts import PairFinding, judge_pairs
from provider_server.rounds.release import Release

Places = NDArray[np.intp]

CORRECTIONS = 1
CONTEXT_SD = 1.0  # of the log hazard between contexts and build-up levels, and between bands: factors, not decades


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
    """The findings from a set of releases; `versions` by the token of their archetype.

    `rules` come from benchmark jobs, not from releases; None if no benchmark jobs were read.
    """

    pairs: tuple[PairFinding, ...]
    rates: tuple[RateFinding, ...]
    versions: Mapping[str, Partition] = field(default_factory=dict)
    factors: tuple[Factor, ...] = ()
    rules: tuple[Rule, ...] | None = None


def learn(releases: Sequence[Release], leases: Sequence[Lease]) -> Findings:
    """Findings from all `releases` so far; `leases` are those of their windows. Unsettled where a fit has no answer."""
    seen = _Seen.of(releases, leases)
    hazards = _fit_hazards(seen, _Risk.none(len(seen.node_hours)))
    pairs = _fit_pairs(seen, hazards)
    for _ in range(CORRECTIONS):
        hazards = _fit_hazards(seen, pairs.risk(seen))
        pairs = _fit_pairs(seen, hazards)
    return Findings(pairs.findings(seen), hazards.findings(), pairs.versions(leases))


@dataclass(frozen=True, eq=False)
class _Seen:
    """The sums of the releases, and the J job-weeks behind them.

    `node_hours` has shape (J, bands), all else (J,). `level` (context and build-up) and `cell` (pairs, flat) are the
    rows that counted a job-week; `pair` is the one that its workload and context have by now, perhaps a finer one; -1
    where there is none. `most` is F. `control` counts script errors by pair, its exposure in job-weeks.
    """

    hazard: LifeTable
    pairs: LifeTable
    control: LifeTable
    node_hours: Floats
    level: Places
    cell: Places
    pair: Places
    most: Places

    @classmethod
    def of(cls, releases: Sequence[Release], leases: Sequence[Lease]) -> "_Seen":
        last = {made.plan.series.name: made.plan.round_id for made in releases if made.plan.series}
        counted = [made for made in releases if _is_last(made, last)]
        hazard, pairs = (_sum(made.table(name) for made in counted) for name in ("hazard", "pairs"))
        columns = zip(*_job_weeks(releases, leases, hazard, pairs), strict=True)
        control = _control(counted, pairs)
        return cls(hazard, pairs, control, *(np.concatenate(column) for column in columns))

    def by_level(self, weight: Floats) -> Floats:
        """Node-hours times `weight`, which is broadcast to (J, bands), by context level and band."""
        levels, values = len(self.hazard.levels("context_level")), (weight * self.node_hours)[self.level >= 0]
        level = self.level[self.level >= 0]
        totals = [np.bincount(level, column, levels) for column in values.T]
        return np.stack(totals, axis=1).astype(np.float64)

    def by_pair(self, weight: Floats) -> Floats:
        """The sum of `weight` (J,) by workload and context."""
        known = self.cell >= 0
        total = np.bincount(self.cell[known], weight[known], self.pairs.events.size)
        return total.astype(np.float64).reshape(self.pairs.shape)


def _control(counted: Iterable[Release], pairs: LifeTable) -> LifeTable:
    """Script errors over the cells of `pairs`, a job-week of exposure for each at risk; none in releases without."""
    has_control = (made for made in counted if any(marginal.name == "control" for marginal in made.plan.marginals))
    total = _sum([LifeTable.zeros(pairs.dimensions), *(made.table("control") for made in has_control)])
    return replace(total, exposure_node_hours=total.at_risk)


def _is_last(made: Release, last: Mapping[RoundId, RoundId]) -> bool:
    """Whether a release holds counts that no later one holds too: in a series the last has the running total."""
    return made.plan.series is None or last[made.plan.series.name] == made.plan.round_id


def _job_weeks(
    releases: Sequence[Release], leases: Sequence[Lease], hazard: LifeTable, pairs: LifeTable
) -> Iterator[tuple[Floats | Places, ...]]:
    """The arrays of `_Seen`, release by release."""
    start, end = (np.array([getattr(lease, name) for lease in leases]) for name in ("start_h", "end_h"))
    for made in releases:
        near = np.flatnonzero((start < made.plan.end_hour) & (end > made.first_hour))
        slices = made.slices([leases[place] for place in near.tolist()])
        labels = [lease.labels for lease in slices.leases]
        counted = made.table("pairs")
        yield (
            slices.node_hours,
            _rows(labels, "context_level", made.table("hazard"), hazard),
            _cells(labels, counted, pairs),
            _cells(labels, pairs, pairs),
            np.full(len(labels), made.plan.failures_per_unit, np.intp),
        )


def _cells(labels: Sequence[Mapping[str, str]], counted: LifeTable, total: LifeTable) -> Places:
    """Flat rows of pairs in `total`, of those that `counted` has; -1 where it has none."""
    workload, context = (_rows(labels, name, counted, total) for name in ("workload", "context"))
    return np.where((workload >= 0) & (context >= 0), workload * len(total.levels("context")) + context, -1)


def _rows(labels: Sequence[Mapping[str, str]], name: str, counted: LifeTable, total: LifeTable) -> Places:
    """Positions in `total` along one dimension, of the rows that `counted` has; -1 where it has none."""
    every = {level: position for position, level in enumerate(total.levels(name))}
    places = {level: every[level] for level in counted.levels(name)}
    if name == "workload":
        return np.array([places.get(finest_row(own, places), -1) for own in labels], np.intp)
    return np.array([places.get(own.get(name, ""), -1) for own in labels], np.intp)


@dataclass(frozen=True, eq=False)
class _Risk:
    """By what `factors` the pair of each job-week multiplies the hazard, as expected or as worse, and how surely.

    `weights` and `factors` have shape (J, 2), `relative_variance` (of the factor, over its squared mean) has (J,).
    """

    weights: Floats
    factors: Floats
    relative_variance: Floats

    @classmethod
    def none(cls, job_weeks: int) -> "_Risk":
        return cls(np.ones((job_weeks, 1)), np.ones((job_weeks, 1)), np.zeros(job_weeks))

    @property
    def mean(self) -> Floats:
        return np.asarray((self.weights * self.factors).sum(axis=1), np.float64)


@dataclass(frozen=True, eq=False)
class _Hazards:
    """Infrastructure failures per node-hour by context level and band: of the hazard alone, and of what ran there.

    Both have shape (levels, bands), and are zero where nothing ran.
    """

    levels: tuple[str, ...]
    bands: tuple[str, ...]
    base: Floats
    rates: Estimate

    def explained(self, seen: _Seen) -> Floats:
        """Failures of each job-week (J,) by the hazard alone; by an average one where its context has no row."""
        rates = np.vstack([self.base, self.base.mean(axis=0)])[seen.level]
        return np.asarray((rates * seen.node_hours).sum(axis=1), np.float64)

    def findings(self) -> tuple[RateFinding, ...]:
        middle, (low, high) = self.rates.value, self.rates.interval()
        return tuple(
            RateFinding(self.levels[c], self.bands[b], float(middle[c, b]), float(low[c, b]), float(high[c, b]))
            for c, b in np.argwhere(middle > 0)
        )


def _fit_hazards(seen: _Seen, risk: _Risk) -> _Hazards:
    """Hazards of contexts and build-up levels by age, given the pairs' risks."""
    infrastructure = seen.hazard.at("domain", Domain.INFRASTRUCTURE)
    levels, bands = infrastructure.levels("context_level"), infrastructure.levels("band")
    job_weeks = JobWeeks.of_levels(seen.level, len(levels), seen.node_hours, risk.weights, risk.factors, seen.most)
    found = fit_capped(job_weeks, infrastructure.events, infrastructure.noise_variance, effect_sd=CONTEXT_SD)
    ran = seen.by_level(np.ones((1, 1)))
    mix = np.divide(seen.by_level(risk.mean[:, None]), ran, out=np.ones(ran.shape), where=ran > 0)
    alone = _Hazards(levels, bands, found.hazard, Estimate(found.hazard * mix, found.log_sd))
    log_sd = np.sqrt(found.log_sd**2 + _mix_variance(seen, risk, alone))
    return replace(alone, rates=Estimate(alone.rates.value, log_sd))


def _mix_variance(seen: _Seen, risk: _Risk, hazards: _Hazards) -> Floats:
    """How far the log rates (levels, bands) would move, squared, by what is not known of the pairs' risks.

    A pair that is worse than thought raises the rate of a cell by its share of the failures there, and lowers the
    hazard that explains the counts of the level by its share of what the level counts.
    """
    levels, workloads = len(hazards.levels), len(seen.pairs.levels("workload"))
    known = (seen.level >= 0) & (seen.pair >= 0)
    group = (seen.level * workloads + seen.pair // len(seen.pairs.levels("context")))[known]
    failures = hazards.explained(seen)[:, None] * risk.factors
    more = (risk.weights * failures * capped_slope(failures, seen.most[:, None])).sum(axis=1)
    columns = [more, *(hazards.base[seen.level] * seen.node_hours * risk.mean[:, None]).T]
    sums = [np.bincount(group, column[known], levels * workloads).reshape(levels, workloads) for column in columns]
    counting, *failing = (total / np.maximum(total.sum(axis=1, keepdims=True), np.finfo(float).tiny) for total in sums)
    variance = np.zeros(levels * workloads)
    variance[group] = risk.relative_variance[known]
    moved = (np.stack(failing, axis=1) - counting[:, None, :]) ** 2
    return np.asarray((moved * variance.reshape(levels, 1, workloads)).sum(axis=2), np.float64)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Mismatches, and the table that they were found in: its exposure is in failures that the hazards explain.

    `counted` (workloads, contexts) is how many of these are expected to count, `by_factor` (workloads, contexts,
    factors) how many would be if the rate were exp(`LOG_FACTOR`).
    """

    table: LifeTable
    found: Mismatches
    counted: Floats
    by_factor: Floats

    def risk(self, seen: _Seen) -> _Risk:
        """The factors of each job-week's pair over what the hazards explain; average ones where it has no row."""
        found = self.found
        pairs = np.ravel_multi_index((found.workload, found.context), self.table.shape)
        explained = self.table.exposure_node_hours.ravel()[pairs]
        average = float(found.expected.sum() / explained.sum())
        columns = np.repeat([[0.0], [average], [average], [0.0]], self.table.events.size + 1, axis=1)
        columns[0, pairs], columns[3, pairs] = found.probability_worse, found.relative_variance
        columns[1:3, pairs] = found.expected / explained * np.stack([found.ratio_if_expected, found.ratio_if_worse])
        worse, *factors, variance = columns[:, seen.pair]
        return _Risk(np.stack([1.0 - worse, worse], axis=1), np.stack(factors, axis=1), variance)

    def findings(self, seen: _Seen) -> tuple[PairFinding, ...]:
        node_hours = seen.by_pair(seen.node_hours.sum(axis=1))
        counted = replace(self.table, exposure_node_hours=self.counted)
        return tuple(judge_pairs(self.found, counted, seen.control, node_hours))

    def versions(self, leases: Sequence[Lease]) -> dict[str, Partition]:
        """How the sub-archetypes of each archetype fall into groups; which belong to which is what leases say."""
        prior = PairPrior(self.found.share_worse, self.found.spread)
        return partitions(self.table, _archetypes(leases), counted=self.by_factor, pairs=prior)


def _fit_pairs(seen: _Seen, hazards: _Hazards) -> _Pairs:
    """Which pairs fail more often than the hazards of context, build-up and age, and the workload itself, explain."""
    explained = hazards.explained(seen)
    table = replace(seen.pairs, exposure_node_hours=seen.by_pair(explained))
    factors = np.exp(LOG_FACTOR)
    counted = [seen.by_pair(capped_mean(explained * factor, seen.most)) for factor in factors]
    by_factor = np.stack(counted, axis=-1)
    found = find_mismatches(table, by_factor)
    return _Pairs(table, found, seen.by_pair(capped_mean(explained, seen.most)), by_factor)


def _archetypes(leases: Iterable[Lease]) -> dict[str, str]:
    """The archetype of each sub-archetype; where tenants disagree, that of most leases."""
    named = (lease.labels for lease in leases if {"subarchetype", "archetype"} <= lease.labels.keys())
    votes = Counter((labels["subarchetype"], labels["archetype"]) for labels in named)
    return dict(pair for pair, _ in reversed(votes.most_common()))


def _sum(tables: Iterable[LifeTable]) -> LifeTable:
    return reduce(operator.add, tables)
