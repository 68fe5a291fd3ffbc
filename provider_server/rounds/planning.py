"""The plan of a round: its rows, and the noise for its budget.

A row exists only for a token that at least `owners_minimum` tenants hold in the epoch so far. A workload whose
sub-archetype has too few owners is counted under its archetype, or its family, if the workloads left at that rung have
enough owners. Owners are counted only among those left, so that a coarse row never contains a single tenant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crypto.errors import Refusal
from crypto.ids import Digest, RoundId, TenantId
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.directory import NOTHING_BEFORE
from federation.protocol.plan import (
    HOURS_PER_WEEK,
    TOKEN_DIMENSIONS,
    Marginal,
    MaskTrustee,
    Mechanism,
    Plan,
    PlanDimension,
    PublishedBundle,
    Series,
)
from federation.protocol.privacy_cost import noise_scales
from federation.protocol.round_messages import LADDER_LABELS
from provider_server.fleet.leases import Lease


class NothingToCount(Refusal):
    """No token has enough owners for a row yet."""

    default_hint = "wait until more tenants have registered leases"


@dataclass(frozen=True)
class MarginalSpec:
    """A marginal to release and the share of the budget that it gets. `domains` empty: all causes."""

    name: str
    dimensions: tuple[str, ...]
    domains: tuple[Domain, ...]
    weight: float


# Most of the budget goes to the table that carries the mismatches, which is the sparsest (docs/learning.md); the hazard
# table has the fewest cells per failure. Script errors by pair are the negative control, as hardware cannot cause them.
# The table of reasons only illustrates.
MARGINALS = (
    MarginalSpec("pairs", ("workload", "context"), (Domain.INFRASTRUCTURE,), 0.6),
    MarginalSpec("hazard", ("context_level", "band", "domain"), (), 0.28),
    MarginalSpec("control", ("workload", "context"), (Domain.SCRIPT,), 0.08),
    MarginalSpec("reasons", ("workload", "reason"), (), 0.04),
)


@dataclass(frozen=True)
class PlanSettings:
    """What the provider fixes for its rounds. `noise_shares` honest contributions carry the full noise.

    With a `horizon` above 1, so many rounds of an epoch share correlated noise. `groups` is how many groups of
    contributions are opened apart, if there are contributions enough.
    """

    epsilon: float
    delta: float
    cohort_minimum: int
    noise_shares: int
    owners_minimum: int = 5
    failures_per_unit: int = 1
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN
    band_edges_hours: tuple[float, ...] = (0.0, 1.0, 8.0, 48.0, 100_000.0)
    weeks_per_epoch: int = 13
    horizon: int = 1
    groups: int = 1
    marginals: tuple[MarginalSpec, ...] = MARGINALS

    def scales(self) -> tuple[float, ...]:
        """Noise scale of each marginal: what the budget buys, shared out by weight."""
        weights = tuple(spec.weight for spec in self.marginals)
        return noise_scales(self.mechanism, self.epsilon, self.delta, self.failures_per_unit, weights, self.horizon)


def make_plan(
    settings: PlanSettings,
    round_id: RoundId,
    window: tuple[int, int],
    leases: Sequence[Lease],
    trustees: Sequence[MaskTrustee],
    public_levels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    directory: Digest = NOTHING_BEFORE,
    earlier: Plan | None = None,
    bundle: PublishedBundle | None = None,
) -> Plan:
    """The plan for [start, end) hours, with rows from the epoch's `leases`; NothingToCount if a dimension has no row.

    `public_levels` gives the levels of further dimensions whose domain is public knowledge, `directory` the head under
    which the round is held. `earlier` is the last opened round of the series to go on with, or of one that is over;
    `bundle` the newest one.
    """
    series = next_series(settings, round_id, window, earlier)
    before = earlier.dimensions if earlier and series and series.position else ()
    kept = {dimension.name: dimension.levels for dimension in before}
    names = dict.fromkeys(name for spec in settings.marginals for name in spec.dimensions)
    return Plan(
        round_id=round_id,
        directory=directory,
        epoch=window[0] // (HOURS_PER_WEEK * settings.weeks_per_epoch),
        start_hour=window[0],
        end_hour=window[1],
        dimensions=tuple(_dimension(name, settings, leases, public_levels or {}, kept.get(name, ())) for name in names),
        band_edges_hours=settings.band_edges_hours,
        marginals=tuple(
            Marginal(spec.name, spec.dimensions, spec.domains, scale)
            for spec, scale in zip(settings.marginals, settings.scales(), strict=True)
        ),
        failures_per_unit=settings.failures_per_unit,
        mechanism=settings.mechanism,
        epsilon=settings.epsilon,
        delta=settings.delta,
        owners_minimum=settings.owners_minimum,
        cohort_minimum=settings.cohort_minimum,
        noise_shares=settings.noise_shares,
        trustees=tuple(trustees),
        series=series,
        bundle=bundle,
    )


def next_series(
    settings: PlanSettings, round_id: RoundId, window: tuple[int, int], earlier: Plan | None
) -> Series | None:
    """The place of the next round: in the series of `earlier` while its horizon and epoch last, or in a new one."""
    if settings.horizon == 1:
        return None
    epoch = window[0] // (HOURS_PER_WEEK * settings.weeks_per_epoch)
    before = earlier.series if earlier and earlier.epoch == epoch else None
    if before is None or before.horizon != settings.horizon or before.position + 1 == before.horizon:
        return Series(round_id, window[0], settings.horizon, 0)
    return Series(before.name, before.start_hour, before.horizon, before.position + 1)


def _dimension(
    name: str,
    settings: PlanSettings,
    leases: Sequence[Lease],
    public_levels: Mapping[str, tuple[str, ...]],
    kept: tuple[str, ...],
) -> PlanDimension:
    """The rows of a dimension; those that an earlier round of the series had come first and stay."""
    if name in TOKEN_DIMENSIONS:
        rungs = LADDER_LABELS if name == "workload" else (name,)
        owners = _rows(leases, rungs, settings.owners_minimum, kept)
        if not owners:
            raise NothingToCount(f"no {name} token has {settings.owners_minimum} owners among {len(leases)} leases")
        return PlanDimension(name, tuple(owners), tuple(owners.values()))
    return PlanDimension(name, public_levels.get(name) or _public_levels(name, settings), ())


def _rows(leases: Sequence[Lease], rungs: Sequence[str], owners_minimum: int, kept: tuple[str, ...]) -> dict[str, int]:
    """Tokens with owners enough, finest rung first, each with its number of owners among the leases left so far.

    A row that is `kept` keeps its place, and its owners are all that hold it: finer rows may have drawn leases off.
    """
    holders: dict[str, set[TenantId]] = {}
    for lease in leases:
        for rung in rungs:
            holders.setdefault(lease.labels.get(rung, ""), set()).add(lease.tenant)
    rows = {token: len(holders.get(token, ())) for token in kept}
    left = list(leases)
    for rung in rungs:
        owners: dict[str, set[TenantId]] = {}
        for lease in left:
            if rung in lease.labels:
                owners.setdefault(lease.labels[rung], set()).add(lease.tenant)
        found = {token: len(tenants) for token, tenants in sorted(owners.items()) if len(tenants) >= owners_minimum}
        placed = {*found, *kept}
        left = [lease for lease in left if lease.labels.get(rung) not in placed]
        rows |= {token: many for token, many in found.items() if token not in rows}
    return rows


def _public_levels(name: str, settings: PlanSettings) -> tuple[str, ...]:
    levels = {
        "band": tuple(str(band) for band in range(len(settings.band_edges_hours) - 1)),
        "domain": tuple(Domain),
        "reason": tuple(CAUSES),
    }
    return levels[name]
