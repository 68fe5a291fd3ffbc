"""Exposure: nodes × hours of leases inside a window and an age band. Outcomes appear nowhere.

The age of a lease counts from its start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from crypto.ids import TenantId
from federation.protocol.life_table import Dimension, Floats, LifeTable
from federation.protocol.plan import Plan
from federation.protocol.round_messages import finest_row
from federation.protocol.subjects import OBSERVED_LEVELS
from provider_server.fleet.leases import Lease

OF_FAILURE = ("domain", "reason", *OBSERVED_LEVELS)


@dataclass(frozen=True, eq=False)
class Slices:
    """Exposure of the leases of one window, by age band: node-hours, shape (leases, bands), and the leases in order.

    `spans` (leases, 2) are the hours from which and until which each is looked at.
    """

    leases: tuple[Lease, ...]
    node_hours: Floats
    spans: Floats

    @classmethod
    def of(cls, leases: Sequence[Lease], start_hour: float, end_hour: float, edges: Sequence[float]) -> "Slices":
        """Cuts every lease that overlaps [start_hour, end_hour) at the band edges of its age; ages beyond are lost."""
        return cls.since(dict.fromkeys((lease.tenant for lease in leases), start_hour), leases, end_hour, edges)

    @classmethod
    def since(
        cls, start_hours: Mapping[TenantId, float], leases: Sequence[Lease], end_hour: float, edges: Sequence[float]
    ) -> "Slices":
        """The same from an hour on that each tenant has of its own; leases of tenants that have none are left out."""
        inside = tuple(
            lease
            for lease in leases
            if lease.tenant in start_hours and lease.start_h < end_hour and lease.end_h > start_hours[lease.tenant]
        )
        begin = np.array([start_hours[lease.tenant] for lease in inside], np.float64).reshape(-1, 1)
        start = np.array([lease.start_h for lease in inside]).reshape(-1, 1)
        end = np.array([lease.end_h for lease in inside]).reshape(-1, 1)
        nodes = np.array([lease.nodes for lease in inside], np.float64).reshape(-1, 1)
        low = np.maximum(start + np.array(edges[:-1]), begin)
        high = np.minimum(np.minimum(start + np.array(edges[1:]), end), end_hour)
        spans = np.concatenate([begin, np.full(begin.shape, float(end_hour))], axis=1)
        return cls(inside, nodes * np.clip(high - low, 0, None), spans)

    @classmethod
    def by_window(
        cls,
        start_hours: Mapping[TenantId, float],
        leases: Sequence[Lease],
        windows: Sequence[int],
        edges: Sequence[float],
    ) -> "Slices":
        """The same with a row for each window of a lease, the unit whose failures count up to a cap.

        Windows lie between the hours `windows`, `edges` are of age bands.
        """
        parts = [cls((), np.zeros((0, len(edges) - 1)), np.zeros((0, 2)))]
        for begin, end in pairwise(windows):
            since = {tenant: max(hour, begin) for tenant, hour in start_hours.items() if hour < end}
            near = [lease for lease in leases if lease.start_h < end and lease.end_h > begin]
            parts.append(cls.since(since, near, end, edges))
        hours, spans = (np.concatenate([getattr(part, name) for part in parts]) for name in ("node_hours", "spans"))
        return cls(tuple(lease for part in parts for lease in part.leases), hours, spans)


def counted_edges(plan: Plan) -> tuple[int, ...]:
    """The edges of the windows that an answer to a plan can count: those of its epoch, up to the end of its own."""
    return tuple(edge for edge in plan.windows if edge <= plan.end_hour)


def expose(plan: Plan, slices: Slices) -> tuple[LifeTable, ...]:
    """The plan's tables with exposure and numbers at risk filled in; events and noise stay zero."""
    return tuple(expose_table(table, slices, slices.node_hours) for table in plan.tables)


def expose_table(table: LifeTable, slices: Slices, hours: Floats) -> LifeTable:
    """One table with the exposure `hours`, shape (leases, bands), and numbers at risk filled in.

    Along dimensions that describe the failure and not the lease (domain, reason) every level has the full exposure.
    """
    by_band = any(dimension.name == "band" for dimension in table.dimensions)
    hours = hours if by_band else hours.sum(axis=1, keepdims=True)
    row, known, lengths = rows_of(table, slices.leases)
    exposure = np.zeros((math.prod(lengths), hours.shape[1]))
    at_risk = np.zeros_like(exposure)
    np.add.at(exposure, row[known], hours[known])
    np.add.at(at_risk, row[known], (hours[known] > 0).astype(np.float64))
    shape = (*lengths, hours.shape[1]) if by_band else lengths
    return replace(
        table,
        exposure_node_hours=_spread(table, exposure.reshape(shape)),
        at_risk=_spread(table, at_risk.reshape(shape)),
    )


def rows_of(table: LifeTable, leases: Sequence[Lease]) -> tuple[NDArray[np.intp], NDArray[np.bool_], tuple[int, ...]]:
    """Each lease's row along the dimensions that describe leases, flat; whether it has one; those axes' lengths."""
    of_lease = [dimension for dimension in table.dimensions if dimension.name not in ("band", *OF_FAILURE)]
    row, known = np.zeros(len(leases), np.intp), np.ones(len(leases), np.bool_)
    for dimension in of_lease:
        position = _positions(dimension, leases)
        row, known = row * len(dimension) + position, known & (position >= 0)
    return row, known, tuple(len(dimension) for dimension in of_lease)


def _spread(table: LifeTable, values: Floats) -> Floats:
    """Broadcasts values over the axes of the lease and the band to all axes of the table."""
    names = [dimension.name for dimension in table.dimensions]
    own = [axis for axis, name in enumerate(names) if name not in ("band", *OF_FAILURE)]
    own += [axis for axis, name in enumerate(names) if name == "band"]
    order = np.argsort(own)
    shape = tuple(size if axis in own else 1 for axis, size in enumerate(table.shape))
    return np.broadcast_to(np.transpose(values, order).reshape(shape), table.shape).copy()


def _positions(dimension: Dimension, leases: Sequence[Lease]) -> NDArray[np.intp]:
    """Row of each lease along a dimension, -1 where it has none."""
    place = {level: position for position, level in enumerate(dimension.levels)}
    if dimension.name == "workload":
        return np.array([place.get(finest_row(lease.labels, place), -1) for lease in leases], np.intp)
    return np.array([place.get(lease.labels.get(dimension.name, ""), -1) for lease in leases], np.intp)
