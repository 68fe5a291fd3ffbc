"""Readable rules on versions and settings: which software, wherever it runs, fails more often than its stratum does.

A regression tree of bounded depth learns failures over what each stratum's own rate explains, weighted by how precise
they are (chance and noise). Versions enter as abstractions (after VeriCI, Santolucito et al., OOPSLA 2017): first by
their first component alone; where records that the tree puts together disagree, by chi-square, along the finer values
of a version, that version alone gets one more component and the tree is grown anew. Each leaf that fails more often is
a candidate rule; candidates that touch and agree are joined.

A tree finds rules in anything. So half of the strata take no part in learning: there a candidate's records are compared
with all others of their stratum (`qed.mantel_haenszel`), and only what survives Benjamini–Hochberg becomes a rule, with
the interval found there. Everything is determined by the records and the generator that deals out the strata.

Versions are compared as tuples of their numbers; a component that is absent is older than every version.
Not promised: a cause. What is always installed together cannot be told apart.

    >>> str(VersionRange("nccl", version("2.18"), version("2.20")))
    'nccl in [2.18, 2.20)'
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, false_discovery_control
from sklearn.tree import DecisionTreeRegressor

from federation.protocol.life_table import Floats
from provider_server.analysis.matching import Arm, Places
from provider_server.analysis.quasi_experiment import mantel_haenszel

Version = tuple[int, ...]
Value = str | float | None

LEAST_SHARE = 0.01  # of the weight of all records: no leaf is smaller
DISAGREEMENT = 0.01  # the level, shared by all versions, at which one is refined
AGREEMENT = 2.0  # standard errors by which two candidates may differ and still be joined
LEAST_RATE = 0.1  # of the overall rate: noisy strata below it would weigh without bound


def version(text: str | None) -> Version:
    """The numbers of a version up to its first other sign; none for an absent component. Closing zeros do not count."""
    found = re.match(r"\D?(\d+(?:\.\d+)*)", text or "")
    numbers = [int(part) for part in found[1].split(".")] if found else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True)
class VersionRange:
    """low <= version < before; None where there is no bound."""

    name: str
    low: Version | None
    before: Version | None

    def holds(self, value: Value) -> bool:
        """Whether a version as text (None: absent) is inside."""
        numbers = version(None if value is None else str(value))
        return (self.low is None or numbers >= self.low) and (self.before is None or numbers < self.before)

    def joined(self, other: "VersionRange") -> "VersionRange | None":
        """Both together where they touch, else None."""
        first, second = sorted((self, other), key=lambda part: part.low or ())
        if first.before is None or first.before != second.low:
            return None
        return VersionRange(self.name, first.low, second.before)

    def __str__(self) -> str:
        low, before = (".".join(map(str, bound)) if bound else "" for bound in (self.low, self.before))
        if low and before:
            return f"{self.name} in [{low}, {before})"
        return f"{self.name} >= {low}" if low else f"{self.name} < {before}"


@dataclass(frozen=True)
class NumberRange:
    """above < number <= most; infinite where there is no bound."""

    name: str
    above: float
    most: float

    def holds(self, value: Value) -> bool:
        """Whether a number is inside; an absent one never is."""
        return value is not None and self.above < float(value) <= self.most

    def joined(self, other: "NumberRange") -> "NumberRange | None":
        """Both together where they touch, else None."""
        first, second = sorted((self, other), key=lambda part: part.above)
        return NumberRange(self.name, first.above, second.most) if first.most == second.above else None

    def __str__(self) -> str:
        if np.isinf(self.above):
            return f"{self.name} <= {self.most:g}"
        return f"{self.name} > {self.above:g}" + ("" if np.isinf(self.most) else f" and <= {self.most:g}")


@dataclass(frozen=True)
class OneOf:
    """A setting has one of `values`, in order."""

    name: str
    values: tuple[str, ...]

    def holds(self, value: Value) -> bool:
        """Whether the setting is among them."""
        return value in self.values

    def joined(self, other: "OneOf") -> "OneOf":
        """Both together."""
        return OneOf(self.name, tuple(sorted({*self.values, *other.values})))

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.name} = {self.values[0]}"
        return f"{self.name} in {{{', '.join(self.values)}}}"


Condition = VersionRange | NumberRange | OneOf
Conditions = tuple[Condition, ...]


@dataclass(frozen=True)
class Rule:
    """All `conditions` hold together. The evidence is that of strata which took no part in finding them.

    `support_node_hours` and `failures` are inside the rule; `lift` is the rate inside over that outside, in the same
    strata, with its 95% interval; `q` is after Benjamini–Hochberg over all candidates.
    """

    conditions: Conditions
    support_records: int
    support_node_hours: float
    failures: float
    lift: float
    low: float
    high: float
    q: float

    def holds(self, described: Mapping[str, Value]) -> bool:
        """Whether a description (name to version, setting or number) meets every condition."""
        return all(condition.holds(described.get(condition.name)) for condition in self.conditions)

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions))


@dataclass(frozen=True, eq=False)
class Records:
    """What ran (n records): versions as text, settings, numbers, each by name; stratum, failures, exposure, noise (n,).

    ValueError where lengths differ or exposure is not positive.
    """

    strata: Places
    events: Floats
    exposure_node_hours: Floats
    noise_variance: Floats
    versions: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.strata), len(self.exposure_node_hours), len(self.noise_variance)}
        for columns in (self.versions, self.settings, self.numbers):
            lengths |= {len(values) for values in columns.values()}
        if lengths != {len(self.events)}:
            raise ValueError("every column must have one entry per record")
        if not np.all(self.exposure_node_hours > 0.0):
            raise ValueError("every record needs positive exposure; leave the others out")

    def at(self, places: Places) -> "Records":
        """Some of the records."""
        return Records(
            strata=self.strata[places],
            events=self.events[places],
            exposure_node_hours=self.exposure_node_hours[places],
            noise_variance=self.noise_variance[places],
            versions={name: [values[place] for place in places] for name, values in self.versions.items()},
            settings={name: [values[place] for place in places] for name, values in self.settings.items()},
            numbers={name: [values[place] for place in places] for name, values in self.numbers.items()},
        )

    def inside(self, conditions: Sequence[Condition]) -> NDArray[np.bool_]:
        """Which records (n,) meet all conditions."""
        columns: dict[str, Sequence[Value]] = {**self.versions, **self.settings, **self.numbers}
        inside = np.ones(len(self.events), np.bool_)
        for condition in conditions:
            inside &= np.array([condition.holds(value) for value in columns[condition.name]], np.bool_)
        return inside


def find_rules(
    records: Records, rng: np.random.Generator, *, max_depth: int = 3, level: float = 0.05
) -> tuple[Rule, ...]:
    """Rules that hold in strata where they were not found, the highest lower bound of lift first; () without any.

    `rng` deals the strata into those to learn from and those to test on.
    """
    dealt = rng.permutation(np.unique(records.strata))
    learning = np.isin(records.strata, dealt[: (len(dealt) + 1) // 2])
    if learning.all() or not np.any(records.events > 0.0):
        return ()
    candidates = _candidates(records.at(np.flatnonzero(learning)), max_depth)
    rules = [_tested(found.conditions, records.at(np.flatnonzero(~learning))) for found in candidates]
    if not rules:
        return ()
    corrected = false_discovery_control([rule.q for rule in rules])
    kept = [replace(rule, q=float(q)) for rule, q in zip(rules, corrected, strict=True)]
    kept = [rule for rule in kept if rule.q <= level and rule.low > 1.0]
    return tuple(sorted(kept, key=lambda rule: (-rule.low, str(rule))))


def _tested(conditions: Conditions, records: Records) -> Rule:
    """The candidate with its evidence; `q` is still the p-value."""
    inside = records.inside(conditions)
    found = mantel_haenszel(_arm(records, inside), _arm(records, ~inside))
    return Rule(
        conditions=conditions,
        support_records=int(inside.sum()),
        support_node_hours=float(records.exposure_node_hours[inside].sum()),
        failures=float(records.events[inside].sum()),
        lift=float(found.value[0]),
        low=float(found.low[0]),
        high=float(found.high[0]),
        q=float(found.p[0]),
    )


def _arm(records: Records, chosen: NDArray[np.bool_]) -> Arm:
    """The chosen records, summed in each stratum: one comparison."""
    place = np.unique(records.strata, return_inverse=True)[1]
    arrays = (records.events, records.exposure_node_hours, records.noise_variance)
    sums = [np.bincount(place, weights=values * chosen, minlength=place.max() + 1) for values in arrays]
    return Arm(*(np.asarray(values[None, :], np.float64) for values in sums))


@dataclass(frozen=True, eq=False)
class _Sample:
    """The tree's view of the records: failures over what is expected of them, and how precise that is (n,)."""

    ratio: Floats
    weight: Floats

    @classmethod
    def of(cls, records: Records) -> "_Sample":
        events, exposure = records.events, records.exposure_node_hours
        overall = max(float(events.sum()), 1.0) / exposure.sum()
        place = np.unique(records.strata, return_inverse=True)[1]
        rate = (np.bincount(place, events) + 1.0) / (np.bincount(place, exposure) + 1.0 / overall)
        expected = np.maximum(rate, LEAST_RATE * overall)[place] * exposure
        return cls(events / expected, expected**2 / (expected + records.noise_variance))


@dataclass(frozen=True, eq=False)
class _Column:
    """Ordered codes (n,) of one feature: a version's rank among `known`, whether a setting is `setting`, a number."""

    name: str
    codes: Floats
    known: tuple[Version, ...] = ()
    setting: str | None = None


@dataclass(frozen=True)
class _Candidate:
    """Conditions and what was learnt under them: failures over those expected, and the precision of that."""

    conditions: Conditions
    ratio: float
    weight: float

    def joined(self, other: "_Candidate", records: Records) -> "_Candidate | None":
        """Both as one, where they differ in one condition alone, touch there, and agree within chance; else None."""
        variance = max(self.ratio, LEAST_RATE) / self.weight + max(other.ratio, LEAST_RATE) / other.weight
        conditions = _union(self.conditions, other.conditions, records)
        if not conditions or (self.ratio - other.ratio) ** 2 > AGREEMENT**2 * variance:
            return None
        weight = self.weight + other.weight
        return _Candidate(conditions, (self.ratio * self.weight + other.ratio * other.weight) / weight, weight)


def _candidates(records: Records, max_depth: int) -> list[_Candidate]:
    sample = _Sample.of(records)
    parsed = {name: [version(text) for text in texts] for name, texts in records.versions.items()}
    depths = dict.fromkeys(parsed, 1)
    columns = _columns(records, parsed, depths)
    tree, matrix = _grow(columns, sample, max_depth)
    while name := _disagreeing(tree.apply(matrix), tree.predict(matrix), parsed, depths, sample):
        depths[name] += 1
        columns = _columns(records, parsed, depths)
        tree, matrix = _grow(columns, sample, max_depth)
    leaves = [_Candidate(_conditions(box, columns, records), *learnt) for box, *learnt in _leaves(tree, columns)]
    return _joined([leaf for leaf in leaves if leaf.ratio > 1.0 and leaf.conditions], records)


def _columns(records: Records, parsed: Mapping[str, Sequence[Version]], depths: Mapping[str, int]) -> list[_Column]:
    columns = []
    for name, numbers in parsed.items():
        cut = [number[: depths[name]] for number in numbers]
        known = tuple(sorted(set(cut)))
        columns.append(_Column(name, np.array([known.index(number) for number in cut], np.float64), known))
    for name, values in records.settings.items():
        columns += [_Column(name, np.array(values) == one, setting=one) for one in sorted(set(values))]
    columns += [_Column(name, np.asarray(values, np.float64)) for name, values in records.numbers.items()]
    return columns


def _grow(columns: Sequence[_Column], sample: _Sample, max_depth: int) -> tuple[DecisionTreeRegressor, Floats]:
    """A tree, and the matrix (n, columns) that it was grown on."""
    matrix = np.stack([column.codes for column in columns], axis=1).astype(np.float64)
    tree = DecisionTreeRegressor(max_depth=max_depth, min_weight_fraction_leaf=LEAST_SHARE, random_state=0)
    return tree.fit(matrix, sample.ratio, sample_weight=sample.weight), matrix


def _disagreeing(
    leaf: Places,
    predicted: Floats,
    parsed: Mapping[str, Sequence[Version]],
    depths: Mapping[str, int],
    sample: _Sample,
) -> str | None:
    """The version along whose next component the records within leaves disagree most; None where none does."""
    least, found = DISAGREEMENT / max(len(parsed), 1), None
    for name, numbers in parsed.items():
        finer = {number: code for code, number in enumerate(sorted({n[: depths[name] + 1] for n in numbers}))}
        codes = np.array([finer[number[: depths[name] + 1]] for number in numbers])
        _, group = np.unique(np.stack([leaf, codes]), axis=1, return_inverse=True)
        weight = np.bincount(group, sample.weight)
        excess = np.bincount(group, sample.weight * (sample.ratio - predicted))
        freedom = len(weight) - len(np.unique(leaf))
        variance = np.bincount(group, sample.weight * np.maximum(predicted, LEAST_RATE))
        p = float(chi2.sf(np.sum(excess**2 / variance), freedom)) if freedom else 1.0
        if p < least and len(finer) > len({number[: depths[name]] for number in numbers}):
            least, found = p, name
    return found


def _leaves(tree: DecisionTreeRegressor, columns: Sequence[_Column]) -> list[tuple[Floats, float, float]]:
    """Of every leaf its box (columns, 2) of codes, above the first and up to the second bound, ratio and weight."""
    nodes, found = tree.tree_, []
    waiting = [(0, np.tile([-np.inf, np.inf], (len(columns), 1)))]
    while waiting:
        node, box = waiting.pop()
        if nodes.children_left[node] < 0:
            found.append((box, float(nodes.value[node].item()), float(nodes.weighted_n_node_samples[node])))
            continue
        at, threshold = nodes.feature[node], nodes.threshold[node]
        left, right = box.copy(), box.copy()
        left[at, 1], right[at, 0] = threshold, threshold
        waiting += [(nodes.children_right[node], right), (nodes.children_left[node], left)]
    return found


def _conditions(box: Floats, columns: Sequence[_Column], records: Records) -> Conditions:
    """The box in words: one condition for each name that it bounds."""
    conditions: list[Condition] = []
    allowed: dict[str, set[str]] = {}
    for (above, most), column in zip(box, columns, strict=True):
        if np.isinf(above) and np.isinf(most):
            continue
        if column.known:
            low = None if np.isinf(above) else column.known[int(above) + 1]
            before = None if np.isinf(most) else column.known[int(most) + 1]
            conditions.append(VersionRange(column.name, low, before))
        elif column.setting is not None:
            values = allowed.setdefault(column.name, set(records.settings[column.name]))
            values &= {column.setting} if np.isinf(most) else values - {column.setting}
        else:
            conditions.append(NumberRange(column.name, float(above), float(most)))
    conditions += [OneOf(name, tuple(sorted(values))) for name, values in allowed.items()]
    return tuple(sorted(conditions, key=lambda condition: condition.name))


def _joined(candidates: list[_Candidate], records: Records) -> list[_Candidate]:
    """The candidates, joined two by two until no two can be."""
    for first, second in combinations(candidates, 2):
        both = first.joined(second, records)
        if both is not None:
            return _joined([*(rest for rest in candidates if rest not in (first, second)), both], records)
    return candidates


def _union(first: Conditions, second: Conditions, records: Records) -> Conditions | None:
    """Conditions of both, where they differ in one alone and touch there; one that every record meets is left out."""
    differing = [place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]]
    if len(first) != len(second) or len(differing) != 1:
        return None
    one, other = first[differing[0]], second[differing[0]]
    if type(one) is not type(other) or one.name != other.name:
        return None
    joined = one.joined(other)  # type: ignore[arg-type]
    if joined is None:
        return None
    kept = () if records.inside((joined,)).all() else (joined,)
    return (*first[: differing[0]], *kept, *first[differing[0] + 1 :])
