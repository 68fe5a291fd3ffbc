"""Leases on named nodes, and infrastructure failures that follow the histories of these nodes.

A lease gets the free nodes of its context with the lowest numbers when it starts, and new ones where none is free; it
keeps them for life. A failure is a fault of one of its nodes (`node_faults`): its expected number is that of the lease,
so contexts, workloads, levels and ages raise and lower it as in a cloud without histories.

Not promised: what a spare does that stands in for a node that is down. The job goes on without a fault in its place.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from simulation.cloud.arrivals import Leases
from simulation.cloud.node_faults import Use, draw_faults, fitted
from simulation.cloud.profiles import Floats, Ints
from simulation.cloud.truth import Hazard


@dataclass(frozen=True, eq=False)
class Places:
    """Stretches of use, and the row in `Leases` of each."""

    use: Use
    lease: Ints


@dataclass(frozen=True, eq=False)
class Strikes:
    """Failures by nodes' histories, as columns: row in `Leases`, age of the lease, the node and when it is back."""

    lease: Ints
    age_h: Floats
    node: Ints
    back_h: Floats


def placed(leases: Leases, until_h: float) -> Places:
    """Which node runs which lease, up to an hour."""
    free: dict[int, list[int]] = {}
    busy: list[tuple[float, int, int]] = []
    rows, nodes, known = [], [], 0
    columns = (getattr(leases, name).tolist() for name in ("context", "nodes", "start_h", "end_h"))
    for row, (context, count, start, end) in enumerate(zip(*columns, strict=True)):
        while busy and busy[0][0] <= start:
            _, other, node = heapq.heappop(busy)
            heapq.heappush(free[other], node)
        own = free.setdefault(context, [])
        for _ in range(count):
            if own:
                node = heapq.heappop(own)
            else:
                node, known = known, known + 1
            heapq.heappush(busy, (end, context, node))
            rows.append(row)
            nodes.append(node)
    lease, number = np.array(rows, np.int64), np.array(nodes, np.int64)
    order = np.lexsort((leases.start_h[lease], number))
    lease, number = lease[order], number[order]
    use = Use(number, leases.context[lease], leases.start_h[lease], np.minimum(leases.end_h[lease], until_h))
    return Places(use, lease)


def strikes(leases: Leases, hazard: Hazard, expected: Floats, hours: Floats, until_h: float, rng: Generator) -> Strikes:
    """Failures of these leases, `expected` (leases,) within `hours` (leases,) since each began."""
    places = placed(leases, until_h)

    def at_h(row: Ints, uniform: Floats) -> Floats:
        lease = places.lease[row]
        return leases.start_h[lease] + hazard.age_h(uniform * hazard.effective_hours(hours[lease]))

    share = (expected / leases.nodes)[places.lease]
    found = draw_faults(fitted(), places.use, share, at_h, rng)
    lease = places.lease[found.row]
    return Strikes(lease, found.at_h - leases.start_h[lease], places.use.node[found.row], found.back_h)
