"""Ceilings: the most failures that honest members can have contributed, from leases that the provider bills anyway.

A unit, one lease within one window, counts at most F = `failures_per_unit` failures in each marginal, in a row that
follows from its labels and in an age band that it reached in that window; of votes, one at each of two of its parts.
Along dimensions that describe the failure (domain, reason) every level that the marginal counts has the lease's full
ceiling, as nobody but the tenant knows which it was. So honest counts, before noise, never exceed the ceiling of a
cell, nor that of a whole marginal.

A failure at the very edge of a band, a window or a lease belongs to both sides here, widened by `slack_h` for clocks
that differ; a ceiling may be too high by that, never too low. The rows are the provider's own record: a tenant that
registered other labels than it counts by may exceed them.

Memory: tenants times the rows and bands of each marginal, in float64; levels of the failure cost nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from crypto.ids import TenantId
from federation.protocol.causes import CAUSES
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.noise import opened_shares
from federation.protocol.plan import Marginal, Mechanism, Plan
from federation.protocol.subjects import most_added
from provider_server.fleet.exposure import OF_FAILURE, counted_edges, rows_of
from provider_server.fleet.leases import Lease

SLACK_H = 0.25  # clocks differ, and a failure is noticed a little after its lease has ended


@dataclass(frozen=True, eq=False)
class GroupSum:
    """A group as it was unmasked: who is in it, noisy counts per marginal, and the variance of the noise per cell."""

    members: tuple[TenantId, ...]
    counts: tuple[Floats, ...]
    noise_variance: tuple[float, ...]


@dataclass(frozen=True)
class CeilingFinding:
    """A group's sum that honest members would not have: where, how far off in counts, and what would be allowed."""

    group: int
    where: str
    count: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Per marginal of the plan: the most failures per cell, in the shape of its table, and in the whole marginal."""

    cells: tuple[Floats, ...]
    totals: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Units:
    """Units of each tenant that can fall into each cell.

    `cells` has one array per marginal, shape (tenants, *table); an axis of the failure has length 1 where all of its
    levels are possible, so the array broadcasts to (tenants, *table.shape). `totals` has shape (marginals, tenants) and
    counts the units that have any row.
    """

    plan: Plan
    tenants: tuple[TenantId, ...]
    cells: tuple[Floats, ...]
    totals: Floats

    def ceiling(self, members: Sequence[TenantId]) -> Ceiling:
        """What `members` together can have contributed at most; KeyError for one that was not asked about."""
        chosen = self.places(members)
        most = [most_added(marginal.counts, self.plan.failures_per_unit) for marginal in self.plan.marginals]
        cells = (
            np.broadcast_to(cell * own[chosen].sum(axis=0), table.shape)
            for (cell, _), own, table in zip(most, self.cells, self.plan.tables, strict=True)
        )
        totals = (float(all_ * own[chosen].sum()) for (_, all_), own in zip(most, self.totals, strict=True))
        return Ceiling(tuple(cells), tuple(totals))

    def places(self, members: Sequence[TenantId]) -> NDArray[np.intp]:
        """Positions of `members` along the axis of tenants; KeyError for one that was not asked about."""
        place = {tenant: position for position, tenant in enumerate(self.tenants)}
        return np.array([place[tenant] for tenant in members], np.intp)


def units_of(
    plan: Plan, leases: Sequence[Lease], start_hours: Mapping[TenantId, float], slack_h: float = SLACK_H
) -> Units:
    """The units of each tenant from its own start hour to the plan's end.

    `start_hours` names the tenants that are asked about; it is earlier than the plan's where windows waited.
    """
    place = {tenant: position for position, tenant in enumerate(start_hours)}
    held = tuple(lease for lease in leases if lease.tenant in place)
    owner = np.array([place[lease.tenant] for lease in held], np.intp)
    begin = np.array([start_hours[lease.tenant] for lease in held], np.float64).reshape(-1, 1)
    reached = _windows_in_band(held, begin, counted_edges(plan), plan.band_edges_hours, slack_h)
    counted = [
        _count(table, marginal, held, owner, len(place), reached)
        for table, marginal in zip(plan.tables, plan.marginals, strict=True)
    ]
    return Units(plan, tuple(place), tuple(cells for cells, _ in counted), np.stack([total for _, total in counted]))


def _windows_in_band(
    leases: Sequence[Lease], begin: Floats, windows: Sequence[int], edges: Sequence[float], slack_h: float
) -> tuple[Floats, Floats]:
    """Windows after `begin`, shape (leases, 1), in which each lease can fail: by band, (leases, bands), and in any."""
    start = np.array([lease.start_h for lease in leases]).reshape(-1, 1)
    end = np.array([lease.end_h for lease in leases]).reshape(-1, 1)
    by_band, at_all = np.zeros((len(leases), len(edges) - 1)), np.zeros(len(leases))
    for opens, closes in pairwise(windows):
        earliest = np.maximum(start + np.array(edges[:-1]), np.maximum(opens, begin))
        latest = np.minimum(np.minimum(start + np.array(edges[1:]), end), closes)
        reached = (earliest <= latest + slack_h) & (earliest < closes + slack_h) & (begin < closes)
        by_band += reached
        at_all += reached.any(axis=1)
    return by_band, at_all


def _count(
    table: LifeTable,
    marginal: Marginal,
    leases: Sequence[Lease],
    owner: NDArray[np.intp],
    tenants: int,
    reached: tuple[Floats, Floats],
) -> tuple[Floats, Floats]:
    """Units per tenant and cell, broadcastable to (tenants, *table.shape), and per tenant."""
    if "part" in table.names:
        return _count_parts(table, leases, owner, tenants, reached[1])
    row, known, lengths = rows_of(table, leases)
    by_band, at_all = reached
    has_band = "band" in table.names
    units = by_band if has_band else at_all[:, np.newaxis]
    counted = np.zeros((tenants, int(np.prod(lengths, dtype=np.intp)), units.shape[1]))
    np.add.at(counted, (owner[known], row[known]), units[known])
    totals = np.bincount(owner[known], weights=at_all[known], minlength=tenants).astype(np.float64)
    shaped = counted.reshape((tenants, *lengths, units.shape[1]) if has_band else (tenants, *lengths))
    return _over_failures(table, marginal, shaped), totals


def _count_parts(
    table: LifeTable, leases: Sequence[Lease], owner: NDArray[np.intp], tenants: int, units: Floats
) -> tuple[Floats, Floats]:
    """The same for a table of parts, of which a lease has several."""
    place = {part: position for position, part in enumerate(table.levels("part"))}
    counted, totals = np.zeros((tenants, len(place))), np.zeros(tenants)
    for lease, tenant, ran in zip(leases, owner.tolist(), units.tolist(), strict=True):
        own = [place[part] for part in lease.parts if part in place]
        counted[tenant, own] += ran
        totals[tenant] += ran if own else 0.0
    return counted, totals


def _over_failures(table: LifeTable, marginal: Marginal, counted: Floats) -> Floats:
    """Puts the axes into the table's order; levels of the failure that the marginal does not count get nothing."""
    own = [axis for axis, name in enumerate(table.names) if name not in ("band", *OF_FAILURE)]
    own += [axis for axis, name in enumerate(table.names) if name == "band"]
    ordered = np.transpose(counted, (0, *(1 + np.argsort(own))))
    shape = tuple(size if axis in own else 1 for axis, size in enumerate(table.shape))
    spread = ordered.reshape((len(counted), *shape))
    for axis, dimension in enumerate(table.dimensions):
        if dimension.name in OF_FAILURE and marginal.domains:
            possible = np.array([_counts(dimension.name, level, marginal) for level in dimension.levels], np.float64)
            spread = spread * possible.reshape([-1 if other == axis + 1 else 1 for other in range(spread.ndim)])
    return spread


def _counts(dimension: str, level: str, marginal: Marginal) -> bool:
    domain = CAUSES[level].domain if dimension == "reason" and level in CAUSES else level
    return domain in marginal.domains


# ---- what exceeds a ceiling ----------------------------------------------------------------------------------------


def impossible(held: Units, groups: Sequence[GroupSum], false_alarm: float) -> Iterator[CeilingFinding]:
    """Cells and totals that are beyond the ceiling of their group, or below zero, by more than noise.

    Honest groups have any such finding with probability at most `false_alarm` (Bonferroni).
    """
    plan = held.plan
    tests = 2 * len(groups) * sum(table.events.size + 1 for table in plan.tables)
    for number, group in enumerate(groups):
        ceiling = held.ceiling(group.members)
        for place, marginal in enumerate(plan.marginals):
            counts, cells = group.counts[place].reshape(1, -1), ceiling.cells[place].reshape(1, -1)
            total, most = counts.sum(axis=1, keepdims=True), np.array([[ceiling.totals[place]]])
            for what, values, high in (("cell", counts, cells), ("total", total, most)):
                added = counts.size // values.size
                smallest = min(len(other.members) for other in groups)
                reach = noise_reach(plan, opened_shares(plan, len(group.members), smallest), added, false_alarm / tests)
                margin = reach * math.sqrt(added * group.noise_variance[place])
                low = np.full(values.shape, -margin)
                yield from outside([number], f"{marginal.name} {what}", values, low, high + margin)


def noise_reach(plan: Plan, opened: float, cells: int, false_alarm: float) -> float:
    """Standard deviations that the noise of a sum over `cells` cells exceeds, upwards, with `false_alarm` at most.

    `opened` is the noise of the sum over that which the plan asks for (`federation.protocol.noise.opened_shares`).
    """
    if plan.mechanism is Mechanism.DISCRETE_GAUSSIAN:
        return -NormalDist().inv_cdf(false_alarm)
    # Chernoff's bound for a sum of Laplace variables, whose tails are longer than a Gaussian's.
    copies = cells * opened
    at = np.linspace(0.001, 0.999, 999)
    return float(np.min((-copies * np.log1p(-(at**2)) - math.log(false_alarm)) / at) / math.sqrt(2 * copies))


def outside(groups: Sequence[int], where: str, values: Floats, low: Floats, high: Floats) -> Iterator[CeilingFinding]:
    """A finding for each of `values`, shape (groups, places), that is not between `low` and `high`."""
    for group, place in np.argwhere((values < low) | (values > high)).tolist():
        count, least, most = (float(array[group, place]) for array in (values, low, high))
        yield CeilingFinding(groups[group], f"{where} {place}", count, least, most)
