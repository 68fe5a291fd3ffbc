"""Evaluates hints: which degradations they announce in time, from the hazard of every lease, hour by hour.

- Rates are the bundle's, levels those that telemetry shows (`simulation.cloud.degradation`); the provider's own
  `provider_server.fleet.hints.episodes` decides on hints.
- A user who follows hints writes a checkpoint when one is raised, and moves to other nodes when it escalates. The
  benefit is counted at the first failure of each degrading node, the cost at every hint.
- Hints are those of a lease that stays where it is: actions do not change later hints.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from crypto.ids import LeaseId
from federation.protocol.bundle import Bundle
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.service_messages import Action, HintState, Suspicion
from provider_server.fleet.hints.episodes import Draft, Episodes, HintLimits, LeaseHazard, NodeHazard, lease_hazard
from provider_server.fleet.hints.node_hazard import with_pooled_ratios
from simulation.cloud import degradation
from simulation.cloud.profiles import Floats, Ints
from simulation.judge.user_loop import WARNED_H, WITHIN_H, Costs, Trial, World, learning_weeks

LIMITS = HintLimits()
ANY_LEASE = LeaseId(bytes(LeaseId.length))  # each lease has episodes of its own


@dataclass(frozen=True)
class Foresight:
    """How well hints foretold degradations; None where there was nothing to foretell."""

    warned_share: float | None
    false_per_1000_lease_hours: float | None
    gpu_hours_saved: float


def foresee(world: World, bundles: Sequence[Bundle | None], context: Ints, costs: Costs) -> Foresight:
    """The foresight of these bundles, where the world's leases run on these contexts."""
    told = watch(world, bundles, context)
    courses = world.courses
    degraded = np.flatnonzero(np.isfinite(told.failed_h)).tolist()
    sick = {int(courses.lease[node]) for node in degraded}
    false = sum(said[-1].times for row, said in told.hints.items() if row not in sick)
    warned = [is_warned(told.of(int(courses.lease[node])), float(told.failed_h[node])) for node in degraded]
    return Foresight(
        float(np.mean(warned)) if warned else None,
        1000.0 * false / float(world.hours.sum()) if len(world.rows) else None,
        _saved(world, told, degraded, costs) - _spent(world, told, costs),
    )


class Hazards:
    """What the bundles say: failures per node-hour by context, level and band, and so of leases by nodes' levels."""

    def __init__(self, trial: Trial, bundles: Sequence[Bundle | None]) -> None:
        self._nodes: dict[tuple[int, int, int, int], NodeHazard] = {}
        self._leases: dict[tuple[int, int, int, tuple[int, ...]], LeaseHazard | None] = {}
        for number, bundle in enumerate(bundles):
            entries = bundle.hazards if bundle else ()
            named = {(*trial.places[str(one.context_level)], one.band): one for one in entries}
            for (context, level, band), node in with_pooled_ratios(named).items():
                suspicion = Suspicion.MEMORY if level else Suspicion.UNCLEAR
                self._nodes[number, context, int(band), level] = replace(node, suspicion=suspicion)

    def lease(self, bundle: int, context: int, band: int, levels: tuple[int, ...]) -> LeaseHazard | None:
        """The danger of a lease whose nodes have these levels, in order; None where the bundle does not know them."""
        key = bundle, context, band, levels
        if key not in self._leases:
            nodes = [self._nodes.get((bundle, context, band, level)) for level in levels]
            known = [node for node in nodes if node is not None]
            complete = len(known) == len(levels)
            self._leases[key] = lease_hazard(ANY_LEASE, known, WITHIN_H) if complete else None
        return self._leases[key]


@dataclass(frozen=True, eq=False)
class Told:
    """What was said of each lease of which anything was, and when each node failed (infinity for never)."""

    hints: Mapping[int, Sequence[Draft]]
    failed_h: Floats

    def of(self, row: int) -> Sequence[Draft]:
        """What was said of that lease."""
        return self.hints.get(row, ())


def watch(world: World, bundles: Sequence[Bundle | None], context: Ints) -> Told:
    """Hints on every lease, hour by hour, and the failures of nodes that rose; hours are since the lease began."""
    cloud, courses, leases = world.trial.cloud, world.courses, world.trial.cloud.leases
    placed = leases.context.copy()
    placed[world.rows] = context
    factors = cloud.hazard.workload[leases.workload] * cloud.hazard.context[placed]
    rate = cloud.hazard.base_per_node_hour * factors * cloud.hazard.mismatch[leases.workload, placed]
    failed_h = degradation.failure_hours(courses, rate[courses.lease], cloud.hazard, world.draws)
    seen = degradation.replaced(world.seen, failed_h)
    hazards, hints = Hazards(world.trial, bundles), {}
    bounds = np.append(np.flatnonzero(np.diff(courses.lease, prepend=-1)), len(courses.lease))
    changes = np.searchsorted(seen.node, bounds).tolist()
    for number, (begin, end) in enumerate(pairwise(bounds.tolist() if any(bundles) else [])):
        row, some = int(courses.lease[begin]), slice(changes[number], changes[number + 1])
        columns = seen.hour[some], seen.node[some] - begin, seen.level[some]
        events = list(zip(*(column.tolist() for column in columns), strict=True))
        cells = _cells(world, row, float(courses.hours[begin]))
        look = Looks(hazards, int(placed[row]), int(courses.level[begin]), cells)
        if said := look.at(seen.start[begin:end].tolist(), events):
            hints[row] = said
    return Told(hints, failed_h)


def _cells(world: World, row: int, hours: float) -> list[tuple[int, int, int]]:
    """From which hour of a lease on which bundle and which band hold, for its hours; ends with an hour beyond them."""
    start_h, scenario = float(world.trial.cloud.leases.start_h[row]), world.trial.cloud.scenario
    published = [HOURS_PER_WEEK * week - start_h for week in learning_weeks(scenario)]
    edges = scenario.age_band_edges_h
    knots = sorted({0, *(math.ceil(at) for at in (*published, *edges) if 0 < at <= hours)})
    cells = [(knot, bisect_right(published, knot) - 1, bisect_right(edges, knot) - 1) for knot in knots]
    return [*cells, (math.floor(hours) + 1, -1, -1)]


@dataclass(frozen=True)
class Looks:
    """The hourly looks at one lease, which was granted at `level`."""

    hazards: Hazards
    context: int
    level: int
    cells: Sequence[tuple[int, int, int]]

    def at(self, levels: list[int], changes: Sequence[tuple[int, int, int]]) -> list[Draft]:
        """What is said of a lease whose nodes begin at these levels; a change is an hour, a node and its new level."""
        if not changes and not self._says_anything(levels):
            return []
        episodes, said, coming = self._granted(len(levels)), [], list(reversed(changes))
        for hour, bundle, band in self._hours():
            while coming and coming[-1][0] <= hour:
                _, node, levels[node] = coming.pop()
            said += self._look(episodes, hour, bundle, band, levels)
        return said

    def _says_anything(self, levels: Sequence[int]) -> bool:
        """Whether a lease whose nodes keep their levels is told anything: the first looks in each cell decide."""
        episodes = self._granted(len(levels))
        return any(levels) and any(
            self._look(episodes, hour, bundle, band, levels) for hour, bundle, band in self._hours(LIMITS.looks)
        )

    def _granted(self, nodes: int) -> Episodes:
        episodes, (_, bundle, band) = Episodes(LIMITS), self.cells[0]
        hazard = self.hazards.lease(bundle, self.context, band, (self.level,) * nodes)
        episodes.granted([] if hazard is None else [hazard])
        return episodes

    def _hours(self, most: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Hour by hour, with bundle and band; `most` hours of each cell."""
        for (begin, bundle, band), (end, _, _) in pairwise(self.cells):
            for hour in range(begin, end if most is None else min(end, begin + most)):
                yield hour, bundle, band

    def _look(self, episodes: Episodes, hour: int, bundle: int, band: int, levels: Sequence[int]) -> list[Draft]:
        hazard = self.hazards.lease(bundle, self.context, band, tuple(sorted(levels)))
        return [] if hazard is None else episodes.look(hour, [hazard])


def is_warned(said: Sequence[Draft], failed_h: float) -> bool:
    """Whether an episode was open `WARNED_H` before the failure."""
    before = [draft.state for draft in said if draft.at_h <= failed_h - WARNED_H]
    return bool(before) and before[-1] is not HintState.CLEARED


def _spent(world: World, told: Told, costs: Costs) -> float:
    """GPU-hours for a checkpoint at each hint, and for starting again elsewhere at each escalation."""
    takes = {
        HintState.RAISED: costs.checkpoint_takes_h,
        HintState.ESCALATED: costs.checkpoint_takes_h + costs.restart_h,
    }
    nodes = world.trial.cloud.leases.nodes
    spent = (int(nodes[row]) * takes.get(draft.state, 0.0) for row, said in told.hints.items() for draft in said)
    return costs.gpus_per_node * sum(spent)


def _saved(world: World, told: Told, degraded: Sequence[int], costs: Costs) -> float:
    """GPU-hours that were not lost at the first failures of nodes that rose."""
    courses, hazard, saved = world.courses, world.trial.cloud.hazard, 0.0
    for node in degraded:
        row, failed_h, begun = int(courses.lease[node]), float(told.failed_h[node]), int(courses.level[node])
        now = begun + int(np.sum(courses.rise_h[node] <= failed_h))
        still = float(hazard.level[begun] / hazard.level[now])
        said = [draft for draft in told.of(row) if draft.at_h <= failed_h]
        saved += int(world.trial.cloud.leases.nodes[row]) * saved_h(said, failed_h, still, costs)
    return costs.gpus_per_node * saved


def saved_h(said: Sequence[Draft], failed_h: float, still: float, costs: Costs) -> float:
    """Hours of a lease that hints save at a failure, which after a move happens with probability `still`."""
    every = costs.checkpoint_every_h
    regular = every * math.floor(failed_h / every)
    newest = max([regular, *(draft.at_h for draft in said if draft.action is not Action.NOTHING)])
    moved = any(draft.action is Action.MOVE for draft in said)
    before, after = failed_h - regular + costs.recovery_h, failed_h - newest + costs.recovery_h
    return before - (still if moved else 1.0) * after
