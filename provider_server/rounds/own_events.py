"""Which lease a hardware failure of a node belongs to.

A failure is a node and an hour. It hit the lease that ran on the node then, or that ended in the hour before: a node
that is lost is missed an hour later. Where a job fails, the next one may get its node within the hour; the failure is
the first one's.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypedDict

import polars as pl

from provider_server.fleet.learning.hardware import Followed
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnFailure
from provider_server.rounds.provider import Provider
from provider_server.rounds.store.own_store import HoursClosed

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


class OwnFailuresRow(TypedDict):
    """The hours that were recorded, the failures seen in them, those on leases, and leases whose nodes are known."""

    start_hour: int
    end_hour: int
    failures: int
    on_leases: int
    leases: int


def first_open(provider: Provider, start_hour: int, end_hour: int) -> int:
    """The first of these hours that is not recorded; HoursClosed without any."""
    first = max(start_hour, provider.store.own.looked_until())
    if first >= end_hour:
        raise HoursClosed(f"all hours from {start_hour} to {end_hour} are recorded already")
    return first


def failures_seen(followed: Followed, from_hour: int) -> Iterator[tuple[str, int]]:
    """Nodes and hours of the failures that build-up levels are judged by (`analysis.fleet_events`)."""
    for part in followed.at_risk(from_hour):
        yield from part.filter(pl.col("kind").is_not_null()).select("node", "hour").iter_rows()


def record(provider: Provider, seen: Iterable[tuple[str, int]], start_hour: int, end_hour: int) -> OwnFailuresRow:
    """Records the failures (node, hour) of some hours, those on leases among them; HoursClosed if one is recorded."""
    inside = [(node, hour) for node, hour in seen if start_hour <= hour < end_hour]
    placed = provider.store.placed(start_hour - 1.0, float(end_hour))
    found, idle = on_leases(inside, placed)
    provider.store.own.add(start_hour, end_hour, found)
    return {
        "start_hour": start_hour,
        "end_hour": end_hour,
        "failures": len(inside),
        "on_leases": len(inside) - idle,
        "leases": len(placed),
    }
