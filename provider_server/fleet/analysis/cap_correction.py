"""The effect of the cap: of the N failures of a unit that expects m, min(N, F) are counted, a fair draw of them.

N is Poisson where leases are alike, and negative binomial where they differ: N ~ Poisson(g m), g gamma with mean 1 and
variance 1 / `shape`. C(m) = E[min(N, F)] is the sum of P(N > k) over k < F. Since the draw is fair, each cell of the
unit counts the same share of its failures, C(m) / m. Weighting a gamma law by its variable adds one to its shape
and keeps its scale, so the derivatives of C are probabilities of negative binomial laws again.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, pdtr, pdtrc, xlogy

from federation.protocol.life_table import Floats

Most = int | NDArray[np.intp]
Shape = float | Floats

FEWEST = 1e-9  # failures expected: below, all of them count, to within rounding
ALIKE = np.inf


def capped_mean(expected: Floats, most: Most, shape: Shape = ALIKE) -> Floats:
    """C(m): how many failures count of a unit that expects m >= 0 and counts `most` (broadcast) at most."""
    total = np.zeros(np.broadcast_shapes(expected.shape, np.shape(most), np.shape(shape)))
    for k in range(int(np.max(most, initial=1))):
        total += np.where(k < np.asarray(most), _more_than(k, expected, shape), 0.0)
    return total


def capped_slope(expected: Floats, most: Most, shape: Shape = ALIKE) -> Floats:
    """C'(m): how many more would count if one more failed."""
    if _alike(shape):
        only_one = np.all(np.asarray(most) == 1)
        return np.asarray(np.exp(-expected) if only_one else pdtr(np.asarray(most) - 1, expected), np.float64)
    return np.asarray(betainc(shape + 1.0, np.asarray(most), shape / (expected + shape)), np.float64)


def capped_curvature(expected: Floats, most: Most, shape: Shape = ALIKE) -> Floats:
    """C''(m): -P(N = F - 1) of the law weighted by g²."""
    places = np.asarray(most) - 1
    if _alike(shape):
        return np.asarray(-np.exp(xlogy(places, expected) - expected - gammaln(places + 1.0)), np.float64)
    more = np.asarray(shape) + 2.0
    ways = gammaln(places + more) - gammaln(places + 1.0) - gammaln(more)
    log_p = xlogy(places, expected / (expected + shape)) - more * np.log1p(expected / shape)
    return np.asarray(-(1.0 + 1.0 / np.asarray(shape)) * np.exp(ways + log_p), np.float64)


def cap_factor(expected: Floats, most: Most, shape: Shape = ALIKE) -> Floats:
    """C(m) / m, in (0, 1]: the share of its failures that counts of a unit."""
    safe = np.maximum(expected, FEWEST)
    return np.where(expected > FEWEST, np.minimum(capped_mean(safe, most, shape) / safe, 1.0), 1.0)


def _more_than(k: int, expected: Floats, shape: Shape) -> Floats:
    """P(N > k)."""
    if _alike(shape):
        return np.asarray(pdtrc(k, expected) if k else -np.expm1(-expected), np.float64)
    if k == 0:
        return np.asarray(-np.expm1(-shape * np.log1p(expected / shape)), np.float64)
    return np.asarray(betainc(k + 1.0, shape, expected / (expected + shape)), np.float64)


def _alike(shape: Shape) -> bool:
    return bool(np.all(np.isinf(shape)))
