"""What learning starts from: the sums of all releases, the units behind them, and what the provider saw itself.

Windows are disjoint: releases add up cell by cell, and so do their noise variances.
Without own failures, a pair's total leaves out the windows that would add more noise than they tell: what is heeded
runs no more.
Own failures, which operators alone learn from, are those of units that tenants could count: of leases whose tenants
answered, where the provider looked.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.round_messages import finest_row
from provider_server.fleet.analysis.own_failures import Leases
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.fleet.release import Release

Places = NDArray[np.intp]
Mask = NDArray[np.bool_]
NOBODY = OwnRecord.of((), looked=())


@dataclass(frozen=True, eq=False)
class Seen:
    """The sums of the releases, and the J units behind them.

    `node_hours` has shape (J, bands), all else (J,). `level` (context and build-up) and `cell` (pairs, flat) are the
    rows whose total holds a unit; `pair` is the one that its workload and context have by now, perhaps a finer one;
    -1 where there is none. `most` is F, `lease` the place of its lease, `size` the doublings of its nodes, `owner` the
    place of its tenant. `watched` says whether the provider looked and the pair has a row, `visible` (J, bands) how
    many failures it saw there. `control` counts script errors by pair, its exposure in units.
    """

    hazard: LifeTable
    pairs: LifeTable
    control: LifeTable
    node_hours: Floats
    level: Places
    cell: Places
    pair: Places
    most: Places
    lease: Places
    size: Places
    owner: Places
    watched: Mask
    visible: Floats

    @classmethod
    def of(cls, releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> "Seen":
        """Of all releases so far, the leases of their windows, and what was seen there (None: nobody looked)."""
        hazard, pairs = (_sum(made.table(name) for made in releases) for name in ("hazard", "pairs"))
        held = np.ones((len(releases), pairs.events.size), np.bool_)
        if own is None:
            pairs, held = _remembered(releases, pairs)
        columns = zip(*_units(releases, leases, hazard, pairs, held, own or NOBODY), strict=True)
        return cls(hazard, pairs, _control(releases, pairs), *map(np.concatenate, columns))

    def by_level(self, weight: Floats) -> Floats:
        """Node-hours times `weight`, which is broadcast to (J, bands), by context level and band."""
        levels, values = len(self.hazard.levels("context_level")), (weight * self.node_hours)[self.level >= 0]
        level = self.level[self.level >= 0]
        totals = [np.bincount(level, column, levels) for column in values.T]
        return np.stack(totals, axis=1).astype(np.float64)

    def by_pair(self, weight: Floats) -> Floats:
        """The sum of `weight` (J,) by workload and context."""
        known = self.cell >= 0
        total = np.bincount(self.cell[known], weight[known], self.pairs.events.size)
        return total.astype(np.float64).reshape(self.pairs.shape)

    def leases(self, explained: Floats) -> Leases:
        """What was seen of each lease beside what hazards explain of its units (J,)."""
        known = np.flatnonzero(self.watched)
        group = self.lease[known] * self.pairs.events.size + self.pair[known]
        _, first, lease = np.unique(group, return_index=True, return_inverse=True)
        failures, expected = (
            np.bincount(lease, weight[known], len(first)).astype(np.float64)
            for weight in (self.visible.sum(axis=1), explained)
        )
        return Leases(failures, expected, self.pair[known][first], self.owner[known][first])


def _remembered(releases: Sequence[Release], total: LifeTable) -> tuple[LifeTable, NDArray[np.bool_]]:
    """`total` of each pair over the windows that tell most of it; whether it holds each release.

    The second has shape (releases, pairs). A total of variance v in which e failures are expected tells as much as
    e² / (e + v) failures without noise. Windows are taken by what they expect over their noise, as many as tell most.
    Which are taken follows from exposure alone, not from what was counted.
    """
    rate = max(float(total.events.sum()), 1.0) / max(float(total.exposure_node_hours.sum()), np.finfo(float).tiny)
    tables = [made.table("pairs").aligned(total.dimensions) for made in releases]
    expected = rate * np.stack([table.exposure_node_hours for table in tables])
    noise = np.stack([table.noise_variance for table in tables])
    share = expected / np.maximum(expected + noise, np.finfo(float).tiny)  # as expected / noise, and finite without any
    order = np.argsort(-share, axis=0, kind="stable")
    so_far, with_noise = (np.cumsum(np.take_along_axis(one, order, 0), axis=0) for one in (expected, noise))
    told = so_far**2 / np.maximum(so_far + with_noise, np.finfo(float).tiny)
    best = len(tables) - 1 - np.argmax(told[::-1], axis=0)
    held = np.argsort(order, axis=0) <= best
    names = ("events", "exposure_node_hours", "at_risk", "noise_variance")
    columns = (sum(own * getattr(table, name) for own, table in zip(held, tables, strict=True)) for name in names)
    return LifeTable(total.dimensions, *columns), held.reshape(len(releases), -1)


def _control(releases: Iterable[Release], pairs: LifeTable) -> LifeTable:
    """Script errors over the cells of `pairs`, a unit of exposure for each at risk; none in releases without."""
    has_control = (made for made in releases if any(marginal.name == "control" for marginal in made.plan.marginals))
    total = _sum([LifeTable.zeros(pairs.dimensions), *(made.table("control") for made in has_control)])
    return replace(total, exposure_node_hours=total.at_risk)


def _units(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    hazard: LifeTable,
    pairs: LifeTable,
    held: NDArray[np.bool_],
    own: OwnRecord,
) -> Iterator[tuple[Floats | Places | Mask, ...]]:
    """The arrays of `Seen`, release by release; `held` (releases, pairs) says whether a pair's total holds one."""
    place_of = {lease.lease: place for place, lease in enumerate(leases)}
    number_of = {tenant: number for number, tenant in enumerate(dict.fromkeys(lease.tenant for lease in leases))}
    start, end, nodes = (np.array([getattr(lease, name) for lease in leases]) for name in ("start_h", "end_h", "nodes"))
    doublings = np.log2(np.maximum(nodes, 1)).astype(np.intp)
    for made, holding in zip(releases, held, strict=True):
        near = np.flatnonzero((start < made.plan.end_hour) & (end > made.first_hour))
        slices = made.slices([leases[place] for place in near.tolist()])
        place = np.array([place_of[lease.lease] for lease in slices.leases], np.intp)
        seen = zip(slices.leases, slices.spans.tolist(), strict=True)
        labels = [lease.labels for lease in slices.leases]
        cell, pair = (pair_cells(labels, counted, pairs) for counted in (made.table("pairs"), pairs))
        watched = np.array([looked_at(own, one, *span) for one, span in seen], np.bool_) & (pair >= 0)
        yield (
            slices.node_hours,
            _rows(labels, "context_level", made.table("hazard"), hazard),
            np.where(holding[cell], cell, -1),
            pair,
            np.full(len(labels), made.plan.failures_per_unit, np.intp),
            place,
            doublings[place],
            np.array([number_of[lease.tenant] for lease in slices.leases], np.intp),
            watched,
            np.where(watched[:, None], own.events.by_band(slices, made.plan.band_edges_hours), 0.0),
        )


def looked_at(own: OwnRecord, lease: Lease, start_h: float, end_h: float) -> bool:
    """Whether the provider looked at a lease as long as it ran within these hours."""
    return own.looks_at(lease.lease, max(start_h, lease.start_h), min(end_h, lease.end_h))


def pair_cells(labels: Sequence[Mapping[str, str]], counted: LifeTable, total: LifeTable) -> Places:
    """Flat rows of pairs in `total`, of those that `counted` has; -1 where it has none."""
    workload, context = (_rows(labels, name, counted, total) for name in ("workload", "context"))
    return np.where((workload >= 0) & (context >= 0), workload * len(total.levels("context")) + context, -1)


def _rows(labels: Sequence[Mapping[str, str]], name: str, counted: LifeTable, total: LifeTable) -> Places:
    """Positions in `total` along one dimension, of the rows that `counted` has; -1 where it has none."""
    every = {level: position for position, level in enumerate(total.levels(name))}
    places = {level: every[level] for level in counted.levels(name)}
    if name == "workload":
        return np.array([places.get(finest_row(own, places), -1) for own in labels], np.intp)
    return np.array([places.get(own.get(name, ""), -1) for own in labels], np.intp)


def _sum(tables: Iterable[LifeTable]) -> LifeTable:
    return reduce(operator.add, tables)
