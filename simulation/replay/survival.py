"""Survival by group from public departures and private failures: Kaplan–Meier with the failure indicator estimated.

The provider sees when each unit left and how many were still there; whether it left because it failed is the tenant's
secret, and only noisy failure counts by band are released. Of the L_b that left in a band d_b ~ Binomial(L_b, p_b)
failed, with logit p_b a random walk over bands; released is d_b + noise. The curve is Kaplan–Meier's with d_b replaced
by its posterior mean, spread over the band's departures: S(t) = Π (1 - (d_b / L_b) l_s / n_s) over the departure times
s <= t, with l_s leaving and n_s at risk. The less noise, the less the random walk has to say.

With exact counts and one band per departure time this is the Kaplan–Meier estimator. The intervals are pointwise,
normal on the log scale: Greenwood's formula for the population, plus what noise leaves open about the d_b. Once the
curve is at 0 the log scale has no interval: the upper bound stays where it was, since survival cannot rise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.intervals import NORMAL_95
from simulation.replay.bands import band_of

MAX_STEPS = 200
TOLERANCE = 1e-8
MOST_SPREAD = 700.0  # of log S; exp of it is still a float, and so wide an interval ends at 1
WALK_SD = 1.0  # of the logit from band to band: wide enough to follow the data, narrow enough to bridge an empty band


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """S(t) after each distinct departure time, shape (T,), numbers at risk just before it, pointwise 95% bounds."""

    times: Floats
    at_risk: Floats
    survival: Floats
    low: Floats
    high: Floats

    def at(self, times: Floats) -> Floats:
        """S at arbitrary times; 1 before the first departure."""
        place = np.searchsorted(self.times, times, side="right")
        return np.concatenate([[1.0], self.survival])[place]


def survival_curve(departures: Floats, edges: Floats, failures: Floats, noise_variance: Floats) -> SurvivalCurve:
    """The curve of one group.

    `departures` (n,) are the public times at which its units left, `edges` (B + 1,) the bands, `failures` (B,) the
    released counts of those that left because they failed, `noise_variance` (B,) the variance of their noise.
    """
    times, count = np.unique(departures, return_counts=True)
    leaving = count.astype(np.float64)
    at_risk = len(departures) - np.concatenate([[0.0], np.cumsum(leaving)[:-1]])
    band = band_of(times, edges)
    left = np.bincount(band, weights=leaving, minlength=len(failures)).astype(np.float64)
    share, covariance = _failing_share(left, failures, noise_variance)
    steps = share[band] * leaving / at_risk
    survival = np.cumprod(np.clip(1.0 - steps, 0.0, 1.0))
    spread = _log_spread(steps, at_risk, leaving, band, covariance)
    factor = np.exp(np.minimum(NORMAL_95 * spread, MOST_SPREAD))
    high = np.minimum(1.0, survival * factor)
    alive = survival > 0.0
    high = np.where(alive, high, high[alive][-1] if alive.any() else 1.0)
    return SurvivalCurve(times, at_risk.astype(np.float64), survival, survival / factor, high)


def _failing_share(left: Floats, failures: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Share of each band's departures that were failures, shape (B,), and the covariance (B, B) that noise leaves it.

    Exact counts are taken at their word. Otherwise logit p is fitted by Fisher scoring, penalised by the random walk,
    and each count is drawn towards what its band expects, as far as noise outweighs the binomial spread.
    """
    if not variance.any():
        share = np.divide(failures, left, out=np.zeros(len(left)), where=left > 0)
        return share, np.zeros((len(left), len(left)))
    walk = np.diff(np.eye(len(left)), axis=0) / WALK_SD
    penalty = walk.T @ walk + 1e-6 * np.eye(len(left))
    theta = np.full(len(left), logit(np.clip(failures.sum() / max(left.sum(), 1.0), 0.02, 0.98)))
    for _ in range(MAX_STEPS):
        share, slope, weight = _linearised(theta, left, variance)
        score = weight * (failures - left * share) - penalty @ theta
        step = np.linalg.solve(np.diag(slope * weight) + penalty, score)
        theta = theta + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < TOLERANCE:
            break
    share, slope, weight = _linearised(theta, left, variance)
    counts = np.clip(weight * failures + (1.0 - weight) * left * share, 0.0, left)
    pulled = (1.0 - weight) * share * (1.0 - share)
    covariance = pulled[:, None] * np.linalg.inv(np.diag(slope * weight) + penalty) * pulled
    own = np.divide(weight * variance, left**2, out=np.zeros(len(left)), where=left > 0)
    return np.divide(counts, left, out=share, where=left > 0), covariance + np.diag(own)


def _linearised(theta: Floats, left: Floats, variance: Floats) -> tuple[Floats, Floats, Floats]:
    """Shares at logits `theta`; the counts' derivative, which is their binomial variance; its part of the total."""
    share = expit(theta)
    slope = left * share * (1 - share)
    return share, slope, np.divide(slope, slope + variance, out=np.ones(len(left)), where=slope + variance > 0)


def _log_spread(steps: Floats, at_risk: Floats, leaving: Floats, band: NDArray[np.intp], covariance: Floats) -> Floats:
    """Standard deviation of log S(t): Greenwood's, and the delta method for shares that are not exactly known."""
    failing = steps * at_risk
    greenwood = np.cumsum(failing / (at_risk * np.maximum(at_risk - failing, 1e-12)))
    slope = leaving / at_risk / np.maximum(1.0 - steps, 1e-12)
    load = np.cumsum(slope[:, None] * (band[:, None] == np.arange(len(covariance))), axis=0)
    spread: Floats = np.sqrt(greenwood + np.einsum("tb,bc,tc->t", load, covariance, load))
    return spread
