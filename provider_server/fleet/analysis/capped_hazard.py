"""Hazards of contexts and age bands from noisy counts under a cap, with the cap and the noise in one objective.

Unit j runs in level c of a context, spends e_jb node-hours in band b, and multiplies the hazard by the factor r_jk
with probability w_jk. Its expected failures, given k, are m_jk = r_jk Σ_b h_cb e_jb, and F of them count at most: a
cell of the table expects

    μ_cb = h_cb Σ_j e_jb Σ_k w_jk r_jk C(m_jk) / m_jk                        (`analysis.effective` has C)

and is released as y_cb, with noise of known variance σ²_cb. The hazards are log h_cb = α + a_c + β_b. Maximised is

    L(θ) = Σ_cb [(y_cb + σ²_cb) log(μ_cb + σ²_cb) − μ_cb] − ½ (θ − θ₀)ᵀ P (θ − θ₀),          θ = (α, a, β):

the Poisson log likelihood where there is no noise, and with noise the quasi-likelihood whose variance is μ + σ²
(McCullagh & Nelder 1989, ch. 9; y + σ² read as a Poisson count, Snyder and others 1993). P is a Gaussian prior on α
around the rate that is `foretold`, else weak around the crude one, and `effect_sd` on each a and β.

With K_c = ∂μ_c / ∂log h_c (bands, bands), r = (y − μ) / (μ + σ²), and X the design of log h, Fisher's step δ solves

    H δ = Xᵀ K r − P (θ − θ₀),          H = Xᵀ K diag(1 / (μ + σ²)) K X + P.

Where L bends at least `FLATTEST` times as much as H in every direction, Newton's step is taken, with L's own curvature
in place of H: near the answer the error squares from round to round. A step is shortened to `MAX_STEP`, then halved
until L rises by a share of what its slope promises (Armijo).

Guarantees. L never falls from one round to the next. It is smooth and bounded above, and P keeps the θ at which L is
no lower in a bounded set, where H and Newton's matrix lie between a multiple of P and a bound. So every limit of the
rounds is a stationary point of L (Nocedal & Wright 2006, ch. 3). A fit ends when a whole step would change no rate by
more than `TOLERANCE` of itself; one that has not after `MOST_ROUNDS` is refused, by `Unsettled`.

The covariance is that of the estimate about the truth, H⁻¹ (Xᵀ K V⁻¹ S V⁻¹ K X + P) H⁻¹, where H is the matrix above,
V = diag(μ + σ²), and S what counts and noise really scatter: of q expected of a unit in its bands, the cap takes
q qᵀ / F off the Poisson covariance, which is exact for F = 1.

Not promised: that L has one maximum only. It has without noise and cap; with them, a start at the crude
rate finds the same one each time. Intervals are normal on the log scale.
"""

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.cap_correction import ALIKE, FEWEST, cap_factor, capped_curvature, capped_slope
from provider_server.fleet.analysis.hazard import Unsettled

logger = logging.getLogger(__name__)

Places = NDArray[np.intp]

LEVEL_SD = 5.0  # of the log rate of an average cell around the crude one: what keeps noise from running away
TOLERANCE = 1e-6  # of any rate, relative to itself: the largest change that one more whole step may bring
MOST_ROUNDS = 200
MAX_STEP = 2.0  # of any log rate, per round
FARTHEST = 50.0  # of a log rate: what a step would change by more is told as so much
LEAST_GAIN = 1e-4  # of what the slope promises: a step that gains less is halved
FLATTEST = 0.05  # of Fisher's information: where L bends less than that in some direction, Fisher's step is taken


@dataclass(frozen=True, eq=False)
class Units:
    """J units by level: `starts` (levels + 1,) delimits those of each.

    `node_hours` is (J, bands); `weights` and `factors` (J, components) are the mixture of factors that multiply the
    hazard; `most` (J,) is how many failures count.
    """

    starts: Places
    node_hours: Floats
    weights: Floats
    factors: Floats
    most: Places

    @classmethod
    def of_levels(
        cls, level: Places, levels: int, node_hours: Floats, weights: Floats, factors: Floats, most: Places
    ) -> "Units":
        """Units in any order; those whose `level` (J,) is -1 are left out."""
        order = np.argsort(level, kind="stable")
        starts = np.searchsorted(level[order], np.arange(levels + 1))
        order, starts = order[starts[0] :], starts - starts[0]
        return cls(starts, node_hours[order], weights[order], factors[order], most[order])

    @cached_property
    def level(self) -> Places:
        """Of each unit (J,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def total(self, rates: Floats) -> Floats:
        """Σ_b rates_cb e_jb (J,), of rates (levels, bands)."""
        return np.asarray((rates[self.level] * self.node_hours).sum(axis=1), np.float64)

    def by_level(self, weight: Floats) -> Floats:
        """Node-hours times `weight` (J,), by level and band."""
        parts = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return np.array([weight[start:end] @ self.node_hours[start:end] for start, end in parts])

    def products(self, weight: Floats) -> Floats:
        """Σ_j weight_j e_j e_jᵀ by level, (levels, bands, bands)."""
        parts = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        own = (self.node_hours[start:end].T * weight[start:end] @ self.node_hours[start:end] for start, end in parts)
        return np.array(list(own))


class Rates(NamedTuple):
    """Hazards per node-hour (levels, bands), the standard deviations of their logarithms, and the rounds it took.

    Where nothing ran, both are zero.
    """

    hazard: Floats
    log_sd: Floats
    rounds: int


def fit_capped(
    units: Units,
    counts: Floats,
    noise_variance: Floats,
    *,
    effect_sd: float,
    shape: float = ALIKE,
    foretold: tuple[float, float] | None = None,
) -> Rates:
    """Hazards from `counts` with noise, both (levels, bands); leases differ by `shape` (`analysis.cap_correction`).

    `foretold` is the log rate of an average cell and its standard deviation, as known before.

    Unsettled where the fit does not come to rest; ValueError where exact failures were counted and nothing ran.
    """
    objective = _Objective.of(units, counts, noise_variance, effect_sd, shape, foretold)
    here, change = objective.at(objective.crude), np.inf
    for rounds in range(1, MOST_ROUNDS + 1):
        step, promised = objective.step(here)
        moved = objective.log_hazard(step)[objective.known]
        change = float(np.abs(np.expm1(np.minimum(moved, FARTHEST))).max(initial=0.0))
        logger.debug("round %d: rates would change by %.3g of themselves", rounds, change)
        if change <= TOLERANCE:
            logger.info("hazards settled in %d rounds", rounds, extra={"event": "hazards_settled", "rounds": rounds})
            return Rates(np.where(objective.known, here.hazard, 0.0), objective.log_sd(here), rounds)
        here = objective.ascend(here, step, promised)
    raise Unsettled(f"hazards have not settled in {MOST_ROUNDS} rounds: one more would change a rate by {change:.2g}")


class _Point(NamedTuple):
    """Where a fit stands: θ, hazards, and what they make count.

    `mean` is μ (levels, bands) and `slope` K (levels, bands, bands); `failures` m, `share` C(m) / m and `bend` its
    derivative are (J, components).
    """

    theta: Floats
    hazard: Floats
    mean: Floats
    slope: Floats
    failures: Floats
    share: Floats
    bend: Floats


@dataclass(frozen=True, eq=False)
class _Objective:
    """L of one set of counts, over θ = (α, a, β)."""

    units: Units
    counts: Floats
    noise_variance: Floats
    known: NDArray[np.bool_]
    crude: Floats
    centre: Floats
    precision: Floats
    shape: float

    @classmethod
    def of(
        cls,
        units: Units,
        counts: Floats,
        noise_variance: Floats,
        effect_sd: float,
        shape: float,
        foretold: tuple[float, float] | None = None,
    ) -> "_Objective":
        """The crude rate is that of the total, or of its noise where that is more, as if there were no cap."""
        exposure = units.by_level((units.weights * units.factors).sum(axis=1))
        known = exposure > 0.0
        if np.any(counts[~known & (noise_variance == 0.0)] != 0.0):
            raise ValueError("exact failures where nothing ran")
        levels, bands = counts.shape
        crude, precision = np.zeros(1 + levels + bands), np.full(1 + levels + bands, effect_sd**-2)
        total = max(float(counts[known].sum()), float(np.sqrt(noise_variance[known].sum())), 1.0)
        crude[0] = np.log(total / max(float(exposure.sum()), 1.0))
        centre = crude.copy()
        centre[0], level_sd = foretold or (crude[0], LEVEL_SD)
        precision[0] = level_sd**-2
        return cls(units, counts, noise_variance, known, crude, centre, precision, shape)

    def log_hazard(self, theta: Floats) -> Floats:
        """α + a_c + β_b (levels, bands)."""
        levels = len(self.counts)
        return np.asarray(theta[0] + theta[1 : 1 + levels, None] + theta[1 + levels :], np.float64)

    def at(self, theta: Floats) -> _Point:
        """The point of θ."""
        weights, factors, most = self.units.weights, self.units.factors, self.units.most[:, None]
        hazard = np.exp(self.log_hazard(theta))
        failures = np.maximum(self.units.total(hazard)[:, None] * factors, FEWEST)
        share = cap_factor(failures, most, self.shape)
        bend = (capped_slope(failures, most, self.shape) - share) / failures
        mean = hazard * self.units.by_level((weights * factors * share).sum(axis=1))
        slope = self._pairs((weights * factors**2 * bend).sum(axis=1), hazard)
        slope[:, self._bands, self._bands] += mean
        return _Point(theta, hazard, mean, slope, failures, share, bend)

    def step(self, here: _Point) -> tuple[Floats, float]:
        """The next step of θ, and how fast L rises along it at first."""
        weight = self._weight(here)
        pull = (self.counts - here.mean) * weight
        score = self._onto((here.slope @ pull[:, :, None])[:, :, 0]) - self.precision * (here.theta - self.centre)
        fisher = self._square(here.slope * weight[:, None, :] @ here.slope) + np.diag(self.precision)
        newton = self._curvature(here, weight, pull)
        try:
            cho_factor(newton - FLATTEST * fisher)
            step = cho_solve(cho_factor(newton), score)
        except LinAlgError:
            step = cho_solve(cho_factor(fisher), score)
        return step, float(score @ step)

    def ascend(self, here: _Point, step: Floats, promised: float) -> _Point:
        """Where the first of `step`, its half, its quarter and so on leads that gains its share of what is promised."""
        share = MAX_STEP / max(float(np.abs(self.log_hazard(step)).max()), MAX_STEP)
        while share > np.finfo(float).eps:
            there = self.at(here.theta + share * step)
            if self._gain(here, there) >= LEAST_GAIN * share * promised:
                return there
            share /= 2.0
        return here

    def _gain(self, here: _Point, there: _Point) -> float:
        """By how much L is higher there: summed as differences, which rounding does not swamp."""
        rise, known = there.mean - here.mean, self.known
        ratio = np.divide(rise, here.mean + self.noise_variance, out=np.zeros(rise.shape), where=known)
        fit = float(((self.counts + self.noise_variance) * np.log1p(ratio) - rise)[known].sum())
        both = here.theta + there.theta - 2.0 * self.centre
        return fit - 0.5 * float((self.precision * (there.theta - here.theta)) @ both)

    def _curvature(self, here: _Point, weight: Floats, pull: Floats) -> Floats:
        """The negated Hessian of L."""
        weights, factors, most = self.units.weights, self.units.factors, self.units.most[:, None]
        twist = (capped_curvature(here.failures, most, self.shape) - 2.0 * here.bend) / here.failures
        pulled = self.units.total(here.hazard * pull)
        bent = self._pairs(pulled * (weights * factors**3 * twist).sum(axis=1), here.hazard)
        off = here.slope.copy()
        off[:, self._bands, self._bands] -= here.mean
        bent += off * (pull[:, :, None] + pull[:, None, :])
        bent[:, self._bands, self._bands] += (here.slope @ pull[:, :, None])[:, :, 0]
        squared = here.slope * ((1.0 + pull) * weight)[:, None, :] @ here.slope
        return self._square(squared - bent) + np.diag(self.precision)

    def _weight(self, here: _Point) -> Floats:
        """1 / (μ + σ²), and 0 where nothing ran."""
        return np.divide(1.0, here.mean + self.noise_variance, out=np.zeros(here.mean.shape), where=self.known)

    @property
    def _bands(self) -> Places:
        return np.arange(self.counts.shape[1])

    def _pairs(self, weight: Floats, hazard: Floats) -> Floats:
        """Σ_j weight_j v_j v_jᵀ by level, v_jb the failures of a unit by the hazard alone."""
        return np.asarray(self.units.products(weight) * hazard[:, :, None] * hazard[:, None, :], np.float64)

    def log_sd(self, here: _Point) -> Floats:
        """The standard deviations of the log hazards about the truth (levels, bands)."""
        weight = self._weight(here)
        counted = (self.units.weights * self.units.factors * here.share).sum(axis=1)
        scatter = -self._pairs(counted**2 / self.units.most, here.hazard)
        scatter[:, self._bands, self._bands] += here.mean + self.noise_variance
        moved = here.slope * weight[:, None, :]
        prior = np.diag(self.precision)
        inverse = np.linalg.inv(self._square(moved @ here.slope) + prior)
        variance = inverse @ (self._square(moved @ scatter @ moved.transpose(0, 2, 1)) + prior) @ inverse
        level, band = slice(1, 1 + len(self.counts)), slice(1 + len(self.counts), None)
        own, cross = np.diag(variance), variance[0, level, None] + variance[0, band] + variance[level, band]
        return np.where(self.known, np.sqrt(own[0] + own[level, None] + own[band] + 2.0 * cross), 0.0)

    def _onto(self, values: Floats) -> Floats:
        """Xᵀ of values (levels, bands)."""
        return np.concatenate([[values.sum()], values.sum(axis=1), values.sum(axis=0)])

    def _square(self, blocks: Floats) -> Floats:
        """Xᵀ B X of the blocks (levels, bands, bands) of a block-diagonal B."""
        by_band = blocks.sum(axis=2)
        levels, bands = by_band.shape
        total = np.zeros((1 + levels + bands, 1 + levels + bands))
        level, band = slice(1, 1 + levels), slice(1 + levels, None)
        total[0] = total[:, 0] = self._onto(by_band)
        total[level, level] = np.diag(by_band.sum(axis=1))
        total[level, band], total[band, level] = by_band, by_band.T
        total[band, band] = blocks.sum(axis=0)
        return total
