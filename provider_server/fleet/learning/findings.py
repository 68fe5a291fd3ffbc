"""Findings from all releases: mismatches and hazards, from noisy counts and the provider's own exposure.

- *Two sets.* Bundles tell what tenants' sums say; operators see beside it what the provider saw itself, exactly. They
  differ in the tables that pairs are learnt from (`learning.witness`), and in nothing else here.

- *Input.* Windows are disjoint: releases add up cell by cell, and so do their noise variances. A unit, a lease in a
  window, counts at most F failures (`analysis.cap_correction`), and how many that hides depends on its
  hazard and its pair, so both models have the cap in their likelihood.
- *Fits.* Hazards (`analysis.capped_hazard`), then pairs (`analysis.mismatch`), then hazards given the pairs' risks,
  then pairs again: four fits without further iteration. Hazards converge, damped if need
  be, or `learn` raises `Unsettled`; pairs do.
- *Rates* are those of the workloads that ran there: the hazard times their mean risk.
- *Versions* of an archetype (`analysis.versions`) are derived afterwards and change no rate or verdict.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from federation.protocol.causes import Domain
from federation.protocol.evidence import Evidence
from federation.protocol.known_rates import experience
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import ALIKE, capped_slope
from provider_server.fleet.analysis.capped_hazard import Rates, Units, fit_capped
from provider_server.fleet.analysis.filed_elsewhere import More, filed_elsewhere
from provider_server.fleet.analysis.hazard import Estimate, Unsettled
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.noisy_counts import LOG_FACTOR
from provider_server.fleet.analysis.public_rates import log_law
from provider_server.fleet.analysis.ratio_grid import read_rows
from provider_server.fleet.analysis.rules import Rule
from provider_server.fleet.analysis.versions import PairPrior, Partition, partitions
from provider_server.fleet.learning.evidence import evidence_of, with_hazards
from provider_server.fleet.learning.kin import NO_FEATURES, Features, groups
from provider_server.fleet.learning.seen import Places, Seen
from provider_server.fleet.learning.verdicts import MISREPORTED, PairFinding, judge_pairs
from provider_server.fleet.learning.witness import Known, Tables, Witness, operators, tenants
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.fleet.release import Release

CORRECTIONS = 1
CONTEXT_SD = 1.0  # of the log hazard between contexts and build-up levels, and between bands: factors, not decades
DAMPED_SD = 0.5  # the same where a fit does not come to rest
NOTHING_SAID = 1e9  # variance of noise under which a table says nothing
logger = logging.getLogger(__name__)


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
    rules: tuple[Rule, ...] | None = None
    evidence: Evidence | None = None

    def with_first_rates_of(self, other: "Findings") -> "Findings":
        """With the rates of contexts of which `other` has one, and these findings have none."""
        known = {(one.context_level, one.band) for one in self.rates}
        return self.with_first_rates(tuple(one for one in other.rates if (one.context_level, one.band) not in known))

    def with_first_rates(self, first: tuple[RateFinding, ...]) -> "Findings":
        """With rates of contexts that have none of their own; what runs there is taken for average."""
        evidence = self.evidence and with_hazards(self.evidence, [one.rate for one in first])
        return replace(self, rates=self.rates + first, evidence=evidence)


def learn(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    own: OwnRecord | None = None,
    features: Features | None = NO_FEATURES,
    trials: LifeTable | None = None,
) -> Findings:
    """Findings from all `releases` so far; `leases` are those of their windows. Unsettled where hazards are.

    `own` are failures that the provider saw itself, for findings that its operators alone see; with None the findings
    are those of tenants' sums, for bundles. Pairs may share a defect with others of their archetype, and of contexts of
    the same `features`; with None they do not. `trials` are the failures of stand-ins on idle nodes by (workload,
    context), exactly, and the hours that they ran, in node-hours of average hazard.
    """
    seen, hazards, pairs = _fit(releases, leases, own, features, trials)
    node_hours = seen.by_pair(seen.node_hours.sum(axis=1))[pairs.found.workload, pairs.found.context]
    evidence = evidence_of(pairs.found, pairs.explained, node_hours, hazards.base[hazards.known])
    more = filed_elsewhere(seen.control, pairs.filed_elsewhere)
    versions = pairs.versions(_archetypes(leases))
    return Findings(pairs.findings(seen, more), hazards.findings(more), versions, evidence=evidence)


def tried_pairs(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    features: Features | None,
    trials: LifeTable,
) -> tuple[list[tuple[str, str]], Mismatches, Floats]:
    """What to choose experiments by: pairs (workload, context), what releases and `trials` say of each, and its rate.

    Before the first release it is what trials say alone, of the pairs that `trials` has cells of. The rate (pairs,) is
    that of stand-ins, failures per node-hour; of pairs that were never tried, the workload's own.
    """
    if not releases:
        deaf = replace(trials, events=np.zeros(trials.shape), noise_variance=np.full(trials.shape, NOTHING_SAID))
        deaf = replace(deaf, exposure_node_hours=np.ones(trials.shape))
        found, names = find_mismatches(deaf, trials=trials), trials.dimensions
        rate = np.full(len(found.workload), experience().rate)
    else:
        seen, _, pairs = _fit(releases, leases, None, features, trials)
        found, names = pairs.found, seen.pairs.dimensions
        node_hours = seen.by_pair(seen.node_hours.sum(axis=1))[found.workload, found.context]
        rate = found.expected / np.maximum(node_hours, np.finfo(float).tiny)
    workloads, contexts = (dimension.levels for dimension in names)
    pairs_of = zip(found.workload.tolist(), found.context.tolist(), strict=True)
    rate = np.where(found.stand_in_rate > 0.0, found.stand_in_rate, rate)
    return [(workloads[row], contexts[column]) for row, column in pairs_of], found, rate


def _fit(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    own: OwnRecord | None,
    features: Features | None,
    trials: LifeTable | None,
) -> tuple[Seen, "_Hazards", "_Pairs"]:
    """Hazards and pairs, each given the other."""
    own = own if own and own.events.hours else None  # where nothing was seen, there is nothing to take off totals
    seen, witness = Seen.of(releases, leases, own), tenants if own is None else operators
    hazards = _fit_hazards(seen, _Risk.none(len(seen.node_hours)))
    kin = [] if features is None else groups(seen.pairs, _archetypes(leases), features)
    tried = trials and _over(trials, seen.pairs.dimensions)
    pairs = _fit_pairs(seen, witness, hazards, kin, tried)
    for _ in range(CORRECTIONS):
        hazards = _fit_hazards(seen, pairs.risk(seen), pairs.found.shape)
        pairs = _fit_pairs(seen, witness, hazards, kin, tried, pairs)
    return seen, hazards, pairs


@dataclass(frozen=True, eq=False)
class _Risk:
    """By what `factors` the pair of each unit multiplies the hazard, as expected or as worse, and how surely.

    `weights` and `factors` have shape (J, 2), `relative_variance` (of the factor, over its squared mean) has (J,).
    """

    weights: Floats
    factors: Floats
    relative_variance: Floats

    @classmethod
    def none(cls, units: int) -> "_Risk":
        return cls(np.ones((units, 1)), np.ones((units, 1)), np.zeros(units))

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
        """Failures of each unit (J,) by the hazard alone; by an average one where its context has no row."""
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
    units = Units.of_levels(seen.level, len(levels), seen.node_hours, risk.weights, risk.factors, seen.most)
    counts, variance = infrastructure.events, infrastructure.noise_variance
    found = _settled(units, counts, variance, shape)
    ran = seen.by_level(np.ones((1, 1)))
    mix = np.divide(seen.by_level(risk.mean[:, None]), ran, out=np.ones(ran.shape), where=ran > 0)
    alone = _Hazards(levels, bands, found.hazard, Estimate(found.hazard * mix, found.log_sd))
    log_sd = np.sqrt(found.log_sd**2 + _mix_variance(seen, risk, alone))
    return replace(alone, rates=Estimate(alone.rates.value, log_sd))


def _settled(units: Units, counts: Floats, variance: Floats, shape: float) -> Rates:
    """The fit, or, where it does not come to rest, a damped one: contexts are drawn together more."""
    foretold = log_law(experience())
    try:
        return fit_capped(units, counts, variance, effect_sd=CONTEXT_SD, shape=shape, foretold=foretold)
    except Unsettled as error:
        logger.warning("%s; fitted again with contexts that differ less", error.what)
        return fit_capped(units, counts, variance, effect_sd=DAMPED_SD, shape=shape, foretold=foretold)


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
    """Mismatches, and the tables that they were found in."""

    tables: Tables
    found: Mismatches

    @property
    def table(self) -> LifeTable:
        """What tenants counted; its exposure is in failures that the hazards explain."""
        return self.tables.told

    @property
    def explained(self) -> Floats:
        """What the hazards explain of each pair that was found (P,)."""
        return np.asarray(self.table.exposure_node_hours[self.found.workload, self.found.context], np.float64)

    def known(self, seen: Seen, by_band: Floats) -> Known:
        """What these say of each unit that hazards explain so many failures of."""
        rate, told = self._flat(self.found.seen_rate), self._flat(self.found.told_rate)
        over_told = rate / np.where(told > 0.0, told, 1.0)
        return Known(by_band, self.risk(seen).mean, rate[seen.pair], over_told[seen.cell], self.found.shape)

    def _flat(self, of_pairs: Floats) -> Floats:
        """By flat cell, 0 where there is no pair."""
        flat = np.zeros(self.table.events.size + 1)
        flat[np.ravel_multi_index((self.found.workload, self.found.context), self.table.shape)] = of_pairs
        return flat

    def risk(self, seen: Seen) -> _Risk:
        """The factors of each unit's pair over what the hazards explain; average ones where it has no row."""
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
        counted, times = replace(self.table, exposure_node_hours=self.tables.counted), float(np.exp(more.log_more))
        judged = judge_pairs(self.found, counted, seen.control, node_hours, self.filed_elsewhere(MISREPORTED))
        return tuple(replace(pair, rate=times * pair.rate, rate_high=times * pair.rate_high) for pair in judged)

    def filed_elsewhere(self, share: float) -> Floats:
        """How many script errors would count if so many hardware failures were such, as a `share` of those told."""
        found, total = self.found, np.zeros(self.table.shape)
        cells = found.workload, found.context
        log_rate = np.log(np.maximum(share, np.finfo(float).tiny) * found.ratio * found.expected / self.explained)
        place = (log_rate - LOG_FACTOR[0]) / (LOG_FACTOR[1] - LOG_FACTOR[0])
        log_counted = np.log(
            np.maximum(self.tables.by_factor[cells], np.finfo(float).tiny)
        )  # of fewer than on the grid, all
        total[cells] = np.exp(read_rows(log_counted, place[:, None])[:, 0] + np.minimum(log_rate - LOG_FACTOR[0], 0.0))
        return total

    def versions(self, archetypes: Mapping[str, str]) -> dict[str, Partition]:
        """How the sub-archetypes of each archetype fall into groups; `archetypes` has that of each."""
        prior = PairPrior(self.found.share_worse, self.found.spread)
        tables, own = self.tables, self.tables.own
        if own is None:
            return partitions(tables.told, archetypes, counted=tables.by_factor, pairs=prior)
        told, seen = (
            replace(tables.alone, exposure_node_hours=own.hidden),
            own.pairs(self._flat(self.found.seen_rate)[:-1]),
        )
        return partitions(told, archetypes, counted=tables.alone_by_factor, pairs=prior, own=seen)


def _fit_pairs(
    seen: Seen,
    witness: Witness,
    hazards: _Hazards,
    kin: Sequence[Places],
    trials: LifeTable | None,
    before: _Pairs | None = None,
) -> _Pairs:
    """Which pairs fail more often than the hazards of context, build-up and age, and the workload itself, explain.

    `kin` are groups of pairs that may share a defect; `before` are the pairs found so far.
    """
    by_band = hazards.by_band(seen)
    tables = witness(seen, before.known(seen, by_band) if before else Known.first(by_band))
    return _Pairs(tables, tables.mismatches(kin, trials))


def _over(trials: LifeTable, dimensions: tuple[Dimension, ...]) -> LifeTable:
    """The trials of pairs that have a place in a table over these dimensions."""
    wide, own = LifeTable.zeros(dimensions) + trials, tuple(slice(len(dimension)) for dimension in dimensions)
    columns = (wide.events, wide.exposure_node_hours, wide.at_risk, wide.noise_variance)
    return LifeTable(dimensions, *(column[own] for column in columns))


def _archetypes(leases: Iterable[Lease]) -> dict[str, str]:
    """The archetype of each sub-archetype; where tenants disagree, that of most leases."""
    votes = Counter((lease.labels.get("subarchetype"), lease.labels.get("archetype")) for lease in leases)
    return {one: other for (one, other), _ in reversed(votes.most_common()) if one is not None and other is not None}
