"""Own failures under noise of their own, for bundles under `[publish] epsilon` (docs/privacy.md, "Own failures").

The provider counts its own failures as a tenant counts its (at most F in a unit, rows of the round's pairs), under
noise of the system's generator. A unit counts in one round, which costs it epsilon. The sum is stored before anything
is learnt from it, and made once.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import msgspec
import numpy as np

from crypto.ids import RoundId
from crypto.masking import Words
from federation.protocol import noise
from federation.protocol.noise import NoiseSampler
from federation.protocol.plan import Marginal, Mechanism, Plan
from federation.protocol.privacy_cost import noise_scales
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.learning.links import Names, renamed
from provider_server.learning.own_sight import Noisy
from provider_server.learning.seen import looked_at, pair_cells
from provider_server.rounds import release as gate
from provider_server.rounds.release import Release
from provider_server.store.own_store import OwnStore

PAIRS = "pairs"


def noisy(
    store: OwnStore,
    record: OwnRecord,
    releases: Sequence[Release],
    leases: Sequence[Lease],
    names: Names,
    epsilon: float,
    sampler: NoiseSampler,
) -> Noisy:
    """What was seen in the windows of `releases`, as bundles may tell it; `names` are those of older tokens today."""
    stored = store.counts()
    opened_before, _ = renamed([gate.from_bytes(counts) for counts in stored.values()], (), names)
    kept = dict(zip(stored, opened_before, strict=True))
    for opened in open_missing(kept, record, releases, leases, epsilon, sampler):
        store.add_counts(opened.plan.round_id, gate.to_bytes(opened))
    return told(kept, record, releases)


def told(kept: Mapping[RoundId, Release], record: OwnRecord, releases: Sequence[Release]) -> Noisy:
    """The sum over `releases` of what is `kept` of each."""
    return Noisy(record, reduce(operator.add, (kept[made.plan.round_id].table(PAIRS) for made in releases)))


def open_missing(
    kept: dict[RoundId, Release],
    record: OwnRecord,
    releases: Sequence[Release],
    leases: Sequence[Lease],
    epsilon: float,
    sampler: NoiseSampler,
) -> Iterator[Release]:
    """Adds to `kept` the own failures under noise of each round that it lacks, and yields them; oldest first."""
    for made in releases:
        if made.plan.round_id not in kept:
            plan = own_plan(made.plan, epsilon)
            total = _counts(made, record, leases) + noise.noise_share(plan, sampler)
            answer = made.answered[:1]  # as the answer of one: the provider
            yield kept.setdefault(made.plan.round_id, gate.release(plan, total, answer, plan.tables))


def own_plan(plan: Plan, epsilon: float) -> Plan:
    """The plan of one contributor, the provider, to the pairs of a round."""
    scales = noise_scales(Mechanism.DISCRETE_LAPLACE, epsilon, 0.0, plan.failures_per_unit, (1.0,))
    pairs = next(marginal for marginal in plan.marginals if marginal.name == PAIRS)
    return msgspec.structs.replace(
        plan,
        marginals=(Marginal(PAIRS, pairs.dimensions, pairs.domains, scales[0]),),
        mechanism=Mechanism.DISCRETE_LAPLACE,
        epsilon=epsilon,
        cohort_minimum=1,
        noise_shares=1,
        noise_layers=None,
    )


def _counts(made: Release, record: OwnRecord, leases: Sequence[Lease]) -> Words:
    """Own failures that count in a round's pairs, at most F in each unit that it counted and that was seen."""
    table, slices = made.table(PAIRS), made.slices(leases)
    near = [*zip(slices.leases, slices.spans.tolist(), strict=True)]
    cells = pair_cells([lease.labels for lease in slices.leases], table, table)
    watched = np.array([looked_at(record, one, *span) for one, span in near], np.bool_)
    seen = watched * np.array([record.events.between(one.lease, *span) for one, span in near], np.intp)
    known = cells >= 0
    capped = np.minimum(seen, made.plan.failures_per_unit)
    return np.bincount(cells[known], capped[known], table.events.size).astype(np.uint64)
