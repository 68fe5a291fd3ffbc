"""The plan of one round: what is counted, with how much noise, and the required participants.

- The provider signs it; every tenant checks it against its own policy before it counts anything.
- Rows are listed explicitly. A row exists only for a token that at least `owners_minimum` tenants own; a count without
  a row is not contributed.
- The plan determines the privacy loss of a unit (`federation.protocol.privacy_cost.plan_loss`).
- Unit of privacy: one lease within one window. It adds at most `failures_per_unit` to the cells of each marginal that
  counts failures, whatever the size of the job. A marginal may count another subject instead: then a unit adds at most
  one to each of at most so many cells (`subjects.OPTIONAL`). Such marginals are optional.
- Every plan lists all windows of its epoch. They are disjoint, so no unit is in two of them, and rounds compose in
  parallel: each stands alone, with noise of its own.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from crypto.codec import Count, Few, Many, Message, Number, Record, Text
from crypto.ids import Digest, MaskPublicKey, RoundId
from federation.protocol.attendance import Shares, honest_of
from federation.protocol.causes import Domain
from federation.protocol.subjects import OPTIONAL, TOKEN_DIMENSIONS, Subject
from federation.protocol.versions import PROTOCOL, Hello

if TYPE_CHECKING:
    from federation.protocol.life_table import LifeTable

HOURS_PER_WEEK = 168
MAX_NAME_CHARACTERS = 64
MAX_WORDS = 2**22  # 32 MiB: a contribution fits a message with room to spare


class Mechanism(StrEnum):
    """The distribution of the noise of a round."""

    DISCRETE_GAUSSIAN = "discrete_gaussian"
    DISCRETE_LAPLACE = "discrete_laplace"


# A plan with a larger scale would hide everything, and cost a tenant more work than its answer is worth.
LARGEST_NOISE_SCALE = {Mechanism.DISCRETE_GAUSSIAN: 2.0**32, Mechanism.DISCRETE_LAPLACE: 2.0**12}


class PlanDimension(Record, frozen=True):
    """An axis of the plan. `owners` counts, per level, the tenants that hold its token; empty for public levels."""

    name: Text
    levels: Many[Text]
    owners: Many[Count]

    def __post_init__(self) -> None:
        _check_names("a dimension", [self.name])
        if not self.levels or len(set(self.levels)) != len(self.levels):
            raise ValueError(f"dimension {self.name!r} needs levels, each once")
        if self.owners and len(self.owners) != len(self.levels):
            counts = f"{len(self.levels)} levels and {len(self.owners)} owner counts"
            raise ValueError(f"dimension {self.name!r} has {counts}, it needs as many")
        if self.name in TOKEN_DIMENSIONS and not self.owners:
            raise ValueError(f"dimension {self.name!r} consists of tokens: it must say how many tenants own each")


class Marginal(Record, frozen=True):
    """One released table. `noise_scale` is the standard deviation (Gaussian) or the scale b (Laplace), in counts.

    `domains` lists the failure domains that count; empty means all, unknown causes included. `counts` says what is
    counted.
    """

    name: Text
    dimensions: Few[Text]
    domains: Few[Domain]
    noise_scale: Number
    counts: Subject = Subject.FAILURES

    def __post_init__(self) -> None:
        _check_names("a marginal", [self.name])
        _check_names("a dimension", self.dimensions)
        if not self.dimensions or len(set(self.dimensions)) != len(self.dimensions):
            raise ValueError(f"marginal {self.name!r} needs dimensions, each once")
        if not self.noise_scale > 0:
            raise ValueError(f"marginal {self.name!r} needs a positive noise scale")
        if self.counts is not Subject.FAILURES and self.domains:
            raise ValueError(f"marginal {self.name!r} counts {self.counts}, which have no failure domains")
        if self.counts in OPTIONAL and self.dimensions != OPTIONAL[self.counts].dimensions:
            own = ", ".join(OPTIONAL[self.counts].dimensions)
            raise ValueError(f"marginal {self.name!r} counts {self.counts} by {own}")


def _check_names(owner: str, names: Sequence[str]) -> None:
    """Names must be short and plain: errors quote them, and a plan comes from outside."""
    if not all(name.isidentifier() and name.isascii() and len(name) <= MAX_NAME_CHARACTERS for name in names):
        raise ValueError(f"the name of {owner} must be an ASCII identifier of at most {MAX_NAME_CHARACTERS} characters")


class MaskTrustee(Record, frozen=True):
    """A trustee whose mask stream hides every contribution of the round."""

    index: Count
    mask_key: MaskPublicKey


class PublishedBundle(Record, frozen=True):
    """The newest bundle, catalogue and all: its number, and the digest of its signed bytes."""

    number: Count
    signed: Digest


class NoiseLayers(Record, frozen=True):
    """Noise for those who answer: `full_shares` contributions carry the full noise without any of the `layers`."""

    full_shares: Count
    layers: Count


# A pilot: the least that the privacy claim needs. Each of its three contributions alone has all of the noise, so that a
# round is (epsilon, delta)-private against the provider and the two others; docs/privacy.md says what is less.
PILOT_OWNERS, PILOT_COHORT, PILOT_NOISE_SHARES = 3, 3, 1


class Plan(Message, frozen=True, tag="pharoah/plan/8", dict=True):
    """All that a tenant needs to answer one round or refuse it.

    The window is [start_hour, end_hour), in hours since 1970. It is one of those between the edges `windows`, in hours,
    which are all windows of the epoch, in order; every plan of the epoch names the same. `band_edges_hours` has one
    more entry than there are bands, the last may be very large. `noise_shares` contributions together carry the full
    noise; the provider must not get a sum of fewer than `cohort_minimum` contributions. `noise_layers` says what of
    each contribution's noise is opened when more answer; without it, all of it. `directory` names the entry of the
    directory under whose keys the round is held. `bundle` is the newest published bundle: all tenants answer one plan,
    so tenants with different bundles detect it. `protocol` is the version (`federation.protocol.versions`) in which all
    messages of the round are written; the rules of this module and of a tenant's policy are the same in each.
    """

    round_id: RoundId
    directory: Digest
    epoch: Count
    start_hour: Count
    end_hour: Count
    windows: Few[Count]
    dimensions: Few[PlanDimension]
    band_edges_hours: Few[Number]
    marginals: Few[Marginal]
    failures_per_unit: Count
    mechanism: Mechanism
    epsilon: Number
    delta: Number
    owners_minimum: Count
    cohort_minimum: Count
    noise_shares: Count
    trustees: Few[MaskTrustee]
    bundle: PublishedBundle | None = None
    noise_layers: NoiseLayers | None = None
    protocol: Count = PROTOCOL

    def __post_init__(self) -> None:
        self._check_window()
        self._check_budget()
        self._check_tables()
        if not 1 <= self.noise_shares <= self.cohort_minimum:
            raise ValueError("noise_shares must lie between 1 and cohort_minimum, or a full cohort would lack noise")
        if self.noise_layers is not None and self.shares.layers == 0:
            raise ValueError("noise_layers must name layers; a plan without any leaves it out")
        self._check_size()
        if len({trustee.index for trustee in self.trustees}) != len(self.trustees) or not self.trustees:
            raise ValueError("a plan needs mask trustees, each once")

    def _check_window(self) -> None:
        edges = self.band_edges_hours
        if self.end_hour <= self.start_hour:
            raise ValueError("the window of a plan must end after it starts")
        if not all(earlier < later for earlier, later in pairwise(self.windows)):
            raise ValueError("the edges of windows must increase")
        if self.window not in pairwise(self.windows):
            raise ValueError("the window of a plan must be one of those that it lists for its epoch")
        if len(edges) < 2 or not all(earlier < later for earlier, later in pairwise(edges)):
            raise ValueError("band edges must increase, and there must be at least two")

    def _check_budget(self) -> None:
        if self.failures_per_unit < 1:
            raise ValueError("failures_per_unit must be at least 1, or nothing would count")
        if not (0 < self.epsilon < math.inf and 0 <= self.delta < 1):
            raise ValueError("epsilon must be positive and finite, delta in [0, 1)")
        largest = LARGEST_NOISE_SCALE[self.mechanism]
        for marginal in self.marginals:
            if marginal.noise_scale > largest:
                raise ValueError(f"the noise scale of marginal {marginal.name!r} must be at most {largest:.0f}")

    def _check_tables(self) -> None:
        names = {dimension.name for dimension in self.dimensions}
        if len(names) != len(self.dimensions):
            raise ValueError("each dimension is listed once")
        if not self.marginals or len({marginal.name for marginal in self.marginals}) != len(self.marginals):
            raise ValueError("a plan needs marginals, each with a name of its own")
        for marginal in self.marginals:
            for name in marginal.dimensions:
                if name not in names:
                    raise ValueError(f"marginal {marginal.name!r} uses dimension {name!r}, which the plan must define")

    def _check_size(self) -> None:
        levels = {dimension.name: len(dimension.levels) for dimension in self.dimensions}
        cells = sum(math.prod(levels[name] for name in marginal.dimensions) for marginal in self.marginals)
        if cells * self.vectors > MAX_WORDS:
            most = MAX_WORDS // self.vectors
            raise ValueError(f"this plan has at most {most} cells: use fewer dimensions per marginal or fewer levels")

    @cached_property
    def tables(self) -> "tuple[LifeTable, ...]":
        """An empty life table per marginal, in order: the layout of a contribution."""
        from federation.protocol.life_table import Dimension, LifeTable

        axes = {dimension.name: Dimension(dimension.name, dimension.levels) for dimension in self.dimensions}
        return tuple(LifeTable.zeros([axes[name] for name in marginal.dimensions]) for marginal in self.marginals)

    @property
    def cells(self) -> int:
        """Number of cells in all tables together."""
        return sum(table.events.size for table in self.tables)

    def counts(self, subject: Subject) -> bool:
        """Whether a marginal counts this."""
        return any(marginal.counts is subject for marginal in self.marginals)

    @property
    def window(self) -> tuple[int, int]:
        """[start_hour, end_hour)."""
        return self.start_hour, self.end_hour

    @property
    def first_hour(self) -> int:
        """The beginning of the epoch's first window: from there on units may wait to be counted."""
        return self.windows[0]

    def position_at(self, hour: float) -> int:
        """Which window of the epoch holds `hour`, from 0; -1 before the first, the number of windows after the last."""
        return bisect_right(self.windows, hour) - 1

    def check_protocol(self, us: str) -> None:
        """VersionsApart if `us`, this program, does not speak the version of the round."""
        Hello(self.protocol, self.protocol).spoken_with("the provider's round", us)

    @property
    def vectors(self) -> int:
        """Vectors of cells under masks of their own: counts with the base noise, and each layer."""
        return 1 + self.shares.layers

    @cached_property
    def shares(self) -> Shares:
        """How each contribution's noise is divided; ValueError for a division that is none."""
        if self.noise_layers is None:
            return Shares(self.noise_shares, self.noise_shares, 0)
        return Shares(self.noise_shares, self.noise_layers.full_shares, self.noise_layers.layers)

    def honest(self, smallest_group: int) -> int:
        """How many of a group of that size count as honest: as large a share as of a cohort that is minimal."""
        return honest_of(smallest_group, self.noise_shares, self.cohort_minimum)

    @property
    def words(self) -> int:
        """Number of 64-bit words in a contribution."""
        return self.cells * self.vectors

    @property
    def rarest_row(self) -> tuple[str, int] | None:
        """The token row with the fewest owners, as (dimension: level, owners); None without token rows."""
        rows = [
            (f"{dimension.name}: {level}", owners)
            for dimension in self.dimensions
            for level, owners in zip(dimension.levels, dimension.owners, strict=False)
        ]
        return min(rows, key=lambda row: row[1], default=None)


def served_before(plan: Plan, before: Iterable[Plan]) -> list[int]:
    """The trustees of which `plan` names a mask key that one of the plans `before` named for another epoch.

    A mask key serves one epoch: whoever gets it after that could take it off all that is put under it later.
    """
    served = {masking.mask_key for earlier in before if earlier.epoch != plan.epoch for masking in earlier.trustees}
    return [masking.index for masking in plan.trustees if masking.mask_key in served]
