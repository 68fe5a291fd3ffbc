"""The grid of log ratios on which what each witness says of a pair is worked out, and how to read a row of values."""

import numpy as np

from federation.protocol.life_table import Floats

LOG_RATIO = np.linspace(-3.0, np.log(100.0), 320)  # nothing is expected to be beyond a hundredfold


def read_rows(values: Floats, place: Floats) -> Floats:
    """Rows of `values` (P, n) at fractional places (…, P, m), linear in between and constant beyond."""
    above = np.clip(place, 0.0, values.shape[1] - 1.001)
    below = above.astype(np.intp)
    above -= below
    below += values.shape[1] * np.arange(len(values))[:, None]
    flat = np.ascontiguousarray(values).ravel()
    left = flat.take(below)
    below += 1
    right = flat.take(below)
    right -= left
    right *= above
    right += left
    return right


def log_sum(values: Floats) -> Floats:
    """log Σ exp of finite values over their last axis (…, 1)."""
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True)), np.float64)
