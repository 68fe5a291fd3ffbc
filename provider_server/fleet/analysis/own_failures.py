"""What the provider's own events say of each pair's rate: exact counts by lease, where leases and tenants differ.

    V = Poisson(g t e x),   g ~ Gamma(mean 1, variance 1 / k) by lease,   t ~ Gamma(mean 1, variance 1 / m) by tenant

for a lease that expects e failures at a rate of one, in a pair of rate x. Given t, a lease's failures are negative
binomial: many of them in one lease say less of its pair than as many in several. `shape` k and `tenant_shape` m are
estimated from all leases (maximum likelihood; infinite where they differ no more than by chance).

A pair's likelihood is the product over its tenants, on the grid of log rates `LOG_RATE` around its crude rate. What a
tenant is like is learnt from its leases in *other* pairs and integrated over, so a pair that one tenant alone runs on
is known no better than its tenant is.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import digamma, gammaln, polygamma

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO, Rows, narrowness, read_rows

Places = NDArray[np.intp]

LOG_RATE = np.linspace(-6.0, 6.0, 301)  # around the crude rate
STEP = float(LOG_RATE[1] - LOG_RATE[0])
LOG_SHAPES = (float(np.log(0.02)), float(np.log(100.0)))  # between which a finite shape of leases is looked for
LOG_TENANT_SHAPES = (0.0, float(np.log(100.0)))  # the same of tenants: they do not differ more than tenfold
TELLING = 100  # failures, from which on a shape is looked for
FEWEST = 1e-9  # failures expected: leases with less say nothing


@dataclass(frozen=True, eq=False)
class Leases:
    """Failures that the provider saw itself on each of L leases, and what its hazards explain there; all (L,).

    `pair` is the flat position of each lease's pair in the table of pairs, `tenant` the place of its tenant.
    """

    failures: Floats
    explained: Floats
    pair: Places
    tenant: Places

    def witness(self, chosen: Places, pairs: int) -> "OwnFailures":
        """What they say of the pairs at the flat positions `chosen`, of so many."""
        return OwnFailures.of(self, chosen, pairs)

    def by_pair(self, weight: Floats, pairs: int) -> Floats:
        """The sum of `weight` (L,) by pair (pairs,)."""
        return np.bincount(self.pair, weight, pairs).astype(np.float64)

    @cached_property
    def parts(self) -> "Parts":
        """The parts that tenants have of pairs."""
        tenants = int(self.tenant.max(initial=0)) + 1
        group, of = np.unique(self.pair * tenants + self.tenant, return_inverse=True)
        order = np.argsort(of, kind="stable")
        return Parts(group // tenants, group % tenants, order, np.searchsorted(of[order], np.arange(len(group))))


@dataclass(frozen=True, eq=False)
class Parts:
    """The C parts of pairs that belong to one tenant each: `pair` and `tenant` (C,), in the order of pairs.

    `order` (L,) brings leases into it, where those of a part begin at `first` (C,).
    """

    pair: Places
    tenant: Places
    order: Places
    first: Places

    def total(self, weight: Floats) -> Floats:
        """The sum of `weight` (L,) by part (C,)."""
        return np.asarray(np.add.reduceat(weight[self.order], self.first), np.float64)

    def others(self, weight: Floats) -> Floats:
        """Of each part (C,), the sum of `weight` (C,) over the other parts of its tenant."""
        return np.asarray(np.bincount(self.tenant, weight)[self.tenant] - weight, np.float64)


@dataclass(frozen=True)
class Differ:
    """How leases differ, and tenants; infinite: not at all."""

    shape: float = np.inf
    tenant_shape: float = np.inf


ALIKE = Differ()


@dataclass(frozen=True, eq=False)
class OwnFailures:
    """The likelihood of P pairs, at flat positions `chosen` (P,): their `exposure` (P,), and `values` (P, rates)."""

    leases: Leases
    chosen: Places
    pairs: int
    differ: Differ
    exposure: Floats
    log_crude: float
    values: Floats

    @classmethod
    def of(
        cls, leases: Leases, chosen: Places, pairs: int, differ: Differ = ALIKE, rate: Floats | None = None
    ) -> "OwnFailures":
        """Of some of `pairs` pairs; `rate` (pairs,) is that of each by now, by which tenants are told apart."""
        exposure = np.maximum(leases.by_pair(leases.explained, pairs), FEWEST)
        log_crude = float(np.log(max(leases.failures.sum(), 1.0) / exposure.sum()))
        values = _by_rate(leases, chosen, pairs, differ, log_crude, rate)
        values -= values.max(axis=1, keepdims=True)
        values /= narrowness(values, STEP)[:, None]
        return cls(leases, chosen, pairs, differ, exposure[chosen], log_crude, values)

    @property
    def shape(self) -> float:
        """How leases differ."""
        return self.differ.shape

    def given(self, rate: Floats, ratio: Floats, log_prior: object) -> "OwnFailures":  # any witness has the last
        """With the shapes under which the leases' failures are most likely, where pairs have rates (P,) and ratios."""
        of_pair = np.zeros(self.pairs)
        of_pair[self.chosen] = rate * ratio
        return OwnFailures.of(self.leases, self.chosen, self.pairs, differing(self.leases, of_pair), of_pair)

    def only(self, rows: Places) -> "OwnFailures":
        """Of some pairs."""
        return replace(self, chosen=self.chosen[rows], exposure=self.exposure[rows], values=self.values[rows])

    def at(self, log_rate: Floats) -> Floats:
        """log p(V | log rate + log θ) on the grid of log θ, shape (…, P, grid); `log_rate` (…, P)."""
        return self.read(log_rate[..., None] + LOG_RATIO)

    def read(self, log_rate: Floats) -> Floats:
        """log p(V | log rate), up to a term per pair, of as many rates for each pair as `log_rate` (…, P, n) has."""
        place = (log_rate - self.log_crude - LOG_RATE[0]) / STEP
        rows = Rows(self.values)
        for own in place.reshape(-1, *place.shape[-2:]):
            rows.at(own)
        return np.asarray(place, np.float64)

    def uncapped(self) -> tuple[Floats, Floats]:
        """Counts, and what their variance has beyond Poisson's, both (P,), to start from."""
        counts, squares = (
            self.leases.by_pair(weight, self.pairs)[self.chosen]
            for weight in (self.leases.failures, self.leases.explained**2)
        )
        return counts, squares * np.exp(2.0 * self.log_crude) / self.shape


def _by_rate(
    leases: Leases, chosen: Places, pairs: int, differ: Differ, log_crude: float, rate: Floats | None
) -> Floats:
    """log p of the chosen pairs' leases (P, rates), up to a term per pair."""
    found = np.zeros((pairs, len(LOG_RATE)))
    if len(leases.failures):
        of_part = _of_parts(leases, differ.shape, np.exp(log_crude + LOG_RATE))
        if rate is not None and np.isfinite(differ.tenant_shape):
            of_part = _over_tenants(of_part, *_tenants(leases, differ, rate))
        known, first = np.unique(leases.parts.pair, return_index=True)
        found[known] = np.add.reduceat(of_part, first, axis=0)
    return found[chosen]


def _of_parts(leases: Leases, shape: float, rates: Floats) -> Floats:
    """log p of the leases of each part (C, rates), where its tenant is a usual one."""
    parts = leases.parts
    values = parts.total(leases.failures)[:, None] * LOG_RATE
    if np.isinf(shape):
        return np.asarray(values - parts.total(leases.explained)[:, None] * rates, np.float64)
    explained, weight = leases.explained[parts.order] / shape, leases.failures[parts.order] + shape
    more = np.empty(len(explained))
    for place, rate in enumerate(rates):
        np.multiply(explained, rate, out=more)
        more += 1.0
        np.log(more, out=more)  # a quarter of the time of log1p, and what it loses is nothing in the sum
        more *= weight
        values[:, place] -= np.add.reduceat(more, parts.first)
    return np.asarray(values, np.float64)


def _over_tenants(of_part: Floats, log_mean: Floats, log_sd: Floats) -> Floats:
    """log p of each part (C, rates), integrated over the effect of its tenant, whose log has that law (C,)."""
    nodes, weights = hermegauss(7)
    every, total = np.arange(len(LOG_RATE), dtype=np.float64), np.full(of_part.shape, -np.inf)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        at = read_rows(of_part, every + ((log_mean + node * log_sd) / STEP)[:, None])
        np.logaddexp(total, at + np.log(weight), out=total)
    return total


def _tenants(leases: Leases, differ: Differ, rate: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation of the log effect of each part's tenant (C,), by its leases in other pairs."""
    failures, expected = (leases.parts.others(column) for column in _telling(leases, differ.shape, rate))
    worth = differ.tenant_shape + failures
    log_mean = digamma(worth) - np.log(differ.tenant_shape + expected)
    return np.asarray(log_mean, np.float64), np.sqrt(polygamma(1, worth))


def _telling(leases: Leases, shape: float, rate: Floats) -> tuple[Floats, Floats]:
    """Failures and expected ones by part (C,), as many as would say as much if all its leases were alike."""
    mean = _expected(leases, rate)
    failures, expected, squares = (leases.parts.total(weight) for weight in (leases.failures, mean, mean**2))
    share = expected / (expected + squares / shape)
    return share * failures, share * expected


def _expected(leases: Leases, rate: Floats) -> Floats:
    """Of each lease (L,), in all as many as there were: what all rates are off by is no difference between tenants."""
    mean = np.maximum(leases.explained * rate[leases.pair], FEWEST)
    return np.asarray(mean * max(float(leases.failures.sum()), FEWEST) / float(mean.sum()), np.float64)


def differing(leases: Leases, rate: Floats) -> Differ:
    """The shapes under which the leases' failures are most likely, given the rate of each pair (flat).

    Fewer than `TELLING` failures do not say how leases or tenants differ.
    """
    if leases.failures.sum() < TELLING:
        return ALIKE
    parts = leases.parts
    shape = _shape_of(leases.failures, np.maximum(leases.explained * rate[leases.pair], FEWEST), LOG_SHAPES)
    telling = _telling(leases, shape, rate)
    failures, expected = (np.bincount(parts.tenant, column).astype(np.float64) for column in telling)
    tenant_shape = _shape_of(failures, np.maximum(expected, FEWEST), LOG_TENANT_SHAPES)
    if np.isinf(tenant_shape):
        return Differ(shape)
    effect = (tenant_shape + failures) / (tenant_shape + expected)
    return Differ(_shape_of(leases.failures, _expected(leases, rate) * effect[leases.tenant], LOG_SHAPES), tenant_shape)


def _shape_of(failures: Floats, mean: Floats, log_shapes: tuple[float, float]) -> float:
    """The shape under which failures of that mean are most likely; inf: they are all alike."""

    def unlikely(log_shape: float) -> float:
        return -_log_likelihood(failures, mean, float(np.exp(log_shape)))

    best = minimize_scalar(unlikely, bounds=log_shapes, method="bounded", options={"xatol": 0.01})
    return float(np.exp(best.x)) if -best.fun > _log_likelihood(failures, mean, np.inf) else np.inf


def _log_likelihood(failures: Floats, mean: Floats, shape: float) -> float:
    if np.isinf(shape):
        return float((failures * np.log(mean) - mean).sum())
    of_shape = gammaln(failures + shape) - gammaln(shape) - failures * np.log(shape)
    return float((of_shape + failures * np.log(mean) - (failures + shape) * np.log1p(mean / shape)).sum())
