"""MinHash sketches of sets (Broder 1997): equal positions of two sketches estimate the Jaccard similarity of the sets.

A sketch has sixty-four positions and is not private (a dictionary of operators inverts it): only the provider publishes
sketches, of its own benchmarks, and a tenant's never leave. Nor do parts of them as tokens: each could be guessed by
itself, at a fraction of the guesses that the whole takes (docs/adr/0018-no-bands.md).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

POSITIONS = 64


@dataclass(frozen=True)
class Sketch:
    """Sixty-four minima, dtype uint64."""

    minima: tuple[int, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sketch":
        """Inverse of `to_bytes`."""
        return cls(tuple(np.frombuffer(data, "<u8").tolist()))

    def to_bytes(self) -> bytes:
        """Little-endian words."""
        return np.array(self.minima, "<u8").tobytes()


def sketch(elements: Iterable[bytes]) -> Sketch:
    """The sketch of a set of byte strings; each element is hashed once into sixty-four words by SHAKE-128."""
    rows = [hashlib.shake_128(b"pharoah/minhash/1\0" + element).digest(8 * POSITIONS) for element in elements]
    words = np.frombuffer(b"".join(rows), "<u8").reshape(-1, POSITIONS)
    minima = words.min(axis=0) if len(words) else np.zeros(POSITIONS, np.uint64)
    return Sketch(tuple(minima.tolist()))


def similarity(one: Sketch, other: Sketch) -> float:
    """Share of equal positions: an unbiased estimate of the Jaccard similarity, standard error at most .0625."""
    return sum(a == b for a, b in zip(one.minima, other.minima, strict=True)) / POSITIONS
