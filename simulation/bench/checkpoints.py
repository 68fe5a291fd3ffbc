"""How much time jobs waste, by when they save: by their own hazard as bundles and hints tell it, and by other rules.

A year of `standard` with nodes that degrade (`simulation.judge.user_loop`), bundles at epsilon 1 and the hints that
follow from them. Every lease after the first window is replayed with failures by its true hazard, the same for all ways
of saving. Wasted are checkpoints, the work since the last one that a failure loses, and recovery: node-hours of these
over node-hours of leases.

| way | saves |
|---|---|
| `oracle` | at Daly's interval for the true hazard of the lease at that time |
| `estimate`, `upper` | at Daly's interval for what the bundle says of the lease, or its upper bound, and as hints say |
| `estimate_without_hints`, `upper_without_hints` | the same without hints |
| `one_rate` | at Daly's interval for the fleet's failures per node-hour in the warm-up, times the nodes of the lease |
| `best_fixed` | at the interval that wastes least on these very failures, of `TRIED_H` |
| `fixed_1h`, `fixed_4h` | every hour, every four hours |

A rate is looked up after each checkpoint and each recovery, and when a hint comes. Not modelled: jobs whose checkpoints
take longer than others', failures of other domains than infrastructure, jobs that move when a hint says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from federation.protocol.bundle import Bundle
from federation.protocol.noise import NoiseSampler
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.service_messages import Action, HintState
from simulation.bench.impact import bundles_of, trial_of
from simulation.bench.learning import live, releases, small
from simulation.cloud.profiles import Floats, Ints
from simulation.cloud.scenario import load
from simulation.judge.hint_evaluation import Told, watch
from simulation.judge.user_loop import Costs, World, learning_weeks, world_of
from simulation.run.engines import Engine
from tenant_client.advice.lease_hazard import LeaseHazard, hinted_per_hour, lease_hazard
from tenant_client.run.hook.checkpoints import interval_s

TRIED_H = tuple(float(hours) for hours in np.geomspace(0.5, 64.0, 29))
FIXED_H = {"fixed_1h": 1.0, "fixed_4h": 4.0}
SECONDS = 3600.0
WAYS = (
    "oracle",
    "estimate",
    "estimate_without_hints",
    "upper",
    "upper_without_hints",
    "one_rate",
    "best_fixed",
    *FIXED_H,
)


class Waste(TypedDict):
    """Shares of node-hours: wasted in all, and by what. `interval_h` is that of a fixed one, else null."""

    wasted: float
    checkpoints: float
    lost: float
    recovery: float
    interval_h: float | None


# ---- what happens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Steps:
    """What changes with the age of L leases: `value` (S,) holds from `at` (S,) hours on until the lease's next step."""

    keys: Floats
    at: Floats
    value: Floats

    @classmethod
    def of(cls, lease: Ints, at: Floats, value: Floats) -> "Steps":
        """From steps in any order; each lease should have one at 0."""
        order = np.lexsort((at, lease))
        return cls(_SPAN_H * lease[order] + at[order], at[order], value[order])

    def now(self, leases: Ints, age_h: Floats) -> Floats:
        """The value of some leases at their ages."""
        return self.value[np.searchsorted(self.keys, _SPAN_H * leases + age_h, side="right") - 1]

    def next_h(self, leases: Ints, age_h: Floats) -> Floats:
        """The age at each lease's next step after an age; infinity where there is none."""
        place = np.searchsorted(self.keys, _SPAN_H * leases + age_h, side="right")
        keys = np.append(self.keys, np.inf)[place]
        return np.where(keys < _SPAN_H * (leases + 1), keys - _SPAN_H * leases, np.inf)


_SPAN_H = 1e5  # longer than any lease
_NO_STEPS = Steps(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Replay:
    """L leases, each with its nodes (L,), its hours (L,), and the ages (F,) at which it fails."""

    nodes: Ints
    hours: Floats
    failures: Steps
    costs: Costs

    def waste(self, rate: Callable[[Ints, Floats], Floats], asks: Steps = _NO_STEPS) -> Waste:
        """With Daly's interval for a rate (failures per hour, by lease and age); saves at the steps of `asks`, too."""
        return self._waste(lambda leases, age_h: _daly_h(rate(leases, age_h), self.costs), asks, None)

    def fixed(self, interval_h: float) -> Waste:
        """With one interval for all."""
        return self._waste(lambda leases, _: np.full(len(leases), interval_h), _NO_STEPS, interval_h)

    def _waste(self, interval: Callable[[Ints, Floats], Floats], asks: Steps, interval_h: float | None) -> Waste:
        lost = dict.fromkeys(("checkpoints", "lost", "recovery"), 0.0)
        leases, since_h = np.arange(len(self.hours)), np.zeros(len(self.hours))
        failed_h = np.full(len(self.hours), -1.0)  # the newest failure
        takes_h, recovery_h = self.costs.checkpoint_takes_h, self.costs.recovery_h
        while len(leases):
            nodes, end, begun = self.nodes[leases], self.hours[leases], since_h[leases]
            fails_h = self.failures.next_h(leases, failed_h[leases])
            saves_h = np.minimum(begun + interval(leases, begun), asks.next_h(leases, begun))
            fails = fails_h < np.minimum(saves_h + takes_h, end)
            saves = ~fails & (saves_h < end)
            lost["checkpoints"] += float((nodes * (np.minimum(saves_h + takes_h, end) - saves_h))[saves].sum())
            lost["lost"] += float((nodes * np.maximum(fails_h - begun, 0.0))[fails].sum())
            again_h = np.minimum(fails_h + recovery_h, end)
            lost["recovery"] += float((nodes * (again_h - np.maximum(fails_h, begun)))[fails].sum())
            failed_h[leases[fails]] = fails_h[fails]
            since_h[leases] = np.where(fails, np.maximum(again_h, begun), saves_h + takes_h)
            leases = leases[(fails | saves) & (since_h[leases] < end)]
        shares = {name: value / float(self.nodes @ self.hours) for name, value in lost.items()}
        checkpoints, work, recovery = shares.values()
        return {
            "wasted": checkpoints + work + recovery,
            "checkpoints": checkpoints,
            "lost": work,
            "recovery": recovery,
            "interval_h": interval_h,
        }


_RATES = np.geomspace(1e-7, 10.0, 4000)


def _daly_h(rate: Floats, costs: Costs) -> Floats:
    """The client's own interval, by a table of rates."""
    table = [interval_s(SECONDS * costs.checkpoint_takes_h, rate) / SECONDS for rate in _RATES.tolist()]
    return np.where(rate > 0, np.exp(np.interp(np.log(np.maximum(rate, 1e-9)), np.log(_RATES), np.log(table))), np.inf)


def replay_of(world: World, told: Told, costs: Costs, rng: np.random.Generator) -> tuple[Replay, Steps]:
    """The leases of a world with failures by their true hazard, and the sums of level factors of their nodes.

    Nodes that rose fail as `told` has it, and are replaced; the others fail at random, at the level of their lease.
    """
    cloud, rows, courses = world.trial.cloud, world.rows, world.courses
    leases, factors = cloud.leases, cloud.hazard.level
    lease, own = courses.lease - rows[0], np.minimum(courses.level, len(factors) - 1)
    first_rise_h, gone_h = courses.rise_h[:, 0], np.minimum(told.failed_h, courses.hours)
    expected = _rate(world) * leases.nodes[rows] * factors[leases.level[rows]]
    total = cloud.hazard.effective_hours(world.hours)
    count = rng.poisson(expected * total)
    which = np.repeat(np.arange(len(rows)), count)
    at = cloud.hazard.age_h(rng.random(len(which)) * total[which])
    node = np.searchsorted(lease, which) + rng.integers(0, leases.nodes[rows][which])
    kept = ~((first_rise_h[node] <= at) & (at < gone_h[node]))
    risen = np.flatnonzero(told.failed_h < courses.hours)
    failing = np.concatenate([which[kept], lease[risen]])
    ages = np.concatenate([at[kept], told.failed_h[risen]])
    steps = [(np.arange(len(rows)), np.zeros(len(rows)), leases.nodes[rows] * factors[leases.level[rows]])]
    for step in range(courses.rise_h.shape[1]):
        now = np.minimum(own + step + 1, len(factors) - 1)
        rises = np.flatnonzero(courses.rise_h[:, step] < gone_h)
        more = factors[now] - factors[np.minimum(own + step, len(factors) - 1)]
        steps.append((lease[rises], courses.rise_h[rises, step], more[rises]))
        back = rises[told.failed_h[rises] < courses.hours[rises]]
        steps.append((lease[back], told.failed_h[back], -more[back]))
    strain = _summed(*(np.concatenate(columns) for columns in zip(*steps, strict=True)))
    failures = Steps.of(failing, ages, ages)
    return Replay(leases.nodes[rows], world.hours, failures, costs), strain


def _rate(world: World) -> Floats:
    """Failures per node-hour of each lease at level factor and band factor 1."""
    cloud, rows = world.trial.cloud, world.rows
    workload, context, hazard = cloud.leases.workload[rows], cloud.leases.context[rows], cloud.hazard
    rate: Floats = hazard.base_per_node_hour * hazard.workload[workload] * hazard.context[context]
    return rate * hazard.mismatch[workload, context]


def _summed(lease: Ints, at: Floats, change: Floats) -> Steps:
    """Steps to the sums of all changes so far of each lease; the first of each is at 0."""
    order = np.lexsort((at, lease))
    lease, at, total = lease[order], at[order], np.cumsum(change[order])
    first = np.searchsorted(lease, lease)
    return Steps.of(lease, at, total - (total - change[order])[first])


# ---- what is known -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """What tenants know of L leases: rates (L, bands) by the bundle at their start, and hints as steps (NaN: none)."""

    edges_h: Floats
    estimate: Floats
    upper: Floats
    hinted: Steps
    asks: Steps

    def rate(self, *, upper: bool, hints: bool) -> Callable[[Ints, Floats], Floats]:
        """Failures per hour by lease and age."""
        table = self.upper if upper else self.estimate

        def at(leases: Ints, age_h: Floats) -> Floats:
            known: Floats = table[leases, np.searchsorted(self.edges_h, age_h, side="right") - 1]
            found: Floats = np.fmax(known, self.hinted.now(leases, age_h)) if hints else known
            return found

        return at


def known_of(world: World, bundles: Sequence[Bundle], told: Told) -> Known:
    """By the bundle in force when each lease began, and the hints about it."""
    leases, rows = world.trial.cloud.leases, world.rows
    starts = HOURS_PER_WEEK * np.array(learning_weeks(world.trial.cloud.scenario))
    period = np.searchsorted(starts, leases.start_h[rows], side="right") - 1
    edges = np.array(bundles[0].band_edges_hours[:-1])
    found: dict[tuple[int, ...], LeaseHazard | None] = {}
    rates = np.zeros((2, len(rows), len(edges)))
    factor = np.ones(len(rows))
    for place, row in enumerate(rows.tolist()):
        key = int(period[place]), int(leases.workload[row]), int(leases.context[row]), int(leases.level[row])
        if key not in found:
            found[key] = lease_hazard(bundles[key[0]], world.trial.labels(row), 1)
        if (one := found[key]) is not None:
            nodes, factor[place] = int(leases.nodes[row]), one.factor
            rates[:, place] = [[nodes * of(edge) for edge in edges.tolist()] for of in (one.at, one.upper_at)]
    return Known(edges, rates[0], rates[1], *_hints(world, told, factor))


def _hints(world: World, told: Told, factor: Floats) -> tuple[Steps, Steps]:
    """Rates while hints stand, and when a hint asks for a checkpoint."""
    count = len(world.rows)
    steps = [(place, 0.0, np.nan) for place in range(count)]
    asks = []
    for row, said in told.hints.items():
        place = int(row - world.rows[0])
        for hint in said:
            is_over = hint.state is HintState.CLEARED
            rate = np.nan if is_over else factor[place] * hinted_per_hour(hint.probability, hint.within_hours)
            steps.append((place, float(hint.at_h), rate))
            asks += [(place, float(hint.at_h))] * (not is_over and hint.action in (Action.CHECKPOINT, Action.MOVE))
    lease, at, value = (np.array(column) for column in zip(*steps, strict=True))
    asking = np.array(asks).reshape(-1, 2)
    return Steps.of(lease, at, value), Steps.of(asking[:, 0].astype(np.int64), asking[:, 1], asking[:, 1])


# ---- the ways of saving --------------------------------------------------------------------------------------------


def wastes(world: World, bundles: Sequence[Bundle], costs: Costs) -> Iterator[tuple[str, Waste]]:
    """The waste of each way on one world."""
    told = watch(world, bundles, world.trial.cloud.leases.context[world.rows])
    replay, strain = replay_of(world, told, costs, np.random.default_rng([world.trial.seed, 2]))
    hazard, rate, known = world.trial.cloud.hazard, _rate(world), known_of(world, bundles, told)

    def true_rate(leases: Ints, age_h: Floats) -> Floats:
        band = hazard.band[np.searchsorted(hazard.edges_h, age_h, side="right") - 1]
        true: Floats = rate[leases] * band * strain.now(leases, age_h)
        return true

    yield "oracle", replay.waste(true_rate)
    for name, upper in (("estimate", False), ("upper", True)):
        yield name, replay.waste(known.rate(upper=upper, hints=True), known.asks)
        yield f"{name}_without_hints", replay.waste(known.rate(upper=upper, hints=False))
    of_fleet = _fleet_rate(world)
    yield "one_rate", replay.waste(lambda leases, _: np.asarray(of_fleet * replay.nodes[leases], np.float64))
    yield "best_fixed", min((replay.fixed(hours) for hours in TRIED_H), key=lambda one: one["wasted"])
    for name, hours in FIXED_H.items():
        yield name, replay.fixed(hours)


def _fleet_rate(world: World) -> float:
    """Infrastructure failures per node-hour of leases that began in the warm-up, as its true hazard expects them."""
    cloud, before = world.trial.cloud, np.arange(world.rows[0])
    leases, hours = cloud.leases, (cloud.leases.end_h - cloud.leases.start_h)[before]
    per_hour = cloud.hazard.per_node_hour(leases.workload[before], leases.context[before], leases.level[before])
    nodes = leases.nodes[before]
    return float((per_hour * nodes) @ cloud.hazard.effective_hours(hours) / (nodes @ hours))


def checkpoints(engine: Engine, seeds: int, sampler: NoiseSampler, *, quick: bool) -> Iterator[tuple[str, Waste]]:
    """The waste of each way, seed by seed; with `quick`, of a small cloud."""
    for of_seed in engine.map(_of_seed, (sampler, quick), range(seeds)):
        yield from of_seed


def _of_seed(shared: tuple[NoiseSampler, bool], seed: int) -> list[tuple[str, Waste]]:
    sampler, quick = deepcopy(shared)  # as in `learning`
    year = live(small(load("standard")) if quick else load("standard"), seed)
    bundles = bundles_of(year, releases(year, 1.0, sampler))
    return [*wastes(world_of(trial_of(year.cloud, seed)), bundles, Costs())]


class Summary(TypedDict):
    """Means over clouds of `Waste`; `over_oracle` is the waste over the oracle's, less 1, with least and most."""

    wasted: float
    checkpoints: float
    lost: float
    recovery: float
    interval_h: float | None
    over_oracle: float
    over_oracle_least: float
    over_oracle_most: float


def summary(found: Sequence[tuple[str, Waste]]) -> dict[str, Summary]:
    """By way of saving, over seeds."""
    return {name: _mean(found, name) for name in dict(found)}


def _mean(found: Sequence[tuple[str, Waste]], name: str) -> Summary:
    own, best = ([one for way, one in found if way == wanted] for wanted in (name, "oracle"))
    over = [one["wasted"] / oracle["wasted"] - 1.0 for one, oracle in zip(own, best, strict=True)]
    hours = [one["interval_h"] for one in own if one["interval_h"] is not None]
    return Summary(
        wasted=float(np.mean([one["wasted"] for one in own])),
        checkpoints=float(np.mean([one["checkpoints"] for one in own])),
        lost=float(np.mean([one["lost"] for one in own])),
        recovery=float(np.mean([one["recovery"] for one in own])),
        interval_h=float(np.mean(hours)) if hours else None,
        over_oracle=float(np.mean(over)),
        over_oracle_least=min(over),
        over_oracle_most=max(over),
    )


def lines(found: Mapping[str, Summary]) -> Iterator[str]:
    """A line for each way."""
    for name, one in found.items():
        every = f" (every {one['interval_h']:.3g} h)" if one["interval_h"] else ""
        yield (
            f"{name}{every}: {one['wasted']:.3%} wasted: checkpoints {one['checkpoints']:.3%}, lost work"
            f" {one['lost']:.3%}, recovery {one['recovery']:.3%}; {one['over_oracle']:+.1%} to the oracle"
            f" ({one['over_oracle_least']:+.1%} to {one['over_oracle_most']:+.1%})"
        )
