"""Whether releases show the exact counts of those who answered: known to whoever holds the journals of all tenants."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from crypto.ids import TenantId
from federation.protocol.life_table import Floats
from federation.protocol.noise import Integers
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.release import Release
from tenant_client.rounds.tenant import Tenant


def exact(tenants: Iterable[Tenant], release: Release) -> list[Integers]:
    """The sum of the exact tables of those who answered a round."""
    by_id: Mapping[TenantId, Tenant] = {tenant.id: tenant for tenant in tenants}
    counts = [by_id[answer.tenant].counts(release.plan) for answer in release.answered]
    return [np.sum(column, axis=0) for column in zip(*counts, strict=True)]


def differences(tenants: Sequence[Tenant], releases: Iterable[Release]) -> Iterator[tuple[Release, list[Floats]]]:
    """The releases, each with the differences of its tables from the exact counts."""
    for release in releases:
        pairs = zip(release.tables, exact(tenants, release), strict=True)
        yield release, [table.events - counts for table, counts in pairs]


def weeks_counted(releases: Iterable[Release]) -> Mapping[TenantId, set[int]]:
    """The weeks of each tenant that the releases count."""
    counted: dict[TenantId, set[int]] = defaultdict(set)
    for release in releases:
        for one in release.answered:
            counted[one.tenant] |= set(range(one.start_hour // HOURS_PER_WEEK, release.plan.end_hour // HOURS_PER_WEEK))
    return counted
