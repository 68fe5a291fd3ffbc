"""The grid of log ratios on which what each witness says of a pair is worked out, and how to read a row of values."""

import numpy as np

from federation.protocol.life_table import Floats

LOG_RATIO = np.linspace(-3.0, np.log(100.0), 320)  # nothing is expected to be beyond a hundredfold


def read_rows(values: Floats, place: Floats) -> Floats:
    """Rows of `values` (P, n) at fractional places (P, m), linear in between and constant beyond."""
    place = np.clip(place, 0.0, values.shape[1] - 1.001)
    below = place.astype(np.intp)
    above, flat = place - below, np.ascontiguousarray(values).ravel()
    below += values.shape[1] * np.arange(len(values))[:, None]
    left = flat.take(below)
    return np.asarray(left + above * (flat.take(below + 1) - left), np.float64)
