"""MinHash sketches of sets (Broder 1997): equal positions of two sketches estimate the Jaccard similarity of the sets.

A sketch has sixty-four positions and is not private (a dictionary of operators inverts it): only the provider publishes
sketches, of its own benchmarks, and a tenant's never leave. Nor do parts of them as tokens: each could be guessed by
itself, at a fraction of the guesses that the whole takes (docs/adr/0018-no-bands.md).
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

POSITIONS = 64
_WORDS = struct.Struct(f"<{POSITIONS}Q")


@dataclass(frozen=True)
class Sketch:
    """Sixty-four minima, each below 2^64."""

    minima: tuple[int, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sketch":
        """Inverse of `to_bytes`."""
        return cls(_WORDS.unpack(data))

    def to_bytes(self) -> bytes:
        """Little-endian words."""
        return _WORDS.pack(*self.minima)


def sketch(elements: Iterable[bytes]) -> Sketch:
    """The sketch of a set of byte strings; each element is hashed once into sixty-four words by SHAKE-128."""
    digests = (hashlib.shake_128(b"pharoah/minhash/1\0" + element).digest(_WORDS.size) for element in elements)
    columns = zip(*map(_WORDS.unpack, digests), strict=True)
    return Sketch(tuple(map(min, columns)) or (0,) * POSITIONS)


def similarity(one: Sketch, other: Sketch) -> float:
    """Share of equal positions: an unbiased estimate of the Jaccard similarity, standard error at most .0625."""
    return sum(a == b for a, b in zip(one.minima, other.minima, strict=True)) / POSITIONS
