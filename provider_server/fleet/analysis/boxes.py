"""The box of versions and settings that explains failures best: every conjunction of one or two conditions is tried.

    y_i = Poisson(a_s m_i φ^[i in box]) + N(0, σ_i²)

m counts the failures that exposure alone explains, a is the unknown level of stratum s, φ > 1 what the box adds.
Conditions are all ranges between known versions, each setting and all but one, and all ranges of numbers. A score
statistic, which is linear in a box but for its strata, ranks all conjunctions of two by products of matrices; the
`BEAM` best get a third condition. The `REFINED` best of each size are compared by their quasi likelihood, each stratum
at its own best level (McCullagh & Nelder 1989, §9.2), less what it takes to name them (Rissanen, Automatica 14, 1978);
all at few values of φ, and the `FINALISTS` at many.

A bound of a range is as short as the versions around it allow: between 2.17.1 and 2.18.3 it is 2.18.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from federation.protocol.version_ranges import Version, VersionRange, version
from provider_server.fleet.analysis.conditions import Condition, Conditions, NumberRange, OneOf, Records

BEAM, REFINED, FINALISTS = 300, 60, 12
MOST_VALUES = 24  # of one name: beyond, versions are cut shorter and numbers are grouped
PHI = np.geomspace(1.0, 64.0, 25)
LEAST_LEVEL = 0.05  # of a stratum, over what its exposure explains


@dataclass(frozen=True, eq=False)
class Box:
    """Conditions, the ratio φ inside of them, and by how many nats they are worth more than it takes to name them."""

    conditions: Conditions
    ratio: float
    margin: float


def best_box(records: Records, base: Floats, depth: int) -> Box | None:
    """The best box of up to `depth` conditions; `base` (n,) is what exposure and boxes found before explain."""
    sample, known = _Sample.of(records, base), _Known.of(records)
    boxes = _searched(sample, known, depth) if known.conditions else ()
    roughly = sorted(boxes, key=lambda box: -sample.box(known, box, PHI[::4]).margin)[:FINALISTS]
    return max((sample.box(known, box, PHI) for box in roughly), key=lambda box: box.margin, default=None)


# ---- conditions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Known:
    """All conditions that split the records, whether each record meets them (conditions, n), and what each costs."""

    conditions: Conditions
    met: NDArray[np.bool_]
    cost: Floats
    name: NDArray[np.intp]

    @classmethod
    def of(cls, records: Records) -> "_Known":
        by_name = {name: found for name, of in _conditions(records).items() if (found := list(of))}
        pairs = [pair for of in by_name.values() for pair in of]
        cost = [np.log(len(by_name)) + np.log(len(of)) for of in by_name.values() for _ in of]
        place = [number for number, of in enumerate(by_name.values()) for _ in of]
        met = np.array([met for _, met in pairs], np.bool_).reshape(len(pairs), len(records.events))
        return cls(tuple(one for one, _ in pairs), met, np.array(cost), np.array(place, np.intp))


def _conditions(records: Records) -> dict[str, Iterator[tuple[Condition, NDArray[np.bool_]]]]:
    return {
        **{name: _version_ranges(name, texts) for name, texts in records.versions.items()},
        **{name: _settings(name, values) for name, values in records.settings.items()},
        **{name: _number_ranges(name, values) for name, values in records.numbers.items()},
    }


def _version_ranges(name: str, texts: Sequence[str | None]) -> Iterator[tuple[Condition, NDArray[np.bool_]]]:
    numbers = [version(text) for text in texts]
    length = max(map(len, numbers), default=0)
    while length > 1 and len(set(numbers)) > MOST_VALUES:
        length -= 1
        numbers = [number[:length] for number in numbers]
    known = sorted(set(numbers))
    rank = np.array([known.index(number) for number in numbers])
    cuts = [None, *(_shortest(*pair) for pair in pairwise(known)), None]
    for first, last in _spans(len(known)):
        yield VersionRange(name, cuts[first], cuts[last + 1]), (first <= rank) & (rank <= last)


def _shortest(before: Version, after: Version) -> Version:
    """The shortest beginning of a version that the one before it does not reach."""
    return next(after[:length] for length in range(1, len(after) + 1) if after[:length] > before)


def _settings(name: str, values: Sequence[str]) -> Iterator[tuple[Condition, NDArray[np.bool_]]]:
    levels, own = sorted(set(values)), np.array(values)
    for level in levels if len(levels) > 1 else ():
        yield OneOf(name, (level,)), own == level
    for level in levels if len(levels) > 2 else ():
        yield OneOf(name, tuple(one for one in levels if one != level)), own != level


def _number_ranges(name: str, values: Sequence[float]) -> Iterator[tuple[Condition, NDArray[np.bool_]]]:
    own = np.asarray(values, np.float64)
    known = np.unique(own)
    if len(known) > MOST_VALUES:
        known = np.unique(np.quantile(own, np.linspace(0.0, 1.0, MOST_VALUES)))
    cuts = [-np.inf, *((known[1:] + known[:-1]) / 2.0), np.inf]
    for first, last in _spans(len(known)):
        above, most = float(cuts[first]), float(cuts[last + 1])
        yield NumberRange(name, above, most), (above < own) & (own <= most)


def _spans(values: int) -> Iterator[tuple[int, int]]:
    """First and last of all runs of neighbours but the whole."""
    for first in range(values):
        for last in range(first, values):
            if (first, last) != (0, values - 1):
                yield first, last


# ---- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sample:
    """Failures, what is expected of them, variance of noise (n,); strata from 0 on, and the spread of their levels."""

    events: Floats
    base: Floats
    noise_variance: Floats
    stratum: NDArray[np.intp]
    spread: float

    @classmethod
    def of(cls, records: Records, base: Floats) -> "_Sample":
        stratum = np.unique(records.strata, return_inverse=True)[1]
        base = base * max(float(records.events.sum()), 1.0) / base.sum()
        total, expected = (np.bincount(stratum, of) for of in (records.events, base))
        chance = np.bincount(stratum, base + records.noise_variance)
        # moments of the strata's totals: chance and noise explain their squares but for what levels add
        excess = float(np.sum((total - expected) ** 2 - chance)) / float(np.sum(expected**2))
        return cls(records.events, base, records.noise_variance, stratum, max(excess, 0.01))

    def levels(self, mean: Floats, towards_1: float) -> Floats:
        """Each stratum's level where failures have this mean at level 1 (…, n): least squares, drawn towards 1."""
        weight = 1.0 / (mean + self.noise_variance)
        above, below = (self._summed(weight * mean * of) + towards_1 for of in (self.events, mean))
        return np.maximum(above / below, LEAST_LEVEL)

    def log_likelihood(self, mean: Floats) -> Floats:
        """The quasi log likelihood (…,) of means (…, n), each stratum at its own best level."""
        mean = mean * self.levels(mean, 0.0)[..., self.stratum]
        fits = (self.events + self.noise_variance) * np.log(mean + self.noise_variance) - mean
        return np.asarray(fits.sum(axis=-1), np.float64)

    def box(self, known: _Known, places: tuple[int, ...], phi: Floats) -> Box:
        """A conjunction of conditions by its quasi likelihood at these values of φ, the first of which is 1."""
        inside = known.met[list(places)].all(axis=0)
        worth = self.log_likelihood(self.base * np.where(inside, phi[:, None], 1.0))
        best = int(np.argmax(worth))
        cost = float(known.cost[list(places)].sum())
        conditions = sorted((known.conditions[place] for place in places), key=lambda one: one.name)
        return Box(tuple(conditions), float(phi[best]), float(worth[best] - worth[0]) - cost)

    def score(self) -> tuple[Floats, Floats, Floats]:
        """What each record adds to the score and to the information (n,), and the latter by strata (strata, n)."""
        mean = self.base * self.levels(self.base, 1.0 / self.spread)[self.stratum]
        weight = 1.0 / (mean + self.noise_variance)
        information = weight * mean**2
        share = information / self._summed(information)[self.stratum]
        residual = weight * mean * (self.events - mean)
        score = residual - share * self._summed(residual)[self.stratum]
        one_hot = self.stratum == np.arange(self.stratum.max() + 1)[:, None]
        return score, information, one_hot * information / np.sqrt(self._summed(information))[:, None]

    def _summed(self, values: Floats) -> Floats:
        flat = values.reshape(-1, values.shape[-1])
        many = int(self.stratum.max()) + 1
        sums = [np.bincount(self.stratum, row, minlength=many) for row in flat]
        return np.asarray(np.reshape(sums, (*values.shape[:-1], many)), np.float64)


def _searched(sample: _Sample, known: _Known, depth: int) -> Iterator[tuple[int, ...]]:
    """The best boxes of each size, as places of their conditions."""
    score = sample.score()
    met = known.met.astype(np.float64)
    everywhere = np.ones((1, met.shape[1]))
    found = _best(known, [()], _gains(everywhere, met, score))
    yield from found[:REFINED]
    if depth > 1:
        found = _best(known, [(place,) for place in range(len(met))], _gains(met, met, score))
        yield from found[:REFINED]
    for _ in range(2, depth):
        inside = np.array([known.met[list(box)].all(axis=0) for box in found], np.float64).reshape(-1, met.shape[1])
        found = _best(known, found, _gains(inside, met, score))
        yield from found[:REFINED]


def _gains(some: Floats, met: Floats, score: tuple[Floats, Floats, Floats]) -> Floats:
    """What each of `some` (boxes, n) together with each condition (conditions, n) explains, in nats."""
    added, information, by_stratum = score
    above = (some * added) @ met.T
    below = (some * information) @ met.T
    for row in by_stratum:
        there = np.flatnonzero(row)
        below -= ((some[:, there] * row[there]) @ met[:, there].T) ** 2
    return np.where((above > 0.0) & (below > 1e-9), above**2 / (2.0 * np.maximum(below, 1e-9)), 0.0)


def _best(known: _Known, boxes: Sequence[tuple[int, ...]], gains: Floats) -> list[tuple[int, ...]]:
    """The `BEAM` best of boxes (rows of `gains`) together with a condition (columns) on a name that they leave open."""
    cost = np.array([known.cost[list(box)].sum() for box in boxes]).reshape(-1, 1)
    worth = gains - cost - known.cost
    for row, box in enumerate(boxes):
        worth[row, np.isin(known.name, known.name[list(box)])] = -np.inf
    order = np.argsort(-worth, axis=None, kind="stable")[: 6 * BEAM]
    found = dict.fromkeys(
        tuple(sorted((*boxes[row], int(column))))
        for row, column in zip(*np.unravel_index(order, worth.shape), strict=True)
        if np.isfinite(worth[row, column]) and gains[row, column] > 0.0
    )
    return list(found)[:BEAM]
