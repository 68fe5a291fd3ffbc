"""Opens a round: the sums of its groups, which of them are possible, and the release of those that are."""

from collections.abc import Sequence

from crypto.masking import Words, add_words
from federation.protocol.noise import from_ring, noise_variances
from provider_server.fleet.exposure import expose
from provider_server.fleet.release import Answered, Release, slices_of, to_bytes
from provider_server.rounds import release as gate
from provider_server.rounds.ceilings import GroupSum, units_of
from provider_server.rounds.grouping import TenantScores, accepted, judge
from provider_server.rounds.round import Round
from provider_server.rounds.store.store import Store


def open_release(round_: Round, store: Store, scores: TenantScores) -> Release:
    """Releases the sum of the groups whose counts are possible, and stores it; PoisonedRound if most are not.

    `scores` are those of tenants before the round.
    """
    plan, hours = round_.plan, round_.start_hours
    opened = round_.open()
    leases = store.leases(plan.first_hour, plan.end_hour)
    sums = _group_sums(round_, opened)
    judgement = judge(sums, units_of(plan, leases, hours), scores.rates())
    sound = accepted(sums, judgement)
    answered = [Answered(tenant, hours[tenant]) for at in sound for tenant in round_.groups[at]]
    release = gate.release(
        plan,
        add_words(opened[at] for at in sound),
        answered,
        expose(plan, slices_of(plan, answered, leases)),
        smallest_group=round_.smallest_group,
    )
    round_.release(to_bytes(release), scores.after(judgement).to_dict())
    return release


def _group_sums(round_: Round, opened: Sequence[Words]) -> list[GroupSum]:
    """What each group has counted, with the variance of its noise."""
    plan, smallest = round_.plan, round_.smallest_group
    return [
        GroupSum(members, from_ring(plan, words), noise_variances(plan, len(members), smallest))
        for members, words in zip(round_.groups, opened, strict=True)
    ]
