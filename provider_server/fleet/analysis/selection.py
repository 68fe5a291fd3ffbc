"""Selects the features of nodes that predict failures: forward selection by held-out deviance, against permutations.

Failures of node i are Poisson(e_i r_i), e_i its node-hours. A feature acts through its levels: a category's values, a
number's quantile bins; what is unknown is a level of its own, levels with fewer than `RARE` nodes are one. It is
tried by itself and crossed with each feature selected before, and with all of them; its best variant counts. With m_i
expected by those selected before (each node predicted without its own fold), a level's ratio is learnt in the other
folds as (t O + 1) / (t M + 1): O and M are its sums of failures and of m, t the variance of the variant's ratios by
moments (a gamma prior; DerSimonian & Laird 1986). In the fold itself the ratio r then explains 2 Σ (y log r − m (r −
1)) of deviance: the gain, negative where it overfits. Nodes have factors of their own, so a failure counts less where
many are expected.

The best gain of a step counts if permuted features seldom reach it: failures and expected failures change places,
together, among nodes that have the same levels of all features selected before, and the best gain of all remaining
features is taken anew (Westfall & Young 1993; Phipson & Smyth 2010 for p).

Guarantees. Where failures and hours are independent of all features, some feature is selected with probability of at
most `level`, however many features there are and however failures cluster by node. A later step has that level where
what remains is independent of failures and hours among nodes alike in what was selected; nearly so, since those
expectations are estimated. The result does not depend on the order of nodes or columns. A name for each node, or a
constant, is never selected.
Not promised: a cause; which of two proxies is selected; features that act only together with others not yet selected.
A number counts as its bins: what goes along with it within a bin may be selected too.

    >>> rng = np.random.default_rng(1)
    >>> driver, rack = np.array(["535", "550"] * 200), rng.choice(["a", "b", "c"], 400)
    >>> table = NodeTable(
    ...     nodes=tuple(f"n{place:03}" for place in range(400)),
    ...     numbers={},
    ...     categories={"driver": tuple(driver.tolist()), "rack": tuple(rack.tolist())},
    ...     failures=rng.poisson(np.where(driver == "535", 2.0, 0.5)).astype(np.float64),
    ...     node_hours=np.full(400, 1000.0),
    ... )
    >>> [found.name for found in select(table, rng)]
    ['driver']
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

Ints = NDArray[np.intp]

LEAST_FAILURES = 30.0  # below, no feature could be told from chance among many, and none is looked for
RARE = 5  # nodes; a level with fewer is joined with the others of that kind
BINS = 8  # of a number, by quantiles
COARSE = 4  # the same, where it is crossed with other features
FOLDS = 5
AT_ONCE = 25  # permutations
SWEEPS = 10


@dataclass(frozen=True, eq=False)
class NodeTable:
    """What the provider knows of its N nodes: numbers (N,), nan where unknown; categories (N,), "" where unknown.

    `failures` (N,) are infrastructure failures that the provider saw itself (benchmarks, Xid and other hardware
    events) in `node_hours` (N,). `measures` are logs of a node's performance over the usual, nan where none ran
    (`analysis.measured`). ValueError where lengths differ, names are not unique, or failures have no hours.
    """

    nodes: tuple[str, ...]
    numbers: Mapping[str, Floats]
    categories: Mapping[str, tuple[str, ...]]
    failures: Floats
    node_hours: Floats
    measures: Mapping[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.failures), len(self.node_hours), *map(len, self.numbers.values())}
        lengths |= {len(column) for columns in (self.categories, self.measures) for column in columns.values()}
        if lengths != {len(self.nodes)}:
            raise ValueError("every column must have one entry per node")
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError("a node must be in the table once")
        if both := self.numbers.keys() & self.categories.keys():
            raise ValueError(f"{sorted(both)} are both numbers and categories")
        if not (np.isfinite(self.node_hours).all() and np.all(self.failures >= 0.0) and np.all(self.node_hours >= 0.0)):
            raise ValueError("failures and node-hours must be numbers from 0 on")
        if np.any(self.failures[self.node_hours == 0.0] > 0.0):
            raise ValueError("failures of a node without node-hours")

    def at(self, places: Ints) -> "NodeTable":
        """Some of the nodes, in that order."""
        return NodeTable(
            nodes=tuple(self.nodes[place] for place in places),
            numbers={name: values[places] for name, values in self.numbers.items()},
            categories={name: tuple(values[place] for place in places) for name, values in self.categories.items()},
            failures=self.failures[places],
            node_hours=self.node_hours[places],
            measures={name: values[places] for name, values in self.measures.items()},
        )

    def by_name(self) -> Ints:
        """Places of the nodes in the order of their names."""
        return np.array(sorted(range(len(self.nodes)), key=self.nodes.__getitem__), np.intp)


@dataclass(frozen=True)
class Selected:
    """A feature. `gain` is the held-out deviance that it explained when selected, beyond those selected before.

    `p` is the share of permutations in which the best of all remaining features explained as much; `chance` is what
    the best of them explained in all but `level` of the permutations. `asked`: somebody wants it, whatever it explains.
    """

    name: str
    gain: float
    p: float
    chance: float
    asked: bool = False


def select(
    table: NodeTable, rng: np.random.Generator, *, level: float = 0.01, permutations: int = 199, most: int = 8
) -> tuple[Selected, ...]:
    """At most `most` features in the order of selection; () where none is beyond chance or failures are too few.

    `rng` deals the folds and permutes. ValueError where so few permutations cannot reach `level`.
    """
    if (permutations + 1) * level < 1.0:
        raise ValueError(f"{permutations} permutations cannot reach a level of {level:g}")
    order = table.by_name()
    seen = table.at(order[table.node_hours[order] > 0.0])
    if seen.failures.sum() < LEAST_FAILURES:
        return ()
    columns, fold = _columns(seen), rng.permutation(len(seen.nodes)) % FOLDS
    chosen: list[_Column] = []
    found: list[Selected] = []
    while columns and len(found) < most:
        moves = _moves(chosen, len(fold), permutations, rng)
        expected = seen.node_hours * _rates(seen, chosen, fold)
        best, taken = _step(_Candidates.of(columns, chosen, fold), seen.failures, expected, moves, level)
        if taken.p > level or taken.gain <= 0.0:
            break
        found.append(taken)
        chosen.append(columns.pop(best))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Column:
    """One feature as the numbers 0 to `size` − 1 of its levels (N,); `coarse` has fewer of them, for crossing."""

    name: str
    codes: Ints
    size: int
    coarse: Ints


def _columns(table: NodeTable) -> list[_Column]:
    """By name; without those that have but one level."""
    coded = {name: (_binned(values, BINS), _binned(values, COARSE)) for name, values in table.numbers.items()}
    for name, values in table.categories.items():
        codes = np.unique(np.array(values), return_inverse=True)[1]
        coded[name] = codes, codes
    columns = [_levelled(name, *coded[name]) for name in sorted(coded)]
    return [column for column in columns if column.size > 1]


def _levelled(name: str, codes: Ints, coarse: Ints) -> _Column:
    """Levels numbered through, rare ones as one."""
    rare = np.bincount(codes) < RARE
    levels, numbers = np.unique(np.where(rare[codes], -1, codes), return_inverse=True)
    return _Column(name, numbers.astype(np.intp), len(levels), coarse)


def _binned(values: Floats, bins: int) -> Ints:
    """Quantile bins (N,); few distinct values are bins themselves; what is not finite is the last bin."""
    known = np.isfinite(values)
    distinct = np.unique(values[known])
    edges = distinct if len(distinct) <= bins else np.unique(np.quantile(values[known], np.arange(1, bins) / bins))
    return np.where(known, np.searchsorted(edges, values), len(edges) + 1)


def _cells(levels: Sequence[Ints]) -> Ints:
    """A number for each combination of levels that occurs (N,)."""
    return np.unique(np.stack(levels), axis=1, return_inverse=True)[1].ravel()


def _crossed(columns: Sequence[_Column]) -> _Column:
    """One column of the combinations of several columns' coarse levels; a single one as it is."""
    if len(columns) == 1:
        return columns[0]
    cells = _cells([column.coarse for column in columns])
    return _levelled(columns[0].name, cells, cells)


def _rates(table: NodeTable, chosen: Sequence[_Column], fold: Ints) -> Floats:
    """The rate (N,) of each node by its levels and their combination, learnt without its fold."""
    if not chosen:
        return np.full(len(table.nodes), table.failures.sum() / table.node_hours.sum())
    terms = [*chosen, _crossed(chosen)] if len(chosen) > 1 else chosen
    rates = np.empty(len(table.nodes))
    for number in range(FOLDS):
        inside = fold == number
        failures, hours = np.where(inside, 0.0, table.failures), np.where(inside, 0.0, table.node_hours)
        rates[inside] = _product(failures, hours, terms)[inside]
    return rates


def _product(failures: Floats, hours: Floats, terms: Sequence[_Column]) -> Floats:
    """Rates (N,) by backfitting: each term's ratios in turn, given those of the others."""
    crude = max(float(failures.sum()), 1.0) / float(hours.sum())
    factors = [np.ones(len(hours)) for _ in terms]
    for _ in range(SWEEPS if len(terms) > 1 else 1):
        for place, term in enumerate(terms):
            expected = hours * crude * np.prod([np.ones(len(hours)), *factors[:place], *factors[place + 1 :]], axis=0)
            weight = _weights(failures, expected)
            sums = [np.bincount(term.codes, weight * of, term.size) for of in (failures, expected)]
            events, means = np.asarray(sums, np.float64)
            factors[place] = _shrunk(events, means, np.zeros(1, np.intp))[term.codes]
    return np.asarray(crude * np.prod([np.ones(len(hours)), *factors], axis=0), np.float64)


def _weights(failures: Floats, expected: Floats) -> Floats:
    """What a failure of each node counts (N,): nodes have factors of their own, so many of one say little more.

    With m expected and factors of variance κ (by moments), failures vary by m (1 + κ m): they count 1 / (1 + κ m).
    """
    excess = float(np.sum((failures - expected) ** 2 - expected) / max(float(np.sum(expected**2)), 1e-300))
    return np.asarray(1.0 / (1.0 + max(excess, 0.0) * expected), np.float64)


def _shrunk(events: Floats, expected: Floats, starts: Ints) -> Floats:
    """Ratios of levels (levels, …), shrunk to 1; the levels of a feature begin at each of `starts`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(expected > 0.0, (events - expected) ** 2 / expected - 1.0, 0.0)
    total = np.add.reduceat(expected, starts, axis=0)
    # one degree of freedom is the total's
    variance = np.maximum(np.add.reduceat(excess, starts, axis=0) + 1.0, 0.0) / np.maximum(total, 1e-300)
    by_level = np.repeat(variance, np.diff(np.append(starts, len(events))), axis=0)
    ratios: Floats = (by_level * events + 1.0) / (by_level * expected + 1.0)
    return ratios


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Features among which to choose, each by itself and crossed with those chosen: its variants.

    `sums` (levels × folds, N) adds up nodes. Levels of a variant begin at `starts`, variants of a feature at `firsts`.
    """

    names: tuple[str, ...]
    firsts: Ints
    starts: Ints
    sums: sp.csr_array

    @classmethod
    def of(cls, columns: Sequence[_Column], chosen: Sequence[_Column], fold: Ints) -> "_Candidates":
        partners: list[Sequence[_Column]] = [[], *([other] for other in chosen), *([chosen] if len(chosen) > 1 else [])]
        variants = []
        for column in columns:
            variants += [_crossed([column, *others]) for others in partners]
        starts = np.cumsum([0, *(variant.size for variant in variants)])
        rows = [(variant.codes + start) * FOLDS + fold for variant, start in zip(variants, starts[:-1], strict=True)]
        nodes = np.tile(np.arange(len(fold)), len(variants))
        shape = (int(starts[-1]) * FOLDS, len(fold))
        sums = sp.csr_array((np.ones(len(nodes)), (np.concatenate(rows), nodes)), shape=shape)
        firsts = np.arange(len(columns)) * len(partners)
        return cls(tuple(column.name for column in columns), firsts, starts[:-1], sums)

    def gains(self, failures: Floats, expected: Floats) -> Floats:
        """Held-out deviance that the best variant explains (features, draws), for draws (N, draws) of the failures."""
        shape = (self.sums.shape[0] // FOLDS, FOLDS, failures.shape[1])
        events, means = ((self.sums @ values).reshape(shape) for values in (failures, expected))
        elsewhere = [values.sum(axis=1, keepdims=True) - values for values in (events, means)]
        ratios = _shrunk(elsewhere[0], elsewhere[1], self.starts)
        explained = 2.0 * (events * np.log(ratios) - means * (ratios - 1.0)).sum(axis=1)
        by_variant: Floats = np.add.reduceat(explained, self.starts, axis=0)
        return np.asarray(np.maximum.reduceat(by_variant, self.firsts, axis=0), np.float64)


def _moves(chosen: Sequence[_Column], nodes: int, count: int, rng: np.random.Generator) -> list[Ints]:
    """For each permutation and node (N,) the place of the node whose failures it gets: one alike in what is chosen."""
    cell = _cells([column.codes for column in chosen]) if chosen else np.zeros(nodes, np.intp)
    places, moves = np.argsort(cell, kind="stable"), []
    for _ in range(count):
        moved = np.empty(nodes, np.intp)
        moved[places] = np.lexsort((rng.random(nodes), cell))
        moves.append(moved)
    return moves


def _step(
    candidates: _Candidates, failures: Floats, expected: Floats, moves: Sequence[Ints], level: float
) -> tuple[int, Selected]:
    """The place of the best candidate, and how it compares with the best after each move of the failures."""
    weight = _weights(failures, expected)
    events, means = weight * failures, weight * expected
    gains = candidates.gains(events[:, None], means[:, None])[:, 0]
    best, reached = int(np.argmax(gains)), np.empty(len(moves))
    for first in range(0, len(moves), AT_ONCE):
        moved = np.stack(moves[first : first + AT_ONCE], axis=1)
        reached[first : first + AT_ONCE] = candidates.gains(events[moved], means[moved]).max(axis=0)
    p = float((1.0 + np.sum(reached >= gains[best])) / (len(moves) + 1.0))
    chance = float(np.quantile(reached, 1.0 - level, method="higher"))
    return best, Selected(candidates.names[best], float(gains[best]), p, chance)
