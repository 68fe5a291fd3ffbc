"""The grid of log ratios on which what each witness says of a pair is worked out, and how to read a row of values."""

import numpy as np

from federation.protocol.life_table import Floats

LOG_RATIO = np.linspace(-3.0, np.log(100.0), 320)  # nothing is expected to be beyond a hundredfold
NARROWEST = float(LOG_RATIO[1] - LOG_RATIO[0])  # standard deviation of what may be known of a log rate: that of 1,750


def read_rows(values: Floats, place: Floats) -> Floats:
    """Rows of `values` (P, n) at fractional places (P, m), linear in between and constant beyond."""
    place = np.clip(place, 0.0, values.shape[1] - 1.001)
    below = place.astype(np.intp)
    above, flat = place - below, np.ascontiguousarray(values).ravel()
    below += values.shape[1] * np.arange(len(values))[:, None]
    left = flat.take(below)
    return np.asarray(left + above * (flat.take(below + 1) - left), np.float64)


def blunted(values: Floats, step: float) -> Floats:
    """Log likelihoods (P, n) on a grid of log rates with that step, none of them narrower than `NARROWEST`.

    Between two ratios of the grid a narrower one would say of neither that it may be so. What is flattened is known to
    two and a half per cent, and no rate stays the same to less from week to week.
    """
    middle = np.clip(np.argmax(values, axis=1), 1, values.shape[1] - 2)
    below, at, above = (values[np.arange(len(values)), middle + shift] for shift in (-1, 0, 1))
    narrow = np.maximum((2.0 * at - below - above) * (NARROWEST / step) ** 2, 1.0)
    return np.asarray(values / narrow[:, None], np.float64)
