"""The grid of log ratios on which what each witness says of a pair is worked out, and how to read a row of values."""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

LOG_RATIO = np.linspace(-3.0, np.log(100.0), 320)  # nothing is expected to be beyond a hundredfold
NARROWEST = float(LOG_RATIO[1] - LOG_RATIO[0])  # standard deviation of what may be known of a log rate: that of 1,750
PART = 128  # pairs, whose values on the grid are worked out together: within a processor's cache

Places = NDArray[np.intp]


def parts(pairs: Places) -> list[Places]:
    """The pairs, some at a time."""
    return np.split(pairs, np.arange(PART, len(pairs), PART))


class Rows:
    """Rows of values (P, n) that are read at fractional places: linear in between and constant beyond.

    What is asked for overwrites the places, and buffers are kept: fresh memory would cost more than the reading.
    """

    def __init__(self, values: Floats) -> None:
        self._most = values.shape[1] - 1.001
        self._flat = np.ascontiguousarray(values).ravel()
        self._steps = np.diff(self._flat, append=0.0)
        self._start = values.shape[1] * np.arange(len(values), dtype=np.intp)[:, None]
        self._below, self._found = np.empty((0, 0), np.intp), np.empty((0, 0))

    def at(self, place: Floats) -> Floats:
        """The values at places (P, m), in their stead."""
        if self._found.shape != place.shape:
            self._below, self._found = np.empty(place.shape, np.intp), np.empty(place.shape)
        below, found = self._below, self._found
        np.clip(place, 0.0, self._most, out=place)
        np.floor(place, out=found)
        place -= found
        np.copyto(below, found, casting="unsafe")
        below += self._start
        self._steps.take(below, out=found, mode="clip")
        place *= found
        self._flat.take(below, out=found, mode="clip")
        place += found
        return place


def read_rows(values: Floats, place: Floats) -> Floats:
    """Rows of `values` (P, n) at fractional places (P, m), linear in between and constant beyond."""
    return Rows(values).at(np.array(place, np.float64))


def narrowness(values: Floats, step: float) -> Floats:
    """What to divide log likelihoods (P, n) on a grid of log rates with that step by, one at least: (P,).

    None is narrower then than `NARROWEST`: between two ratios of the grid a narrower one would say of neither that it
    may be so. What is flattened is known to two and a half per cent, and no rate stays the same to less from week to
    week.
    """
    middle = np.clip(np.argmax(values, axis=1), 1, values.shape[1] - 2)
    below, at, above = (values[np.arange(len(values)), middle + shift] for shift in (-1, 0, 1))
    return np.asarray(np.maximum((2.0 * at - below - above) * (NARROWEST / step) ** 2, 1.0), np.float64)


def log_sum(values: Floats) -> Floats:
    """log Σ exp of finite values over their last axis (…, 1)."""
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True)), np.float64)
