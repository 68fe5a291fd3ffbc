"""Coarsened exact matching, random pairs within strata, the sign test on them, and how much hidden bias it withstands.

Units that agree in every confounder, after numbers are cut into bins, share a stratum. Within a stratum treated and
untreated units are paired at random; a pair scores +1 where only the treated one failed, −1 where only the other did,
0 where they agree. Without effect each pair that does not agree is as likely +1 as −1: the sign test. Under a hidden
confounder that changes the odds of treatment at most Γ-fold, the chance is at most Γ / (1 + Γ): Rosenbaum's bound.

A cell (failures over exposure) is a crowd of units that each last a moment: every treated hour is paired with an
untreated hour, and a failure falls among the paired hours with probability min(T₁, T₀) / T. Where counts carry noise
nobody can draw from them, so they are scaled by that share, and the null distribution is the binomial convolved with
the noise.

Not promised: anything about confounders that are not among the strata, beyond Γ. With noise the number of failing pairs
is itself an estimate, and the test is as good as the saddlepoint approximation.

Sources: Iacus, King and Porro, Political Analysis 20 (2012); Krishnan and Sitaraman, IMC 2012; Rosenbaum, Observational
Studies (2002), §4.3; Lugannani and Rice (1980) with the second continuity correction of Daniels (1987).

    >>> strata = strata_of({"driver": np.array(["a", "a", "b"]), "age": np.array([1.0, 2.0, 9.0])}, {"age": [5.0]})
    >>> pair_at_random(strata, np.array([True, False, False]), np.random.default_rng(1)).tolist()
    [[0, 1]]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
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


def strata_of(columns: Mapping[str, NDArray[Any]], edges: Mapping[str, ArrayLike]) -> Places:
    """Number (n,) of each unit's stratum: equal values of every column (n,), those named in `edges` cut into bins.

    A bin holds its lower edge. KeyError where `edges` names no column.
    """
    if unknown := edges.keys() - columns.keys():
        raise KeyError(f"no column {sorted(unknown)} to cut into bins")
    codes = []
    for name, values in columns.items():
        coarse = np.searchsorted(np.asarray(edges[name], np.float64), values, "right") if name in edges else values
        codes.append(np.unique(coarse, return_inverse=True)[1])
    return np.asarray(np.unique(np.stack(codes), axis=1, return_inverse=True)[1], np.intp)


def pair_at_random(strata: Places, treated: NDArray[np.bool_], rng: np.random.Generator) -> Places:
    """Pairs (pairs, 2) of a treated and an untreated unit of one stratum, until either side of it is used up."""
    order = rng.permutation(len(strata))
    sides = []
    for chosen in (treated, ~treated):
        units = order[chosen[order]]
        units = units[np.argsort(strata[units], kind="stable")]
        rank = np.arange(len(units)) - np.searchsorted(strata[units], strata[units])
        sides.append((units, strata[units] * len(strata) + rank))
    (left, left_seat), (right, right_seat) = sides
    _, at_left, at_right = np.intersect1d(left_seat, right_seat, assume_unique=True, return_indices=True)
    return np.stack([left[at_left], right[at_right]], axis=1)


def sign_test_of_units(
    failed: NDArray[np.bool_],
    strata: Places,
    treated: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    repeats: int = 50,
    level: float = 0.05,
) -> SignTest:
    """The sign test on single units, all arrays (n,), paired `repeats` times; one comparison, so shapes (1,)."""
    drawn = [failed[pair_at_random(strata, treated, rng)].astype(np.float64) for _ in range(repeats)]
    plus = np.array([[np.sum(pairs[:, 0] > pairs[:, 1])] for pairs in drawn], np.float64)
    minus = np.array([[np.sum(pairs[:, 0] < pairs[:, 1])] for pairs in drawn], np.float64)
    return _sign_test(np.array([float(len(drawn[0]))]), plus, minus, np.zeros(1), level)


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


def sign_test_p(plus: Floats, minus: Floats, noise_variance: Floats, gamma: float = 1.0) -> Floats:
    """P(as many of the failing pairs failed in their treated part, or more) under hidden bias `gamma`: one-sided, (P,).

    `noise_variance` (P,) is that of plus − minus. The exact binomial where it is zero.
    """
    return _upper_tail(plus, minus, noise_variance, np.full(len(plus), gamma))


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
