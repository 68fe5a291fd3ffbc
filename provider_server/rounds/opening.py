"""Opens a round: the sums of its groups, which of them are possible, and the release of those that are.

`release` is the only step from an unmasked sum to numbers that a person or a model sees: made once per round, from a
sum of at least the cohort minimum.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crypto.errors import CohortTooSmall
from crypto.masking import Words, add_words
from federation.protocol.life_table import LifeTable
from federation.protocol.noise import from_ring, noise_variances
from federation.protocol.plan import Plan
from provider_server.fleet.exposure import expose
from provider_server.fleet.release import Answered, Release, slices_of, to_bytes
from provider_server.rounds.ceilings import GroupSum, units_of
from provider_server.rounds.grouping import TenantScores, accepted, judge
from provider_server.rounds.round import Round
from provider_server.rounds.store.store import Store


def open_release(round_: Round, store: Store) -> Release:
    """Releases the sum of the groups whose counts are possible, and stores it; PoisonedRound if most are not."""
    scores = TenantScores.from_dict(store.rounds.suspicion())
    plan, hours = round_.plan, round_.start_hours
    opened = round_.open()
    leases = store.leases(plan.first_hour, plan.end_hour)
    sums = _group_sums(round_, opened)
    judgement = judge(sums, units_of(plan, leases, hours), scores.rates())
    sound = accepted(sums, judgement)
    answered = [Answered(tenant, hours[tenant]) for at in sound for tenant in round_.groups[at]]
    made = release(
        plan,
        add_words(opened[at] for at in sound),
        answered,
        expose(plan, slices_of(plan, answered, leases)),
        smallest_group=round_.smallest_group,
    )
    round_.release(to_bytes(made), scores.after(judgement).to_dict())
    return made


def _group_sums(round_: Round, opened: Sequence[Words]) -> list[GroupSum]:
    """What each group has counted, with the variance of its noise."""
    plan, smallest = round_.plan, round_.smallest_group
    return [
        GroupSum(members, from_ring(plan, words), noise_variances(plan, len(members), smallest))
        for members, words in zip(round_.groups, opened, strict=True)
    ]


def release(
    plan: Plan,
    noisy_sum: Words,
    answered: Sequence[Answered],
    exposure: tuple[LifeTable, ...],
    *,
    smallest_group: int | None = None,
) -> Release:
    """Combines the noisy sum, shape (plan.cells,), with the exposure: the plan's tables, as `expose` fills them.

    `smallest_group` says how small a group of the round was, if it had several. Raises CohortTooSmall for fewer
    contributions than the plan's cohort minimum.
    """
    if len(answered) < plan.cohort_minimum:
        raise CohortTooSmall(f"round {plan.round_id}: a sum of {len(answered)} contributions is never released")
    smallest = len(answered) if smallest_group is None else smallest_group
    variances = noise_variances(plan, len(answered), smallest)
    tables = tuple(
        replace(table, events=events, noise_variance=np.full(table.shape, variance))
        for table, events, variance in zip(exposure, from_ring(plan, noisy_sum), variances, strict=True)
    )
    return Release(plan, tuple(answered), tables, smallest)
