"""Random pairs within strata of equal confounders, the sign test on them, and how much hidden bias it withstands.

Within a stratum treated and untreated units are paired at random; a pair scores +1 where only the treated one failed,
−1 where only the other did, 0 where they agree. Without effect each pair that does not agree is as likely +1 as −1: the
sign test. Under a hidden confounder that changes the odds of treatment at most Γ-fold, the chance is at most
Γ / (1 + Γ): Rosenbaum's bound.

A cell (failures over exposure) is a crowd of units that each last a moment: every treated hour is paired with an
untreated hour, and a failure falls among the paired hours with probability min(T₁, T₀) / T. Where counts carry noise
nobody can draw from them, so they are scaled by that share, and the null distribution is the binomial convolved with
the noise.

Not promised: anything about confounders that are not among the strata, beyond Γ. With noise the number of failing pairs
is itself an estimate, and the test is as good as the saddlepoint approximation.

Sources: Krishnan and Sitaraman, IMC 2012; Rosenbaum, Observational Studies (2002), §4.3; Lugannani and Rice (1980) with
the second continuity correction of Daniels (1987).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import binom, norm

from federation.protocol.life_table import Floats

Places = NDArray[np.intp]

MOST_TILT, HALVINGS = 40.0, 60  # the saddlepoint is sought among exponential tilts up to e^±40
NEAR_MEAN = 1e-3  # standard deviations from the mean, where the saddlepoint formula would divide zero by zero
MOST_GAMMA, GAMMA_HALVINGS = 1e3, 30


@dataclass(frozen=True, eq=False)
class Arm:
    """One side of P comparisons in S strata, shapes (P, S): counts, time at risk, variance of the noise in the counts.

    ValueError where shapes differ, exposure or variance is negative, or a count without noise is no whole number >= 0.
    """

    events: Floats
    exposure_node_hours: Floats
    noise_variance: Floats

    def __post_init__(self) -> None:
        if (
            self.events.ndim != 2
            or not self.events.shape == self.exposure_node_hours.shape == self.noise_variance.shape
        ):
            raise ValueError("events, exposure and noise variance must be arrays (comparisons, strata) of one shape")
        if self.exposure_node_hours.min(initial=0.0) < 0.0 or self.noise_variance.min(initial=0.0) < 0.0:
            raise ValueError("exposure and noise variance cannot be negative")
        exact = self.events[self.noise_variance == 0.0]
        if np.any((exact < 0.0) | (exact != np.round(exact))):
            raise ValueError("counts without noise must be whole numbers, zero at least")

    def where(self, kept: NDArray[np.bool_]) -> "Arm":
        """The same with empty cells where `kept` (P, S) is false."""
        return Arm(*(values * kept for values in (self.events, self.exposure_node_hours, self.noise_variance)))


@dataclass(frozen=True, eq=False)
class SignTest:
    """Of P comparisons, medians over the repeated pairings; every array has shape (P,).

    `plus` and `minus` count pairs of which only the treated, only the untreated part failed; `net_outcome` is
    (plus − minus) / `pairs` and `spread` its standard deviation over the pairings; `p` is two-sided. `gamma` is the
    least hidden bias at which the one-sided test is no longer significant: 1 where it never was.
    """

    pairs: Floats
    plus: Floats
    minus: Floats
    net_outcome: Floats
    spread: Floats
    p: Floats
    gamma: Floats


def sign_test_of_cells(
    treated: Arm,
    untreated: Arm,
    rng: np.random.Generator,
    *,
    pair_node_hours: float,
    repeats: int = 50,
    level: float = 0.05,
) -> SignTest:
    """The sign test on P comparisons of cells, where `pair_node_hours` of either side make one pair.

    Pairings are repeated by drawing which failures fall among the paired hours; with noise their expectation is taken
    instead, so `spread` is zero there.
    """
    hours = np.minimum(treated.exposure_node_hours, untreated.exposure_node_hours)
    noise = np.zeros(len(hours))
    sides = []
    for arm in (treated, untreated):
        share = np.divide(hours, arm.exposure_node_hours, out=np.zeros(hours.shape), where=hours > 0.0)
        sides.append((arm.events, share))
        noise += (share**2 * arm.noise_variance).sum(axis=1)
    plus, minus = (_paired(events, share, noise, rng, repeats) for events, share in sides)
    return _sign_test(hours.sum(axis=1) / pair_node_hours, plus, minus, noise, level)


def _paired(events: Floats, share: Floats, noise: Floats, rng: np.random.Generator, repeats: int) -> Floats:
    """Failures among the paired hours (repeats, P): drawn where counts are exact, expected where they are noisy."""
    failures = np.tile((events * share).sum(axis=1), (repeats, 1))
    exact = noise == 0.0
    counts = events[exact] * (share[exact] > 0.0)
    failures[:, exact] = rng.binomial(counts.astype(np.int64), share[exact], (repeats, *counts.shape)).sum(axis=2)
    return failures


def _sign_test(pairs: Floats, plus: Floats, minus: Floats, noise: Floats, level: float) -> SignTest:
    """`plus` and `minus` are (repeats, P), `noise` (P,) is the variance of plus − minus."""
    net = np.divide(plus - minus, pairs, out=np.zeros(plus.shape), where=pairs > 0.0)
    middle = np.median(plus, axis=0), np.median(minus, axis=0)
    more, fewer = np.maximum(plus, minus), np.minimum(plus, minus)
    p = np.array([_upper_tail(*side, noise, np.ones(len(noise))) for side in zip(more, fewer, strict=True)])
    return SignTest(
        pairs=pairs,
        plus=middle[0],
        minus=middle[1],
        net_outcome=np.median(net, axis=0),
        spread=net.std(axis=0),
        p=np.minimum(2.0 * np.median(p, axis=0), 1.0),
        gamma=rosenbaum_gamma(*middle, noise, level),
    )


def rosenbaum_gamma(plus: Floats, minus: Floats, noise_variance: Floats, level: float = 0.05) -> Floats:
    """The hidden bias Γ (P,) at which the one-sided p, in the direction of the effect, reaches `level`; 1 at least."""
    more, fewer = np.maximum(plus, minus), np.minimum(plus, minus)
    gamma = np.ones(len(more))
    found = np.flatnonzero(_upper_tail(more, fewer, noise_variance, gamma) < level)
    more, fewer, noise = more[found], fewer[found], noise_variance[found]
    low, high = np.zeros(len(found)), np.full(len(found), np.log(MOST_GAMMA))
    for _ in range(GAMMA_HALVINGS):
        middle = 0.5 * (low + high)
        significant = _upper_tail(more, fewer, noise, np.exp(middle)) < level
        low, high = np.where(significant, middle, low), np.where(significant, high, middle)
    gamma[found] = np.exp(low)
    return gamma


def _upper_tail(plus: Floats, minus: Floats, noise: Floats, gamma: Floats) -> Floats:
    share, failing = gamma / (1.0 + gamma), np.maximum(plus + minus, 0.0)
    exact = noise == 0.0
    p = np.asarray(binom.sf(np.ceil(plus - 1.0), np.ceil(failing), share), np.float64)
    noisy = ~exact
    # The expected plus − minus is (2 share − 1) · failing, so of plus itself half of the noise's deviation remains.
    middle = 0.5 * (failing + plus - minus)[noisy]
    p[noisy] = upper_tail(middle, failing[noisy, None], share[noisy, None], 0.25 * noise[noisy])
    return p


def upper_tail(value: Floats, trials: Floats, share: Floats, variance: Floats) -> Floats:
    """P(Σ Binomial(trials, share) + N(0, variance) >= value), shape (P,), by Lugannani and Rice's saddlepoint formula.

    `trials` and `share` are (P, S), `variance` (P,). Where it is zero, `value` must be whole, and the second continuity
    correction is made. Relative errors are a few per cent, far tails and small counts included.
    """
    lattice = variance == 0.0
    aim = np.where(lattice, value - 0.5, value)
    share = np.clip(share, 1e-300, 1.0 - 1e-16)
    tilt = _saddlepoint(aim, trials, share, variance)
    after = expit(logit(share) + tilt[:, None])
    curvature = (trials * after * (1.0 - after)).sum(axis=1) + variance
    cumulant = (trials * np.log1p(share * np.expm1(tilt)[:, None])).sum(axis=1) + 0.5 * variance * tilt**2
    skew = (trials * after * (1.0 - after) * (1.0 - 2.0 * after)).sum(axis=1)
    deviation = np.sqrt(np.maximum(curvature, 1e-60))
    root = np.sign(tilt) * np.sqrt(2.0 * np.maximum(tilt * aim - cumulant, 0.0))
    slope = np.where(lattice, 2.0 * np.sinh(tilt / 2.0), tilt) * deviation
    near = np.abs(root) < NEAR_MEAN
    safe_root, safe_slope = np.where(near, 1.0, root), np.where(near, 1.0, slope)
    far_p = norm.sf(safe_root) + norm.pdf(safe_root) * (1.0 / safe_slope - 1.0 / safe_root)
    near_p = 0.5 - root / np.sqrt(2.0 * np.pi) - skew / (6.0 * np.sqrt(2.0 * np.pi) * deviation**3)
    p = np.clip(np.where(near, near_p, far_p), 0.0, 1.0)
    highest = lattice & (value >= trials.sum(axis=1))  # where the formula is worst, the law is simplest
    p = np.where(highest, np.exp((trials * np.log(share)).sum(axis=1)), p)
    certain = ((trials.sum(axis=1) == 0.0) | (value <= 0.0)) & lattice
    return np.asarray(np.where(certain, 1.0, p), np.float64)


def _saddlepoint(aim: Floats, trials: Floats, share: Floats, variance: Floats) -> Floats:
    """The exponential tilt (P,) that moves the mean to `aim`, by halving."""
    low, high = np.full(len(aim), -MOST_TILT), np.full(len(aim), MOST_TILT)
    odds = logit(share)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        below = (trials * expit(odds + middle[:, None])).sum(axis=1) + variance * middle < aim
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high), np.float64)
