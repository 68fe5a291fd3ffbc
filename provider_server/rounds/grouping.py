"""Groups of contributors: detect false contributions, bound their effect, and find their sender over several rounds.

Each round's contributors are split at random and each group's sum is unmasked separately. `judge` compares the sums
with what is possible (`provider_server.rounds.ceilings`) and with the other groups; `TenantScores` adds up the evidence
on each tenant over rounds; `assign` spreads suspects evenly over the G groups of the next round, so that an alarm
narrows them down to one in G.

Guarantees, each under its stated model:

- An honest group is left out of a release with probability at most `GroupLimits.false_alarm` per round (Bonferroni).
- The probability that any honest tenant is ever named is at most `GroupLimits.accused`. A tenant's evidence is an
  e-value, the mean of two likelihood ratios with expectation at most 1 while it is honest, so by Ville's inequality
  (1939) it exceeds n/α at any time with probability at most α/n. One ratio rests on the random assignment alone: an
  honest tenant is in an alarmed group no more often than chance has it. The other asks whether groups count more with
  the tenant than without, in the cells where it has leases, beyond `GroupLimits.tolerated` times the average rate;
  noise is known there, and companions differ with coefficient of variation `GroupLimits.heterogeneity`. Sums are
  taken for Gaussian, as they nearly are where noise has a standard deviation of some counts; one liar that is not yet
  found may add to others' variance.

Not promised: finding a lie below the ceilings that stays small beside the noise, or several members that lie in turn.
E-values: Vovk & Wang, *E-values: calibration, combination and applications*, Annals of Statistics 2021.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.errors import Refusal
from crypto.ids import TenantId
from federation.protocol.life_table import Floats
from federation.protocol.noise import opened_shares
from federation.protocol.plan import Plan
from provider_server.rounds.ceilings import CeilingFinding, GroupSum, Units, impossible, noise_reach, outside

SLOPES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])  # rates beyond the tolerated one that are looked for
HIT = 0.8  # how often the group of a liar is taken to be among the alarmed ones, if any is
LIAR_PRIOR = 0.1  # that any tenant lies, before the first round: an honest federation has suspects once in nine at most
CREDIBLE = 0.99


class PoisonedRound(Refusal):
    """More than half of a round's groups hold counts that honest members would not send."""

    default_hint = "nothing was released; check the round's plan and leases first, then the suspects"


@dataclass(frozen=True)
class GroupLimits:
    """How sure an accusation must be, and how much honest tenants may differ.

    `false_alarm`: of a group being left out, per round. `alarm`: of an alarm, per round, that only counts as evidence.
    `accused`: of ever naming an honest tenant. `heterogeneity`: coefficient of variation of honest rates; at 0.32 the
    95th percentile is three times the 5th. `tolerated`: times the average rate at which nobody is accused yet.
    `overdispersion`: variance of honest counts over their mean, for nodes that fail again and again.
    """

    false_alarm: float = 1e-6
    alarm: float = 0.05
    accused: float = 0.01
    heterogeneity: float = 0.32
    tolerated: float = 3.0
    overdispersion: float = 2.0


@dataclass(frozen=True)
class TenantScore:
    """What one round says about a tenant: by how much its cells exceed the tolerated rate, and the variance."""

    score: float = 0.0
    variance: float = 0.0


@dataclass(frozen=True)
class GroupJudgement:
    """What one round says: `findings` leave their groups out, `alarmed` groups are only more likely to hold a liar."""

    groups: tuple[tuple[TenantId, ...], ...]
    findings: tuple[CeilingFinding, ...]
    alarmed: frozenset[int]
    evidence: Mapping[TenantId, TenantScore]
    totals: Mapping[str, tuple[float, float]]

    @property
    def flagged(self) -> frozenset[int]:
        """Groups that no release may hold."""
        return frozenset(finding.group for finding in self.findings)


def assign(
    contributors: Sequence[TenantId],
    groups: int,
    minimum: int,
    suspicion: "TenantScores",
    random_bytes: Callable[[int], bytes],
) -> tuple[tuple[TenantId, ...], ...]:
    """Up to `groups` random groups of at least `minimum` contributors, whose sizes differ by one at most.

    Suspects are dealt out first, so that each group has as many of them as any other, give or take one. With fewer than
    two times `minimum` contributors there is one group of all.
    """
    suspects = suspicion.suspects()
    first = shuffled([tenant for tenant in sorted(contributors) if tenant in suspects], random_bytes)
    rest = shuffled([tenant for tenant in sorted(contributors) if tenant not in suspects], random_bytes)
    number = max(1, min(groups, len(contributors) // minimum))
    return tuple(tuple(sorted((first + rest)[start::number])) for start in range(number))


def shuffled(tenants: Sequence[TenantId], random_bytes: Callable[[int], bytes]) -> list[TenantId]:
    """A uniformly random order (Fisher & Yates, by Durstenfeld)."""
    order = list(tenants)
    for last in range(len(order) - 1, 0, -1):
        other = _below(last + 1, random_bytes)
        order[last], order[other] = order[other], order[last]
    return order


def _below(bound: int, random_bytes: Callable[[int], bytes]) -> int:
    """A uniform number below `bound`; draws of the incomplete last block are thrown away, or small ones would gain."""
    whole = 2**64 - 2**64 % bound
    while (draw := int.from_bytes(random_bytes(8), "little")) >= whole:
        pass
    return draw % bound


# ---- one round -----------------------------------------------------------------------------------------------------


def judge(
    groups: Sequence[GroupSum], held: Units, rates: Mapping[str, float], limits: GroupLimits = GroupLimits()
) -> GroupJudgement:
    """Judges the groups of one round; `held` knows the round's plan and all members.

    `rates` gives failures per unit and cell for each marginal, from `Suspicion.rates`; the median of the round's
    groups stands in for one that is missing.
    """
    layers = [_Layer.of(number, groups, held, rates) for number in range(len(held.plan.marginals))]
    findings = list(impossible(held, groups, limits.false_alarm / 2))
    layers = _without(layers, findings)  # what is impossible must not tell the others what to expect
    views = [(layer, list(_views(layer, limits))) for layer in layers]
    loose = {f.group for layer, own in views for f in _unlike(layer, own, limits.alarm / len(layers))}
    findings += [f for layer, own in views for f in _unlike(layer, own, limits.false_alarm / (2 * len(layers)))]
    layers = _without(layers, findings)
    return GroupJudgement(
        groups=tuple(group.members for group in groups),
        findings=tuple(findings),
        alarmed=frozenset(loose | {finding.group for finding in findings}),
        evidence=_evidence(layers, limits),
        totals={layer.name: (float(layer.counts.sum()), float(layer.units.sum())) for layer in layers},
    )


def accepted(groups: Sequence[GroupSum], judgement: GroupJudgement) -> tuple[int, ...]:
    """Positions of the groups that a release sums; PoisonedRound if more than half are flagged, or all."""
    flagged = judgement.flagged
    if 2 * len(flagged) > len(groups):
        worst = max(judgement.findings, key=lambda finding: abs(finding.count))
        raise PoisonedRound(
            f"{len(flagged)} of {len(groups)} groups hold impossible counts, such as {worst.count:.0f}"
            f" in {worst.where}, where {worst.low:.0f} to {worst.high:.0f} are likely"
        )
    return tuple(number for number in range(len(groups)) if number not in flagged)


@dataclass(frozen=True, eq=False)
class _Layer:
    """One marginal of some groups, flat: `counts` (groups, cells), `tenant_units` by (tenants, cells)."""

    plan: Plan
    number: int
    groups: tuple[int, ...]
    members: tuple[tuple[TenantId, ...], ...]
    places: tuple[NDArray[np.intp], ...]
    counts: Floats
    tenant_units: Floats
    noise: Floats
    given_rate: float | None

    @classmethod
    def of(cls, number: int, groups: Sequence[GroupSum], held: Units, rates: Mapping[str, float]) -> "_Layer":
        shape = held.plan.tables[number].shape
        return cls(
            held.plan,
            number,
            tuple(range(len(groups))),
            tuple(group.members for group in groups),
            tuple(held.places(group.members) for group in groups),
            np.stack([group.counts[number].reshape(-1) for group in groups]),
            np.broadcast_to(held.cells[number], (len(held.tenants), *shape)).reshape(len(held.tenants), -1),
            np.array([group.noise_variance[number] for group in groups]),
            rates.get(held.plan.marginals[number].name),
        )

    def only(self, kept: Sequence[int]) -> "_Layer":
        """Without the groups whose positions in the round are not in `kept`."""
        at = [self.groups.index(group) for group in kept]
        members, places = tuple(self.members[place] for place in at), tuple(self.places[place] for place in at)
        counts, noise = self.counts[at], self.noise[at]
        return replace(self, groups=tuple(kept), members=members, places=places, counts=counts, noise=noise)

    @property
    def name(self) -> str:
        return self.plan.marginals[self.number].name

    @cached_property
    def units(self) -> Floats:
        """Units by (groups, cells): what a rate of one failure per unit and cell would give."""
        return np.array([self.tenant_units[places].sum(axis=0) for places in self.places])

    @cached_property
    def rate(self) -> float:
        """Failures per unit and cell; the round's own from the median of groups, which one group cannot move."""
        if self.given_rate is not None:
            return self.given_rate
        return max(0.0, float(np.median(self.counts.sum(axis=1) / np.maximum(self.units.sum(axis=1), 1.0))))

    def bins(self) -> Iterator[tuple[str, NDArray[np.intp], int]]:
        """Ways to add up cells: (what, bin of each cell, cells per bin): the whole, the levels of each axis, cells."""
        table = self.plan.tables[self.number]
        size = math.prod(table.shape)
        yield "total", np.zeros(size, np.intp), size
        if len(table.shape) > 1:
            indices = np.indices(table.shape).reshape(len(table.shape), -1)
            for dimension, index in zip(table.dimensions, indices, strict=True):
                yield dimension.name, index, size // len(dimension)
        yield "cell", np.arange(size), 1


def _without(layers: Sequence[_Layer], findings: Sequence[CeilingFinding]) -> list[_Layer]:
    flagged = {finding.group for finding in findings}
    return [layer.only([group for group in layer.groups if group not in flagged]) for layer in layers]


@dataclass(frozen=True, eq=False)
class _View:
    """Sums of a marginal by (groups, bins), what the median of groups leads to expect of them, and how precisely."""

    what: str
    cells: int
    values: Floats
    expected: Floats
    deviation: Floats


def _views(layer: _Layer, limits: GroupLimits) -> Iterator[_View]:
    """All ways of adding up; none for fewer than three groups, where no majority could be right."""
    groups = len(layer.members)
    for what, bins, cells in layer.bins() if groups >= 3 else ():
        values, units = _binned(layer.counts, bins), _binned(layer.units, bins)
        own = np.where(units > 0, units, np.nan)  # a group without leases there has nothing to compare
        rate = np.maximum(np.median(values / own, axis=0), 0.0)
        tenants = _binned(layer.tenant_units, bins)
        spread = np.stack([(tenants[places] ** 2).sum(axis=0) for places in layer.places])
        variance = layer.noise[:, np.newaxis] * cells + limits.overdispersion * rate * units
        variance = variance + (limits.heterogeneity * rate) ** 2 * spread
        of_median = math.pi / 2 * (variance / own**2).max(axis=0) / groups
        yield _View(what, cells, values, rate * units, np.sqrt(variance + of_median * units**2))


def _unlike(layer: _Layer, views: Sequence[_View], false_alarm: float) -> Iterator[CeilingFinding]:
    """Sums that differ from what the median of groups leads to expect."""
    for view in views:
        least = min(map(len, layer.members), default=0)
        allowed = false_alarm / (len(views) * 2 * view.values.size)
        margin = noise_reach(layer.plan, opened_shares(layer.plan, least), view.cells, allowed) * view.deviation
        low, high = view.expected - margin, view.expected + margin
        yield from outside(layer.groups, f"{layer.name} {view.what}", view.values, low, high)


def _binned(values: Floats, bins: NDArray[np.intp]) -> Floats:
    """Sums over the cells of each bin, shape (rows, bins)."""
    width = int(bins.max()) + 1
    if width == values.shape[1]:
        return values
    flat = (np.arange(len(values))[:, np.newaxis] * width + bins).reshape(-1)
    return np.bincount(flat, values.reshape(-1), len(values) * width).reshape(len(values), width).astype(np.float64)


def _evidence(layers: Sequence[_Layer], limits: GroupLimits) -> dict[TenantId, TenantScore]:
    """Per member of a sound group: how much more its cells count than without it, beyond the tolerated rate."""
    found: dict[TenantId, TenantScore] = {}
    groups = len(layers[0].groups)
    for own in range(groups if groups >= 2 else 0):
        parts = [_scores(layer, own, limits.overdispersion * len(layers)) for layer in layers]
        score, overlap = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
        information = np.diagonal(overlap)
        companions = (overlap**2).sum(axis=1) - information**2
        variance = information + limits.heterogeneity**2 * companions * groups / (groups - 1)
        usable = np.divide(information, variance, out=np.zeros_like(information), where=variance > 0)
        beyond = usable * (score - (limits.tolerated - 1) * information)
        for tenant, excess, spread in zip(layers[0].members[own], beyond, usable * information, strict=True):
            found[tenant] = TenantScore(float(excess), float(spread))
    return found


def _scores(layer: _Layer, own: int, overdispersion: float) -> tuple[Floats, Floats]:
    """Efficient scores of the members' rates, and how the members overlap in cells, weighted by information.

    Cell by cell a group's count is compared with its share, by units, of all sound groups: what differs between
    kinds of hardware or workload falls out, as in a stratified log-rank test.
    """
    share = layer.units[own] / np.maximum(layer.units.sum(axis=0), 1e-9)
    difference = layer.counts[own] - share * layer.counts.sum(axis=0)
    others = layer.noise.sum() - layer.noise[own]
    variance = layer.noise[own] * (1 - share) ** 2 + share**2 * others
    variance = variance + overdispersion * layer.rate * layer.units[own] * (1 - share)
    expected = layer.rate * layer.tenant_units[layer.places[own]] * (1 - share)
    weighted = np.divide(expected, variance, out=np.zeros_like(expected), where=variance > 0)
    return weighted @ difference, weighted @ expected.T


# ---- over rounds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TenantScores:
    """The rounds so far: `excess`, `alarms` (of every member) by tenant, `totals` (failures, units) by marginal."""

    limits: GroupLimits = GroupLimits()
    excess: Mapping[TenantId, TenantScore] = field(default_factory=dict)
    alarms: Mapping[TenantId, float] = field(default_factory=dict)
    totals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def after(self, judgement: GroupJudgement) -> "TenantScores":
        """With one more round."""
        excess, totals = dict(self.excess), dict(self.totals)
        for tenant, new in judgement.evidence.items():
            old = excess.get(tenant, TenantScore())
            excess[tenant] = TenantScore(old.score + new.score, old.variance + new.variance)
        for name, (failures, units) in judgement.totals.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + failures, before[1] + units
        return replace(self, excess=excess, alarms=_alarms(self.alarms, judgement), totals=totals)

    def rates(self) -> dict[str, float]:
        """Failures per unit and cell so far, by marginal."""
        return {name: max(0.0, failures / units) for name, (failures, units) in self.totals.items() if units > 0}

    def score(self, tenant: TenantId) -> float:
        """Natural logarithm of the tenant's e-value; honest tenants exceed log(n/α) with probability α/n, ever."""
        evidence = self.excess.get(tenant, TenantScore())
        slopes = SLOPES * evidence.score - SLOPES**2 * evidence.variance / 2
        matched = float(np.logaddexp.reduce(slopes)) - math.log(len(SLOPES))
        return float(np.logaddexp(matched, self.alarms.get(tenant, 0.0))) - math.log(2)

    def named(self) -> frozenset[TenantId]:
        """Tenants that lie, but for a probability of `limits.accused` that any honest one is among them."""
        threshold = math.log(max(1, len(self.alarms)) / self.limits.accused)
        return frozenset(tenant for tenant in self.alarms if self.score(tenant) >= threshold)

    def suspects(self) -> frozenset[TenantId]:
        """The smallest set that holds the liar with probability `CREDIBLE`, if there is one; empty if there is none.

        By Bayes' rule with one liar at most, who is any tenant with a probability of `LIAR_PRIOR` all told; empty while
        no liar is the likelier explanation.
        """
        known = sorted(self.alarms, key=self.score, reverse=True)
        if not known:
            return frozenset()
        scores = np.array([self.score(tenant) for tenant in known]) + math.log(LIAR_PRIOR / len(known))
        if np.logaddexp.reduce(scores) < math.log1p(-LIAR_PRIOR):
            return frozenset()
        mass = np.exp(scores - np.logaddexp.reduce(scores)).cumsum()
        return frozenset(known[: int(np.searchsorted(mass, CREDIBLE)) + 1])

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers, strings and lists by name."""
        return {
            "excess": {str(tenant): [evidence.score, evidence.variance] for tenant, evidence in self.excess.items()},
            "alarms": {str(tenant): score for tenant, score in self.alarms.items()},
            "totals": {name: list(totals) for name, totals in self.totals.items()},
        }

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any], limits: GroupLimits = GroupLimits()) -> "TenantScores":
        """Inverse of `to_dict`; an empty one has no scores. Limits are the provider's settings and not kept."""
        return cls(
            limits,
            {TenantId(bytes.fromhex(tenant)): TenantScore(*pair) for tenant, pair in kept.get("excess", {}).items()},
            {TenantId(bytes.fromhex(tenant)): float(score) for tenant, score in kept.get("alarms", {}).items()},
            {name: (float(pair[0]), float(pair[1])) for name, pair in kept.get("totals", {}).items()},
        )


def _alarms(scores: Mapping[TenantId, float], judgement: GroupJudgement) -> dict[TenantId, float]:
    """Likelihood ratio of being where the alarm was, for a liar over an honest tenant that chance put there."""
    after = dict(scores)
    everybody = sum(len(members) for members in judgement.groups)
    alarmed = sum(len(judgement.groups[number]) for number in judgement.alarmed)
    for number, members in enumerate(judgement.groups):
        for tenant in members:
            after.setdefault(tenant, 0.0)
            if 0 < alarmed < everybody * HIT:
                chance = alarmed / everybody
                ratio = HIT / chance if number in judgement.alarmed else (1 - HIT) / (1 - chance)
                after[tenant] += math.log(ratio)
    return after
