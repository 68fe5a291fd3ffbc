"""Groups of nodes by selected features: split by failures first, then by hardware.

1. **By failures.** A tree cuts, one group at a time, where two parts differ most in failures: a category by its levels,
   a number at a valley of its density or at a quantile. A cut pays what it must say (a minimum description length):
   log N for one more rate, and twice the logarithm of the number of cuts it was chosen from. Nodes have factors of
   their own, and failures of one that has many count less, so single bad nodes make no groups.
2. **By hardware.** Then every group is split by each selected feature in turn, exactly: by every level of a category,
   and where a number has two modes with a valley between. A feature whose splits would pass the ceiling is left out as
   a whole.

A part must be usable: at least `least_nodes` nodes, and hours for `LEAST_EXPECTED` failures at the fleet's rate, unless
somebody asked for the feature. Levels with less stay together, or with their largest neighbour.

Not promised: a number is not cut at modes nearer than about four of their standard deviations, unless failures differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy
from scipy.stats import gamma
from sklearn.mixture import GaussianMixture

from federation.protocol.life_table import PER_NODE_HOURS, Floats
from provider_server.fleet.analysis.selection import Ints, NodeTable, Selected

MOST = 40
LEAST_EXPECTED = 3.0  # failures of a part at the fleet's rate
GRADES = 32  # quantiles at which a number may be cut
ROUNDS = 2
DRAWN = 512  # quantiles that stand for a number's distribution
MODES = 3  # that are looked for at once; parts are looked through again
VALLEY = 0.25  # of what lies at the lower of two modes: no more lies between them


@dataclass(frozen=True, eq=False)
class Feature:
    """A number's values (N,), nan where unknown; or positions (N,) among the `levels` of a category.

    Its parts need no hours where it is `asked` for.
    """

    name: str
    values: Floats
    levels: tuple[str, ...]
    spread: float
    asked: bool

    @classmethod
    def of(cls, table: NodeTable, selected: Selected) -> "Feature":
        """The table's column of that name."""
        name, asked = selected.name, selected.asked
        if name in table.categories:
            levels, codes = np.unique(np.array(table.categories[name]), return_inverse=True)
            return cls(name, codes.astype(np.float64), tuple(map(str, levels)), 0.0, asked)
        values = np.where(np.isfinite(table.numbers[name]), table.numbers[name], np.nan)
        return cls(name, values, (), float(np.nanstd(values)), asked)


class Group(NamedTuple):
    """Places of nodes, and the names of the features by which they were told from others."""

    places: Ints
    told: frozenset[str]

    def parts(self, code: Ints, feature: str) -> "list[Group]":
        """One group per value of `code`; this one where there is but one."""
        values = np.unique(code)
        told = self.told | {feature} if len(values) > 1 else self.told
        return [Group(self.places[code == value], told) for value in values]


@dataclass(frozen=True, eq=False)
class Fleet:
    """Selected features, failures and hours (N,), in the order of the nodes' names, and what makes a part usable."""

    features: tuple[Feature, ...]
    failures: Floats
    hours: Floats
    least_nodes: int
    least_hours: float
    variance: float
    seed: int

    @classmethod
    def of(cls, table: NodeTable, selected: Sequence[Selected], least_nodes: int, seed: int) -> "Fleet":
        """The table over the selected features."""
        failures, hours = table.failures, table.node_hours
        rate = max(float(failures.sum()), 1.0) / float(hours.sum())
        features = tuple(Feature.of(table, one) for one in selected)
        least_hours = min(LEAST_EXPECTED / rate, float(hours.sum()))
        fleet = cls(features, failures, hours, least_nodes, least_hours, 0.0, seed)
        groups = [fleet.everybody]
        # what groups differ by is no node's own factor: it is taken out, and what then stays is taken out again
        for _ in range(ROUNDS):
            fleet = replace(fleet, variance=_own_variance(fleet, groups))
            groups = told_by_failures(fleet, MOST)
        return replace(fleet, variance=_own_variance(fleet, groups))

    @property
    def everybody(self) -> Group:
        """The whole fleet as one group."""
        return Group(np.arange(len(self.hours)), frozenset())

    def rate(self, places: Ints) -> float:
        """Failures per node-hour."""
        return float(self.failures[places].sum() / max(self.hours[places].sum(), 1e-300))

    def usable(self, nodes: int | Ints, hours: float | Floats, *, asked: bool = False) -> NDArray[np.bool_]:
        """Whether parts with so many nodes and hours may stand alone."""
        return np.asarray((nodes >= self.least_nodes) & (asked | (hours >= self.least_hours)))


class _Cut(NamedTuple):
    """Deviance that a cut explains, less its price, and which nodes of the group are on its first side."""

    gain: float
    inside: NDArray[np.bool_]
    feature: str


def _own_variance(fleet: Fleet, groups: Sequence[Group]) -> float:
    """The variance of nodes' own factors, by moments: failures vary by m (1 + it × m) where m are expected."""
    expected = np.empty(len(fleet.hours))
    for group in groups:
        expected[group.places] = fleet.rate(group.places) * fleet.hours[group.places]
    excess = np.sum((fleet.failures - expected) ** 2 - expected)
    return max(float(excess / max(float(np.sum(expected**2)), 1e-300)), 0.0)


def told_by_failures(fleet: Fleet, most: int) -> list[Group]:
    """The best cut of all groups, again and again, while one pays and groups are at most `most`."""
    groups = [fleet.everybody]
    cuts = [_best_cut(fleet, fleet.everybody)]
    while len(groups) < most:
        place = max(range(len(cuts)), key=lambda one: cuts[one].gain)
        cut = cuts[place]
        if cut.gain <= 0.0:
            break
        parts = groups[place].parts(cut.inside.astype(np.intp), cut.feature)
        groups[place : place + 1] = parts
        cuts[place : place + 1] = [_best_cut(fleet, part) for part in parts]
    return groups


def _best_cut(fleet: Fleet, group: Group) -> _Cut:
    """The cut of the group that gains most; a gain of 0 where none is usable."""
    best = _Cut(0.0, np.ones(len(group.places), np.bool_), "")
    failures, hours = fleet.failures[group.places], fleet.hours[group.places]
    weight = 1.0 / (1.0 + fleet.variance * fleet.rate(group.places) * hours)
    for feature in fleet.features:
        keys, edges, prices = _cuts(fleet, group, feature)
        order = np.argsort(keys, kind="stable")
        first = np.searchsorted(keys[order], edges, side="right")
        sums = [np.concatenate([[0.0], np.cumsum(of[order])]) for of in (weight * failures, weight * hours, hours)]
        gains = _explained(sums[0][first], sums[0][-1], sums[1][first], sums[1][-1]) - prices
        both = fleet.usable(first, sums[2][first]) & fleet.usable(len(keys) - first, sums[2][-1] - sums[2][first])
        gains = np.where(both, gains, 0.0)
        if len(edges) and gains.max() > best.gain:
            at = int(np.argmax(gains))
            best = _Cut(float(gains[at]), keys <= edges[at], feature.name)
    return best


def _explained(events: Floats, all_events: float, hours: Floats, all_hours: float) -> Floats:
    """Deviance that two rates explain beyond one; `events` and `hours` are those of the first side."""
    share = np.clip(hours / all_hours, 1e-12, 1.0 - 1e-12) if all_hours else np.full(len(hours), 0.5)
    rest = all_events - events
    first, second = xlogy(events, events / share), xlogy(rest, rest / (1.0 - share))
    return np.asarray(2.0 * (first + second - xlogy(all_events, all_events)), np.float64)


def _cuts(fleet: Fleet, group: Group, feature: Feature) -> tuple[Floats, Floats, Floats]:
    """Keys (nodes of the group,), the edges between which they may be cut, and what a cut there costs."""
    values, one_more = feature.values[group.places], float(np.log(len(fleet.hours)))
    if feature.levels:
        keys, size = _ranked(fleet, group, values)
        edges: Floats = np.arange(size - 1, dtype=np.float64) + 0.5
        ways: Floats = gammaln(size + 1) - gammaln(edges + 1.5) - gammaln(size - edges + 0.5)
        return keys, edges, one_more + 2.0 * (ways + float(np.log(max(size - 1, 1))))
    known = np.isfinite(values)
    # what is unknown is the lowest level: apart from all that is known, or with the lowest of it
    graded = np.quantile(values[known], np.arange(1, GRADES) / GRADES) if known.any() else np.zeros(0)
    graded = np.unique(graded if known.all() else np.append(graded, np.finfo(np.float64).min))
    valley = _valley(values[known], fleet)
    chosen_from = 2.0 * float(np.log(max(len(graded), 1)))
    prices = one_more + np.repeat([chosen_from, 0.0], [len(graded), len(valley)])
    keys = np.asarray(np.where(known, values, -np.inf), np.float64)
    return keys, np.concatenate([graded, valley]).astype(np.float64), np.asarray(prices, np.float64)


def _ranked(fleet: Fleet, group: Group, codes: Floats) -> tuple[Floats, int]:
    """Ranks (nodes,) of levels by their rate in the group, and the number of levels."""
    level, code = np.unique(codes, return_inverse=True)
    failures, hours = (np.bincount(code, of[group.places]) for of in (fleet.failures, fleet.hours))
    prior = fleet.least_hours
    rates = (failures + fleet.rate(group.places) * prior) / (hours + prior)
    rank = np.argsort(np.argsort(rates, kind="stable"))
    return rank[code].astype(np.float64), len(level)


def _valley(values: Floats, fleet: Fleet) -> Floats:
    """The emptiest place between modes of a number's distribution; none where there are not two.

    Modes are those of a mixture of up to `MODES` normal laws, as many as explain it best (BIC).
    """
    if len(values) < 2 * fleet.least_nodes or np.ptp(values) == 0.0:
        return np.zeros(0)
    drawn = np.quantile(values, (np.arange(min(len(values), DRAWN)) + 0.5) / min(len(values), DRAWN))
    scaled = ((drawn - values.mean()) / values.std())[:, None]
    counts = range(1, min(MODES, len(np.unique(scaled))) + 1)
    laws = [GaussianMixture(count, reg_covar=1e-4, max_iter=1000, random_state=fleet.seed) for count in counts]
    best = min((law.fit(scaled) for law in laws), key=lambda law: law.bic(scaled))
    pairs = pairwise(np.sort(best.means_[:, 0]).tolist())
    share, place = min((_hollow(best, scaled, low, high) for low, high in pairs), default=(np.inf, 0.0))
    return np.array([place * values.std() + values.mean()] if share <= VALLEY else [])


def _hollow(law: GaussianMixture, values: Floats, low: float, high: float) -> tuple[float, float]:
    """How many values lie at the emptiest place between two modes, as a share of the lower mode's; and the place."""
    between = np.linspace(low, high, 201)
    density = law.score_samples(between[:, None])
    place = float(between[int(np.argmin(density))])
    near = [int(np.sum(np.abs(values - at) <= (high - low) / 8.0)) for at in (low, place, high)]
    # a bump that only the mixture sees, or a law within another, is no mode
    deep = density.min() <= min(density[0], density[-1]) + np.log(0.5)
    return (near[1] / max(min(near[0], near[2]), 1) if deep else np.inf), place


def told_by_look(fleet: Fleet, groups: list[Group], most: int) -> list[Group]:
    """Groups split by every selected feature in turn, as long as there are at most `most` of them."""
    for feature in fleet.features:
        split = _by_level if feature.levels else _by_mode
        finer = [part for group in groups for part in split(fleet, group, feature)]
        groups = finer if len(finer) <= most else groups
    return groups


def _by_level(fleet: Fleet, group: Group, feature: Feature) -> list[Group]:
    """One part per level that is usable; the others together, or with the largest."""
    code = np.unique(feature.values[group.places], return_inverse=True)[1]
    nodes, hours = np.bincount(code), np.bincount(code, fleet.hours[group.places]).astype(np.float64)
    alone = fleet.usable(nodes, hours, asked=feature.asked)
    if not alone.any():
        return [group]
    together = bool(fleet.usable(nodes[~alone].sum(), hours[~alone].sum(), asked=feature.asked))
    part = np.where(alone, np.arange(len(nodes)), -1 if together else int(np.argmax(nodes * alone)))
    return group.parts(part[code], feature.name)


def _by_mode(fleet: Fleet, group: Group, feature: Feature) -> list[Group]:
    """Parts on both sides of a valley, and again; what is unknown stays with the larger."""
    values = feature.values[group.places]
    for valley in _valley(values[np.isfinite(values)], fleet):
        above = values > valley
        above |= np.isnan(values) & (np.nansum(above) > np.nansum(values <= valley))
        sides = group.parts(above.astype(np.intp), feature.name)
        if all(fleet.usable(len(side.places), fleet.hours[side.places].sum(), asked=feature.asked) for side in sides):
            return [part for side in sides for part in _by_mode(fleet, side, feature)]
    return [group]


def rates(fleet: Fleet, groups: Sequence[Group]) -> Floats:
    """Failures per 1,000 node-hours and the bounds of 95% (3, groups): Garwood's, for failures that cluster by node."""
    failures, hours = (np.array([of[group.places].sum() for group in groups]) for of in (fleet.failures, fleet.hours))
    squares = np.array([np.sum(fleet.hours[group.places] ** 2) for group in groups])
    clustering = 1.0 + fleet.variance * failures * squares / np.maximum(hours, 1e-300) ** 2
    effective, unit = failures / clustering, PER_NODE_HOURS * clustering / np.maximum(hours, 1e-300)
    low = np.where(failures > 0.0, gamma.ppf(0.025, np.maximum(effective, 1e-9)), 0.0)
    return np.asarray(np.array([effective, low, gamma.ppf(0.975, effective + 1.0)]) * unit, np.float64)
