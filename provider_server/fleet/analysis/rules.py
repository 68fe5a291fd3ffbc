"""Readable rules on versions and settings: which software, wherever it runs, fails more often than its stratum does.

The best conjunction of conditions is searched (`analysis.boxes`), what it explains is set aside, and the next one is
searched, as long as one is worth more than it takes to name it.

A search finds rules in anything. So a third of the strata take no part in it: there a candidate's records are compared
with all others of their stratum (`quasi_experiment.mantel_haenszel`), and only what survives Benjamini–Hochberg becomes
a rule, with the interval found there. Where its bounds lie is then told by all strata: noise moves them where few
records are near. Everything is determined by the records and the generator that deals out the strata.

Not promised: a cause. What is always installed together cannot be told apart.

    >>> from federation.protocol.version_ranges import VersionRange, version
    >>> str(VersionRange("nccl", version("2.18"), version("2.20")))
    'nccl in [2.18, 2.20)'
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.boxes import best_box
from provider_server.fleet.analysis.conditions import Conditions, Records, Value
from provider_server.fleet.analysis.matching import Arm
from provider_server.fleet.analysis.quasi_experiment import mantel_haenszel

MOST_RULES = 6
SEARCHED = 2 / 3  # of the strata; what is found must hold in the others
ALIKE = 0.5  # of the exposure that is in either, at least so much is in both: one rule, with other bounds


@dataclass(frozen=True)
class Rule:
    """All `conditions` hold together. The evidence is that of strata which took no part in finding the rule.

    It is that of the rule as it was found, before all strata told where its bounds lie.

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


def find_rules(
    records: Records, rng: np.random.Generator, *, max_depth: int = 3, level: float = 0.05
) -> tuple[Rule, ...]:
    """Rules that hold in strata where they were not found, the highest lower bound of lift first; () without any.

    `rng` deals the strata into those to learn from and those to test on.
    """
    dealt = rng.permutation(np.unique(records.strata))
    learning = np.isin(records.strata, dealt[: max(1, int(SEARCHED * len(dealt)))])
    if learning.all() or not np.any(records.events > 0.0):
        return ()
    candidates = _candidates(records.at(np.flatnonzero(learning)), max_depth)
    if not candidates:
        return ()
    rules = _tested(candidates, records.at(np.flatnonzero(~learning)))
    corrected = false_discovery_control([rule.q for rule in rules])
    kept = [replace(rule, q=float(q)) for rule, q in zip(rules, corrected, strict=True)]
    kept = [rule for rule in kept if rule.q <= level and rule.low > 1.0]
    return tuple(sorted(_sharpened(kept, records, max_depth), key=lambda rule: (-rule.low, str(rule))))


def _sharpened(rules: Sequence[Rule], records: Records, max_depth: int) -> Iterator[Rule]:
    """The rules with the bounds that explain all records best, each beside the others; no two are the same then."""
    inside, told = [records.inside(rule.conditions) for rule in rules], set[Conditions]()
    for place, rule in enumerate(rules):
        base = records.exposure_node_hours
        for other, there in zip(rules, inside, strict=True):
            if other is not rule and np.isfinite(other.lift):
                base = base * np.where(there, other.lift, 1.0)
        box = best_box(records, base, max_depth)
        if box is not None and box.margin > 0.0:
            within = records.inside(box.conditions)
            both, either = (records.exposure_node_hours @ of for of in (inside[place] & within, inside[place] | within))
            if both >= ALIKE * either:
                inside[place], rule = within, replace(rule, conditions=box.conditions)
        if rule.conditions not in told:
            told.add(rule.conditions)
            yield rule


def _tested(candidates: Sequence[Conditions], records: Records) -> list[Rule]:
    """The candidates with their evidence, each beside those before it; `q` is still the p-value."""
    rules, explained = [], np.ones(len(records.events))
    for conditions in candidates:
        inside = records.inside(conditions)
        found = mantel_haenszel(*(_arm(records, of, explained) for of in (inside, ~inside)))
        rule = Rule(
            conditions=conditions,
            support_records=int(inside.sum()),
            support_node_hours=float(records.exposure_node_hours[inside].sum()),
            failures=float(records.events[inside].sum()),
            lift=float(found.value[0]),
            low=float(found.low[0]),
            high=float(found.high[0]),
            q=float(found.p[0]),
        )
        rules.append(rule)
        if rule.low > 1.0 and np.isfinite(rule.lift):
            explained = explained * np.where(inside, rule.lift, 1.0)
    return rules


def _arm(records: Records, chosen: NDArray[np.bool_], explained: Floats) -> Arm:
    """The chosen records, summed in each stratum: one comparison. What other rules explain counts as exposure."""
    place = np.unique(records.strata, return_inverse=True)[1]
    arrays = (records.events, records.exposure_node_hours * explained, records.noise_variance)
    sums = [np.bincount(place, weights=values * chosen, minlength=place.max() + 1) for values in arrays]
    return Arm(*(np.asarray(values[None, :], np.float64) for values in sums))


def _candidates(records: Records, max_depth: int) -> list[Conditions]:
    base, found = records.exposure_node_hours, list[Conditions]()
    while len(found) < MOST_RULES:
        box = best_box(records, base, max_depth)
        if box is None or box.margin <= 0.0:
            break
        found.append(box.conditions)
        base = base * np.where(records.inside(box.conditions), box.ratio, 1.0)
    return found
