"""What the provider's own events say of each pair's rate: exact counts, lease by lease, of leases that differ.

    V = Poisson(g e x),   g ~ Gamma(mean 1, variance 1 / k)

for a lease that expects e failures at a rate of one, in a pair of rate x. So a lease's failures are negative binomial:
many of them in one lease say less of its pair than as many in several. `shape` k is estimated from all leases
(maximum likelihood; infinite where leases differ no more than by chance).

A pair's likelihood is the product over its leases, on the grid of log rates `LOG_RATE` around its crude rate. Of pairs
about which less may be told, it is that of how few owners failed there (`analysis.few_owners`).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

from federation.protocol.life_table import Floats
from provider_server.analysis.few_owners import FewOwners
from provider_server.analysis.ratio_grid import LOG_RATIO, Rows, narrowness

Places = NDArray[np.intp]

LOG_RATE = np.linspace(-6.0, 6.0, 301)  # around the crude rate
LOG_SHAPES = (float(np.log(0.02)), float(np.log(100.0)))  # between which a finite shape is looked for
TELLING = 100  # failures, from which on a shape is looked for
FEWEST = 1e-9  # failures expected: leases with less say nothing


@dataclass(frozen=True, eq=False)
class Leases:
    """Failures that the provider saw itself on each of L leases, and what its hazards explain there; all (L,).

    `pair` is the flat position of each lease's pair in the table of pairs. `few` are owners of whose failures only
    their number may be told.
    """

    failures: Floats
    explained: Floats
    pair: Places
    few: FewOwners | None = None

    def exposure(self, pairs: int) -> Floats:
        """What is explained by pair (pairs,), on these leases and of those few."""
        own = self.by_pair(self.explained, pairs)
        return own if self.few is None else own + self.few.by_pair(pairs)

    def witness(self, chosen: Places, pairs: int) -> "OwnFailures":
        """What they say of the pairs at the flat positions `chosen`, of so many."""
        return OwnFailures.of(self, chosen, pairs)

    def by_pair(self, weight: Floats, pairs: int) -> Floats:
        """The sum of `weight` (L,) by pair (pairs,)."""
        return np.bincount(self.pair, weight, pairs).astype(np.float64)


@dataclass(frozen=True, eq=False)
class OwnFailures:
    """The likelihood of P pairs, at flat positions `chosen` (P,): their `exposure` (P,), and `values` (P, rates)."""

    leases: Leases
    chosen: Places
    pairs: int
    shape: float
    exposure: Floats
    log_crude: float
    values: Floats

    @classmethod
    def of(cls, leases: Leases, chosen: Places, pairs: int, shape: float = np.inf) -> "OwnFailures":
        """Of some of `pairs` pairs."""
        exposure = np.maximum(leases.exposure(pairs), FEWEST)
        log_crude = float(np.log(max(leases.failures.sum(), 1.0) / exposure.sum()))
        values = _by_rate(leases, chosen, pairs, shape, log_crude)
        if leases.few is not None:
            values += leases.few.log_likelihood(pairs, np.exp(log_crude + LOG_RATE))[chosen]
        values -= values.max(axis=1, keepdims=True)
        values /= narrowness(values, float(LOG_RATE[1] - LOG_RATE[0]))[:, None]
        return cls(leases, chosen, pairs, shape, exposure[chosen], log_crude, values)

    def given(self, rate: Floats) -> "OwnFailures":
        """With the shape under which the leases' failures are most likely, where pairs have that rate (P,)."""
        of_pair = np.zeros(self.pairs)
        of_pair[self.chosen] = rate
        return OwnFailures.of(self.leases, self.chosen, self.pairs, shape_of(self.leases, of_pair))

    def only(self, rows: Places) -> "OwnFailures":
        """Of some pairs."""
        return replace(self, chosen=self.chosen[rows], exposure=self.exposure[rows], values=self.values[rows])

    def at(self, log_rate: Floats) -> Floats:
        """log p(V | log rate + log θ) on the grid of log θ, shape (…, P, grid); `log_rate` (…, P)."""
        return self.read(log_rate[..., None] + LOG_RATIO)

    def read(self, log_rate: Floats) -> Floats:
        """log p(V | log rate), up to a term per pair, of as many rates for each pair as `log_rate` (…, P, n) has."""
        place = (log_rate - self.log_crude - LOG_RATE[0]) / (LOG_RATE[1] - LOG_RATE[0])
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
        few = np.zeros(self.pairs) if self.leases.few is None else self.leases.few.by_pair(self.pairs)
        guessed = few[self.chosen] * np.exp(self.log_crude)
        return counts + guessed, squares * np.exp(2.0 * self.log_crude) / self.shape + guessed + guessed**2


def _by_rate(leases: Leases, chosen: Places, pairs: int, shape: float, log_crude: float) -> Floats:
    """log p of the chosen pairs' leases (P, rates), up to a term per pair."""
    rates = np.exp(log_crude + LOG_RATE)
    values = leases.by_pair(leases.failures, pairs)[chosen, None] * LOG_RATE
    if np.isinf(shape):
        explained = leases.by_pair(leases.explained, pairs)[chosen]
        for place, rate in enumerate(rates):
            values[:, place] -= explained * rate
        return values
    order = np.argsort(leases.pair, kind="stable")
    known, first = np.unique(leases.pair[order], return_index=True)
    explained, weight = leases.explained[order] / shape, leases.failures[order] + shape
    total, more = np.zeros(pairs), np.empty(len(order))
    for place, rate in enumerate(rates if len(order) else ()):
        np.multiply(explained, rate, out=more)
        more += 1.0
        np.log(more, out=more)  # a quarter of the time of log1p, and what it loses is nothing in the sum
        more *= weight
        total[known] = np.add.reduceat(more, first)
        values[:, place] -= total[chosen]
    return values


def shape_of(leases: Leases, rate: Floats) -> float:
    """The shape under which the leases' failures are most likely, given the rate of each pair (flat); inf: alike.

    Fewer than `TELLING` failures do not say how leases differ.
    """
    if leases.failures.sum() < TELLING:
        return np.inf
    mean = np.maximum(leases.explained * rate[leases.pair], FEWEST)

    def unlikely(log_shape: float) -> float:
        return -_log_likelihood(leases.failures, mean, float(np.exp(log_shape)))

    best = minimize_scalar(unlikely, bounds=LOG_SHAPES, method="bounded", options={"xatol": 0.01})
    return float(np.exp(best.x)) if -best.fun > _log_likelihood(leases.failures, mean, np.inf) else np.inf


def _log_likelihood(failures: Floats, mean: Floats, shape: float) -> float:
    if np.isinf(shape):
        return float((failures * np.log(mean) - mean).sum())
    of_shape = gammaln(failures + shape) - gammaln(shape) - failures * np.log(shape)
    return float((of_shape + failures * np.log(mean) - (failures + shape) * np.log1p(mean / shape)).sum())
