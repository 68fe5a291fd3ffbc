"""Noise for those who answered: which parts of each tenant's noise are opened at which attendance. Integers only.

A tenant speaks once, and only afterwards is it known how many spoke. So its noise comes in parts, each under masks of
its own: a *base*, which is enough when everybody answers, and *layers*, each twice the one before. When the set is
fixed, trustees and provider open the base and those layers that this attendance needs. The others stay masked for ever.

All sizes are fractions of the noise that the plan asks for. Guaranteed, for any number h >= `least` of honest tenants:

- h tenants with the base and the layers `kept(h)` hold at least 1 in all, and exactly 1 when h is `least`;
- while h <= `full`, they hold at most 1 + h * `unit`: what was opened too much is less than one smallest layer each.

Both sides compute `kept` from the size of the smallest group alone, in exact integers, so they open the same parts.

    >>> shares = Shares(least=9, full=180, layers=8)
    >>> [bin(shares.kept(honest)) for honest in (180, 162, 90, 45, 9)]
    ['0b0', '0b10', '0b1110', '0b101001', '0b11111111']
    >>> [round(float(honest * shares.of(honest)), 2) for honest in (180, 162, 135, 90, 45, 9)]
    [1.0, 1.03, 1.03, 1.02, 1.01, 1.0]

A share that must be enough for nine honest tenants whoever comes has no layers:

    >>> [float(honest * Shares(least=9, full=9, layers=0).of(honest)) for honest in (180, 90, 9)]
    [20.0, 10.0, 1.0]
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

MOST_LAYERS = 16
STEPS = 8  # of the layers that `layers_for` chooses: noise beyond the ideal stays below one part in so many


@dataclass(frozen=True)
class Shares:
    """How a tenant's noise is divided.

    `least` honest tenants carry all of the noise with the base and every layer, `full` of them with the base alone.
    """

    least: int
    full: int
    layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.layers <= MOST_LAYERS:
            raise ValueError(f"noise has at most {MOST_LAYERS} layers")
        if not 1 <= self.least <= self.full:
            raise ValueError("the base alone must need at least as many honest tenants as base and layers do")
        if (self.layers == 0) != (self.least == self.full):
            raise ValueError("noise has layers where fewer tenants may answer than the base needs, and only there")

    @property
    def base(self) -> Fraction:
        """The part that is always opened."""
        return Fraction(1, self.full)

    @cached_property
    def unit(self) -> Fraction:
        """The smallest layer; 0 without layers."""
        return (Fraction(1, self.least) - self.base) / (2**self.layers - 1) if self.layers else Fraction(0)

    @property
    def parts(self) -> tuple[Fraction, ...]:
        """The base, and the layers from the smallest on: the variances of a tenant's draws, in this order."""
        return (self.base, *(self.unit * 2**layer for layer in range(self.layers)))

    def kept(self, honest: int) -> int:
        """The layers to open for `honest` tenants, as bits; ValueError where fewer than `least` would need more.

        Another rule needs another tag of plans: a retry after an upgrade must open the same layers.
        """
        if self.layers == 0:
            return 0
        if honest < self.least:
            raise ValueError(f"noise is complete with {self.least} honest tenants, not with {honest}")
        if honest >= self.full:
            return 0
        missing = Fraction(1, honest) - self.base
        return math.ceil(missing / self.unit)

    def of(self, honest: int) -> Fraction:
        """What each tenant's noise holds when the layers for `honest` tenants are opened."""
        return self.base + self.unit * self.kept(honest)

    def excess(self, honest: int) -> float:
        """The variance of the noise of `honest` tenants over that which the plan asks for: 1 or more."""
        return float(honest * self.of(honest))


def layers_for(least: int, full: int) -> int:
    """As many layers as keep the noise of any attendance within one part in `STEPS` of what is needed.

    >>> [layers_for(9, full) for full in (9, 10, 36, 180, 9000)]
    [0, 1, 5, 8, 13]
    """
    steps = -(-STEPS * (full - least) // least)
    return min(MOST_LAYERS, steps.bit_length())


def honest_of(contributors: int, noise_shares: int, cohort_minimum: int) -> int:
    """How many of a set count as honest: the share of a minimal cohort that must be, rounded down.

    >>> [honest_of(contributors, 9, 10) for contributors in (10, 11, 119, 200)]
    [9, 9, 107, 180]
    """
    return contributors * noise_shares // cohort_minimum
