"""Which units were slow, each held against the one before it of the same workload: for the fail-slow map.

A unit is a lease in a window of the plan's epoch. One of the same exact workload that directly follows another of the
same window on another context is watched; it is slow if its median step took at least `SLOW` times as long as in that
one. The median of all own units elsewhere would be a steadier reference, and one unit could then turn the words about
many others: no noise of this plan would hide that. Here each unit is the reference of one other at most, and of none of
another window, which another round opens (docs/fabric.md has the proof). Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.plan import Plan
from federation.protocol.subjects import SLOW_PACE, USUAL_PACE, Subject
from tenant_client.doctor.records.paces import Slice
from tenant_client.rounds.counts import Observation

SLOW = 1.1


@dataclass(frozen=True)
class PacedUnit:
    """A unit with step times: lease, window, first hour seen, context token, exact workload, and median step (s)."""

    unit: str
    window: int
    at_h: float
    context: str
    workload: str
    step_s: float


def units_of(
    paces: Mapping[tuple[str, int], Sequence[Slice]],
    contexts: Mapping[str, str],
    workloads: Mapping[str, str],
    plan: Plan,
) -> list[PacedUnit]:
    """The units up to the plan's end of leases whose context and exact workload are known, from their slices."""
    steps: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for (unit, _), slices in paces.items():
        for one in slices:
            at_h = one.at_s / SECONDS_PER_HOUR
            if one.timed and unit in contexts and unit in workloads and plan.first_hour <= at_h < plan.end_hour:
                steps[unit, plan.position_at(at_h)].append((at_h, one.stepping_s / one.timed))
    return [
        PacedUnit(unit, window, min(timed)[0], contexts[unit], workloads[unit], median(step_s for _, step_s in timed))
        for (unit, window), timed in steps.items()
    ]


def speeds(units: Iterable[PacedUnit]) -> list[Observation]:
    """What watched units show, in order of workload and time."""
    found = []
    ordered: Sequence[PacedUnit] = sorted(units, key=lambda one: (one.workload, one.at_h, one.unit))
    for _, alike in groupby(ordered, key=lambda one: (one.workload, one.window)):
        for before, now in pairwise(alike):
            if before.context != now.context and before.unit != now.unit:
                pace = SLOW_PACE if now.step_s >= SLOW * before.step_s else USUAL_PACE
                found.append(Observation(Subject.SPEED, now.unit, now.at_h, ((now.context, pace),)))
    return found
