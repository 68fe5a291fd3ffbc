"""Interruptions of long jobs on a public trace of outages, by where a scheduler puts them, with a queue.

    python benchmarks/placement.py [judged] [less_short_work] [developed]

The second half (days 174 to 348) of 400 GPU servers (InfiniteHBD, SIGCOMM '25): a node goes down when the trace says
so, whatever runs on it, and interrupts the job that it meets. Long jobs have a quota of nodes, as pretraining has in
Acme, and there is always another one waiting; short jobs take of the rest when they come. A job takes whole nodes.
While a long one within its quota waits for nodes, nothing shorter starts. An interrupted job goes back to the head of
the queue with what is left to do, and up to an hour of it again. All ways meet the same jobs, outages and capacity.

| way | takes of the free nodes |
|---|---|
| `random` | any |
| `by_name` | the first by name, as a scheduler without weights does |
| `by_hazard` | long jobs the healthiest, short ones the riskiest (`provider_server.analysis.placement.choose`) |
| `none_with_history` | long jobs avoid nodes that ever went down, at random otherwise: the simplest rule |

The hazard of a node is that of `provider_server/analysis/probation.toml`, learnt from days 0 to 174, and of the node's
own outages before that hour (`standing`), looked up every six hours. Jobs are drawn: long ones of 4 to 32 nodes and a
median of two days, with 65% of the nodes, short ones of 1 or 2 nodes and a median of three hours, which ask for 20% of
the nodes' hours (`less_short_work`: 75% and 10%). `developed` is the same on the first half, on which the model was
learnt; all of this was set there.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.figures import Figure, main
from benchmarks.probation import END_H, FIRST_H, NODES, SPLIT_H, trace_until
from federation.protocol.life_table import Floats
from provider_server.analysis.placement import choose
from provider_server.analysis.probation import shipped, standing

LOOK_H = 6.0
SEEDS = 20
LONG_NODES, LONG_MEDIAN_H, LONG_SD = (4, 8, 16, 32), 48.0, 0.6
SHORT_NODES, SHORT_MEDIAN_H, SHORT_SD = (1, 2), 3.0, 0.7
AGAIN_H = 1.0  # at most lost by an interruption, with the restart
Picks = Callable[["Fleet", NDArray[np.int64], "Job"], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Trace:
    """When nodes go down and come back (time, node, is up, hardware failed), and known rates (looks, nodes)."""

    begin_h: float
    end_h: float
    changes: list[tuple[float, int, bool, bool]]
    up: NDArray[np.bool_]
    rates: Floats
    has_history: NDArray[np.bool_]


@cache
def trace(begin_h: float, end_h: float, look_h: float = LOOK_H) -> Trace:
    """The trace of a half, with hazards looked up every so many hours."""
    found, model = trace_until(end_h), shipped()
    named = np.random.default_rng(1).permutation(sorted(set(found.spells["node"])))  # names say who never fails
    place = {node: number for number, node in enumerate(named.tolist())}
    changes, up = [], np.zeros(NODES, np.bool_)
    for node, start_h, stop_h, failed in found.spells.select("node", "start_h", "stop_h", "failed").iter_rows():
        if start_h <= begin_h < stop_h:
            up[place[node]] = True
        elif start_h > begin_h:
            changes.append((start_h, place[node], True, False))
        if begin_h < stop_h < end_h:
            changes.append((stop_h, place[node], False, bool(failed)))
    looks = np.arange(begin_h, end_h, look_h)
    rates, history = np.full((len(looks), NODES), np.nan), np.zeros((len(looks), NODES), np.bool_)
    for look, at_h in enumerate(looks.tolist()):
        now = standing(model, found, max(at_h, 1e-6)).select("node", "rate", back=pl.col("since_h").is_not_null())
        for node, rate, back in now.iter_rows():
            rates[look, place[node]], history[look, place[node]] = rate, back
    return Trace(begin_h, end_h, sorted(changes), up, rates, history)


@dataclass(eq=False)
class Job:
    """What is left of a job; `run` counts its starts."""

    number: int
    is_long: bool
    count: int
    left_h: float
    asked_h: float
    began_h: float = 0.0
    run: int = 0
    on: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Fleet:
    """The nodes at one time."""

    of: Trace
    rng: np.random.Generator
    now_h: float = 0.0

    def look(self) -> int:
        """The newest look at the hazards of nodes."""
        return int((self.now_h - self.of.begin_h) // LOOK_H)


def by_hazard(fleet: Fleet, free: NDArray[np.int64], job: Job) -> NDArray[np.int64]:
    """Of a node that came back since the last look the hazard is taken for the highest."""
    free = fleet.rng.permutation(free)  # of those alike any
    rates = np.nan_to_num(fleet.of.rates[fleet.look(), free], nan=np.inf)
    return free[choose(rates, job.count, is_long=job.is_long)]


def at_random(fleet: Fleet, free: NDArray[np.int64], job: Job) -> NDArray[np.int64]:
    """Any of the free nodes."""
    return fleet.rng.choice(free, job.count, replace=False)


def by_name(_fleet: Fleet, free: NDArray[np.int64], job: Job) -> NDArray[np.int64]:
    """The first ones."""
    return free[: job.count]


def none_with_history(fleet: Fleet, free: NDArray[np.int64], job: Job) -> NDArray[np.int64]:
    """Long jobs on nodes that never went down, where there are enough; others on those that did."""
    marks = fleet.of.has_history[fleet.look(), free] + 0.5 * fleet.rng.random(len(free))
    return free[choose(marks, job.count, is_long=job.is_long)]


WAYS: dict[str, Picks] = {
    "random": at_random,
    "by_name": by_name,
    "none_with_history": none_with_history,
    "by_hazard": by_hazard,
}


def jobs(of: Trace, load: tuple[float, float], rng: np.random.Generator) -> list[Job]:
    """Jobs in the order in which they are asked for; long ones all at once, more than there is time for."""
    kinds = [(LONG_NODES, LONG_MEDIAN_H, LONG_SD), (SHORT_NODES, SHORT_MEDIAN_H, SHORT_SD)]
    found = []
    for is_long, share, (sizes, median_h, spread) in zip((True, False), load, kinds, strict=True):
        mean_takes = float(np.mean(sizes)) * median_h * float(np.exp(spread**2 / 2))
        number = rng.poisson((1 + is_long) * share * NODES * (of.end_h - of.begin_h) / mean_takes)
        asked = np.full(number, of.begin_h) if is_long else rng.uniform(of.begin_h, of.end_h, number)
        columns = (asked, rng.choice(sizes, number), median_h * np.exp(spread * rng.standard_normal(number)))
        found += [(at, is_long, int(count), float(hours)) for at, count, hours in zip(*columns, strict=True)]
    return [Job(place, is_long, count, hours, at) for place, (at, is_long, count, hours) in enumerate(sorted(found))]


class Replay:
    """One way on one draw of jobs."""

    def __init__(self, of: Trace, pick: Picks, load: tuple[float, float], seed: int) -> None:
        self.of, self.pick, self.quota = of, pick, load[0] * NODES
        self.jobs = jobs(of, load, np.random.default_rng([seed, 0]))
        self.fleet = Fleet(of, np.random.default_rng([seed, 1]))
        self.up, self.taken = of.up.copy(), np.full(NODES, -1)
        self.in_quota = np.array([*(job.is_long for job in self.jobs), False])  # the last: of a free node
        self.waiting: dict[bool, deque[Job]] = {True: deque(), False: deque()}
        self.events = [(job.asked_h, 0, job.number, 0) for job in self.jobs]
        self.events += [(at, 1, place, 0) for place, (at, *_) in enumerate(of.changes)]
        heapq.heapify(self.events)
        self.totals = dict.fromkeys(("hardware_long", "all_long", "hardware_short", "done_long", "done_short"), 0.0)
        self.waits: list[float] = []

    def run(self) -> dict[str, float]:
        """Interruptions, node-hours done, and the mean wait of short jobs."""
        while self.events and self.events[0][0] < self.of.end_h:
            self.fleet.now_h, kind, number, run = heapq.heappop(self.events)
            if kind == 0:
                self.waiting[self.jobs[number].is_long].append(self.jobs[number])
            elif kind == 1:
                self._change(*self.of.changes[number][1:])
            elif self.jobs[number].run == run:  # it was not interrupted
                self._stop(self.jobs[number], is_done=True)
            self._start()
        return {**self.totals, "wait_short_h": float(np.mean(self.waits))}

    def _start(self) -> None:
        for is_long in (True, False):
            queue = self.waiting[is_long]
            while queue and not (is_long and self.in_quota[self.taken].sum() + queue[0].count > self.quota):
                free = np.flatnonzero(self.up & (self.taken < 0))
                if len(free) < queue[0].count:
                    return
                job = queue.popleft()
                job.on, job.began_h = self.pick(self.fleet, free, job).tolist(), self.fleet.now_h
                self.taken[job.on] = job.number
                if not (is_long or job.run):
                    self.waits.append(self.fleet.now_h - job.asked_h)
                heapq.heappush(self.events, (self.fleet.now_h + job.left_h, 2, job.number, job.run))

    def _change(self, node: int, is_up: bool, failed: bool) -> None:  # noqa: FBT001 - a row of the trace
        self.up[node] = is_up
        if is_up or self.taken[node] < 0:
            return
        job = self.jobs[int(self.taken[node])]
        self._stop(job, is_done=False)
        self.waiting[job.is_long].appendleft(job)
        self.totals["all_long"] += job.is_long
        self.totals["hardware_long" if job.is_long else "hardware_short"] += failed

    def _stop(self, job: Job, *, is_done: bool) -> None:
        ran_h = self.fleet.now_h - job.began_h
        self.totals["done_long" if job.is_long else "done_short"] += job.count * ran_h
        job.left_h = 0.0 if is_done else job.left_h - ran_h + min(AGAIN_H, ran_h)
        self.taken[job.on], job.run = -1, job.run + 1


def compared(begin_h: float, end_h: float, load: tuple[float, float]) -> Figure:
    """Each way's totals, means over the drawn jobs, and changes against `random` with least and most."""
    of = trace(begin_h, end_h)
    found = {name: [Replay(of, pick, load, seed).run() for seed in range(SEEDS)] for name, pick in WAYS.items()}
    figure: Figure = {"seeds": SEEDS}
    for name, runs in found.items():
        means = {key: round(float(np.mean([run[key] for run in runs])), 2) for key in runs[0]}
        change = {}
        for key in ("hardware_long", "all_long"):
            ratios = [run[key] / other[key] - 1.0 for run, other in zip(runs, found["random"], strict=True)]
            change[key] = [round(float(value), 3) for value in (np.mean(ratios), min(ratios), max(ratios))]
        figure[name] = {**means, "change": change}
    return figure


def developed() -> Figure:
    """The first half, which the model was learnt on."""
    return compared(FIRST_H, SPLIT_H, (0.65, 0.20))


def judged() -> Figure:
    """The second half."""
    return compared(SPLIT_H, END_H, (0.65, 0.20))


def less_short_work() -> Figure:
    """The second half, with less short work to put on risky nodes."""
    return compared(SPLIT_H, END_H, (0.75, 0.10))


if __name__ == "__main__":
    main(judged, less_short_work, developed)
