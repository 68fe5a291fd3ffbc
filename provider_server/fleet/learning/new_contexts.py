"""First rates of contexts without enough data for their own: from known contexts and from benchmark jobs.

A context is known by its name, as leases and the map of contexts have it ("context 3"); only the provider can turn a
name into the tokens of releases. Known are the contexts whose level 0 has rates; new is every other one of the map and
of the benchmark jobs. How far two are from each other is by how much their looks differ, each feature weighed by what
it explains of failures: from 0 to 1, and 1 for a context that is in no map. While no context is known, other fleets are
(`analysis.public_rates`), at distance 1.

`analysis.cold_start` turns that into a rate at an average age; over age bands it follows the average of the known
contexts, and a benchmark job's node-hours are weighted by its ages. Guarantees: those of that module; the interval is
wide, and `basis` says what it is based on. Not promised: rates of build-up levels above 0.

How long a step takes on a context over the usual node of the fleet is known from its own benchmark jobs, and before the
first from what other contexts take, by the same distances (`step_times`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from federation.base.visible import counted_as
from federation.protocol.causes import Domain
from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.cold_start import Known, Newcomer, bootstrap
from provider_server.fleet.analysis.contexts import ContextMap, Look
from provider_server.fleet.analysis.intervals import NORMAL_95
from provider_server.fleet.analysis.measured import MAD_TO_SIGMA, STEP_TIME
from provider_server.fleet.analysis.public_rates import public
from provider_server.fleet.learning.benchmark_jobs import BenchmarkJob
from provider_server.fleet.learning.findings import RateFinding
from provider_server.fleet.learning.hardware import label_of
from provider_server.fleet.learning.performance import NODE, measures

FARTHEST = 1.0
FIRST_NODE_SD, LEAST_NODE_SD = 0.1, 0.01  # of the log of a node's step time within a context
WIDTH_95 = 2.0 * NORMAL_95


@dataclass(frozen=True)
class NewContext:
    """A context by name, its rate at an average age, those of its level 0 by age band, and how long a step takes."""

    name: str
    newcomer: Newcomer
    rates: tuple[RateFinding, ...]
    step_time: Newcomer | None = None


def new_contexts(
    rates: Sequence[RateFinding],
    jobs: Sequence[BenchmarkJob],
    found: ContextMap | None,
    level_0: Callable[[str], str],
    edges_hours: Sequence[float],
) -> tuple[NewContext, ...]:
    """All contexts that have no rates yet, by name.

    `rates` are those learnt, `level_0` gives the token of a named context at level 0, `edges_hours` bound age bands.
    """
    looks = _Looks.of(found)
    names = sorted({*looks.names, *(_name(job) for job in jobs)})
    learnt = {name: own for name in names if (own := [one for one in rates if one.context_level == level_0(name)])}
    known = [_known(name, own) for name, own in learnt.items()] or [public()]
    beside = list(learnt) or [known[0].name]
    profile = _profile(list(learnt.values()), len(edges_hours) - 1)
    between = np.array([[looks.apart(one, other) for other in beside] for one in beside])
    made, steps = [], step_times(jobs, found)
    for name in names:
        if name not in learnt:
            own_jobs = [job for job in jobs if _name(job) == name]
            failures = float(sum(job.failed(Domain.INFRASTRUCTURE) for job in own_jobs))
            node_hours = sum(job.nodes * _effective_hours(job.hours, edges_hours, profile) for job in own_jobs)
            distances = np.array([looks.apart(name, other) for other in beside])
            first = bootstrap(known, distances, failures, node_hours, None, between=between)
            made.append(NewContext(name, first, tuple(_by_band(first, level_0(name), profile)), steps.get(name)))
    return tuple(made)


def step_times(jobs: Sequence[BenchmarkJob], found: ContextMap | None) -> dict[str, Newcomer]:
    """By context, how long a step takes over what it takes on the fleet's usual node; {} before any job says so."""
    places = {str(job.settings[NODE]): _name(job) for job in jobs if NODE in job.settings}
    logs = measures(jobs, tuple(places)).get(STEP_TIME)
    if logs is None:
        return {}
    of_map = found.of if found else lambda node: None
    own: dict[str, list[float]] = {}
    for (node, named), log in zip(places.items(), logs.tolist(), strict=True):
        if math.isfinite(log):
            number = of_map(node)
            own.setdefault(named if number is None else label_of(number), []).append(log)
    sd = _spread_of_nodes(own)
    known = [Known(name, float(np.median(of)), sd / math.sqrt(len(of))) for name, of in own.items()]
    looks = _Looks.of(found)
    between = np.array([[looks.apart(one, other) for other in own] for one in own])
    made = {one.name: _measured(one, len(own[one.name])) for one in known}
    for name in set(looks.names) - own.keys():
        distances = np.array([looks.apart(name, other) for other in own])
        made[name] = bootstrap(known, distances, 0.0, 0.0, None, between=between)
    return made


def _spread_of_nodes(own: Mapping[str, Sequence[float]]) -> float:
    """The standard deviation of nodes of one context, learnt from all; with one node each nothing is known of it."""
    off = [log - float(np.median(of)) for of in own.values() if len(of) > 1 for log in of]
    return max(MAD_TO_SIGMA * float(np.median(np.abs(off))), LEAST_NODE_SD) if off else FIRST_NODE_SD


def _measured(one: Known, nodes: int) -> Newcomer:
    low, middle, high = np.exp(one.log_rate + NORMAL_95 * one.log_sd * np.array([-1.0, 0.0, 1.0])).tolist()
    return Newcomer(middle, low, high, f"benchmark jobs on {counted_as(nodes, 'node')}")


def _name(job: BenchmarkJob) -> str:
    """A number is one of the map's."""
    return label_of(job.context) if isinstance(job.context, int) else job.context


def _known(name: str, own: Sequence[RateFinding]) -> Known:
    """The geometric mean over age bands; their errors are mostly those of the context, and so shared."""
    logs = np.log([(one.rate, one.high / one.low) for one in own])
    rate, width = logs.mean(axis=0).tolist()
    return Known(name, rate, width / WIDTH_95)


def _profile(learnt: Sequence[Sequence[RateFinding]], bands: int) -> Floats:
    """By what factor each age band differs from the average, the mean of the known contexts' logs; 1 where none has."""
    logs: list[list[float]] = [[] for _ in range(bands)]
    for own in learnt:
        middle = float(np.mean(np.log([one.rate for one in own])))
        for one in own:
            logs[int(one.band)].append(float(np.log(one.rate)) - middle)
    return np.exp([float(np.mean(of_band)) if of_band else 0.0 for of_band in logs])


def _effective_hours(hours: float, edges_hours: Sequence[float], profile: Floats) -> float:
    """Hours of an average age that fail as often as the first `hours` of a job; beyond the last band as in it."""
    ends = np.array([*edges_hours[1:-1], np.inf])
    inside = np.clip(np.minimum(ends, hours) - np.array(edges_hours[:-1]), 0.0, None)
    return float(inside @ profile)


def _by_band(first: Newcomer, level: str, profile: Floats) -> list[RateFinding]:
    return [
        RateFinding(level, str(band), *(float(factor) * value for value in (first.rate, first.low, first.high)))
        for band, factor in enumerate(profile)
    ]


@dataclass(frozen=True)
class _Looks:
    """What the map's contexts look like, by name; the weights and spreads of its features."""

    of_context: Mapping[str, tuple[Look, ...]]
    weights: tuple[float, ...]
    spreads: tuple[float, ...]

    @classmethod
    def of(cls, found: ContextMap | None) -> "_Looks":
        if found is None:
            return cls({}, (), ())
        names = [label_of(context.number) for context in found.contexts]
        return cls(dict(zip(names, found.looks, strict=True)), found.weights, found.spreads)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.of_context)

    def apart(self, one: str, other: str) -> float:
        """From 0, the same context, to 1, nothing in common or nothing known."""
        if one == other:
            return 0.0
        if one not in self.of_context or other not in self.of_context:
            return FARTHEST
        features = zip(self.weights, self.spreads, self.of_context[one], self.of_context[other], strict=True)
        return min(FARTHEST, sum(weight * _off(mine, theirs, spread) for weight, spread, mine, theirs in features))


def _off(one: Look, other: Look, spread: float) -> float:
    """How unlike two contexts are in a feature: the middles of numbers in standard deviations, or levels not shared."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        mine, theirs = set(one.levels), set(other.levels)
        return 1.0 - len(mine & theirs) / max(len(mine | theirs), 1)
    return min(abs(one.low + one.high - other.low - other.high) / 2.0 / max(spread, 1e-12), 1.0)
