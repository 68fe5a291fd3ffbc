"""Findings from all releases: mismatches and hazards, from noisy counts and the provider's own exposure.

- *Input.* Windows are disjoint: releases add up cell by cell, and so do their noise variances. A unit, a lease in a
  window, counts at most F failures (`analysis.cap_correction`), and how many that hides depends on its
  hazard and its pair, so both models have the cap in their likelihood.
- *Fits.* Hazards (`analysis.capped_hazard`), then pairs (`analysis.mismatch`), then hazards given the pairs' risks,
  then pairs again: four fits without further iteration. Hazards converge, or `learn` raises `Unsettled`; pairs do.
- *Rates* are those of the workloads that ran there: the hazard times their mean risk.
- *Versions* of an archetype (`analysis.versions`) and factors of size and season (`learning.factors`) are derived
  afterwards and change no rate or verdict.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from federation.protocol.causes import Domain
from federation.protocol.evidence import Evidence
from federation.protocol.life_table import Floats, LifeTable
from provider_server.analysis.cap_correction import ALIKE, Shape, capped_mean, capped_slope
from provider_server.analysis.capped_hazard import JobWeeks, fit_capped
from provider_server.analysis.factors import Factor
from provider_server.analysis.filed_elsewhere import More, filed_elsewhere
from provider_server.analysis.hazard import Estimate
from provider_server.analysis.misfiled import misfiled
from provider_server.analysis.mismatch import Mismatches, find_mismatches
from provider_server.analysis.noisy_counts import LOG_FACTOR, NoisySight
from provider_server.analysis.own_hazard import seen_share
from provider_server.analysis.ratio_grid import read_rows
from provider_server.analysis.rules import Rule
from provider_server.analysis.versions import PairPrior, Partition, partitions
from provider_server.fleet.leases import Lease
from provider_server.learning.evidence import evidence_of, with_hazards
from provider_server.learning.kin import NO_FEATURES, Features, groups
from provider_server.learning.own_sight import Noisy, OwnSight
from provider_server.learning.seen import Places, Seen
from provider_server.learning.told_and_seen import ToldAndSeen
from provider_server.learning.verdicts import MISREPORTED, PairFinding, judge_pairs
from provider_server.rounds.release import Release

CORRECTIONS = 1
UNREPORTED = 0.1  # of what the provider saw, tenants may not have counted about so much
LEAST_HIDDEN = 0.05  # of any failures that are expected: what the provider sees is never all of a kind
UNHEARD = 10.0  # standard deviation over the count: nothing is left of what it says
UNLOOKED = 1e12  # variance of a count that nobody made
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

    `rules` come from benchmark jobs, not from releases; None if no benchmark jobs were read. `evidence` is in the order
    of `pairs` and `rates`.
    """

    pairs: tuple[PairFinding, ...]
    rates: tuple[RateFinding, ...]
    versions: Mapping[str, Partition] = field(default_factory=dict)
    factors: tuple[Factor, ...] = ()
    rules: tuple[Rule, ...] | None = None
    evidence: Evidence | None = None

    def with_first_rates(self, first: tuple[RateFinding, ...]) -> "Findings":
        """With rates of contexts that have none of their own; what runs there is taken for average."""
        evidence = self.evidence and with_hazards(self.evidence, [one.rate for one in first])
        return replace(self, rates=self.rates + first, evidence=evidence)


def learn(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    own: OwnSight | None = None,
    features: Features | None = NO_FEATURES,
) -> Findings:
    """Findings from all `releases` so far; `leases` are those of their windows. Unsettled where hazards are.

    `own` are failures that the provider saw itself in these windows, as far as they may be told; None: none. Pairs may
    share a defect with others of their archetype, and of contexts of the same `features`; with None they do not.
    """
    seen = Seen.of(releases, leases, own)
    hazards = _fit_hazards(seen, _Risk.none(len(seen.node_hours)))
    archetypes = _archetypes(leases)
    kin = [] if features is None else groups(seen.pairs, archetypes, features)
    pairs = _fit_pairs(seen, hazards, kin)
    for _ in range(CORRECTIONS):
        hazards = _fit_hazards(seen, pairs.risk(seen), pairs.found.shape)
        pairs = _fit_pairs(seen, hazards, kin, pairs)
    node_hours = seen.by_pair(seen.node_hours.sum(axis=1))[pairs.found.workload, pairs.found.context]
    evidence = evidence_of(pairs.found, pairs.explained, node_hours, hazards.base[hazards.known])
    more = filed_elsewhere(seen.control, pairs.filed_elsewhere)
    return Findings(pairs.findings(seen, more), hazards.findings(more), pairs.versions(archetypes), evidence=evidence)


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

    def explained(self, seen: Seen) -> Floats:
        """Failures of each job-week (J,) by the hazard alone; by an average one where its context has no row."""
        return np.asarray(self.by_band(seen).sum(axis=1), np.float64)

    def by_band(self, seen: Seen) -> Floats:
        """The same by age band (J, bands)."""
        return np.asarray(np.vstack([self.base, self.base.mean(axis=0)])[seen.level] * seen.node_hours, np.float64)

    @property
    def known(self) -> tuple[Places, ...]:
        """Where something ran."""
        return np.nonzero(self.rates.value > 0)

    def findings(self, more: More) -> tuple[RateFinding, ...]:
        """With those that tenants filed elsewhere."""
        middle, log_sd = self.rates.value * np.exp(more.log_more), np.hypot(self.rates.log_sd, more.log_sd)
        low, high = Estimate(middle, log_sd).interval()
        return tuple(
            RateFinding(self.levels[c], self.bands[b], float(middle[c, b]), float(low[c, b]), float(high[c, b]))
            for c, b in zip(*self.known, strict=True)
        )


def _fit_hazards(seen: Seen, risk: _Risk, shape: float = ALIKE) -> _Hazards:
    """Hazards of contexts and build-up levels by age, given the pairs' risks and how leases differ."""
    infrastructure = seen.hazard.at("domain", Domain.INFRASTRUCTURE)
    levels, bands = infrastructure.levels("context_level"), infrastructure.levels("band")
    job_weeks = JobWeeks.of_levels(seen.level, len(levels), seen.node_hours, risk.weights, risk.factors, seen.most)
    counts, variance = infrastructure.events, infrastructure.noise_variance
    found = fit_capped(job_weeks, counts, variance, effect_sd=CONTEXT_SD, shape=shape)
    ran = seen.by_level(np.ones((1, 1)))
    mix = np.divide(seen.by_level(risk.mean[:, None]), ran, out=np.ones(ran.shape), where=ran > 0)
    alone = _Hazards(levels, bands, found.hazard, Estimate(found.hazard * mix, found.log_sd))
    log_sd = np.sqrt(found.log_sd**2 + _mix_variance(seen, risk, alone))
    return replace(alone, rates=Estimate(alone.rates.value, log_sd))


def _mix_variance(seen: Seen, risk: _Risk, hazards: _Hazards) -> Floats:
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
    factors) how many would be if the rate were exp(`LOG_FACTOR`). `told` is what tenants counted beyond what the
    provider saw, if it looked.
    """

    table: LifeTable
    found: Mismatches
    counted: Floats
    by_factor: Floats
    told: ToldAndSeen | None = None

    @property
    def explained(self) -> Floats:
        """What the hazards explain of each pair that was found (P,)."""
        return np.asarray(self.table.exposure_node_hours[self.found.workload, self.found.context], np.float64)

    @cached_property
    def seen_rate(self) -> Floats:
        """What the provider sees of each pair over what it would of an average one: flat, 0 where there is no row."""
        return self._flat(self.found.seen_rate)

    @cached_property
    def told_rate(self) -> Floats:
        """The same of what tenants count beyond it."""
        return self._flat(self.found.told_rate)

    def _flat(self, of_pairs: Floats) -> Floats:
        flat = np.zeros(self.table.events.size + 1)
        flat[np.ravel_multi_index((self.found.workload, self.found.context), self.table.shape)] = of_pairs
        return flat

    def risk(self, seen: Seen) -> _Risk:
        """The factors of each job-week's pair over what the hazards explain; average ones where it has no row."""
        found, explained = self.found, self.explained
        pairs = np.ravel_multi_index((found.workload, found.context), self.table.shape)
        average = float(found.expected.sum() / explained.sum())
        columns = np.repeat([[0.0], [average], [average], [0.0]], self.table.events.size + 1, axis=1)
        columns[0, pairs], columns[3, pairs] = found.probability_worse, found.relative_variance
        columns[1:3, pairs] = found.expected / explained * np.stack([found.ratio_if_expected, found.ratio_if_worse])
        worse, *factors, variance = columns[:, seen.pair]
        return _Risk(np.stack([1.0 - worse, worse], axis=1), np.stack(factors, axis=1), variance)

    def findings(self, seen: Seen, more: More) -> tuple[PairFinding, ...]:
        """Rates with those that tenants filed elsewhere; judged by what they told."""
        node_hours = seen.by_pair(seen.node_hours.sum(axis=1))
        counted, times = replace(self.table, exposure_node_hours=self.counted), float(np.exp(more.log_more))
        judged = judge_pairs(self.found, counted, seen.control, node_hours, self.filed_elsewhere(MISREPORTED))
        return tuple(replace(pair, rate=times * pair.rate, rate_high=times * pair.rate_high) for pair in judged)

    def filed_elsewhere(self, share: float) -> Floats:
        """How many script errors would count if so many hardware failures were such, as a `share` of those told."""
        found, total = self.found, np.zeros(self.table.shape)
        cells = found.workload, found.context
        log_rate = np.log(np.maximum(share, np.finfo(float).tiny) * found.ratio * found.expected / self.explained)
        place = (log_rate - LOG_FACTOR[0]) / (LOG_FACTOR[1] - LOG_FACTOR[0])
        log_counted = np.log(np.maximum(self.by_factor[cells], np.finfo(float).tiny))  # of fewer than on the grid, all
        total[cells] = np.exp(read_rows(log_counted, place[:, None])[:, 0] + np.minimum(log_rate - LOG_FACTOR[0], 0.0))
        return total

    def versions(self, archetypes: Mapping[str, str]) -> dict[str, Partition]:
        """How the sub-archetypes of each archetype fall into groups; `archetypes` has that of each."""
        prior = PairPrior(self.found.share_worse, self.found.spread)
        if self.told is None:
            return partitions(self.table, archetypes, counted=self.by_factor, pairs=prior)
        own = self.told.own_pairs(self.seen_rate[:-1])
        return partitions(self.told.table, archetypes, counted=self.told.by_factor, pairs=prior, own=own)


def _fit_pairs(seen: Seen, hazards: _Hazards, kin: Sequence[Places], before: _Pairs | None = None) -> _Pairs:
    """Which pairs fail more often than the hazards of context, build-up and age, and the workload itself, explain.

    `kin` are groups of pairs that may share a defect; `before` are the pairs found so far, which say how leases differ.
    """
    explained, shape = hazards.explained(seen), before.found.shape if before else ALIKE
    table = _without_misfiled(replace(seen.pairs, exposure_node_hours=seen.by_pair(explained)), seen.control)
    by_factor = _by_factor(seen, explained, seen.most, shape)
    counted = seen.by_pair(capped_mean(explained, seen.most, shape))
    if seen.own is None:
        return _Pairs(table, find_mismatches(table, by_factor, groups=kin), counted, by_factor)
    if isinstance(seen.own, Noisy):
        noisy, left = _under_noise(seen, table, explained, seen.own.table)
        told = ToldAndSeen.under_noise(noisy, left, table, by_factor)
        return _Pairs(table, find_mismatches(left, by_factor, noisy, kin), counted, by_factor, told)
    sight = _Sight.of(seen, hazards, before)
    leases = seen.leases(sight.in_sight)
    unseen, factors = _unseen(seen, table, sight, before)
    left = replace(unseen, exposure_node_hours=seen.by_pair(_not_seen(seen, sight, before)))
    known, looked = seen.by_pair(np.minimum(sight.visible, seen.most)), seen.by_pair(sight.in_sight * seen.entered)
    told = ToldAndSeen.exact(left, factors, leases, known, looked, sight.part)
    found = _as_failures(find_mismatches(unseen, factors, leases, kin), left.exposure_node_hours, looked)
    return _Pairs(table, found, counted, by_factor, told)


def _as_failures(found: Mismatches, hidden: Floats, looked: Floats) -> Mismatches:
    """With what is expected in failures, where hazards explain so many of a pair that are `hidden` and `looked` at."""
    cells = found.workload, found.context
    expected = (found.told_rate * hidden[cells] + found.seen_rate * looked[cells]) / found.ratio
    return replace(found, expected=expected, expected_by_others=found.expected_by_others * expected / found.expected)


def _without_misfiled(table: LifeTable, control: LifeTable) -> LifeTable:
    """With so much noise that nothing is heard of pairs whose hardware failures are other errors in part."""
    deaf = misfiled(table, control) * (UNHEARD * table.events) ** 2
    return replace(table, noise_variance=table.noise_variance + deaf)


def _under_noise(seen: Seen, table: LifeTable, explained: Floats, own: LifeTable) -> tuple[NoisySight, LifeTable]:
    """Own failures under noise, and tenants' counts without the share of them that makes both independent.

    y − cṼ and Ṽ = V + noise are uncorrelated for c = Var V / (Var V + σ²): all is taken out where V is exact, nothing
    where noise hides it. One c serves all pairs, so that main effects explain what is left.
    """
    own = own.aligned(table.dimensions)
    known = own.noise_variance > 0.0
    total = max(float(own.events[known].sum()), 0.0)
    share = total / max(total + float(own.noise_variance.sum()), np.finfo(float).tiny)
    looked = np.where(seen.watched, explained, 0.0)
    counted = _by_factor(seen, looked, seen.most, ALIKE)
    variance = np.where(known, own.noise_variance, UNLOOKED)
    columns = own.events.ravel(), variance.ravel(), seen.by_pair(looked).ravel(), counted.reshape(-1, len(LOG_FACTOR))
    noise = table.noise_variance + share**2 * own.noise_variance
    return NoisySight(*columns), replace(table, events=table.events - share * own.events, noise_variance=noise)


@dataclass(frozen=True, eq=False)
class _Sight:
    """The `visible` failures of job-weeks, and what hazards explain: `in_sight` (one to one overall) and `hidden`.

    All (J,). How much is seen differs by size, age and level (`analysis.own_hazard`); `part` of all that entered is.
    """

    visible: Floats
    in_sight: Floats
    hidden: Floats
    part: float

    @classmethod
    def of(cls, seen: Seen, hazards: _Hazards, before: "_Pairs | None") -> "_Sight":
        """From what entered; `before` are the pairs found so far."""
        visible, entered = seen.visible, seen.entered[:, None]
        explained, risk, rate = hazards.by_band(seen), np.ones((len(visible), 1)), np.ones((len(visible), 1))
        if before is not None:
            risk, rate = before.risk(seen).mean[:, None], before.seen_rate[seen.pair][:, None]
        in_sight = explained * seen_share(explained * rate * entered, visible, seen.level, seen.size)
        part = float(visible.sum()) / max(float((explained * risk * entered).sum()), np.finfo(float).tiny)
        hidden = np.maximum(explained - part * in_sight, LEAST_HIDDEN * explained)
        return cls(visible.sum(axis=1), in_sight.sum(axis=1), hidden.sum(axis=1), part)


def _by_factor(seen: Seen, explained: Floats, most: Places, shape: Shape) -> Floats:
    """How many failures of each pair count (workloads, contexts, factors) at the rates `LOG_FACTOR`."""
    counted = (capped_mean(explained * factor, most, shape) for factor in np.exp(LOG_FACTOR))
    return np.stack([seen.by_pair(weight) for weight in counted], axis=-1)


def _unseen(seen: Seen, table: LifeTable, sight: _Sight, before: "_Pairs | None") -> tuple[LifeTable, Floats]:
    """What tenants counted beyond what the provider saw itself, and how much of it is expected to count at each rate.

    In a job-week with V own failures, F - V others count at most. A lease on which the provider saw more failures than
    expected is a bad one, and has more of the others, too: its gamma law has the shape k + V and the mean
    (k + V) / (k + what was expected to be seen).
    """
    hidden = _not_seen(seen, sight, before)
    known = seen.by_pair(np.minimum(sight.visible, seen.most))
    exposure = np.maximum(table.exposure_node_hours, seen.by_pair(hidden))
    noise = table.noise_variance + UNREPORTED * known
    told = replace(table, events=table.events - known, exposure_node_hours=exposure, noise_variance=noise)
    left = np.maximum(seen.most - sight.visible, 0).astype(np.intp)
    if before is None or np.isinf(before.found.shape):
        return told, _by_factor(seen, hidden, left, ALIKE)
    expected = np.where(seen.entered, sight.in_sight * before.seen_rate[seen.pair], 0.0)
    failures, expected = (_by_lease(seen, weight) for weight in (sight.visible, expected))
    shape = before.found.shape + failures
    return told, _by_factor(seen, hidden * shape / (before.found.shape + expected), left, shape)


def _not_seen(seen: Seen, sight: _Sight, before: "_Pairs | None") -> Floats:
    """What hazards explain of job-weeks (J,) beyond what entered."""
    return np.where(seen.entered, sight.hidden, _all_failures(seen, sight, before))


def _all_failures(seen: Seen, sight: _Sight, before: "_Pairs | None") -> Floats:
    """What hazards explain of all failures of job-weeks (J,), in the measure of hidden ones: own ones not taken out."""
    if before is None:
        return sight.hidden + sight.in_sight
    rate = before.seen_rate / np.where(before.told_rate > 0.0, before.told_rate, 1.0)
    return np.asarray(sight.hidden + sight.in_sight * rate[seen.cell], np.float64)


def _by_lease(seen: Seen, weight: Floats) -> Floats:
    """The sum of `weight` (J,) over all job-weeks of each one's lease (J,)."""
    return np.asarray(np.bincount(seen.lease, weight)[seen.lease], np.float64)


def _archetypes(leases: Iterable[Lease]) -> dict[str, str]:
    """The archetype of each sub-archetype; where tenants disagree, that of most leases."""
    votes = Counter((lease.labels.get("subarchetype"), lease.labels.get("archetype")) for lease in leases)
    return {one: other for (one, other), _ in reversed(votes.most_common()) if one is not None and other is not None}
