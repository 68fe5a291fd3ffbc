"""Which versions of an archetype behave alike: those whose rates do not differ are one group, others are split.

    y_vc = Poisson(E_vc r_g(v) θ_vc) + N(0, σ²_vc)

E counts the failures that contexts, build-up and age alone explain, σ² is the known variance of the noise, g(v) is the
group of version v and r its rate. This is a product partition model (Hartigan 1990; Barry & Hartigan 1992): groups are
independent given the partition, so a partition is as probable as its prior times the product of its groups' marginal
likelihoods. Log rates of groups are normal around the archetype's own level; level and spread are integrated over.
Versions are opaque tokens, so their order is not used. Partitions have Ewens' law, in which all versions are alike with
probability 1/2. Up to `EXACT` versions every partition is weighed, beyond that the best `BEAM`, version by version. Two
versions are told apart where the posterior probability that they are alike is below `DOUBT` (for more than two: the
partition of least expected loss, with errors weighed so; Lau & Green 2007).

Measured, not proved: where no version differs, something is split in less than 5% of the cases (docs/learning.md). What
Markov's inequality proves is weaker: at most doubt / (1 - doubt), for two versions whose counts follow the model.

θ_vc belongs to a single pair of version and context: near 1, or, rarely, far from it. So a version that differs on one
context only is not split from the others: that is a mismatch, which `analysis.mismatch` reports, and such a pair loses
its say here. With a single context the two cannot be told apart, and a table without contexts has no θ.

Where the provider sees failures itself, tenants' counts are those of the others, and its own are a second witness of
r θ, at a visibility that may differ by version (`analysis.version_sight`).

The likelihood of a noisy count is the quasi-likelihood of variance m + σ² (McCullagh & Nelder 1989, §9.2), which is
Poisson's where there is no noise. Not promised: causes. A version may run where something else is different.

    >>> from dataclasses import replace
    >>> from federation.protocol.life_table import Dimension
    >>> table = LifeTable.zeros((Dimension("workload", ("v1", "v2", "v3")),))
    >>> table = replace(table, events=np.array([52.0, 47.0, 160.0]), exposure_node_hours=table.events + 50.0)
    >>> found = partitions(table, dict.fromkeys(("v1", "v2", "v3"), "bert"))["bert"]
    >>> [group.versions for group in found.groups]
    [('v1', 'v2'), ('v3',)]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, softmax
from scipy.stats import norm

from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.analysis.intervals import NORMAL_95
from provider_server.fleet.analysis.noisy_counts import LOG_FACTOR
from provider_server.fleet.analysis.version_sight import LEVELS, SPREADS, VISIBILITIES, OwnPairs, by_law

Places = NDArray[np.intp]
Block = frozenset[int]  # of the places of versions
Blocks = tuple[Block, ...]

DOUBT = 0.3  # below this probability of being alike, two versions are told apart
ALL_ALIKE = 0.5  # the prior probability that all versions of an archetype are
GROUP_SD = (0.15, 0.3, 0.6)  # of log rates between groups, equally probable
LEVEL = np.linspace(-1.0, 1.0, 21)  # the archetype's log rate around the crude one, equally probable
STEP, REACH = 0.02, 3.0  # the grid of log rates around the crude one
ODD_FROM, ODD_TO = np.log(2.0), np.log(32.0)
WIDTH = int(np.ceil(ODD_TO / STEP))  # of log θ on the same grid
EXACT, BEAM = 8, 500  # up to so many versions every partition is weighed, beyond so many are kept


@dataclass(frozen=True)
class PairPrior:
    """What θ may be: log-normal with `spread`, but log uniform on [2, 32] or its inverse, each at `share_odd`.

    `analysis.mismatch` estimates both, as `share_worse` and `spread`.
    """

    share_odd: float = 0.03
    spread: float = 0.1

    def kernel(self) -> Floats:
        """The mass of log θ on the grid, zero in its middle, one in all."""
        log_ratio = STEP * np.arange(-WIDTH, WIDTH + 1)
        usual = np.exp(-0.5 * (log_ratio / max(self.spread, STEP / 10.0)) ** 2)
        odd = ((np.abs(log_ratio) >= ODD_FROM) & (np.abs(log_ratio) <= ODD_TO)).astype(np.float64)
        mass = (1.0 - 2.0 * self.share_odd) * usual / usual.sum() + 2.0 * self.share_odd * odd / odd.sum()
        return np.asarray(mass, np.float64)


PAIR_PRIOR = PairPrior()


@dataclass(frozen=True)
class Group:
    """Versions that behave alike: `ratio` is their rate over their archetype's, with its 95% interval.

    Both are per expected failure. An archetype in one group has the ratio 1 by definition, exactly. `failures` is the
    (noisy) count of them all.
    """

    versions: tuple[str, ...]
    ratio: float
    low: float
    high: float
    failures: float


@dataclass(frozen=True, eq=False)
class Partition:
    """The V versions of an archetype, how probably each two are alike (V, V), and their groups, by rising rate."""

    versions: tuple[str, ...]
    alike: Floats
    groups: tuple[Group, ...]

    def probability_alike(self, one: str, other: str) -> float:
        """The posterior probability that two versions have the same rate; ValueError for one that is not here."""
        return float(self.alike[self.versions.index(one), self.versions.index(other)])


def partitions(
    table: LifeTable,
    archetype_of: Mapping[str, str],
    *,
    counted: Floats | None = None,
    pairs: PairPrior = PAIR_PRIOR,
    own: OwnPairs | None = None,
    doubt: float = DOUBT,
) -> dict[str, Partition]:
    """How the versions of each archetype fall into groups.

    `table` is over (workload, context), or workload alone, with expected failures as exposure; `archetype_of` names the
    archetype of each row that is a version (others are left out, and so are versions without exposure). `counted`
    (workloads, contexts, factors) is how many failures are expected to count where the rate is exp(`LOG_FACTOR`), as in
    `find_mismatches`; without it all do. `own` are the provider's own failures, which are not in the table's counts.
    """
    cells = _Cells.of(table, counted, pairs, own)
    seen = [level for level, hours in zip(cells.versions, cells.expected.sum(axis=1), strict=True) if hours > 0]
    archetypes = dict.fromkeys(archetype_of[version] for version in seen if version in archetype_of)
    named = {one: [version for version in seen if archetype_of.get(version) == one] for one in archetypes}
    weighed = [_weighed(cells.only(versions)) for versions in named.values()]
    if own is not None:
        weighed = _given_visibilities(weighed)
    return {archetype: _partition(*one, doubt) for archetype, one in zip(named, weighed, strict=True)}


@dataclass(frozen=True, eq=False)
class _Cells:
    """Counts, variances of their noise and expected failures, all (V, contexts), and what is expected to count.

    With `own` failures, these are of what tenants alone can count.
    """

    versions: tuple[str, ...]
    counts: Floats
    noise_variance: Floats
    expected: Floats
    log_counted: Floats
    pairs: PairPrior
    own: OwnPairs | None

    @classmethod
    def of(cls, table: LifeTable, counted: Floats | None, pairs: PairPrior, own: OwnPairs | None) -> "_Cells":
        shape = (len(table.levels("workload")), -1)
        events, noise_variance, expected = (
            values.reshape(shape) for values in (table.events, table.noise_variance, table.exposure_node_hours)
        )
        if counted is None:
            counted = expected[..., None] * np.exp(LOG_FACTOR)
        log_counted = np.log(np.maximum(counted.reshape((*expected.shape, -1)), np.finfo(float).tiny))
        pairs = pairs if "context" in table.names else PairPrior(share_odd=0.0, spread=0.0)
        return cls(table.levels("workload"), events, noise_variance, expected, log_counted, pairs, own)

    def only(self, versions: Sequence[str]) -> "_Cells":
        """Some of the versions."""
        at = np.array([self.versions.index(version) for version in versions], np.intp)
        names = ("counts", "noise_variance", "expected", "log_counted")
        own = self.own and self.own.only(at)
        return replace(self, versions=tuple(versions), own=own, **{name: getattr(self, name)[at] for name in names})

    @property
    def failures(self) -> Floats:
        """How many counted, own ones among them (V,)."""
        seen = 0.0 if self.own is None else self.own.failures
        return np.asarray((self.counts + seen).sum(axis=1), np.float64)

    def crude(self) -> float:
        """The archetype's log rate per expected failure, kept off zero where noise has left no failures."""
        count = max(float(self.counts.sum()), float(np.sqrt(self.noise_variance.sum())), 1.0)
        return float(np.log(count / self.expected.sum()))

    def log_likelihood(self, grid: Floats) -> Floats:
        """log p(counts | log rate) of each version, θ integrated out: (V, grid, laws of visibility, 1 without any)."""
        visibilities = np.zeros(1) if self.own is None else VISIBILITIES
        wide = STEP * np.arange(-WIDTH, len(grid) + WIDTH) + grid[0]
        spread = sliding_window_view(np.pad(self.pairs.kernel()[::-1], len(grid) - 1), len(wide))[::-1]
        rows = np.zeros((len(self.versions), len(visibilities), len(grid)))
        for version in range(len(self.versions)):
            said = self._said(version, np.flatnonzero(self.expected[version] > 0), wide, visibilities)
            mixed = np.exp(said) @ spread.T
            rows[version] = np.log(np.maximum(mixed, np.finfo(float).tiny)).sum(axis=0)
        return np.swapaxes(rows, 1, 2) if self.own is None else by_law(np.swapaxes(rows, 1, 2))

    def _said(self, version: int, contexts: Places, log_rate: Floats, visibilities: Floats) -> Floats:
        """The log likelihood of cells, at most zero: (C, visibilities, rates); what was told is a quasi likelihood."""
        shift = np.zeros((len(contexts), len(visibilities)))
        if self.own is not None:
            shift = self.own.log_left(version, contexts, visibilities, self.expected[version, contexts])
        counts, noise = (column[version, contexts, None, None] for column in (self.counts, self.noise_variance))
        mean = np.exp(_line(log_rate + shift[:, :, None], self.log_counted[version, contexts]))
        values = (counts + noise) * np.log(mean + noise) - mean
        values -= values.max(axis=(1, 2), keepdims=True)
        if self.own is not None:
            seen = [self.own.log_likelihood(version, contexts, log_rate + visible) for visible in visibilities]
            values += np.stack(seen, axis=1)
        return np.asarray(values, np.float64)


def _line(log_rate: Floats, log_counted: Floats) -> Floats:
    """Values (C, …) at log rates (C, …), given at `LOG_FACTOR` (C, factors), linear in between and beyond."""
    slopes = np.diff(log_counted) / np.diff(LOG_FACTOR)
    below = np.clip(np.searchsorted(LOG_FACTOR, log_rate) - 1, 0, slopes.shape[1] - 1)
    cell = np.arange(len(log_counted)).reshape(-1, *(1,) * (log_rate.ndim - 1))
    return np.asarray(log_counted[cell, below] + slopes[cell, below] * (log_rate - LOG_FACTOR[below]), np.float64)


class _Search(NamedTuple):
    """An archetype's versions, what is known of blocks of them, and all its partitions."""

    cells: _Cells
    marginals: "_Marginals"
    weighed: "_Weighed"


def _weighed(cells: _Cells) -> _Search:
    crude = cells.crude()
    grid = crude + np.arange(-REACH, REACH, STEP)
    marginals = _Marginals.of(cells.log_likelihood(grid), grid, crude)
    return _Search(cells, marginals, _weigh(marginals, len(cells.versions)))


def _given_visibilities(found: Sequence[_Search]) -> list[_Search]:
    """Each with how much visibility differs between versions weighed by what all the others say of it."""
    shape = len(LEVELS), len(SPREADS), -1
    says = np.array([logsumexp(one.weighed.by_setting().reshape(shape), axis=(0, 2)) for one in found])
    others = says.sum(axis=0) - says
    return [
        one._replace(weighed=one.weighed.given(np.broadcast_to(said[None, :, None], prior.shape).ravel()))
        for one, said in zip(found, others, strict=True)
        for prior in (one.weighed.by_setting().reshape(shape),)
    ]


def _partition(cells: _Cells, marginals: "_Marginals", weighed: "_Weighed", doubt: float) -> Partition:
    alike = weighed.alike()
    return Partition(cells.versions, alike, _groups(cells, marginals, *weighed.least_loss(alike, doubt)))


@dataclass(frozen=True, eq=False)
class _Marginals:
    """Log marginal likelihoods of blocks, for each of the S settings; kept once worked out.

    A setting is a law of visibility, and level and spread of rates. `likelihood` has shape (V, grid, laws), `prior`
    (grid, levels and spreads) is the density of a group's log rate.
    """

    likelihood: Floats
    grid: Floats
    prior: Floats
    known: dict[Block, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, likelihood: Floats, grid: Floats, crude: float) -> "_Marginals":
        level, sd = (values.ravel() for values in np.meshgrid(crude + LEVEL, GROUP_SD))
        prior = norm.pdf(grid[:, None], level, sd)
        return cls(likelihood, grid, prior / prior.sum(axis=0))

    @property
    def settings(self) -> int:
        """S."""
        return int(self.likelihood.shape[2] * self.prior.shape[1])

    def learn(self, blocks: Sequence[Block]) -> None:
        """Works out those that are not known yet."""
        fresh = [block for block in dict.fromkeys(blocks) if block not in self.known]
        if fresh:
            rows = np.stack([self.likelihood[list(block)].sum(axis=0).T for block in fresh])
            top = rows.max(axis=2, keepdims=True)
            values = np.log(np.maximum(np.exp(rows - top) @ self.prior, np.finfo(float).tiny)) + top
            self.known.update(zip(fresh, values.reshape(len(fresh), -1), strict=True))

    def log_rate(self, block: Block, settings: Floats) -> tuple[float, float]:
        """Mean and variance of a block's log rate, given the probabilities (S,) of the settings."""
        row = self.likelihood[list(block)].sum(axis=0).T
        top = row.max(axis=1, keepdims=True)
        known = self.known[block].reshape(len(row), -1)
        weight = settings.reshape(known.shape) / np.exp(known - top)
        mass = ((np.exp(row - top).T @ weight) * self.prior).sum(axis=1)
        mean = float(mass @ self.grid / mass.sum())
        return mean, float(mass @ (self.grid - mean) ** 2 / mass.sum())


@dataclass(frozen=True, eq=False)
class _Weighed:
    """Partitions and the logs of their weights, (partitions, S)."""

    partitions: list[Blocks]
    log_weight: Floats

    @cached_property
    def together(self) -> Floats:
        """Which two versions share a block, one or zero, (partitions, V, V)."""
        versions = range(sum(map(len, self.partitions[0])))
        label = [
            [next(k for k, block in enumerate(one) if own in block) for own in versions] for one in self.partitions
        ]
        return np.asarray(np.equal(*(np.expand_dims(label, axis) for axis in (1, 2))), np.float64)

    def by_setting(self) -> Floats:
        """The log weight of all partitions together, by setting (S,)."""
        return np.asarray(logsumexp(self.log_weight, axis=0), np.float64)

    def given(self, log_prior: Floats) -> "_Weighed":
        """With another prior of the settings (S,)."""
        return replace(self, log_weight=self.log_weight + log_prior)

    def alike(self) -> Floats:
        """How probably each two versions share a block (V, V)."""
        probability = softmax(logsumexp(self.log_weight, axis=1))
        return np.asarray(np.einsum("p,pvw->vw", probability, self.together), np.float64)

    def least_loss(self, alike: Floats, doubt: float) -> tuple[Blocks, Floats]:
        """The partition of least expected loss, and the probabilities (S,) of the settings given it.

        Splitting two that are alike costs 1 - `doubt`, leaving two together that differ costs `doubt`.
        """
        best = int(np.argmax(np.einsum("vw,pvw->p", alike - doubt, self.together)))
        return self.partitions[best], np.asarray(softmax(self.log_weight[best]), np.float64)


def _weigh(marginals: _Marginals, versions: int) -> _Weighed:
    """All partitions, or the likeliest, built up version by version: each joins a block or begins one."""
    log_concentration, most = np.log(_concentration(versions)), BEAM if versions > EXACT else None
    partial: list[Blocks] = [()]
    weight = np.zeros((1, marginals.settings))
    for version in range(versions):
        new = frozenset({version})
        moves = [(row, block) for row, blocks in enumerate(partial) for block in (*blocks, frozenset[int]())]
        marginals.learn([block | new for _, block in moves])
        known = marginals.known | {frozenset(): np.zeros(1)}
        log_prior = [np.log(len(block)) if block else log_concentration for _, block in moves]
        steps = [known[block | new] - known[block] + own for own, (_, block) in zip(log_prior, moves, strict=True)]
        weight = weight[[row for row, _ in moves]] + np.stack(steps)
        grown = [(*(old for old in partial[row] if old != block), block | new) for row, block in moves]
        kept = np.argsort(-logsumexp(weight, axis=1), kind="stable")[:most]
        partial, weight = [grown[place] for place in kept], weight[kept]
    return _Weighed(partial, weight)


def _concentration(versions: int) -> float:
    """Ewens' parameter at which so many versions are all alike with probability `ALL_ALIKE`."""

    def excess(log_theta: float) -> float:
        theta = np.exp(log_theta)
        return float(gammaln(theta + 1.0) + gammaln(versions) - gammaln(theta + versions) - np.log(ALL_ALIKE))

    return float(np.exp(brentq(excess, -20.0, 20.0))) if versions > 1 else 1.0


def _groups(cells: _Cells, marginals: _Marginals, blocks: Blocks, settings: Floats) -> tuple[Group, ...]:
    """The blocks with their rates over the archetype's: its log moves with each group's by its share of failures."""
    moments = [marginals.log_rate(block, settings) for block in blocks]
    log_rate, variance = (np.array(column) for column in zip(*moments, strict=True))
    failures = np.exp(log_rate) * np.array([cells.expected[list(block)].sum() for block in blocks])
    share = failures / failures.sum()
    ratio = np.exp(log_rate) * cells.expected.sum() / failures.sum()
    moved = (np.eye(len(blocks)) - share) ** 2 @ variance
    factor = np.exp(NORMAL_95 * np.sqrt(moved))
    groups = [
        Group(
            tuple(cells.versions[version] for version in sorted(block)),
            *(float(value) for value in (middle, middle / reach, middle * reach, cells.failures[list(block)].sum())),
        )
        for block, middle, reach in zip(blocks, ratio, factor, strict=True)
    ]
    return tuple(sorted(groups, key=lambda group: group.ratio))
