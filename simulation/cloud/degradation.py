"""Nodes that degrade while leases run: the truth, in continuous time, and what telemetry shows of it, hour by hour.

    lease ─ its nodes, all at its level ─ rise at random ─▶ Courses ─ severity ─ counts ─ score ─ latches ─▶ Seen

The cloud gives every lease one level for life, and its contexts levels that rise from week to week until maintenance.
Here each node of a lease begins at the level of its lease and may rise within it: each of the steps that it has not
taken yet comes at the rate by which the context's share of taken steps grows. Failures follow the true level at once.

*Severity* is what a score would be without noise (`provider_server.fleet.analysis.buildup`): it lies within the band of
its level, and before a rise it climbs, `HOURS_PER_DOUBLING` for a doubling of errors, so as to cross the threshold
`LEAD_H` before the hazard follows. Errors of an hour are a gamma-Poisson count whose mean keeps the decayed total at
that severity. Score and latches are those of `BuildUp` for one counter among peers that show nothing; tests compare
the two.

Not modelled: nodes that recover within a lease; several signals at once, or one that fails silently; storms that peers
share; load. After the first failure of a node that had risen, one like those of the beginning takes its place.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.buildup import CALM_H, CAP, DOWN, LEVELS, UP, signals
from simulation.cloud.cloud import Cloud
from simulation.cloud.profiles import Floats, Ints
from simulation.cloud.truth import Hazard

# Taken steps per week and free step: `truth.draw_level_shares` lets the chance of a step rise by 0.5 within a period
# that is uniform between 8 and 24 weeks, which has mean 1/period = ln(3) / 16.
STEPS_PER_WEEK = 0.5 * np.log(3.0) / 16.0
TAKEN = (0.05, 0.55)  # least and most chance of a step there
HOURS_PER_DOUBLING = 12.0  # as in the cloud of docs/nodes.md; a score is in doublings
LEAD_H = 2.0
OVERDISPERSION = 1.0  # shape of the gamma: an hour's count of mean m has variance m + m²
WARM_H = 2 * CALM_H  # hours of telemetry before a lease begins
METRIC = "ecc_corrected"


@dataclass(frozen=True, eq=False)
class Courses:
    """N nodes of leases, as columns; hours are since the lease began.

    `lease` (N,) is the row in the cloud's leases, `level` (N,) the level it begins at, `rise_h` (N, steps) when each
    further level is reached, infinity for never, `severity` (N, steps + 1) where it rests at each of these levels, and
    `hours` (N,) how long the lease runs within the scenario.
    """

    lease: Ints
    level: Ints
    rise_h: Floats
    severity: Floats
    hours: Floats


@dataclass(frozen=True, eq=False)
class Seen:
    """Levels as telemetry shows them: `start` (N,) when leases begin, then M changes, in the order of node and hour.

    `node` (M,) is a row of the courses, `hour` (M,) since the lease began, `level` (M,) from then on.
    """

    start: Ints
    node: Ints
    hour: Ints
    level: Ints


def draw_courses(cloud: Cloud, rows: Ints, rng: Generator) -> Courses:
    """The nodes of these leases, and when each rises."""
    leases, steps = cloud.leases, cloud.scenario.buildup_levels - 1
    lease = np.repeat(rows, leases.nodes[rows])
    level = leases.level[lease]
    per_hour = STEPS_PER_WEEK / HOURS_PER_WEEK / (1.0 - _taken(cloud)[lease])
    free = steps - level[:, None] - np.arange(steps)
    waits = rng.exponential(1.0, (len(lease), steps)) / per_hour[:, None]
    rise_h = np.cumsum(np.where(free > 0, waits / np.maximum(free, 1), np.inf), axis=1)
    hours = np.minimum(leases.end_h, cloud.scenario.weeks * HOURS_PER_WEEK) - leases.start_h
    return Courses(lease, level, rise_h, _rests(level, steps, rng), hours[lease])


def _taken(cloud: Cloud) -> Floats:
    """Share of steps that nodes of each lease's context have taken in the week it begins, from all leases of both."""
    leases, weeks, steps = cloud.leases, cloud.scenario.weeks, cloud.scenario.buildup_levels - 1
    cell = leases.context * weeks + np.clip(leases.start_h // HOURS_PER_WEEK, 0, weeks - 1).astype(np.int64)
    shares = np.bincount(cell, leases.level) / np.maximum(np.bincount(cell) * max(1, steps), 1)
    return np.clip(shares, *TAKEN)[cell]


def _rests(level: Ints, steps: int, rng: Generator) -> Floats:
    """Severity at rest at the first level and those above it: below 2 at level 0, else well within the band."""
    within = rng.random((len(level), steps + 1))
    floors = np.array([-0.5, *UP])  # of the bands; a level that telemetry cannot tell apart shows as the highest
    above = np.minimum(level[:, None] + np.arange(steps + 1), LEVELS - 1)
    return np.where(above == 0, 2.0 * within, floors[above] + 0.5 + within)


def severity(courses: Courses, rows: slice, hour: float, lead_h: float = LEAD_H) -> Floats:
    """Of the courses in `rows`, at an hour since their leases began (negative before)."""
    now = courses.severity[rows, 0]
    for step in range(courses.rise_h.shape[1]):
        threshold = np.array(UP)[np.minimum(courses.level[rows] + step, LEVELS - 2)]
        climbing = threshold + (hour - (courses.rise_h[rows, step] - lead_h)) / HOURS_PER_DOUBLING
        now = np.maximum(now, np.minimum(climbing, courses.severity[rows, step + 1]))
    return now


class Latches:
    """Scores and levels of N counters as `BuildUp` makes them, among peers that report nothing."""

    def __init__(self, totals: Floats) -> None:
        (signal,) = (one for one in signals() if one.metric == METRIC)
        self.unit, self.kept = signal.unit, signal.kept
        self.totals = totals
        self._quiet = np.full((LEVELS - 1, len(totals)), CALM_H)

    def add(self, counts: Floats) -> Ints:
        """Levels after an hour's counts of the first counters; the others have ended."""
        some = slice(len(counts))
        most = self.unit * (2.0**CAP - 1.0)
        self.totals[some] = np.minimum(self.kept * self.totals[some] + counts, most)
        scores = np.log2(1.0 + self.totals[some] / self.unit)
        for quiet, up, down in zip(self._quiet, UP, DOWN, strict=True):
            closed = np.where(scores >= down, 0, quiet[some] + 1)
            kept = np.where(quiet[some] >= CALM_H, CALM_H, closed)
            quiet[some] = np.where(scores >= up, 0, kept)
        levels: Ints = np.sum(self._quiet[:, some] < CALM_H, axis=0)
        return levels


def observe(courses: Courses, levels: int, rng: Generator, lead_h: float = LEAD_H) -> Seen:
    """What telemetry shows of the courses, with `levels` that the scenario knows."""
    order = np.argsort(-courses.hours, kind="stable")
    sorted_ = Courses(*(getattr(courses, name)[order] for name in ("lease", "level", "rise_h", "severity", "hours")))
    latches = Latches(np.zeros(len(order)))
    before = latches.unit * (2.0 ** severity(sorted_, slice(None), -WARM_H, lead_h) - 1.0)
    latches.totals[:] = _settled(before, latches.kept, rng)
    start, last, found = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64), []
    longest = np.floor(sorted_.hours)
    for hour in range(1 - WARM_H, int(longest.max(initial=0.0)) + 1):
        some = slice(int(np.searchsorted(-longest, -hour, side="right")) if hour > 0 else len(order))
        after = latches.unit * (2.0 ** severity(sorted_, some, hour, lead_h) - 1.0)
        mean = np.maximum(after - latches.kept * before[some], 0.0)
        seen = np.minimum(latches.add(_counts(mean, rng)), levels - 1)
        if hour > 0:
            changed = np.flatnonzero(seen != last[some])
            found.append(np.stack([order[changed], np.full(len(changed), hour), seen[changed]]))
        elif hour == 0:
            start[order] = seen
        before[some], last[some] = after, seen
    node, at, level = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
    sort = np.lexsort((at, node))
    return Seen(start, node[sort], at[sort], level[sort])


def _counts(mean: Floats, rng: Generator) -> Floats:
    return rng.poisson(mean * rng.gamma(OVERDISPERSION, 1.0 / OVERDISPERSION, len(mean))).astype(np.float64)


def _settled(mean: Floats, kept: float, rng: Generator) -> Floats:
    """Totals that have been at rest for long: a gamma variable of their mean and variance."""
    hourly = (1.0 - kept) * mean
    variance = (hourly + hourly**2 / OVERDISPERSION) / (1.0 - kept**2)
    return np.where(mean > 0, rng.gamma(mean**2 / np.maximum(variance, 1e-12), variance / np.maximum(mean, 1e-12)), 0.0)


def failure_hours(courses: Courses, rate: Floats, hazard: Hazard, draws: Floats) -> Floats:
    """When each node first fails after it rose (N,), in hours since the lease began; infinity for never within it.

    `rate` (N,) is the node's hazard at level factor 1, `draws` (N,) are exponential with mean 1.
    """
    left, at = draws.copy(), np.full(len(draws), np.inf)
    ends = [*courses.rise_h.T[1:], np.full(len(draws), np.inf)]
    for step, (begin, end) in enumerate(zip(courses.rise_h.T, ends, strict=True)):
        begin, end = np.minimum(begin, courses.hours), np.minimum(end, courses.hours)
        level = np.minimum(courses.level + step + 1, len(hazard.level) - 1)
        from_, to = hazard.effective_hours(begin), hazard.effective_hours(end)
        needed = from_ + left / (rate * hazard.level[level])
        fails = np.isinf(at) & (needed < to)
        at[fails] = hazard.age_h(needed[fails])
        left -= rate * hazard.level[level] * (to - from_)
    return at


def replaced(seen: Seen, failed_h: Floats) -> Seen:
    """The same, if every node that fails is replaced at once by one that shows what it showed when the lease began."""
    kept = seen.hour < failed_h[seen.node]
    again = np.unique(seen.node[~kept | np.isfinite(failed_h[seen.node])])
    hour = np.ceil(failed_h[again]).astype(np.int64)
    node, at, level = (
        np.concatenate([old[kept], new])
        for old, new in ((seen.node, again), (seen.hour, hour), (seen.level, seen.start[again]))
    )
    sort = np.lexsort((at, node))
    return Seen(seen.start, node[sort], at[sort], level[sort])
