"""The effect of the cap: of the N ~ Poisson(m) failures of a job-week, min(N, F) are counted, a fair draw of them.

C(m) = E[min(N, F)] is the sum of P(N > k) over k < F, and C'(m) = P(N < F). Since the draw is fair, each cell of the
job-week counts the same share of its failures, C(m) / m.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, pdtr, pdtrc, xlogy

from federation.protocol.life_table import Floats

Most = int | NDArray[np.intp]

FEWEST = 1e-9  # failures expected: below, all of them count, to within rounding


def capped_mean(expected: Floats, most: Most) -> Floats:
    """C(m): how many failures count of a unit that expects m >= 0 and counts `most` (broadcast) at most."""
    total = -np.expm1(-expected)
    for k in range(1, int(np.max(most, initial=1))):
        total = total + np.where(k < np.asarray(most), pdtrc(k, expected), 0.0)
    return np.asarray(total, np.float64)


def capped_slope(expected: Floats, most: Most) -> Floats:
    """C'(m): how many more would count if one more failed."""
    only_one = np.all(np.asarray(most) == 1)
    return np.asarray(np.exp(-expected) if only_one else pdtr(np.asarray(most) - 1, expected), np.float64)


def capped_curvature(expected: Floats, most: Most) -> Floats:
    """C''(m), which is -P(N = F - 1)."""
    places = np.asarray(most) - 1
    return np.asarray(-np.exp(xlogy(places, expected) - expected - gammaln(places + 1.0)), np.float64)


def cap_factor(expected: Floats, most: Most) -> Floats:
    """C(m) / m, in (0, 1]: the share of its failures that counts of a unit."""
    safe = np.maximum(expected, FEWEST)
    return np.where(expected > FEWEST, np.minimum(capped_mean(safe, most) / safe, 1.0), 1.0)
