"""The plan of a round: its rows, and the noise for its budget.

A row exists only for a token that at least `owners_minimum` tenants hold in the epoch so far. A workload whose
sub-archetype has too few owners is counted under its archetype, or its family, if the workloads left at that rung have
enough owners. Owners are counted only among those left, so that a coarse row never contains a single tenant.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from crypto.errors import Refusal
from crypto.ids import Digest, RoundId, TenantId
from federation.protocol.attendance import Shares, honest_of, layers_for
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.directory import NOTHING_BEFORE
from federation.protocol.noise import gaussian_scale
from federation.protocol.plan import (
    MAX_WORDS,
    Marginal,
    MaskTrustee,
    Mechanism,
    NoiseLayers,
    Plan,
    PlanDimension,
    PublishedBundle,
    served_before,
)
from federation.protocol.privacy_cost import noise_scales
from federation.protocol.round_messages import LADDER_LABELS
from federation.protocol.subjects import CLAIM, OBSERVED_LEVELS, OPTIONAL, TOKEN_DIMENSIONS, Subject, norms
from federation.protocol.versions import PROTOCOL
from federation.protocol.warnings import Claims
from provider_server.fleet.leases import Lease
from provider_server.rounds.schedule import Window, Windows, window_of

NO_CLAIMS = Claims()
LEAST_SCALE = 3.0  # of a part of a tenant's Gaussian noise: sums of smaller ones are not priced as one Gaussian


class MaskKeysServed(Refusal):
    """A round would be held under mask keys of an earlier epoch: who got them now could open what was sent then."""

    default_hint = (
        "no tenant was asked; each mask trustee runs `pharoah-trustee keys renew-mask-key`,"
        " then `pharoah-provider trustees reseat`"
    )


def check_mask_keys(plan: Plan, before: Iterable[Plan]) -> None:
    """MaskKeysServed where `plan` names mask keys of rounds of another epoch: a mask key serves one."""
    if old := served_before(plan, before):
        raise MaskKeysServed(f"epoch {plan.epoch} would be held under mask keys of another one, of trustees {old}")


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
    counts: Subject = Subject.FAILURES


MOST_EXCESS = 2.0  # of the variance of noise over the ideal, without a warning

# Most of the budget goes to the table that carries the mismatches, which is the sparsest (docs/learning.md); the hazard
# table has the fewest cells per failure. Script errors by pair are the negative control, as hardware cannot cause them.
MARGINALS = (
    MarginalSpec("pairs", ("workload", "context"), (Domain.INFRASTRUCTURE,), 0.8),
    MarginalSpec("hazard", ("context_level", "band", "domain"), (), 0.15),
    MarginalSpec("control", ("workload", "context"), (Domain.SCRIPT,), 0.05),
)


def with_optional(share_of: Mapping[Subject, float]) -> tuple[MarginalSpec, ...]:
    """`MARGINALS`, and one named after each optional subject that gets a share of the budget above 0."""
    left = 1 - sum(share_of.values())
    own = (replace(spec, weight=left * spec.weight) for spec in MARGINALS)
    asked = ((subject, share) for subject, share in share_of.items() if share > 0)
    return (*own, *(MarginalSpec(one.value, OPTIONAL[one].dimensions, (), share, one) for one, share in asked))


@dataclass(frozen=True)
class PlanSettings:
    """What the provider fixes for its rounds. `noise_shares` honest contributions carry the full noise.

    `windows` are the weeks of an epoch at whose end a round's window ends; the last one ends the epoch. The noise of
    larger rounds follows the number that answers, of at most `honest_minimum` honest ones if that is not 0: tenants
    refuse plans that rely on more than they know. `groups` is how many groups of contributions are opened apart, if
    there are enough. `claims` are of the provider's warnings, in plans that count them.
    """

    epsilon: float
    delta: float
    cohort_minimum: int
    noise_shares: int
    owners_minimum: int = 5
    failures_per_unit: int = 1
    mechanism: Mechanism = Mechanism.DISCRETE_LAPLACE
    band_edges_hours: tuple[float, ...] = (0.0, 1.0, 8.0, 48.0, 100_000.0)
    windows: tuple[int, ...] = (13, 26, 39, 52)
    weeks_per_epoch: int = 52
    groups: int = 1
    honest_minimum: int = 0
    marginals: tuple[MarginalSpec, ...] = MARGINALS
    claims: Claims = NO_CLAIMS

    def __post_init__(self) -> None:
        Windows(self.windows, self.weeks_per_epoch)

    def edges(self, epoch: int) -> tuple[int, ...]:
        """The edges of an epoch's windows, in hours since 1970."""
        return Windows(self.windows, self.weeks_per_epoch).edges(epoch)

    def scales(self) -> tuple[float, ...]:
        """Noise scale of each marginal: what the budget buys."""
        weights = tuple(spec.weight for spec in self.marginals)
        scales = noise_scales(self.mechanism, self.epsilon, self.delta, 1, weights)
        norm = 0 if self.mechanism is Mechanism.DISCRETE_LAPLACE else 1
        moved = (norms(spec.counts, self.failures_per_unit)[norm] for spec in self.marginals)
        return tuple(scale * own for scale, own in zip(scales, moved, strict=True))


def windows_at(settings: PlanSettings, plans: Iterable[Plan], hour: float) -> tuple[int, ...]:
    """The edges of the windows of an hour's epoch: those of its first plan, whatever the settings say since."""
    epoch = Windows(settings.windows, settings.weeks_per_epoch).epoch(hour)
    return next((plan.windows for plan in plans if plan.epoch == epoch), settings.edges(epoch))


def window_at(settings: PlanSettings, plans: Iterable[Plan], hour: float) -> Window:
    """The window that holds an hour."""
    return window_of(windows_at(settings, plans, hour), hour)


def make_plan(
    settings: PlanSettings,
    round_id: RoundId,
    window: Window,
    leases: Sequence[Lease],
    trustees: Sequence[MaskTrustee],
    public_levels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    windows: tuple[int, ...] = (),
    directory: Digest = NOTHING_BEFORE,
    members: int = 0,
    seen: int = 0,
    bundle: PublishedBundle | None = None,
    protocol: int = PROTOCOL,
) -> Plan:
    """The plan for [start, end) hours, with rows from the epoch's `leases`; NothingToCount if a dimension has no row.

    `public_levels` gives the levels of further dimensions whose domain is public knowledge, `windows` the edges of the
    epoch's windows where those are not what the settings say, `directory` the head under which the round is held.
    `members` is how many tenants were enrolled when the last round was released, `seen` how many answered in its
    smallest group; `bundle` is the newest one, `protocol` the version that all parties speak.
    """
    settings = _countable(settings, leases)
    names = dict.fromkeys(name for spec in settings.marginals for name in spec.dimensions)
    epoch = Windows(settings.windows, settings.weeks_per_epoch).epoch(window[0])
    plan = Plan(
        round_id=round_id,
        directory=directory,
        epoch=epoch,
        start_hour=window[0],
        end_hour=window[1],
        windows=windows or settings.edges(epoch),
        dimensions=(
            *(_dimension(name, settings, leases, public_levels or {}) for name in names),
            *([PlanDimension(CLAIM, settings.claims.levels, ())] if "warning" in names else []),
        ),
        band_edges_hours=settings.band_edges_hours,
        marginals=tuple(
            Marginal(spec.name, spec.dimensions, spec.domains, scale, spec.counts)
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
        bundle=bundle,
        protocol=protocol,
    )
    return msgspec.structs.replace(plan, noise_layers=noise_layers(settings, plan, members, seen))


def _countable(settings: PlanSettings, leases: Sequence[Lease]) -> PlanSettings:
    """The settings without optional marginals that have no row yet."""

    def counts(spec: MarginalSpec) -> bool:
        tokens = [name for name in spec.dimensions if name in TOKEN_DIMENSIONS]
        found = (rows(leases, (name,), settings.owners_minimum) for name in tokens)
        return spec.counts is Subject.FAILURES or all(found)

    return replace(settings, marginals=tuple(filter(counts, settings.marginals)))


def noise_layers(settings: PlanSettings, plan: Plan, members: int, seen: int) -> NoiseLayers | None:
    """How noise is divided where `members` tenants may answer; None: not at all.

    Where a contribution has no room for all layers, noise is right for nine tenths of those who were `seen` to answer,
    and coarse elsewhere. No part is so small that a tenant would refuse its price.
    """
    groups = max(1, min(settings.groups, members // plan.cohort_minimum))
    full = honest_of(members // groups, plan.noise_shares, plan.cohort_minimum)
    if settings.honest_minimum:
        full = min(full, settings.honest_minimum)
    room = MAX_WORDS // plan.cells - plan.vectors
    if room < layers_for(plan.noise_shares, max(full, plan.noise_shares)) and seen:
        full = min(full, honest_of(seen * 9 // 10, plan.noise_shares, plan.cohort_minimum))
    full = int(min(full, _most_parts(plan)))
    if full <= plan.noise_shares or room < 1:
        return None
    most = min(layers_for(plan.noise_shares, full), room)
    fine = (layers for layers in range(most, 0, -1) if _draws_are_noise(plan, Shares(plan.noise_shares, full, layers)))
    return next((NoiseLayers(full, layers) for layers in fine), None)


def _most_parts(plan: Plan) -> float:
    """Into how many equal parts the noise of a plan can be divided."""
    if plan.mechanism is Mechanism.DISCRETE_LAPLACE:
        return math.inf
    return min(gaussian_scale(plan, marginal, 1) for marginal in plan.marginals) ** 2 / LEAST_SCALE**2


def _draws_are_noise(plan: Plan, shares: Shares) -> bool:
    """Whether each part is large enough that sums of parts are as good as one Gaussian."""
    return float(min(shares.parts)) * _most_parts(plan) >= 1


def most_excess(plan: Plan, members: int) -> float:
    """The largest variance of noise, over what epsilon asks for, if `members` or fewer answer in one group."""
    honest = range(plan.noise_shares, max(plan.noise_shares, plan.honest(members)) + 1)
    return max(plan.shares.excess(many) for many in honest)


def _dimension(
    name: str, settings: PlanSettings, leases: Sequence[Lease], public_levels: Mapping[str, tuple[str, ...]]
) -> PlanDimension:
    if name in TOKEN_DIMENSIONS:
        rungs = LADDER_LABELS if name == "workload" else (name,)
        owners = rows(leases, rungs, settings.owners_minimum)
        if not owners:
            raise NothingToCount(f"no {name} token has {settings.owners_minimum} owners among {len(leases)} leases")
        return PlanDimension(name, tuple(owners), tuple(owners.values()))
    return PlanDimension(name, public_levels.get(name) or _public_levels(name, settings), ())


def rows(leases: Sequence[Lease], rungs: Sequence[str], owners_minimum: int) -> dict[str, int]:
    """Tokens with owners enough, finest rung first, each with its number of owners among the leases left so far."""
    owned: dict[str, int] = {}
    left = list(leases)
    for rung in rungs:
        owners: dict[str, set[TenantId]] = {}
        for lease in left:
            for token in lease.tokens(rung):
                owners.setdefault(token, set()).add(lease.tenant)
        found = {token: len(tenants) for token, tenants in sorted(owners.items()) if len(tenants) >= owners_minimum}
        left = [lease for lease in left if lease.labels.get(rung) not in found]
        owned |= found
    return owned


def _public_levels(name: str, settings: PlanSettings) -> tuple[str, ...]:
    levels = {
        "band": tuple(str(band) for band in range(len(settings.band_edges_hours) - 1)),
        "domain": tuple(Domain),
        "reason": tuple(CAUSES),
        **OBSERVED_LEVELS,
    }
    return levels[name]
