"""Shares of discrete Laplace noise: differences of two negative-binomial (Pólya) draws, infinitely divisible.

NB(r, p) has P(k) = (1-p)^r p^k r(r+1)…(r+k-1)/k!. With p = exp(-1/b), draws of NB(r_i, p) - NB(r_i, p) whose r_i sum to
1 add up to the discrete Laplace law of scale b exactly (Kotz, Kozubowski & Podgórski 2001, §2.4.2 in continuous form).

A draw inverts a table (`crypto.inversion`). Guaranteed for 0 < r <= 1 and b <= 2^12: if the keystream is uniform, the
law of one NB draw is within (T + 2) 2^-128 < 2^-108 of the exact one in total variation. Why:

- *Table.* Its T entries are floor(2^128 P(X <= k)) for k < T. Weights are integers times 2^-256 by the recurrence
  P(k+1) = P(k) p (r+k)/(k+1), whose factor is below 1. (1-p)^r and p come from `decimal`, whose exp and ln are right to
  their 100th digit; no float enters. Rounding adds at most 3 units of 2^-256 at each step, so P(k) is off by at
  most 3(k+1), sums by less than 2^42, and so each entry by less than 1 + 2^-80 units of 2^-128.
- *Tail.* The table ends where less than 2^-129 is left, or P(k) is so small that a geometric series of ratio p, which
  bounds what follows, is. A word beyond the last entry gives T.

    >>> insecure_key = bytes(32)
    >>> shares(2.0, Fraction(1, 10), 8, chacha20(insecure_key)).tolist()
    [0, 0, 0, -1, 0, 0, 0, 0]
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

from crypto import inversion
from crypto.inversion import BLOCK_CELLS, LOW_BITS, Integers, Keystream, Table, chacha20 as chacha20

TABLE_BITS = 128
LARGEST_SCALE = 2.0**12
_WORKING_BITS = 256
_DECIMAL_DIGITS = 100
_LARGEST = (1 << TABLE_BITS) - 1
_NEGLIGIBLE = 1 << (_WORKING_BITS - 130)


@lru_cache(maxsize=64)
def table(scale: float, part: Fraction) -> Table:
    """Cumulative probabilities of NB(part, exp(-1/scale)); ValueError beyond the range. The last 64 are kept."""
    if not (0 < scale <= LARGEST_SCALE and 0 < part <= 1):
        raise ValueError(f"there are tables for scales up to {LARGEST_SCALE:.0f} and parts of one, not {scale}, {part}")
    return inversion.table(_cumulative(scale, part), TABLE_BITS - LOW_BITS)


def _cumulative(scale: float, part: Fraction) -> list[int]:
    one, over, under = 1 << _WORKING_BITS, part.numerator, part.denominator
    ratio, weight = _constants(scale, part)
    total, entries, k = 0, list[int](), 0
    while one - total > _NEGLIGIBLE and weight * one > _NEGLIGIBLE * (one - ratio):
        total += weight
        entries.append(min(total >> (_WORKING_BITS - TABLE_BITS), _LARGEST))  # of a tiny scale all is at 0
        weight = (weight * ratio >> _WORKING_BITS) * (over + k * under) // (under * (k + 1))
        k += 1
    return entries


def _constants(scale: float, part: Fraction) -> tuple[int, int]:
    """2^256 p and 2^256 (1-p)^part."""
    with localcontext() as context:
        context.prec = _DECIMAL_DIGITS
        ratio = (-1 / Decimal(scale)).exp()
        first = ((1 - ratio).ln() * part.numerator / part.denominator).exp()
        return int(ratio * (1 << _WORKING_BITS)), int(first * (1 << _WORKING_BITS))


def shares(scale: float, part: Fraction, size: int, keystream: Keystream) -> Integers:
    """`size` independent draws of NB - NB, shape (size,): with `part` of one whole discrete Laplace of `scale`."""
    law, drawn = table(scale, part), np.empty(size, np.int64)
    for at in range(0, size, BLOCK_CELLS):
        cells = drawn[at : at + BLOCK_CELLS]
        cells[:] = inversion.counted(law, inversion.words(len(cells), keystream), keystream)
        cells -= inversion.counted(law, inversion.words(len(cells), keystream), keystream)
    return drawn
