"""Scores of few counts are skewed, and say less than they seem: what a normal variable's would be."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LEAST = 1e-3


def as_normal(score: Floats, skewness: Floats) -> Floats:
    """The scores of a normal variable with the p-values of a gamma variable's `score` (Wilson & Hilferty 1931).

    >>> as_normal(np.array([3.0, 3.0]), np.array([0.0, 1.0])).round(2).tolist()
    [3.0, 2.31]
    """
    own = np.maximum(skewness, _LEAST)
    stretched = np.maximum(1 + own * score / 2, 0.0)
    found: Floats = (np.cbrt(stretched) - 1 + own**2 / 36) * 6 / own
    return found
