"""The plan of one round: what is counted, with how much noise, and who must take part.

The provider signs it, every tenant is shown it and checks it against its own policy before anything is counted. The
plan lists its rows explicitly: a row exists only for a token that at least `owners_minimum` tenants hold, and a
count that fits no row is not contributed. From the plan alone anyone can compute the privacy loss of a job-week
(`crypto.accountant.plan_loss`).

Unit of privacy: one job-week, that is one lease within the window. In each marginal it adds at most `failures_per_unit`
to the cells of that marginal, whatever the size of the job.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from crypto.causes import Domain
from crypto.ids import MaskPublicKey, RoundId
from crypto.life_table import Dimension, LifeTable

TOKEN_DIMENSIONS = frozenset({"workload", "context", "context_level"})


class Mechanism(StrEnum):
    """How the noise of a round is distributed."""

    DISCRETE_GAUSSIAN = "discrete_gaussian"
    DISCRETE_LAPLACE = "discrete_laplace"


@dataclass(frozen=True)
class PlanDimension:
    """An axis of the plan. `owners` counts, per level, the tenants that hold its token; empty for public levels."""

    name: str
    levels: tuple[str, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.levels or len(set(self.levels)) != len(self.levels):
            raise ValueError(f"dimension {self.name!r} needs levels, each once")
        if self.owners and len(self.owners) != len(self.levels):
            raise ValueError(f"dimension {self.name!r} has {len(self.levels)} levels and {len(self.owners)} owner counts")
        if self.name in TOKEN_DIMENSIONS and not self.owners:
            raise ValueError(f"dimension {self.name!r} consists of tokens: it must say how many tenants own each")


@dataclass(frozen=True)
class Marginal:
    """One released table. `noise_scale` is the standard deviation (Gaussian) or the scale b (Laplace), in counts.

    `domains` lists the failure domains that count; empty means all, unknown causes included.
    """

    name: str
    dimensions: tuple[str, ...]
    domains: tuple[Domain, ...]
    noise_scale: float

    def __post_init__(self) -> None:
        if not self.dimensions or self.noise_scale <= 0:
            raise ValueError(f"marginal {self.name!r} needs dimensions and a positive noise scale")


@dataclass(frozen=True)
class MaskTrustee:
    """A trustee whose mask stream hides every contribution of the round."""

    index: int
    mask_key: MaskPublicKey


@dataclass(frozen=True)
class Plan:
    """Everything that a tenant needs to contribute to one round, and to refuse to.

    The window is [start_hour, end_hour) since the federation's start. `band_edges_hours` has one more entry than there
    are bands, the last may be very large. `noise_shares` contributions together carry the full noise; the provider
    must not get a sum of fewer than `cohort_minimum` contributions.
    """

    LABEL: ClassVar[str] = "pharoah/plan/1"
    round_id: RoundId
    epoch: int
    start_hour: int
    end_hour: int
    dimensions: tuple[PlanDimension, ...]
    band_edges_hours: tuple[float, ...]
    marginals: tuple[Marginal, ...]
    failures_per_unit: int
    mechanism: Mechanism
    epsilon: float
    delta: float
    owners_minimum: int
    cohort_minimum: int
    noise_shares: int
    trustees: tuple[MaskTrustee, ...]

    def __post_init__(self) -> None:
        self._check_window()
        self._check_tables()
        if not 1 <= self.noise_shares <= self.cohort_minimum:
            raise ValueError("noise_shares must lie between 1 and cohort_minimum, or a full cohort would lack noise")
        if len({trustee.index for trustee in self.trustees}) != len(self.trustees) or not self.trustees:
            raise ValueError("a plan needs mask trustees, each once")

    def _check_window(self) -> None:
        edges = self.band_edges_hours
        if self.end_hour <= self.start_hour:
            raise ValueError("the window of a plan must end after it starts")
        if len(edges) < 2 or any(later <= earlier for earlier, later in zip(edges, edges[1:], strict=False)):
            raise ValueError("band edges must increase, and there must be at least two")

    def _check_tables(self) -> None:
        names = [dimension.name for dimension in self.dimensions]
        if len(set(names)) != len(names):
            raise ValueError("each dimension is listed once")
        used = {name for marginal in self.marginals for name in marginal.dimensions}
        if not self.marginals or not used <= set(names):
            raise ValueError(f"the marginals use dimensions {sorted(used)}, the plan defines {sorted(names)}")
        if len({marginal.name for marginal in self.marginals}) != len(self.marginals):
            raise ValueError("each marginal has a name of its own")
        if self.failures_per_unit < 1:
            raise ValueError("at least one failure per unit must count")
        if not (self.epsilon > 0 and 0 <= self.delta < 1):
            raise ValueError("epsilon must be positive and delta in [0, 1)")

    @cached_property
    def tables(self) -> tuple[LifeTable, ...]:
        """An empty life table per marginal, in order: the layout of a contribution."""
        axes = {dimension.name: Dimension(dimension.name, dimension.levels) for dimension in self.dimensions}
        return tuple(LifeTable.zeros([axes[name] for name in marginal.dimensions]) for marginal in self.marginals)

    @property
    def cells(self) -> int:
        """Number of 64-bit cells in a contribution."""
        return sum(table.events.size for table in self.tables)

    @property
    def rarest_row(self) -> tuple[str, int] | None:
        """The token row with the fewest owners, as (dimension: level, owners); None without token rows."""
        rows = [
            (f"{dimension.name}: {level}", owners)
            for dimension in self.dimensions
            for level, owners in zip(dimension.levels, dimension.owners, strict=False)
        ]
        return min(rows, key=lambda row: row[1], default=None)
