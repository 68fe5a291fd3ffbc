"""A fast sampler of the discrete Gaussian: inversion of an exact table, one 64-bit word of a keystream per cell.

The law is that of OpenDP's sampler: P(x) proportional to w(x) = exp(-x²/2s²) on the integers, for s exactly the given
float (Canonne, Kamath & Steinke 2020). Guaranteed, for every scale that `covers` accepts: if the keystream is uniform,
the law of one draw is within `total_variation(scale)` < 2^-110 of that law. Why:

- *Table.* Its T entries are floor(2^127 P(|X| <= k given |X| <= T)) for k < T, where T² > 180 s². Weights are integers
  times 2^-256 by the recurrence w(x+1) = w(x) r(x), r(x+1) = r(x) exp(-1/s²). Its two constants come from `decimal`,
  whose exp is correctly rounded; no float enters. Rounding puts r(x) off by at most 3x + 3 units of 2^-256 and w(x) by
  at most 2(x+1)², sums by less than 2^52, and so each entry by less than 1 + 2^-70 units of 2^-127.
- *Tail.* For y >= 1, (T+y)² >= T² + y², so w(T+y) <= w(T) w(y), so P(|X| > T) < w(T) < e^-90 < 2^-129.
- *Together.* T entries and the tail: less than (T + 1) 2^-127, and T < 2^17.
- *Inversion.* The lowest bit of a word is the sign, which zero ignores: the law is symmetric without error. The other
  63 bits decide the magnitude unless they equal the upper half of an entry. Then 64 more bits of the stream decide
  among the entries that share it, so that the outcome is always that of all 127 bits.
- *Guide.* Where no entry begins with the first bits of a word, these bits alone tell how many entries lie below; a
  search is made for the few other words only. The guide changes the time, never the outcome.

Not promised: constant time. The keystream comes in as an argument; `chacha20` makes one of a key.

    >>> insecure_key = bytes(32)
    >>> draw(table(3.0), 8, chacha20(insecure_key)).tolist()
    [2, 1, 0, 4, 2, -1, 0, -2]
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import isqrt

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Keystream = Callable[[int], bytes]

SMALLEST_SCALE, LARGEST_SCALE = 0.5, 2.0**13
TABLE_BITS = 127
_HIGH_BITS, _LOW_BITS = 63, 64
_GUIDE_BITS = 18
_WORKING_BITS = 256
_DECIMAL_DIGITS = 100
_TAIL_EXPONENT = 90  # of e, and e^-90 < 2^-129
_BLOCK_CELLS = 2**15
_WORD = np.dtype("<u8")
_ONE = np.uint64(1)


@dataclass(frozen=True)
class GaussianTable:
    """Cumulative probabilities of |X| in 127 bits, ascending as pairs (high, low): shape (T,) each, dtype uint64.

    `guide` tells for each beginning of a word how many entries lie below, -1 where an entry begins so too: shape
    (2^g,), dtype int32, g from 7 to 18.
    """

    high: Words
    low: Words
    guide: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Memory that the table takes."""
        return self.high.nbytes + self.low.nbytes + self.guide.nbytes


def covers(scale: float) -> bool:
    """Whether there may be a table for this scale: from 1/2 to 2^13, where it takes 2.8 MB."""
    return SMALLEST_SCALE <= scale <= LARGEST_SCALE


def total_variation(scale: float) -> Fraction:
    """How far one cell's law is, at most, from the exact discrete Gaussian of parameter `scale`."""
    return Fraction(_reach(scale) + 1, 1 << TABLE_BITS)


@lru_cache(maxsize=64)
def table(scale: float) -> GaussianTable:
    """The table of a scale; ValueError for one that is not covered. The last 64 are kept."""
    if not covers(scale):
        raise ValueError(f"there are tables for scales from {SMALLEST_SCALE} to {LARGEST_SCALE:.0f}, not for {scale}")
    entries = _cumulative(scale)
    high = np.array([entry >> _LOW_BITS for entry in entries], np.uint64)
    low = np.array([entry & ((1 << _LOW_BITS) - 1) for entry in entries], np.uint64)
    return GaussianTable(high, low, _guide(high))


def _guide(high: Words) -> NDArray[np.int32]:
    """About sixteen beginnings per entry, so that few words begin like one; 1 MB at most."""
    bits = min(len(high).bit_length() + 4, _GUIDE_BITS)
    starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(_HIGH_BITS - bits)
    below = np.append(high.searchsorted(starts, side="left"), len(high)).astype(np.int32)
    return np.where(below[1:] == below[:-1], below[:-1], np.int32(-1))


def _reach(scale: float) -> int:
    """T, the least integer with T² > 180 s²: the largest magnitude that can be drawn."""
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
    for _ in range(_reach(scale)):
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


def draw(law: GaussianTable, size: int, keystream: Keystream) -> Integers:
    """`size` independent draws, shape (size,); a block at a time, so that only the result grows with `size`."""
    drawn = np.empty(size, np.int64)
    for at in range(0, size, _BLOCK_CELLS):
        part = drawn[at : at + _BLOCK_CELLS]
        words = np.frombuffer(keystream(8 * len(part)), _WORD).astype(np.uint64, copy=False)
        sign = -(words & _ONE).view(np.int64)
        part[:] = (_magnitudes(law, words >> _ONE, keystream) ^ sign) - sign  # two's complement: ~m + 1 is -m
    return drawn


def _magnitudes(law: GaussianTable, words: Words, keystream: Keystream) -> Integers:
    """How many entries are at or below each word."""
    shift = np.uint64(_HIGH_BITS + 1 - len(law.guide).bit_length())
    counts: Integers = law.guide[words >> shift].astype(np.int64)
    open_cells = np.flatnonzero(counts < 0)
    counts[open_cells] = _searched(law, words[open_cells], keystream)
    return counts


def _searched(law: GaussianTable, words: Words, keystream: Keystream) -> Integers:
    """The same without the guide; for words that tie with an entry 8 more bytes decide, in the order of cells."""
    counts: Integers = law.high.searchsorted(words, side="right").astype(np.int64)
    for tie in np.flatnonzero(law.high[np.maximum(counts, 1) - 1] == words):
        first = law.high.searchsorted(words[tie], side="left")
        more = np.frombuffer(keystream(8), _WORD).astype(np.uint64)
        counts[tie] = first + law.low[first : counts[tie]].searchsorted(more[0], side="right")
    return counts


def chacha20(key: bytes) -> Keystream:
    """The ChaCha20 keystream (RFC 8439) of a 32-byte key, nonce and counter zero: each call goes on where one ended."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda length: stream.update(bytes(length))
