"""A small valid plan for tests of statistics, and what is done with one: sums of noise shares as tenants send them."""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import discrete_gaussian, polya
from crypto.ids import Digest, RoundId
from crypto.inversion import chacha20
from crypto.masking import MaskKey, Words, add_words
from federation.protocol.life_table import Floats
from federation.protocol.noise import (
    Integers,
    NoiseSampler,
    SystemSampler,
    from_ring,
    noise_share,
    to_ring,
)
from federation.protocol.plan import Marginal, MaskTrustee, Mechanism, Plan, PlanDimension


def small_plan(**changes: Any) -> Plan:
    """Two marginals over a workload of two rows and three age bands; `changes` replaces fields."""
    fields: dict[str, Any] = {
        "round_id": RoundId(bytes(16)),
        "directory": Digest(bytes(32)),
        "epoch": 1,
        "start_hour": 0,
        "end_hour": 168,
        "windows": (0, 168),
        "dimensions": (PlanDimension("workload", ("a", "b"), (7, 8)), PlanDimension("band", ("0", "1", "2"), ())),
        "band_edges_hours": (0.0, 1.0, 8.0, 1000.0),
        "marginals": (
            Marginal("pairs", ("workload", "band"), (), 3.0),
            Marginal("bands", ("band",), (), 5.0),
        ),
        "failures_per_unit": 1,
        "mechanism": Mechanism.DISCRETE_GAUSSIAN,
        "epsilon": 1.0,
        "delta": 1e-8,
        "owners_minimum": 5,
        "cohort_minimum": 12,
        "noise_shares": 10,
        "trustees": (MaskTrustee(1, MaskKey(bytes(32)).public),),
    }
    return Plan(**(fields | changes))


def cells_plan(cells: int, scale: float, **changes: Any) -> Plan:
    """A plan with one marginal of `cells` cells at one noise scale: each cell is an experiment of its own."""
    dimensions = (PlanDimension("cell", tuple(str(number) for number in range(cells)), ()),)
    return small_plan(dimensions=dimensions, marginals=(Marginal("all", ("cell",), (), scale),), **changes)


def noisy_sum(plan: Plan, contributions: int, sampler: NoiseSampler, counts: NDArray[np.int64] | None = None) -> Floats:
    """The first marginal as released, flat: `counts` of one tenant, none of the others, noise of all."""
    shares = [noise_share(plan, sampler) for _ in range(contributions)]
    cells: list[Words] = [] if counts is None else [to_ring(plan, [counts])]
    return from_ring(plan, add_words([*shares, *cells]))[0].reshape(-1)


class InsecureScale:
    """The product's sampler at a wrong scale: noise that is too small or too large by `factor`."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._exact = SystemSampler()

    def gaussian(self, scale: float, size: int) -> Integers:
        """As `SystemSampler`, but for the scale."""
        return self._exact.gaussian(self._factor * scale, size)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """As `SystemSampler`, but for the scale."""
        return self._exact.laplace_share(self._factor * scale, shares, size)


class InsecureSeeded:
    """Noise of the product's laws from a seed: a test of what follows from noise is the same each time."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def gaussian(self, scale: float, size: int) -> Integers:
        """As `SystemSampler`; where it has no table, a rounded Gaussian, whose law is the same to 1e-4 of a step."""
        if discrete_gaussian.covers(scale):
            return discrete_gaussian.draw(discrete_gaussian.table(scale), size, chacha20(self._rng.bytes(32)))
        return np.rint(self._rng.normal(0.0, scale, size)).astype(np.int64)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """As `SystemSampler`."""
        return polya.shares(scale, 1 / Fraction(shares), size, chacha20(self._rng.bytes(32)))
