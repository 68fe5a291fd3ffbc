"""The discrete Gaussian: P(x) proportional to w(x) = exp(-x²/2s²) on the integers, for s exactly the given float.

At the scales that `covers` accepts a draw inverts a table (`crypto.inversion`). Guaranteed: if the keystream is
uniform, the law of one draw is within `total_variation(scale)` < 2^-110 of that law. Why:

- *Table.* Its T entries are floor(2^127 P(|X| <= k given |X| <= T)) for k < T, where T² > 180 s². Weights are integers
  times 2^-256 by the recurrence w(x+1) = w(x) r(x), r(x+1) = r(x) exp(-1/s²). Its two constants come from `decimal`,
  whose exp is correctly rounded; no float enters. Rounding puts r(x) off by at most 3x + 3 units of 2^-256 and w(x) by
  at most 2(x+1)², sums by less than 2^52, and so each entry by less than 1 + 2^-70 units of 2^-127.
- *Tail.* For y >= 1, (T+y)² >= T² + y², so w(T+y) <= w(T) w(y), so P(|X| > T) < w(T) < e^-90 < 2^-129.
- *Together.* T entries and the tail: less than (T + 1) 2^-127, and T < 2^17.
- *Sign.* The lowest bit of a word, which zero ignores: the law is symmetric without error.

At larger scales `drawn_by_rejection` has the law itself (Canonne, Kamath & Steinke 2020, Algorithms 1 to 3): only
fractions and uniform integers enter.

    >>> insecure_key = bytes(32)
    >>> draw(table(3.0), 8, chacha20(insecure_key)).tolist()
    [2, 1, 0, 4, 2, -1, 0, -2]
"""

import secrets
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import isqrt

import numpy as np

from crypto import inversion
from crypto.inversion import BLOCK_CELLS, LOW_BITS, Integers, Keystream, Table, chacha20 as chacha20

SMALLEST_SCALE, LARGEST_SCALE = 0.5, 2.0**13
TABLE_BITS = 127
_WORKING_BITS = 256
_DECIMAL_DIGITS = 100
_TAIL_EXPONENT = 90  # of e, and e^-90 < 2^-129
_ONE = np.uint64(1)

Below = Callable[[int], int]
"""A uniform integer from 0 to one below its argument."""


def covers(scale: float) -> bool:
    """Whether there may be a table for this scale: from 1/2 to 2^13, where it takes 2.8 MB."""
    return SMALLEST_SCALE <= scale <= LARGEST_SCALE


def total_variation(scale: float) -> Fraction:
    """How far one cell's law is, at most, from the exact discrete Gaussian of parameter `scale`."""
    return Fraction(reach(scale) + 1, 1 << TABLE_BITS)


@lru_cache(maxsize=64)
def table(scale: float) -> Table:
    """Cumulative probabilities of |X|; ValueError for a scale that is not covered. The last 64 are kept."""
    if not covers(scale):
        raise ValueError(f"there are tables for scales from {SMALLEST_SCALE} to {LARGEST_SCALE:.0f}, not for {scale}")
    return inversion.table(_cumulative(scale), TABLE_BITS - LOW_BITS)


def reach(scale: float) -> int:
    """T, the least integer with T² > 180 s²: the largest magnitude that a table can give, and its length."""
    return isqrt(int(2 * _TAIL_EXPONENT * Fraction(scale) ** 2)) + 1


def _cumulative(scale: float) -> list[int]:
    weights = _weights(scale)
    sums = list(accumulate([weights[0], *(2 * weight for weight in weights[1:])]))
    return [(total << TABLE_BITS) // sums[-1] for total in sums[:-1]]


def _weights(scale: float) -> list[int]:
    """2^256 exp(-x²/2s²) for x = 0 … T, as integers."""
    rate = 1 / (2 * Fraction(scale) ** 2)
    weight, ratio, step = 1 << _WORKING_BITS, _exp_minus(rate), _exp_minus(2 * rate)
    weights = [weight]
    for _ in range(reach(scale)):
        weight = weight * ratio >> _WORKING_BITS
        ratio = ratio * step >> _WORKING_BITS
        weights.append(weight)
    return weights


def _exp_minus(value: Fraction) -> int:
    """2^256 exp(-value), at most 2 too large or too small."""
    with localcontext() as context:
        context.prec = _DECIMAL_DIGITS
        power = (-Decimal(value.numerator) / Decimal(value.denominator)).exp()
        return int(power * (1 << _WORKING_BITS))


def draw(law: Table, size: int, keystream: Keystream) -> Integers:
    """`size` independent draws, shape (size,); a block at a time, so that only the result grows with `size`."""
    drawn = np.empty(size, np.int64)
    for at in range(0, size, BLOCK_CELLS):
        part = drawn[at : at + BLOCK_CELLS]
        words = inversion.words(len(part), keystream)
        sign = -(words & _ONE).view(np.int64)
        part[:] = (inversion.counted(law, words >> _ONE, keystream) ^ sign) - sign  # two's complement: ~m + 1 is -m
    return drawn


# ---- by rejection, at any scale --------------------------------------------------------------------------------------


def drawn_by_rejection(scale: float, size: int, below: Below = secrets.randbelow) -> Integers:
    """`size` independent draws of the law itself, shape (size,); about 60 µs each."""
    return np.array([_one(Fraction(scale) ** 2, below) for _ in range(size)], np.int64)


def _one(variance: Fraction, below: Below) -> int:
    """Algorithm 3: a discrete Laplace of an integer scale, accepted with the ratio of the two laws."""
    scale = isqrt(int(variance)) + 1
    while True:
        drawn = _laplace(scale, below)
        if _happens(Fraction((abs(drawn) * scale - variance) ** 2, 2 * variance * scale**2), below):
            return drawn


def _laplace(scale: int, below: Below) -> int:
    """Algorithm 2 for t = `scale`, s = 1."""
    while True:
        rest = below(scale)
        if not _happens(Fraction(rest, scale), below):
            continue
        whole = 0
        while _happens(Fraction(1), below):
            whole += 1
        magnitude, is_negative = rest + scale * whole, below(2)
        if magnitude or not is_negative:
            return -magnitude if is_negative else magnitude


def _happens(rate: Fraction, below: Below) -> bool:
    """Algorithm 1: true with probability exp(-rate)."""
    while rate > 1:
        if not _happens(Fraction(1), below):
            return False
        rate -= 1
    number = 1
    while below(rate.denominator * number) < rate.numerator:
        number += 1
    return number % 2 == 1
