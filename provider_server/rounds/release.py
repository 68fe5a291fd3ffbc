"""The release of a round: the only step from an unmasked sum to numbers that a person or a model sees.

It combines the noisy counts of a round with the provider's own exposure, and states the noise variance. It is made once
per round, from a sum of at least the cohort minimum.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crypto.errors import CohortTooSmall
from crypto.masking import Words
from federation.protocol import noise
from federation.protocol.life_table import LifeTable
from federation.protocol.plan import Plan
from provider_server.fleet.release import Answered, Release


def release(
    plan: Plan,
    noisy_sum: Words,
    answered: Sequence[Answered],
    exposure: tuple[LifeTable, ...],
    *,
    smallest_group: int | None = None,
) -> Release:
    """Makes the release. `noisy_sum` has shape (plan.cells,); `exposure` has the plan's tables, as `expose` fills them.

    `smallest_group` says how small a group of the round was, if it had several. Raises CohortTooSmall for fewer
    contributions than the plan's cohort minimum.
    """
    if len(answered) < plan.cohort_minimum:
        raise CohortTooSmall(f"round {plan.round_id}: a sum of {len(answered)} contributions is never released")
    smallest = len(answered) if smallest_group is None else smallest_group
    variances = noise.noise_variances(plan, len(answered), smallest)
    tables = tuple(
        replace(table, events=events, noise_variance=np.full(table.shape, variance))
        for table, events, variance in zip(exposure, noise.from_ring(plan, noisy_sum), variances, strict=True)
    )
    return Release(plan, tuple(answered), tables, smallest)
