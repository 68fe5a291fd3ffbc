"""Distributed noise: each tenant adds a share, and the sum of the shares makes the release private.

Discrete Laplace (the default). Infinitely divisible: the difference of two negative-binomial NB(1/k, p) draws,
p = exp(-1/b), summed over k shares, k = `Plan.noise_shares`, is exactly the discrete Laplace law of scale b. Drawn by
`crypto.polya`, each draw within 2^-108 of its law.

Discrete Gaussian (for plans of many tables; Canonne, Kamath & Steinke 2020). Counts are multiplied by 2^8 in the ring
mod 2^64 before noise is added, and every share has 1/k of the variance. A sum of discrete Gaussians is not quite a
discrete Gaussian; without the scaling many small shares would give no privacy at all, with it the distance is
negligible (Kairouz, Liu & Steinke 2021, Theorem 1; `federation.protocol.privacy_cost` evaluates the bound for each
plan). Drawn by `crypto.discrete_gaussian`, each draw within 2^-110 of its law in total variation.

Both invert tables with a ChaCha20 stream under a fresh key of the system's generator. Making the tables is the work of
an answer: `table_entries` says how much it is before anything is charged.

How many answer is known only afterwards. So where a plan has `noise_layers`, a share comes in parts of unequal size,
each under masks of its own, and only those are opened that attendance needs (`federation.protocol.attendance`).
Gaussian parts add up to nearly a Gaussian, Laplace parts NB(r, p), r any fraction, exactly to the law of their sum.
What is opened beyond the ideal is independent noise. Sums of fewer than k must never be unmasked: `cohort_minimum` sees
to it.
"""

import math
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto import discrete_gaussian, polya
from crypto.inversion import chacha20
from crypto.masking import Words
from federation.protocol.life_table import Floats
from federation.protocol.plan import Marginal, Mechanism, Plan

Integers = NDArray[np.int64]

SCALE_BITS = {Mechanism.DISCRETE_GAUSSIAN: 8, Mechanism.DISCRETE_LAPLACE: 0}
MOST_TABLE_ENTRIES = 2**23  # about 20 s of work


class NoiseSampler(Protocol):
    """A source of noise. Programs use `SystemSampler`; tests may pass one whose name says insecure."""

    def gaussian(self, scale: float, size: int) -> Integers:
        """`size` independent discrete Gaussians with parameter `scale` > 0."""

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """`size` independent draws of which `shares` sum to a discrete Laplace of scale b = `scale`."""


class SystemSampler:
    """Samplers over the operating system's generator; each draw is within 2^-108 of its law, if not exact."""

    def gaussian(self, scale: float, size: int) -> Integers:
        """From a table; where that would be too large, by rejection, which no plan of ours needs."""
        if discrete_gaussian.covers(scale):
            return discrete_gaussian.draw(discrete_gaussian.table(scale), size, chacha20(os.urandom(32)))
        return discrete_gaussian.drawn_by_rejection(scale, size)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """Difference of two negative-binomial draws per element."""
        return polya.shares(scale, 1 / Fraction(shares), size, chacha20(os.urandom(32)))


def table_entries(plan: Plan) -> int:
    """Entries of the tables that an answer to `plan` draws from, each about 2 µs of work; draws by rejection as 50."""
    of_scale = {
        (marginal.noise_scale, part): _entries(plan, marginal, part, table.events.size)
        for marginal, table in zip(plan.marginals, plan.tables, strict=True)
        for part in plan.shares.parts
    }
    return sum(of_scale.values())


def _entries(plan: Plan, marginal: Marginal, part: Fraction, cells: int) -> int:
    if plan.mechanism is Mechanism.DISCRETE_LAPLACE:
        return math.ceil(90 * marginal.noise_scale)
    scale = gaussian_scale(plan, marginal, part)
    return discrete_gaussian.reach(scale) if discrete_gaussian.covers(scale) else 50 * cells


def contribution(plan: Plan, counts: Sequence[Integers], sampler: NoiseSampler) -> Words:
    """A tenant's counts and its noise in parts, before masks; shape (plan.words,), dtype uint64."""
    base, *layers = [noise_share(plan, sampler, part) for part in plan.shares.parts]
    return np.concatenate([to_ring(plan, counts) + base, *layers])


def open_groups(plan: Plan, groups: Sequence[Words], smallest: int) -> list[Words]:
    """The sums that may be unmasked. Linear: trustees apply it to masks, the provider to masked sums.

    `groups` holds the sum over each group of contributions, shape (plan.words,), of which the smallest group has
    `smallest`. One array of shape (plan.cells,) per group: counts, the base noise, and those layers that so many
    contributions need. ValueError for too few.
    """
    kept = plan.shares.kept(plan.honest(smallest))
    opened = []
    for group in groups:
        own, *layers = group.reshape(plan.vectors, plan.cells)
        total = own.copy()
        for layer, noise in enumerate(layers):
            if kept >> layer & 1:
                total += noise
        opened.append(total)
    return opened


def to_ring(plan: Plan, counts: Sequence[Integers]) -> Words:
    """The plan's tables as one vector of scaled words mod 2^64; shape (plan.cells,), dtype uint64."""
    flat = np.concatenate([table.reshape(-1) for table in counts]).astype(np.int64)
    return (flat << SCALE_BITS[plan.mechanism]).astype(np.uint64)


def from_ring(plan: Plan, words: Words) -> tuple[Floats, ...]:
    """Inverse of `to_ring` on a sum: one float64 array per marginal, in counts, negative where noise makes it so."""
    flat = words.astype(np.int64) / (1 << SCALE_BITS[plan.mechanism])
    ends = np.cumsum([table.events.size for table in plan.tables])[:-1]
    parts = np.split(flat, ends)
    return tuple(part.reshape(table.shape) for part, table in zip(parts, plan.tables, strict=True))


def noise_share(plan: Plan, sampler: NoiseSampler, part: Fraction | None = None) -> Words:
    """A part of one tenant's noise, the base if left out, for every cell, in the ring; (plan.cells,), dtype uint64."""
    drawn = [
        _marginal_share(plan, marginal, part or plan.shares.base, table.events.size, sampler)
        for marginal, table in zip(plan.marginals, plan.tables, strict=True)
    ]
    return np.concatenate(drawn).astype(np.uint64)


def _marginal_share(plan: Plan, marginal: Marginal, part: Fraction, cells: int, sampler: NoiseSampler) -> Integers:
    if plan.mechanism is Mechanism.DISCRETE_LAPLACE:
        return sampler.laplace_share(marginal.noise_scale, 1 / part, cells)
    return sampler.gaussian(gaussian_scale(plan, marginal, part), cells)


def gaussian_scale(plan: Plan, marginal: Marginal, part: Fraction | float) -> float:
    """Parameter of noise with that part of a marginal's Gaussian variance, in ring units (counts times 2^8)."""
    return float(marginal.noise_scale * (1 << SCALE_BITS[plan.mechanism]) * math.sqrt(part))


def opened_shares(plan: Plan, contributors: int, smallest: int | None = None) -> float:
    """The noise of a sum of `contributors` contributions, over that which the plan asks for.

    `smallest` is the size of the round's smallest group, by which noise is opened: left out, there is one group.
    """
    kept = plan.honest(contributors if smallest is None else smallest)
    return float(contributors * plan.shares.of(kept))


def noise_variances(plan: Plan, contributors: int, smallest: int | None = None) -> tuple[float, ...]:
    """Variance per cell, in counts², of the noise in a sum of `contributors` contributions; one per marginal.

    `smallest` as in `opened_shares`.
    """
    opened = opened_shares(plan, contributors, smallest)
    return tuple(opened * _full_variance(plan.mechanism, marginal.noise_scale) for marginal in plan.marginals)


def _full_variance(mechanism: Mechanism, scale: float) -> float:
    if mechanism is Mechanism.DISCRETE_GAUSSIAN:
        return scale**2
    success = np.exp(-1 / scale)
    return float(2 * success / (1 - success) ** 2)
