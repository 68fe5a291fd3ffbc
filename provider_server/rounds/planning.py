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
    HOURS_PER_WEEK,
    MAX_WORDS,
    Marginal,
    MaskTrustee,
    Mechanism,
    NoiseLayers,
    Plan,
    PlanDimension,
    PublishedBundle,
    Series,
)
from federation.protocol.privacy_cost import noise_scales
from federation.protocol.round_messages import LADDER_LABELS
from federation.protocol.subjects import OBSERVED_LEVELS, OPTIONAL, TOKEN_DIMENSIONS, Subject, norms
from provider_server.fleet.leases import Lease

LEAST_SCALE = 3.0  # of a part of a tenant's Gaussian noise: sums of smaller ones are not priced as one Gaussian


class MaskKeysServed(Refusal):
    """A new epoch would begin under mask keys of an earlier one: who got them now could open what was sent then."""

    default_hint = (
        "no tenant was asked; each mask trustee runs `pharoah-trustee renew-mask-key`, all hand over, and `deposit`;"
        " then `pharoah-provider reseat`"
    )


def check_mask_keys(plan: Plan, before: Iterable[Plan]) -> None:
    """MaskKeysServed where `plan` begins a series under mask keys of rounds of an earlier epoch."""
    served = {masking.mask_key for earlier in before if earlier.epoch < plan.epoch for masking in earlier.trustees}
    old = [one.index for one in plan.trustees if one.mask_key in served]
    if old and not plan.position:
        raise MaskKeysServed(f"epoch {plan.epoch} would begin under mask keys of an earlier one, of trustees {old}")


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
# The table of reasons only illustrates.
MARGINALS = (
    MarginalSpec("pairs", ("workload", "context"), (Domain.INFRASTRUCTURE,), 0.6),
    MarginalSpec("hazard", ("context_level", "band", "domain"), (), 0.28),
    MarginalSpec("control", ("workload", "context"), (Domain.SCRIPT,), 0.08),
    MarginalSpec("reasons", ("workload", "reason"), (), 0.04),
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

    The noise of larger rounds follows the number that answers, of at most `honest_minimum` honest ones if that is not
    0: tenants refuse plans that rely on more than they know. With a `horizon` above 1, the rounds of so many weeks of
    an epoch share correlated noise: one at the end of each week that `openings` names, and of the last one; of every
    week if it names none. If it names its last week twice, the last one is opened a second time for what missed it.
    `groups` is how many groups of contributions are opened apart, if there are enough.
    With `new_mask_keys` no epoch begins under mask keys of an earlier one.
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
    openings: tuple[int, ...] = ()
    groups: int = 1
    honest_minimum: int = 0
    new_mask_keys: bool = False
    marginals: tuple[MarginalSpec, ...] = MARGINALS

    def scales(self, rounds: int | None = None) -> tuple[float, ...]:
        """Noise scale of each marginal in a series of so many rounds, by default a whole one: what the budget buys."""
        weights = tuple(spec.weight for spec in self.marginals)
        rounds = len(self.opening_weeks(self.horizon)) if rounds is None else rounds
        scales = noise_scales(self.mechanism, self.epsilon, self.delta, 1, weights, rounds)
        norm = 0 if self.mechanism is Mechanism.DISCRETE_LAPLACE else 1
        moved = (norms(spec.counts, self.failures_per_unit)[norm] for spec in self.marginals)
        return tuple(scale * own for scale, own in zip(scales, moved, strict=True))

    def opening_weeks(self, left: int, first: int = 0) -> tuple[int, ...]:
        """The weeks, from 1 on, at whose end a series is opened, if its epoch has `left` weeks; the last one always is.

        Where none can be before week `first`, all of them are as much later.

        >>> settings = PlanSettings(1.0, 1e-8, 10, 9, horizon=52, openings=(1, 4, 13, 26, 39, 52))
        >>> settings.opening_weeks(52), settings.opening_weeks(20), settings.opening_weeks(30, first=9)
        ((1, 4, 13, 26, 39, 52), (1, 4, 13, 20), (9, 12, 21, 30))
        >>> twice = PlanSettings(1.0, 1e-8, 10, 9, horizon=52, openings=(1, 4, 13, 26, 39, 52, 52))
        >>> twice.opening_weeks(20)
        (1, 4, 13, 20, 20)
        """
        named, last = self.openings or tuple(range(1, self.horizon + 1)), min(self.horizon, left)
        later = max(0, first - named[0])
        twice = len(set(named)) < len(named)
        return (*(week + later for week in named if week + later < last), last, *([last] if twice else []))


def make_plan(
    settings: PlanSettings,
    round_id: RoundId,
    window: tuple[int, int],
    leases: Sequence[Lease],
    trustees: Sequence[MaskTrustee],
    public_levels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    directory: Digest = NOTHING_BEFORE,
    members: int = 0,
    seen: int = 0,
    earlier: Plan | None = None,
    uncounted_since: int | None = None,
    bundle: PublishedBundle | None = None,
) -> Plan:
    """The plan for [start, end) hours, with rows from the epoch's `leases`; NothingToCount if a dimension has no row.

    `public_levels` gives the levels of further dimensions whose domain is public knowledge, `directory` the head under
    which the round is held and `members` how many tenants it names, `seen` how many answered in the smallest group of
    the last round. `earlier` is the last opened round of the series to go on with, or of one that is over, and
    `uncounted_since` the hour from which no round has counted yet; `bundle` is the newest one.
    """
    series = next_series(settings, round_id, window, earlier, uncounted_since)
    settings = _countable(settings, leases, earlier if series and series.position else None)
    scales = settings.scales(len(series.openings) if series else 1)
    before = earlier.dimensions if earlier and series and series.position else ()
    kept = {dimension.name: dimension.levels for dimension in before}
    names = dict.fromkeys(name for spec in settings.marginals for name in spec.dimensions)
    plan = Plan(
        round_id=round_id,
        directory=directory,
        epoch=_epoch(settings, window[0]),
        start_hour=window[0],
        end_hour=window[1],
        dimensions=tuple(_dimension(name, settings, leases, public_levels or {}, kept.get(name, ())) for name in names),
        band_edges_hours=settings.band_edges_hours,
        marginals=tuple(
            Marginal(spec.name, spec.dimensions, spec.domains, scale, spec.counts)
            for spec, scale in zip(settings.marginals, scales, strict=True)
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
    if earlier and plan.position > 0 and _has_room_for_layers_of(earlier, plan):
        return msgspec.structs.replace(plan, noise_layers=earlier.noise_layers)
    return msgspec.structs.replace(plan, noise_layers=noise_layers(settings, plan, members, seen))


def _countable(settings: PlanSettings, leases: Sequence[Lease], before: Plan | None) -> PlanSettings:
    """The settings without optional marginals that have no row yet; within a series, with those that it began with."""
    begun = None if before is None else {marginal.name for marginal in before.marginals}

    def counts(spec: MarginalSpec) -> bool:
        if spec.counts is Subject.FAILURES:
            return True
        if begun is not None:
            return spec.name in begun
        tokens = [name for name in spec.dimensions if name in TOKEN_DIMENSIONS]
        return all(_rows(leases, (name,), settings.owners_minimum, ()) for name in tokens)

    return replace(settings, marginals=tuple(filter(counts, settings.marginals)))


def _has_room_for_layers_of(earlier: Plan, plan: Plan) -> bool:
    """Otherwise the series cannot go on."""
    words = plan.cells * (plan.vectors + earlier.shares.layers)
    return earlier.noise_shares == plan.noise_shares and words <= MAX_WORDS


def noise_layers(settings: PlanSettings, plan: Plan, members: int, seen: int) -> NoiseLayers | None:
    """How noise is divided where `members` tenants may answer; None: not at all.

    A series is planned for a federation of twice as many members, and for a quarter more rows. Where a contribution has
    no room for all layers, noise is right for nine tenths of those who were `seen` to answer, and coarse elsewhere. No
    part is so small that a tenant would refuse its price.
    """
    growth = 2 if plan.series else 1
    groups = max(1, min(settings.groups, members // plan.cohort_minimum))
    full = honest_of(growth * members // groups, plan.noise_shares, plan.cohort_minimum)
    if settings.honest_minimum:
        full = min(full, settings.honest_minimum)
    room = (MAX_WORDS * 4 // (5 * plan.cells) if plan.series else MAX_WORDS // plan.cells) - plan.vectors
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


def next_series(
    settings: PlanSettings,
    round_id: RoundId,
    window: tuple[int, int],
    earlier: Plan | None,
    uncounted_since: int | None = None,
) -> Series | None:
    """The place of the next round: in the series of `earlier` while its openings and epoch last, or in a new one.

    A new one begins where no round has counted yet, within the epoch, and so leaves out no week. The last week of an
    epoch is always an opening, since tokens change and a series ends with it. A second opening of that week is the next
    round only over the window of the first.
    """
    if settings.horizon == 1:
        return None
    before = earlier.series if earlier and earlier.epoch == _epoch(settings, window[0]) else None
    if earlier and before is not None and before.position + 1 < len(before.openings) and _is_as_set(settings, before):
        following = Series(before.name, before.start_hour, before.openings, before.position + 1)
        if not following.is_second or window == earlier.window:
            return following
    start = _series_start(settings, window, uncounted_since)
    return Series(round_id, start, _openings(settings, start, -(-(window[1] - start) // HOURS_PER_WEEK)), 0)


def next_opening(settings: PlanSettings, earlier: Plan | None, uncounted_since: int) -> int:
    """The end of the week after which the next round is due, if `uncounted_since` no round has counted."""
    window = uncounted_since, uncounted_since + HOURS_PER_WEEK
    before = earlier.series if earlier else None
    if settings.horizon == 1:
        return window[1]
    if before is not None:
        following = next_series(settings, before.name, window, earlier, uncounted_since)
        if following is not None and following.position:
            return max(window[1], following.opens_hour)
    return uncounted_since + HOURS_PER_WEEK * _openings(settings, uncounted_since)[0]


def _series_start(settings: PlanSettings, window: tuple[int, int], uncounted_since: int | None) -> int:
    """Where a new series begins whose first round is over `window`."""
    usual = window[1] - HOURS_PER_WEEK * settings.opening_weeks(settings.horizon)[0]
    earliest = max(_epoch_start(settings, window[0]), window[1] - HOURS_PER_WEEK * settings.horizon)
    return max(earliest, min(window[0], usual if uncounted_since is None else uncounted_since))


def _is_as_set(settings: PlanSettings, before: Series) -> bool:
    return before.openings == _openings(settings, before.start_hour, before.openings[0])


def _openings(settings: PlanSettings, start_hour: int, first: int = 0) -> tuple[int, ...]:
    """Those of a series that starts at an hour, within its epoch, the first not before week `first` of it."""
    end_hour = _epoch_start(settings, start_hour) + HOURS_PER_WEEK * settings.weeks_per_epoch
    left = -(-(end_hour - start_hour) // HOURS_PER_WEEK)
    return settings.opening_weeks(left, first)


def _epoch(settings: PlanSettings, hour: int) -> int:
    return hour // (HOURS_PER_WEEK * settings.weeks_per_epoch)


def _epoch_start(settings: PlanSettings, hour: int) -> int:
    return _epoch(settings, hour) * HOURS_PER_WEEK * settings.weeks_per_epoch


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
        for token in (token for rung in rungs for token in lease.tokens(rung)):
            holders.setdefault(token, set()).add(lease.tenant)
    rows = {token: len(holders.get(token, ())) for token in kept}
    left = list(leases)
    for rung in rungs:
        owners: dict[str, set[TenantId]] = {}
        for lease in left:
            for token in lease.tokens(rung):
                owners.setdefault(token, set()).add(lease.tenant)
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
        **OBSERVED_LEVELS,
    }
    return levels[name]
