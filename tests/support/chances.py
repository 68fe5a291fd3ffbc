"""How sure this suite's statistical tests are: each is wrong by chance in less than one of 10^9 runs, and says so.

A sample is judged by counts: how many of its values lie in each bin, and how many in all bins up to each. Under a law
every such count is binomial, so it is held against exact quantiles, and the chances that any is beyond them add up to
at most `RARE`: nothing here is asymptotic. A wrong law is missed with at most the chance that its most telling count
stays within the quantiles of the right one. A test may look a few dozen times: RARE is a hundredth of what it may cost.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom, chi2

from federation.protocol.life_table import Floats

RARE = 1e-11


def fits(counts: NDArray[np.int64], law: Floats) -> bool:
    """Whether counts per bin may come from a law; a right law is refused with a chance of at most `RARE`."""
    low, high = _quantiles(int(counts.sum()), law)
    seen = _events(counts)
    return bool(np.all((low <= seen) & (seen <= high)))


def missed(size: int, law: Floats, true: Floats) -> float:
    """How often, at most, `fits` takes a sample of another law for one of `law`."""
    low, high = _quantiles(size, law)
    chances = np.clip(_events(true), 0.0, 1.0)
    return float(np.min(binom.cdf(high, size, chances) - binom.cdf(low - 1, size, chances)))


def _events(per_bin: NDArray[np.int64] | Floats) -> NDArray[np.float64]:
    """Each bin, and all bins up to each but the last, which holds everything."""
    return np.concatenate([per_bin, np.cumsum(per_bin)[:-1]]).astype(np.float64)


def _quantiles(size: int, law: Floats) -> tuple[Floats, Floats]:
    chances = np.clip(_events(law), 0.0, 1.0)
    each = RARE / (2 * len(chances))
    return np.asarray(binom.ppf(each, size, chances)), np.asarray(binom.isf(each, size, chances))


def has_variance(sample: Floats, variance: float) -> bool:
    """Whether a Gaussian sample of known mean 0 may have a variance: n s² / variance is chi-square with n degrees."""
    low, high = chi2.ppf(RARE / 2, len(sample)), chi2.isf(RARE / 2, len(sample))
    return bool(low < float((sample**2).sum() / variance) < high)


def missed_variance(size: int, true_over_claimed: float) -> float:
    """How often `has_variance` accepts a sample whose variance is another one."""
    low, high = chi2.ppf(RARE / 2, size), chi2.isf(RARE / 2, size)
    if true_over_claimed > 1.0:
        return float(chi2.cdf(high / true_over_claimed, size))
    return float(chi2.sf(low / true_over_claimed, size))


def proven_epsilon(right: NDArray[np.bool_], wrong: NDArray[np.bool_], delta: float) -> float:
    """A lower bound on epsilon at `delta`, too high with a chance of at most `RARE`.

    An attacker says "it was there" in each run in which it was (`right`) and in which it was not (`wrong`), by a rule
    that was fixed before; the bounds on both rates are Clopper and Pearson's.
    """
    return _epsilon(int(right.sum()), len(right), int(wrong.sum()), len(wrong), delta)


def sure_epsilon(size: int, right: float, wrong: float, delta: float) -> float:
    """What `proven_epsilon` proves at least, but for a chance of `RARE`, where the rates are these."""
    said, wrongly = int(binom.ppf(RARE / 2, size, right)), int(binom.isf(RARE / 2, size, wrong))
    return _epsilon(said, size, wrongly, size, delta)


def _epsilon(right: int, of_right: int, wrong: int, of_wrong: int, delta: float) -> float:
    low = float(beta.ppf(RARE / 2, right, of_right - right + 1)) - delta
    high = float(beta.isf(RARE / 2, wrong + 1, of_wrong - wrong))
    return math.log(low / high) if low > 0 else -math.inf
