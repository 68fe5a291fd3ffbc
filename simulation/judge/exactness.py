"""Whether releases show the exact counts of those who answered: known to whoever holds the journals of all tenants."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from crypto.ids import TenantId
from federation.protocol.life_table import Floats
from federation.protocol.noise import Integers
from federation.protocol.plan import HOURS_PER_WEEK, Plan
from provider_server.rounds.release import Release
from tenant_client.rounds.tenant import Tenant


def same_series(one: Plan, other: Plan) -> bool:
    """Whether both are rounds of one series, or the same round."""
    if one.series is None or other.series is None:
        return one.round_id == other.round_id
    return one.series.name == other.series.name


def exact(tenants: Iterable[Tenant], release: Release) -> list[Integers]:
    """The sum of the exact tables of those who answered one round, and of late answers; none of the weeks before."""
    by_id: Mapping[TenantId, Tenant] = {tenant.id: tenant for tenant in tenants}
    counts = [by_id[answer.tenant].counts(release.plan) for answer in release.answered]
    for late in release.late:
        own = by_id[late.tenant]
        answered = (plan for plan in own.plans() if same_series(plan, release.plan))
        (plan,) = (plan for plan in answered if (own.begins(plan), plan.end_hour) == (late.start_hour, late.end_hour))
        if [one.levels for one in plan.dimensions] != [one.levels for one in release.plan.dimensions]:
            raise ValueError("a late answer has the levels of another plan")
        counts.append(own.counts(plan))
    return [np.sum(column, axis=0) for column in zip(*counts, strict=True)]


def differences(tenants: Sequence[Tenant], releases: Iterable[Release]) -> Iterator[tuple[Release, list[Floats]]]:
    """The releases of one series, oldest first, each with the differences of its tables from the exact counts."""
    so_far: list[Integers] = []
    for release in releases:
        own = exact(tenants, release)
        so_far = [past + new for past, new in zip(so_far, own, strict=True)] if so_far else own
        pairs = zip(release.tables, so_far, strict=True)
        yield release, [table.events - counts for table, counts in pairs]


def weeks_counted(releases: Iterable[Release]) -> Mapping[TenantId, set[int]]:
    """The weeks of each tenant that the releases count, in time or late."""
    counted: dict[TenantId, set[int]] = defaultdict(set)
    for release in releases:
        spans = [(one.tenant, one.start_hour, release.plan.end_hour) for one in release.answered]
        for who, start, end in [*spans, *((one.tenant, one.start_hour, one.end_hour) for one in release.late)]:
            counted[who] |= set(range(start // HOURS_PER_WEEK, end // HOURS_PER_WEEK))
    return counted
