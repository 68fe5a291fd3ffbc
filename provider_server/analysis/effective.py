"""Exposure corrected for the cap: a job-week counts at most F failures, although more may happen.

With m failures expected of a job-week, min(Poisson(m), F) are counted, and which ones is a fair draw: in each cell
the expected count shrinks by the same factor E[min(Poisson(m), F)] / m. Scaling the job-week's exposure by that factor
makes the rates of the capped counts unbiased. The factor needs the rates, so fit and correction alternate.
"""

import numpy as np
from scipy.stats import poisson

from crypto.life_table import Floats


def capped_mean(expected: Floats, cap: int) -> Floats:
    """E[min(Poisson(m), cap)] for each m >= 0: the sum of P(N > k) over k < cap."""
    tails = np.array([poisson.sf(k, expected) for k in range(cap)], np.float64)
    total: Floats = tails.sum(axis=0)
    return total


def cap_factor(expected: Floats, cap: int) -> Floats:
    """The factor, in (0, 1], by which a cap shrinks the counts of a unit that expects `expected` failures."""
    safe = np.maximum(expected, 1e-12)
    return np.where(expected > 1e-9, np.minimum(capped_mean(safe, cap) / safe, 1.0), 1.0)
