"""Lower bounds on epsilon from an attacker's guesses, and an audit's power to detect noise that is too small.

An attacker guesses of many cells whether they hold a failure. Each of its tests flags a cell or not; a `Tally` counts
flags among cells with the failure and among the others. Two kinds of bound follow:

- `proven_epsilon`, from the counts alone: (ε, δ)-DP says P(A | with) ≤ e^ε P(A | without) + δ, the other way round and
  of the complement too. Rates are bounded by Clopper and Pearson, so whatever the law of the noise is, a claim that
  holds is exceeded with probability at most `risk` (Jagielski, Ullman & Oprea 2020).
- `gaussian_shift`, where openings are Gaussian: their whole trade-off curve has one parameter, the distance μ between
  the two means in standard deviations, and one test shows it. So few runs say much about a small δ (Nasr et al. 2023).

Cells are runs of their own because each has noise of its own (Steinke, Nasr & Jagielski 2023 need not even that, at the
price of weaker bounds); `tests/federation/test_noise.py` shows that samplers draw cells apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import beta, binom, norm

from federation.protocol.life_table import Floats

Counts = NDArray[np.int64]
_MOST_EPSILON = 700.0  # beyond, e^ε is no float


@dataclass(frozen=True, eq=False)
class Tally:
    """Of `members` cells with the failure and `others` without it: how many each test flagged, shape (tests,) each."""

    members: int
    others: int
    right: Counts
    wrong: Counts

    def __add__(self, other: "Tally") -> "Tally":
        """Both, of the same tests."""
        sums = self.right + other.right, self.wrong + other.wrong
        return Tally(self.members + other.members, self.others + other.others, *sums)


def threshold_tally(scores: Floats, is_member: NDArray[np.bool_], thresholds: Floats) -> Tally:
    """Of tests that flag a cell whose score reaches a threshold; the thresholds are fixed before anything is seen."""
    inside, outside = np.sort(scores[is_member]), np.sort(scores[~is_member])
    right, wrong = (len(some) - some.searchsorted(thresholds, side="left") for some in (inside, outside))
    return Tally(len(inside), len(outside), right, wrong)


@dataclass(frozen=True)
class _Rates:
    """Bounds on the chance of a flag, one per test: among members and among others, each from below and above."""

    right_low: Floats
    right_high: Floats
    wrong_low: Floats
    wrong_high: Floats

    @classmethod
    def of(cls, tally: Tally, risk: float) -> "_Rates":
        """All of them hold together, but for a chance of `risk` (Clopper & Pearson 1934, Bonferroni)."""
        each = risk / (4 * len(tally.right))
        right, wrong = (tally.right, tally.members), (tally.wrong, tally.others)
        return cls(_lowest(*right, each), _highest(*right, each), _lowest(*wrong, each), _highest(*wrong, each))


def _lowest(counts: Counts, tries: int, risk: float) -> Floats:
    return np.where(counts == 0, 0.0, beta.ppf(risk, counts, tries - counts + 1))


def _highest(counts: Counts, tries: int, risk: float) -> Floats:
    return np.where(counts == tries, 1.0, beta.isf(risk, counts + 1, tries - counts))


def proven_epsilon(tally: Tally, delta: float, risk: float) -> float:
    """No mechanism that is (ε, δ)-DP for a smaller ε gives such counts, but with probability `risk`; 0 says nothing."""
    rates = _Rates.of(tally, risk)
    more = (rates.right_low, rates.wrong_low, 1 - rates.right_high, 1 - rates.wrong_high)
    less = (rates.wrong_high, rates.right_high, 1 - rates.wrong_low, 1 - rates.right_low)
    ratios = (np.maximum(high - delta, 1e-300) / np.maximum(low, 1e-300) for high, low in zip(more, less, strict=True))
    return max(0.0, math.log(max(float(ratio.max()) for ratio in ratios)))


def largest_ratio(tally: Tally, risk: float) -> float:
    """No single one of these tests tells the two apart by more, in logarithms, but with probability `risk`."""
    rates = _Rates.of(tally, risk)
    more = (rates.right_high, rates.wrong_high, 1 - rates.right_low, 1 - rates.wrong_low)
    less = (rates.wrong_low, rates.right_low, 1 - rates.wrong_high, 1 - rates.right_high)
    with np.errstate(divide="ignore"):
        return max(float((np.log(high) - np.log(low)).max()) for high, low in zip(more, less, strict=True))


def gaussian_shift(tally: Tally, test: int, risk: float) -> tuple[float, float]:
    """Bounds on μ from below and above, by one test, if with and without are two Gaussians of one variance."""
    one = Tally(tally.members, tally.others, tally.right[[test]], tally.wrong[[test]])
    rates = _Rates.of(one, risk)
    low = norm.ppf(rates.right_low) - norm.ppf(rates.wrong_high)
    high = norm.ppf(rates.right_high) - norm.ppf(rates.wrong_low)
    return float(low[0]), float(high[0])


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The smallest ε of (ε, δ) for two Gaussians `shift` standard deviations apart (Balle & Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        reached = epsilon / shift
        first = math.exp(float(log_ndtr(shift / 2 - reached)))
        return first - math.exp(epsilon + float(log_ndtr(-shift / 2 - reached))) - delta

    if shift <= 0 or excess(0.0) <= 0:
        return 0.0
    if excess(_MOST_EPSILON) > 0:
        return math.inf
    return float(brentq(excess, 0.0, _MOST_EPSILON))


Rates = tuple[Floats, Floats]
"""True chances of a flag, one per test: among members, and among others."""


def is_sure(rates: Rates, tally: Tally, is_convicted: Callable[[Tally], bool], risk: float) -> bool:
    """Whether an audit of as many cells convicts with probability 1 - `risk` or more, if tests flag at these rates.

    It does if one test convicts while both of its counts lie at their quantiles risk / 2, since fewer wrong flags, or
    more right ones, prove more.
    """
    right = np.asarray(binom.ppf(risk / 2, tally.members, rates[0])).astype(np.int64)
    wrong = np.asarray(binom.isf(risk / 2, tally.others, rates[1])).astype(np.int64)
    return is_convicted(Tally(tally.members, tally.others, right, wrong))


def chance_of_conviction(rates: Rates, tally: Tally, is_convicted: Callable[[Tally], bool]) -> float:
    """A lower bound on that probability: the highest of a few that `is_sure`, at most 1 - 10^-12, or 0."""
    risks = (10.0**-exponent for exponent in (12, 11, 10, 9, 6, 4, 3, 2, 1))
    return next((1 - risk for risk in risks if is_sure(rates, tally, is_convicted, risk)), 0.0)
