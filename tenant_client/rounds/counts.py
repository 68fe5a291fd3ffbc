"""Counts failures of the journal, and what optional marginals ask for, into the plan's tables, bounded per unit.

- A unit is a lease in a window: a lease in two windows of the plan's epoch is two.
- A unit adds at most F failures to each marginal, so a marginal of failures has sensitivity F.
- To a marginal of another subject one observation of a unit is counted, whichever a keyed hash selects: one in each of
  its cells, of which there are at most `federation.protocol.subjects.OPTIONAL` says.
- If there are more, infrastructure failures count first, so that their counts depend on hardware hazards only. Among
  equals a keyed hash selects: unpredictable to others, the same on every retry.
- A failure without a row in a marginal is not counted there. A failure of a unit without labels is not counted at all:
  the provider did not grant its lease.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from federation.protocol.causes import CAUSES, Domain
from federation.protocol.life_table import LifeTable
from federation.protocol.noise import Integers
from federation.protocol.plan import Marginal, Plan
from federation.protocol.round_messages import finest_row
from federation.protocol.subjects import OPTIONAL, Subject
from tenant_client.doctor.records.journal import LabelledFailure

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Observation:
    """Something other than a failure that a unit shows, and the cells it stands for, by level of each dimension."""

    subject: Subject
    unit: str
    at_h: float
    cells: tuple[tuple[str, ...], ...]


def build_tables(
    plan: Plan, failures: Iterable[LabelledFailure], selection_key: bytes, observations: Sequence[Observation] = ()
) -> tuple[Integers, ...]:
    """Counts per marginal of the plan, dtype int64, in plan order.

    `failures` and `observations` are those of the windows that the answer is for; `selection_key` (32 bytes) decides
    which count.
    """
    granted = [failure for failure in failures if failure.labels]
    ordered = sorted(granted, key=lambda failure: (_is_secondary(failure), _draw(selection_key, plan, failure)))
    drawn = sorted(observations, key=lambda one: _draw_of(selection_key, plan, one))
    return tuple(
        _count(plan, marginal, table, ordered)
        if marginal.counts is Subject.FAILURES
        else _count_observed(plan, marginal, table, drawn)
        for marginal, table in zip(plan.marginals, plan.tables, strict=True)
    )


def _count_observed(plan: Plan, marginal: Marginal, table: LifeTable, observations: Sequence[Observation]) -> Integers:
    """Of each unit its first observation that has a row; in no cell twice, and in no more cells than it may."""
    counts = np.zeros(table.shape, np.int64)
    places = [{level: position for position, level in enumerate(dimension.levels)} for dimension in table.dimensions]
    counted: set[tuple[str, int]] = set()
    for one in observations:
        unit = one.unit, plan.position_at(one.at_h)
        if one.subject is not marginal.counts or unit in counted:
            continue
        rows = [tuple(place.get(level, -1) for place, level in zip(places, cell, strict=True)) for cell in one.cells]
        known = [row for row in dict.fromkeys(rows) if -1 not in row]
        for row in known[: OPTIONAL[marginal.counts].cells]:
            counted.add(unit)
            counts[row] += 1
    return counts


def _draw_of(selection_key: bytes, plan: Plan, one: Observation) -> bytes:
    text = f"{one.subject}\0{one.unit}\0{one.at_h!r}\0{one.cells!r}".encode()
    return hashlib.blake2b(plan.round_id + text, key=selection_key, digest_size=16).digest()


def _count(plan: Plan, marginal: Marginal, table: LifeTable, failures: Sequence[LabelledFailure]) -> Integers:
    counts = np.zeros(table.shape, np.int64)
    places = [{level: position for position, level in enumerate(dimension.levels)} for dimension in table.dimensions]
    counted: Counter[tuple[str, int]] = Counter()
    for failure in failures:
        if marginal.domains and domain_of(failure.failure.reason) not in marginal.domains:
            continue
        cell = _cell(plan, marginal, places, failure)
        unit = failure.failure.unit, plan.position_at(failure.failure.at_h)
        if cell is not None and counted[unit] < plan.failures_per_unit:
            counted[unit] += 1
            counts[cell] += 1
    return counts


def _cell(
    plan: Plan, marginal: Marginal, places: Sequence[Mapping[str, int]], failure: LabelledFailure
) -> tuple[int, ...] | None:
    cell = []
    for name, place in zip(marginal.dimensions, places, strict=True):
        position = place.get(_level(plan, name, place, failure))
        if position is None:
            return None
        cell.append(position)
    return tuple(cell)


def _level(plan: Plan, name: str, place: Mapping[str, int], labelled: LabelledFailure) -> str:
    """The level of a failure along a dimension, or a string that is no level."""
    if name == "band":
        return _band(plan.band_edges_hours, labelled.failure.age_h)
    if name == "reason":
        return labelled.failure.reason
    if name == "domain":
        return domain_of(labelled.failure.reason)
    if name == "workload":
        return finest_row(labelled.labels, place)
    return labelled.labels.get(name, "")


def _band(edges: Sequence[float], age_h: float) -> str:
    """Bands are open on the left and closed on the right, but for the first, which begins with its edge."""
    return str(max(0, bisect_left(edges, age_h) - 1)) if age_h >= edges[0] else ""


def domain_of(reason: str) -> str:
    """The taxonomy's domain of a reason, `unknown` for a reason outside it."""
    return CAUSES[reason].domain if reason in CAUSES else UNKNOWN


def _is_secondary(labelled: LabelledFailure) -> bool:
    return domain_of(labelled.failure.reason) != Domain.INFRASTRUCTURE


def _draw(selection_key: bytes, plan: Plan, labelled: LabelledFailure) -> bytes:
    failure = labelled.failure
    text = f"{failure.unit}\0{failure.at_h!r}\0{failure.age_h!r}\0{failure.reason}".encode()
    return hashlib.blake2b(plan.round_id + text, key=selection_key, digest_size=16).digest()
