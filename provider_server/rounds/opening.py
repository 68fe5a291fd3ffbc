"""Opens a round: the sums of its groups, which of them are possible, and the release of those that are."""

from collections.abc import Sequence

from crypto.ids import TenantId
from crypto.masking import Words, add_words
from federation.protocol.life_table import LifeTable
from federation.protocol.noise import from_ring, noise_variances
from provider_server.fleet import exposure
from provider_server.fleet.exposure import Slices
from provider_server.fleet.leases import Lease
from provider_server.rounds import release as gate
from provider_server.rounds.ceilings import GroupSum, job_weeks
from provider_server.rounds.grouping import TenantScores, accepted, judge
from provider_server.rounds.late import ceiling_of, late_answers, with_exposure_of
from provider_server.rounds.round import Round, past_of
from provider_server.store.store import Store


def open_release(round_: Round, store: Store, scores: TenantScores) -> gate.Release:
    """Releases the sum of the groups whose counts are possible, and stores it; PoisonedRound if most are not.

    `scores` are those of tenants before the round.
    """
    plan, hours = round_.plan, round_.start_hours
    past = past_of(store.rounds, plan)
    names = {earlier.round_id for earlier in past.plans}
    releases = map(gate.from_bytes, store.releases()) if names else ()
    earlier = [release for release in releases if release.plan.round_id in names]
    opened = round_.open(past)
    leases = store.leases(plan.first_hour, plan.end_hour)
    sums = _group_sums(round_, opened, earlier, leases)
    judgement = judge(sums, job_weeks(plan, leases, hours, plan.end_hour), scores.rates())
    sound = accepted(sums, judgement)
    answered = [gate.Answered(tenant, hours[tenant]) for at in sound for tenant in round_.groups[at]]
    late = round_.late if 0 in sound else []  # they are in the first group
    release = gate.release(
        plan,
        add_words(opened[at] for at in sound),
        answered,
        with_exposure_of(late, _exposure(round_, answered, leases), leases),
        earlier,
        late=late_answers(late),
        smallest_group=round_.smallest_group,
        carries=0 in sound,
    )
    left_out = frozenset(range(len(opened))) - frozenset(sound)
    round_.release(gate.to_bytes(release), left_out, scores.after(judgement).to_dict())
    return release


def _group_sums(
    round_: Round, opened: Sequence[Words], earlier: Sequence[gate.Release], leases: Sequence[Lease]
) -> list[GroupSum]:
    """What each group has newly counted, with the variance of its noise."""
    plan, sums = round_.plan, []
    for at, (members, words) in enumerate(zip(round_.groups, opened, strict=True)):
        counts, variances = from_ring(plan, words), noise_variances(plan, len(members), round_.smallest_group)
        if at == 0 and earlier:  # the first group carries the weeks before
            counts, variances = gate.newly_counted(plan, counts, variances, earlier)
        late = ceiling_of(round_.late, plan, leases) if at == 0 else None
        sums.append(GroupSum(members, counts, variances, late))
    return sums


def _exposure(round_: Round, answered: Sequence[gate.Answered], leases: Sequence[Lease]) -> tuple[LifeTable, ...]:
    """The exposure of those who answered, each from the first hour that it covers."""
    plan = round_.plan
    since: dict[TenantId, float] = {answer.tenant: float(answer.start_hour) for answer in answered}
    return exposure.expose(plan, Slices.by_week(since, leases, plan.end_hour, plan.band_edges_hours))
