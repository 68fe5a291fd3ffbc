"""How many interruptions of long jobs placement by hazard spares, in a year of `standard`, at equal capacity.

Every week the leases that begin are dealt anew over the contexts and build-up levels where the cloud's own leases of
that week ran, each place with the node-hours that it had (`provider_server.analysis.placement.matched`). A place's rate
is that of the bundle in force, at epsilon 1, for the youngest leases: what the provider itself knows. Interruptions are
expected ones, by the true hazard. Long are jobs of at least two days, which are a fifth of all and take half of the
node-hours; nothing but hours tells them apart, and a job's hours are taken as known when it begins.

| way | places |
|---|---|
| `as_it_was` | where the cloud put them, whose choice knows no hazard |
| `by_bundle` | by rates of the bundle, noise and all |
| `by_truth` | by true rates: what placement by place alone can give at most |

Not modelled: data that is not everywhere, jobs that need nodes side by side, a queue: the year's leases ran when they
ran.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TypedDict

import numpy as np

from federation.protocol.bundle import Bundle
from federation.protocol.noise import NoiseSampler, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.analysis.placement import matched
from simulation.cloud.cloud import Cloud
from simulation.cloud.profiles import Floats, Ints
from simulation.cloud.scenario import load
from simulation.judge.user_loop import Trial, learning_weeks
from simulation.run.engine_options import Address, EngineKind
from simulation.run.engines import Engine, Kind
from simulation.studies.impact import bundles_of, trial_of
from simulation.studies.learning import live, releases, small
from simulation.studies.study import Quick, Seed, Seeds, Table, side_by_side

LONG_H = 48.0
WAYS = ("as_it_was", "by_bundle", "by_truth")


class Placed(TypedDict):
    """Expected interruptions of a way, and its node-hours beyond a place's capacity as a share of all."""

    long_jobs: float
    short_jobs: float
    over_capacity: float


def placed(trial: Trial, bundles: Sequence[Bundle]) -> Iterator[tuple[str, Placed]]:
    """What each way gives for the leases after the first window."""
    cloud = trial.cloud
    leases, weeks = cloud.leases, learning_weeks(cloud.scenario)
    levels = cloud.scenario.buildup_levels
    rows = np.flatnonzero(leases.start_h >= HOURS_PER_WEEK * weeks[0])
    own = leases.context[rows] * levels + leases.level[rows]
    hours = (leases.end_h - leases.start_h)[rows]
    week = (leases.start_h[rows] // HOURS_PER_WEEK).astype(np.int64)
    yield "as_it_was", _expected(cloud, rows, own, own, week)
    true = np.repeat(cloud.hazard.context, levels) * np.tile(cloud.hazard.level, cloud.scenario.contexts)
    period = np.searchsorted(weeks, week, side="right") - 1
    known = [_known(bundle, trial, levels) for bundle in bundles]
    for name, rates in (("by_bundle", known), ("by_truth", [true] * len(bundles))):
        place = np.empty_like(own)
        for each in np.unique(week):
            here = np.flatnonzero(week == each)
            takes = (hours * leases.nodes[rows])[here]
            capacity = np.bincount(own[here], takes, len(true)).astype(np.float64)
            place[here] = matched(hours[here], takes, rates[period[here[0]]], capacity)
        yield name, _expected(cloud, rows, place, own, week)


def _known(bundle: Bundle, trial: Trial, levels: int) -> Floats:
    """The rate of each place by a bundle, for the youngest leases; the mean of all where it has none."""
    youngest = min(one.band for one in bundle.hazards)
    told = {trial.places[str(one.context_level)]: one.rate for one in bundle.hazards if one.band == youngest}
    usual = float(np.mean(list(told.values())))
    pairs = (divmod(place, levels) for place in range(trial.cloud.scenario.contexts * levels))
    return np.array([told.get(pair, usual) for pair in pairs])


def _expected(cloud: Cloud, rows: Ints, place: Ints, own: Ints, week: Ints) -> Placed:
    leases, levels = cloud.leases, cloud.scenario.buildup_levels
    hours = (leases.end_h - leases.start_h)[rows]
    per_hour = cloud.hazard.per_node_hour(leases.workload[rows], place // levels, place % levels)
    failures = per_hour * leases.nodes[rows] * cloud.hazard.effective_hours(hours)
    is_long, takes = hours >= LONG_H, hours * leases.nodes[rows]
    cells = int(place.max()) + int(own.max()) + 1
    now, before = (np.bincount(week * cells + at, takes, (int(week.max()) + 1) * cells) for at in (place, own))
    return {
        "long_jobs": float(failures[is_long].sum()),
        "short_jobs": float(failures[~is_long].sum()),
        "over_capacity": float(np.maximum(now - before, 0.0).sum() / takes.sum()),
    }


def placement(
    engine: Engine, seeds: Sequence[int], sampler: NoiseSampler, *, quick: bool
) -> Iterator[tuple[str, Placed]]:
    """What each way gives, seed by seed; with `quick`, of a small cloud."""
    for of_seed in engine.map(_of_seed, (sampler, quick), seeds):
        yield from of_seed


def _of_seed(shared: tuple[NoiseSampler, bool], seed: int) -> list[tuple[str, Placed]]:
    sampler, quick = deepcopy(shared)  # as in `learning`
    year = live(small(load("standard")) if quick else load("standard"), seed)
    return [*placed(trial_of(year.cloud, seed), bundles_of(year, releases(year, 1.0, sampler)))]


class Summary(TypedDict):
    """Changes against `as_it_was` over clouds, as shares: means, and least and most of long jobs."""

    long_jobs: float
    long_jobs_least: float
    long_jobs_most: float
    short_jobs: float
    all_jobs: float
    over_capacity: float


def summary(found: Sequence[tuple[str, Placed]]) -> dict[str, Summary]:
    """By way, over seeds."""
    return {name: _mean(found, name) for name in WAYS[1:]}


def _mean(found: Sequence[tuple[str, Placed]], name: str) -> Summary:
    own, before = ([one for way, one in found if way == wanted] for wanted in (name, WAYS[0]))
    pairs = list(zip(own, before, strict=True))
    of_long = [one["long_jobs"] / was["long_jobs"] - 1.0 for one, was in pairs]
    return Summary(
        long_jobs=float(np.mean(of_long)),
        long_jobs_least=min(of_long),
        long_jobs_most=max(of_long),
        short_jobs=float(np.mean([one["short_jobs"] / was["short_jobs"] - 1.0 for one, was in pairs])),
        all_jobs=float(np.mean([_all(one) / _all(was) - 1.0 for one, was in pairs])),
        over_capacity=float(np.mean([one["over_capacity"] for one in own])),
    )


def _all(one: Placed) -> float:
    return one["long_jobs"] + one["short_jobs"]


def run(
    seed: Seed = 0,
    seeds: Seeds = 3,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Quick = False,
) -> Table:
    """Interruptions of long jobs that placement by hazard spares over a year of the standard scenario."""

    def clouds(on: Engine) -> Iterator[tuple[str, Placed]]:
        return placement(on, range(seed, seed + seeds), SystemSampler(), quick=quick)

    return Table(summary(side_by_side(engine, address, clouds, seeds * len(WAYS))))
