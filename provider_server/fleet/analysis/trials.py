"""What stand-in jobs on idle nodes say of each pair: exact counts, of jobs that may not fail as the real ones do.

    N = Poisson(E x), on P pairs with E (P,) failures expected at a rate of one

A stand-in runs in place of a workload that the provider cannot see. Of each pair it is one of three:

- *faithful*, with probability f: it is worse as the pair is, by θ to the power of s ~ N(1, `POWER_SD`²);
- *deaf*, h: it lacks what makes the pair fail, and its rate is what main effects say;
- *odd*, `ODD`: it has a defect of its own, which the workload does not have.

f is learnt over all pairs from how well what others say of them foretells what stand-ins do (`Trials.given`), under a
prior that is worth `WORTH` pairs. So one that lacks what pairs fail by convicts nobody but by chance, and clears nobody
beyond 1 / h. `ODD` is not learnt: where others know little of the pairs, what speaks for it speaks for mismatches as
well, so a defect of a stand-in's own may be taken for one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO, parts

Places = NDArray[np.intp]

POWER_SD = 1 / 3  # of a faithful stand-in: one of a pair that is eight times as bad is four to sixteen times as bad
WORTH = 8.0  # pairs
USUAL = 0.8  # faithful, before anything is seen
ODD = 0.0005
ODD_SD = 1.0  # of the log ratio of a stand-in's own defect, above one
FEWEST = 1e-9  # failures expected: pairs with less say nothing
EM_STEPS = 20
MOST_LOG = 500.0
_NODES, _WEIGHTS = hermegauss(5)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())
_ODD = np.exp(-0.5 * (LOG_RATIO / ODD_SD) ** 2) * (LOG_RATIO > 0.0)
_LOG_ODD = np.log(np.maximum(_ODD / _ODD.sum(), np.finfo(float).tiny))


@dataclass(frozen=True, eq=False)
class Trials:
    """Failures of stand-ins on P pairs and what a rate of one lets one expect, both (P,); how faithful they are."""

    failures: Floats
    exposure: Floats
    faithful: float = USUAL

    @property
    def shape(self) -> float:
        """Infinite: trials are independent of each other."""
        return np.inf

    def only(self, rows: Places) -> "Trials":
        """Of some pairs."""
        return replace(self, failures=self.failures[rows], exposure=self.exposure[rows])

    def given(self, rate: Floats, ratio: Floats, log_prior: Callable[[Places], Floats]) -> "Trials":
        """With the likeliest share of faithful ones, where main effects are `rate` (P,) and others say `log_prior`."""
        tried = parts(np.flatnonzero(self.exposure > FEWEST))
        evidence = [self.only(rows)._evidence(np.log(rate[rows]), log_prior(rows)) for rows in tried]
        faithful, (heard, deaf) = self.faithful, np.concatenate([np.zeros((0, 2)), *evidence]).T
        for _ in range(EM_STEPS):
            share = 1.0 / (1.0 + (1.0 - faithful) / faithful * np.exp(np.minimum(deaf - heard, MOST_LOG)))
            faithful = float((WORTH * USUAL + share.sum()) / (WORTH + len(share)))
        return replace(self, faithful=faithful)

    def at(self, log_rate: Floats) -> Floats:
        """log p(N | log rate + log θ) on the grid of log θ, shape (…, P, grid); `log_rate` (…, P)."""
        faithful, deaf = np.log(self.faithful * (1.0 - ODD)), np.log((1.0 - self.faithful) * (1.0 - ODD))
        whatever = np.logaddexp(deaf + self._log(log_rate), np.log(ODD) + self._odd(log_rate))
        return np.asarray(np.logaddexp(faithful + self._faithful(log_rate), whatever[..., None]), np.float64)

    def uncapped(self) -> tuple[Floats, Floats]:
        """Counts without noise, both (P,), to start from."""
        return self.failures, np.zeros(len(self.failures))

    def _evidence(self, log_rate: Floats, log_prior: Floats) -> Floats:
        """log p(N) if faithful and if deaf (P, 2), where others say `log_prior` (P, grid) of θ."""
        prior = log_prior - np.logaddexp.reduce(log_prior, axis=1, keepdims=True)
        faithful = np.logaddexp.reduce(self._faithful(log_rate) + prior, axis=1)
        return np.stack([faithful, self._log(log_rate)], axis=1)

    def _log(self, log_rate: Floats) -> Floats:
        """log p(N | log rate), up to a term per pair, of one rate each (…, P)."""
        return np.asarray(self.failures * log_rate - self.exposure * np.exp(log_rate), np.float64)

    def _faithful(self, log_rate: Floats) -> Floats:
        """That of a faithful stand-in, by log θ: (…, P, grid)."""
        failures, exposure = self.failures[:, None], self.exposure[:, None]
        total = np.full((*log_rate.shape, len(LOG_RATIO)), -np.inf)
        for node, log_weight in zip(_NODES, _LOG_WEIGHTS, strict=True):
            at = log_rate[..., None] + (1.0 + POWER_SD * node) * LOG_RATIO
            np.logaddexp(total, failures * at - exposure * np.exp(at) + log_weight, out=total)
        return total

    def _odd(self, log_rate: Floats) -> Floats:
        """That of one with a defect of its own (…, P)."""
        at = log_rate[..., None] + LOG_RATIO
        says = self.failures[:, None] * at - self.exposure[:, None] * np.exp(at) + _LOG_ODD
        return np.asarray(np.logaddexp.reduce(says, axis=-1), np.float64)
