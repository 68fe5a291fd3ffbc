"""Keys and noise that repeat, for figures that have to repeat bit by bit. Insecure: whoever has the seed knows both.

Only a simulation takes its randomness from here; programs that hold real data have no way to.

    >>> insecure = InsecureRepeatable(1, 2)
    >>> again = InsecureRepeatable(1, 2)
    >>> insecure.random_bytes(4) == again.random_bytes(4) != insecure.random_bytes(4)
    True
"""

from fractions import Fraction
from hashlib import sha256

from crypto import discrete_gaussian, polya
from crypto.inversion import chacha20
from federation.protocol.noise import Integers


class InsecureRepeatable:
    """A source of bytes, and a `NoiseSampler` of the product's laws, that give the same for the same seeds."""

    def __init__(self, *seeds: int) -> None:
        self._key = sha256(repr(seeds).encode()).digest()
        self._drawn = 0

    def random_bytes(self, size: int) -> bytes:
        """The next `size` bytes."""
        blocks = []
        for _ in range(-(-size // 32)):
            self._drawn += 1
            blocks.append(sha256(self._key + self._drawn.to_bytes(8)).digest())
        return b"".join(blocks)[:size]

    def gaussian(self, scale: float, size: int) -> Integers:
        """As the product's."""
        return discrete_gaussian.draw(discrete_gaussian.table(scale), size, chacha20(self.random_bytes(32)))

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """As the product's."""
        return polya.shares(scale, 1 / Fraction(shares), size, chacha20(self.random_bytes(32)))
