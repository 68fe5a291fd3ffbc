"""Draws from a law on 0, 1, 2, … by inversion of a table of cumulative probabilities, a word of a keystream per draw.

- *Inversion.* A draw is the number of entries at or below the first bits of its word, unless these equal the upper
  part of an entry. Then 64 more bits of the stream decide among the entries that share it, so that the outcome is
  always that of all bits of the entries.
- *Guide.* Where no entry begins with the first bits of a word, these bits alone tell how many entries lie below; a
  search is made for the few other words only. The guide changes the time, never the outcome.

So the law of a draw is that of the table, to the last bit, if the keystream is uniform. How near the table is to the
law that it stands for, say those who make it. Not promised: constant time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Keystream = Callable[[int], bytes]

LOW_BITS = 64
BLOCK_CELLS = 2**15
_GUIDE_BITS = 18
_WORD = np.dtype("<u8")


@dataclass(frozen=True)
class Table:
    """Cumulative probabilities, ascending, as pairs (high, low) of `high_bits` and 64 bits: shape (T,), dtype uint64.

    `guide` tells for each beginning of a word how many entries lie below, -1 where an entry begins so too: shape
    (2^g,), dtype int32, g from 5 to 18.
    """

    high: Words
    low: Words
    guide: NDArray[np.int32]
    high_bits: int

    @property
    def nbytes(self) -> int:
        """Memory that the table takes."""
        return self.high.nbytes + self.low.nbytes + self.guide.nbytes


def table(entries: Sequence[int], high_bits: int) -> Table:
    """The table of these entries of `high_bits` + 64 bits, ascending; `high_bits` is 64 or less."""
    width = (high_bits + LOW_BITS + 7) // 8
    data = b"".join(entry.to_bytes(width, "little") for entry in entries)
    pairs = np.frombuffer(data, _WORD).reshape(-1, 2).astype(np.uint64, copy=False)
    high = np.ascontiguousarray(pairs[:, 1])
    return Table(high, np.ascontiguousarray(pairs[:, 0]), _guide(high, high_bits), high_bits)


def _guide(high: Words, high_bits: int) -> NDArray[np.int32]:
    """About sixteen beginnings per entry, so that few words begin like one; 1 MB at most."""
    bits = min(len(high).bit_length() + 4, _GUIDE_BITS)
    starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(high_bits - bits)
    below = np.append(high.searchsorted(starts, side="left"), len(high)).astype(np.int32)
    return np.where(below[1:] == below[:-1], below[:-1], np.int32(-1))


def words(size: int, keystream: Keystream) -> Words:
    """The next `size` words of the stream, little-endian; shape (size,), dtype uint64."""
    return np.frombuffer(keystream(8 * size), _WORD).astype(np.uint64, copy=False)


def counted(law: Table, first: Words, keystream: Keystream) -> Integers:
    """How many entries are at or below each word of `high_bits` bits; the stream goes on where words tie."""
    shift = np.uint64(law.high_bits + 1 - len(law.guide).bit_length())
    counts: Integers = law.guide[first >> shift].astype(np.int64)
    open_cells = np.flatnonzero(counts < 0)
    counts[open_cells] = _searched(law, first[open_cells], keystream)
    return counts


def _searched(law: Table, first: Words, keystream: Keystream) -> Integers:
    """The same without the guide; for words that tie with an entry 8 more bytes decide, in the order of cells."""
    counts: Integers = law.high.searchsorted(first, side="right").astype(np.int64)
    for tie in np.flatnonzero(law.high[np.maximum(counts, 1) - 1] == first):
        begin = law.high.searchsorted(first[tie], side="left")
        counts[tie] = begin + law.low[begin : counts[tie]].searchsorted(words(1, keystream)[0], side="right")
    return counts


def chacha20(key: bytes) -> Keystream:
    """The ChaCha20 keystream (RFC 8439) of a 32-byte key, nonce and counter zero: each call goes on where one ended."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda length: stream.update(bytes(length))
