"""Which lease a hardware failure of a node belongs to.

A failure is a node and an hour. It hit the lease that ran on the node then, or that ended in the hour before: a node
that is lost is missed an hour later. Where a job fails, the next one may get its node within the hour; the failure is
the first one's.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnFailure

NOTICED_H = 1.0  # after a lease has ended


def on_leases(
    failures: Iterable[tuple[str, int]], placed: Iterable[tuple[Lease, Sequence[str]]]
) -> tuple[list[OwnFailure], int]:
    """The failures (node, hour) of leases with the names of their nodes; one for each hour of a lease that had any.

    Second, how many failures belong to no lease.
    """
    by_node = defaultdict(list)
    for lease, nodes in placed:
        for node in nodes:
            by_node[node].append(lease)
    found, idle = set(), 0
    for node, hour in failures:
        near = [one for one in by_node[node] if one.start_h < hour + 1.0 and one.end_h > hour - NOTICED_H]
        running = [one for one in near if one.end_h > hour] or near
        if running:
            hit = min(running, key=lambda one: (one.start_h, one.lease))
            found.add(OwnFailure(hit.lease, max(hit.start_h, min(float(hour), hit.end_h))))
        else:
            idle += 1
    return sorted(found), idle
