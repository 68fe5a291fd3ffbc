"""Splits groups of nodes where measured performance differs by what hardware they have: a slow batch is a group.

A measure is the log of a node's own over the usual, such as seconds per step. One group at a time is cut where a
feature explains most of a measure: a category by its levels, in the order of their means, a number between any two
values. With n measured nodes, a cut explains (n − 2) log(RSS₀ / RSS₁) of deviance, since their variance is not known,
and pays what it must say: log n for one more mean, and twice the logarithm of the number of cuts it was chosen from,
over all features and measures; for a number, of the range over the gap that is cut. Values are first drawn in to
`MOST_OFF` standard deviations (by the median absolute deviation) of the group's median, and the outermost ones to where
others are, so single odd nodes make no group and hide none. Both sides must have `least_nodes` measured nodes. Parts of
a group that do not differ, or by less than matters (`LEAST_APART`), are then joined again, so that what is slow on one
driver of one model leaves two groups, not three.

Groups that failures or looks made are only split, never joined. Nodes without a measure go where their hardware does.

Not promised: a cause; that slow nodes which share no feature are a group; that a few nodes slow by two features at
once are found, where neither alone pays for a cut.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.partition import Group
from provider_server.fleet.analysis.selection import Ints, NodeTable

STEP_TIME, STEP_SPREAD = "step time", "step spread"
LEAST_APART = {STEP_TIME: float(np.log(1.03)), STEP_SPREAD: float(np.log(1.25))}
MOST_OFF = 3.0
MAD_TO_SIGMA = 1.4826


class _Cut(NamedTuple):
    """Deviance that a cut explains less its price, and the nodes of the group on its first side."""

    gain: float
    inside: NDArray[np.bool_]
    feature: str


def told_by_measures(
    table: NodeTable, groups: Sequence[Group], least_nodes: int, most: int
) -> tuple[list[Group], dict[str, float]]:
    """The groups, split further, at most `most` in all; and what the cuts by each feature explained."""
    if not table.measures:
        return list(groups), {}
    found: list[Group] = []
    gains: dict[str, float] = {}
    for at, group in enumerate(groups):
        room = most - len(found) - (len(groups) - at - 1)
        found += _split(table, group, least_nodes, room, gains)
    return found, gains


def _split(table: NodeTable, group: Group, least_nodes: int, most: int, gains: dict[str, float]) -> list[Group]:
    parts, cuts, found = [group], [_best_cut(table, group, least_nodes)], dict[str, float]()
    while len(parts) < most and max(cut.gain for cut in cuts) > 0.0:
        at = max(range(len(cuts)), key=lambda one: cuts[one].gain)
        cut = cuts[at]
        found[cut.feature] = found.get(cut.feature, 0.0) + cut.gain
        sides = parts[at].parts(cut.inside.astype(np.intp), cut.feature)
        parts[at : at + 1] = sides
        cuts[at : at + 1] = [_best_cut(table, side, least_nodes) for side in sides]
    parts = _joined(table, parts)
    if len(parts) == 1:
        return [group]
    gains.update({feature: gains.get(feature, 0.0) + gain for feature, gain in found.items()})
    return parts


def _best_cut(table: NodeTable, group: Group, least_nodes: int) -> _Cut:
    """The cut of the group that gains most; a gain of 0 where none pays."""
    best = _Cut(0.0, np.zeros(0, np.bool_), "")
    features = len(table.numbers) + len(table.categories)
    for measure in table.measures.values():
        values = measure[group.places]
        known = np.isfinite(values)
        if known.sum() < 2 * least_nodes:
            continue
        own = _drawn_in(values[known], least_nodes)
        chosen_from = np.log(len(own)) + 2.0 * np.log(features * len(table.measures))
        for feature, keys, prices in _ways(table, group, known, own, least_nodes):
            order = np.argsort(keys[known], kind="stable")
            gains = _explained(own[order]) - chosen_from - prices
            sizes, ranked = np.arange(1, len(own)), keys[known][order]
            usable = (ranked[1:] > ranked[:-1]) & (np.minimum(sizes, len(own) - sizes) >= least_nodes)
            gains = np.where(usable, gains, 0.0)
            if len(gains) and gains.max() > best.gain:
                at = int(np.argmax(gains))
                best = _Cut(float(gains[at]), keys <= ranked[at], feature)
    return best


def _drawn_in(values: Floats, least_nodes: int) -> Floats:
    """Without the reach of odd nodes: fewer at either end than could be a part, or far from the median."""
    low, high = np.sort(values)[[least_nodes - 1, -least_nodes]]
    middle = np.median(values)
    reach = MOST_OFF * MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))
    within = np.clip(values, low, high)
    return np.asarray(np.clip(within, middle - reach, middle + reach) if reach else within, np.float64)


def _ways(
    table: NodeTable, group: Group, known: NDArray[np.bool_], own: Floats, least_nodes: int
) -> Iterator[tuple[str, Floats, Floats]]:
    """Of each feature, keys of the group's nodes by which they may be cut in two, and the price of each cut."""
    for name, column in table.numbers.items():
        numbers = column[group.places]
        keys = np.where(np.isfinite(numbers), numbers, -np.inf)
        if len(np.unique(keys[known])) > 1:
            yield name, keys, _price_of_gaps(np.sort(keys[known]))
    for name, names in table.categories.items():
        code = np.unique(np.array(names)[group.places], return_inverse=True)[1]
        measured = np.bincount(code[known], minlength=int(code.max()) + 1)
        code = np.where(measured[code] < least_nodes, -1, code)  # levels with few nodes are one
        levels, code = np.unique(code, return_inverse=True)
        if len(levels) > 1:
            count, total = (np.bincount(code[known], weight, len(levels)) for weight in (None, own - own.mean()))
            means = total / np.maximum(count, 1)  # a level that nobody measured counts as usual
            rank = np.argsort(np.argsort(means))[code]
            yield name, rank.astype(np.float64), _price(np.sort(rank[known]), len(levels))


def _price_of_gaps(ordered: Floats) -> Floats:
    """Of a cut behind each value but the last: the wider a gap, the less it takes to name a place in it."""
    finite = np.isfinite(ordered)
    gaps = np.diff(np.where(finite, ordered, 0.0)) / max(float(np.ptp(ordered[finite])), 1e-12)
    share = np.where(finite[:-1], gaps, 1.0 / len(ordered))  # what is unknown lies below all
    return np.asarray(-2.0 * np.log(np.maximum(share, 1e-12)), np.float64)


def _price(ranked: Ints, levels: int) -> Floats:
    """Of a cut behind each node but the last: in how many ways so many levels could have been chosen."""
    first = ranked[:-1] + 1.0
    ways = gammaln(levels + 1) - gammaln(first + 1) - gammaln(levels - first + 1)
    return np.asarray(2.0 * (ways + np.log(max(levels - 1, 1))), np.float64)


def _explained(ordered: Floats) -> Floats:
    """Deviance that two means explain, for a cut behind each value but the last."""
    count, centred = len(ordered), ordered - ordered.mean()
    sizes, sums = np.arange(1, count), np.cumsum(centred)[:-1]
    total = float(np.sum(centred**2))
    if total == 0.0:
        return np.zeros(count - 1)
    left = np.maximum(total - sums**2 * count / (sizes * (count - sizes)), 1e-12 * total)
    return np.asarray((count - 2) * np.log(total / left), np.float64)


def _joined(table: NodeTable, parts: list[Group]) -> list[Group]:
    """Parts of one group, those together that differ by less than one more mean costs, or by nothing that matters."""
    while len(parts) > 1:
        pairs = {pair: _difference(table, parts, *pair) for pair in combinations(range(len(parts)), 2)}
        (one, other), least = min(pairs.items(), key=lambda item: item[1])
        if least >= 1.0:
            break
        places = np.sort(np.concatenate([parts[one].places, parts[other].places]))
        whole = Group(places, parts[one].told | parts[other].told)
        parts = [part for at, part in enumerate(parts) if at not in (one, other)] + [whole]
    return parts


def _difference(table: NodeTable, parts: Sequence[Group], one: int, other: int) -> float:
    """Of two parts, in their clearest measure; from 1 on they differ."""
    found = 0.0
    for name, measure in table.measures.items():
        known = [own[np.isfinite(own)] for own in (measure[part.places] for part in parts)]
        if not (len(known[one]) and len(known[other])):
            continue
        off = np.concatenate([own - np.median(own) for own in known if len(own)])
        scale = max(MAD_TO_SIGMA * float(np.median(np.abs(off))), 1e-12)
        apart = abs(float(np.median(known[one]) - np.median(known[other])))
        error = scale * np.sqrt(1.0 / len(known[one]) + 1.0 / len(known[other]))
        found = max(found, min(apart / LEAST_APART[name], apart / error / np.sqrt(np.log(len(off)))))
    return found
