"""The impact of checks and hints over a year of `standard`, without running the protocol.

Releases are drawn as in `simulation.studies.learning`: with the protocol's noise, but without the protocol. Bundles are
composed from the findings, with names hashed to tokens. `pharoah-sim run` gives the same figures from the whole
protocol.

In a `closed_loop`, what is heeded is no longer observed: a job that went elsewhere fails there, and bundles and
histories after it know nothing else. Elsewhere failures that were avoided still count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from hashlib import sha256
from typing import Annotated, TypedDict

import numpy as np
import typer

from crypto.ids import Token
from federation.protocol.bundle import Bundle
from federation.protocol.noise import NoiseSampler, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.learning.bundle import compose
from provider_server.fleet.learning.findings import Findings, learn
from provider_server.fleet.release import Release
from simulation.cloud.cloud import Cloud, build_cloud, moved
from simulation.cloud.scenario import Scenario, load
from simulation.judge.histories import Histories, alone, with_bundle
from simulation.judge.impact import Impact, OwnHistory, check_all, impact, judged, on_mismatch, on_warning
from simulation.judge.user_loop import Costs, Trial, World, learning_weeks, world_of
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.studies.learning import (
    EPSILONS,
    Year,
    begun,
    labels_of,
    noise_of,
    opened,
    releases,
    relocated,
    small,
    with_next_round,
)
from simulation.studies.study import Only, Quick, Seed, Seeds, Table, by_seed, chosen

STRICT, OWN, NO_ROOM = "_on_mismatch_only", "_with_own_history", "_with_own_history_little_room"
CLOSED, ALONE, WITHOUT = "_closed_loop", "own_history", "without_pharoah"
LITTLE_ROOM = Costs(room_share=0.05)
JOINED = "epsilon_1"  # at this level of privacy tenants join their own history, too
LEVELS = (
    *(f"{name}{way}" for name in EPSILONS for way in ("", STRICT)),
    *(f"{JOINED}{way}" for way in (OWN, NO_ROOM, CLOSED, f"{CLOSED}{OWN}")),
    ALONE,
    WITHOUT,
)
KEYS = tuple(field.name for field in fields(Impact))


@cache
def token(name: str) -> Token:
    """What a name is called in bundles."""
    return Token(sha256(name.encode()).digest()[: Token.length])


def trial_of(cloud: Cloud, seed: int) -> Trial:
    """A cloud whose tokens stand for the names that the study `learning` gives its leases."""
    leases, scenario = cloud.leases, cloud.scenario
    contexts = {str(token(f"context {number}")): number for number in range(scenario.contexts)}
    pairs = [(context, level) for context in range(scenario.contexts) for level in range(scenario.buildup_levels)]

    def labels(row: int) -> Mapping[str, str]:
        workload, context, level = (int(column[row]) for column in (leases.workload, leases.context, leases.level))
        return {key: str(token(name)) for key, name in labels_of(scenario, 0, workload, context, level).items()}

    return Trial(cloud, labels, contexts, {str(token(f"context {c} level {n}")): (c, n) for c, n in pairs}, seed)


def bundles_of(year: Year, made: Sequence[Release], weeks: Sequence[int] | None = None) -> list[Bundle]:
    """The bundles that the provider publishes from these releases, in time for each of these weeks (of learning)."""
    weeks = learning_weeks(year.cloud.scenario) if weeks is None else weeks
    known = ((week, [one for one in made if one.plan.end_hour <= week * HOURS_PER_WEEK]) for week in weeks)
    return [compose(week, (), past, with_tokens(learn(past, year.leases))) for week, past in known]


def with_tokens(findings: Findings) -> Findings:
    """The same findings under the tokens of `trial_of`."""
    pairs = tuple(
        replace(
            pair,
            workload=str(token(pair.workload)),
            context=str(token(pair.context)),
            alternatives=tuple(str(token(name)) for name in pair.alternatives),
        )
        for pair in findings.pairs
    )
    rates = tuple(replace(rate, context_level=str(token(rate.context_level))) for rate in findings.rates)
    return replace(findings, pairs=pairs, rates=rates)


@dataclass(frozen=True)
class Asked:
    """Which levels; with `first`, only of jobs that begin under the first bundle; `quick`: of a small cloud."""

    levels: tuple[str, ...] = LEVELS
    first: bool = False
    quick: bool = False


def _work(shared: tuple[NoiseSampler, Asked], seed: int) -> list[tuple[str, Impact]]:
    """The impact at each level that is asked for."""
    sampler, asked = deepcopy(shared)  # as in `learning`
    scenario = small(load("standard")) if asked.quick else load("standard")
    return [*_of_seed(scenario, seed, sampler, asked)]


def _of_seed(scenario: Scenario, seed: int, sampler: NoiseSampler, asked: Asked) -> Iterator[tuple[str, Impact]]:
    cloud = build_cloud(scenario, np.random.default_rng(seed))
    trial = trial_of(cloud, seed)
    weeks = learning_weeks(scenario)[: 1 if asked.first else None]
    world, year = world_of(trial, len(weeks)), _lived(cloud, len(weeks))
    for name, epsilon in EPSILONS.items():
        own = [level for level in asked.levels if level.startswith(name) or (level == ALONE and name == JOINED)]
        heard = [level for level in own if CLOSED not in level]
        if heard:
            bundles = bundles_of(year, releases(year, epsilon, sampler), weeks)
            ways = _ways(world, bundles, Histories(trial))
            yield from ((level, ways[level.removeprefix(name)]()) for level in heard)
        for level in own:
            if CLOSED in level:
                yield level, heeded(world, weeks, sampler, with_history=OWN in level)
    if WITHOUT in asked.levels:
        yield WITHOUT, impact(world, [None] * len(weeks))


def _lived(cloud: Cloud, rounds: int) -> Year:
    year = begun(cloud)
    while len(year.plans) < rounds and (later := with_next_round(year)) is not None:
        year = later
    return year


def _ways(world: World, bundles: Sequence[Bundle], histories: Histories) -> Mapping[str, Callable[[], Impact]]:
    """What is made of the bundles of one level of privacy."""
    joined = OwnHistory(histories, with_bundle)
    return {
        "": lambda: impact(world, bundles),
        STRICT: lambda: impact(world, bundles, on_mismatch),
        OWN: lambda: impact(world, bundles, own=joined),
        NO_ROOM: lambda: impact(world, bundles, costs=LITTLE_ROOM, own=joined),
        ALONE: lambda: impact(world, bundles, own=OwnHistory(histories, alone)),
    }


def heeded(world: World, weeks: Sequence[int], sampler: NoiseSampler, *, with_history: bool) -> Impact:
    """The impact at the scenario's epsilon where what is avoided is counted no more, in bundles and own histories.

    Leases that go elsewhere under a bundle fail there, anew, and the next bundle is learnt from what happened so.
    """
    home, made, bundles = world.trial.cloud, list[Release](), list[Bundle]()
    year, rng = begun(home), np.random.default_rng([world.trial.seed, 4])
    context, placed = home.leases.context.copy(), check_all(world, [], on_warning)
    while len(bundles) < len(weeks) and (later := with_next_round(year)) is not None:
        year, plan = later, later.plans[-1]
        made.append(opened(year, len(made), noise_of(plan, home.scenario.tenants, sampler)))
        own = OwnHistory(Histories(trial_of(year.cloud, world.trial.seed)), with_bundle) if with_history else None
        earlier = [None] * len(bundles)
        bundles += bundles_of(year, made, [plan.end_hour // HOURS_PER_WEEK])
        now = check_all(world, [*earlier, bundles[-1]], on_warning, own=own)
        going = now.refused
        placed = replace(placed, context=np.where(going, now.context, placed.context), refused=placed.refused | going)
        context[world.rows[going]] = now.context[going]
        year = relocated(year, moved(year.cloud, context, rng))
    return judged(world, bundles, placed, Costs())


class Range(TypedDict):
    """A figure over clouds."""

    mean: float
    least: float
    most: float


def summary(found: Sequence[tuple[str, Impact]], levels: Sequence[str]) -> dict[str, dict[str, Range | None]]:
    """Mean, least and most over seeds of every figure, by level of privacy; None where no seed had it."""
    return {level: {key: _range(found, level, key) for key in KEYS} for level in levels}


def _range(found: Sequence[tuple[str, Impact]], level: str, key: str) -> Range | None:
    values = [value for name, one in found if name == level and (value := asdict(one)[key]) is not None]
    if not values:
        return None
    return {"mean": float(np.mean(values)), "least": min(values), "most": max(values)}


def run(
    seed: Seed = 0,
    seeds: Seeds = 5,
    only: Only = None,
    engine: EngineKind = Kind.PROCESSES,
    *,
    first: Annotated[
        bool, typer.Option("--first-bundle", help="Only of jobs that begin under the first bundle: much quicker.")
    ] = False,
    quick: Quick = False,
) -> Table:
    """Benefit of checks and hints over a year of the standard scenario: mean and range over clouds."""
    asked = Asked(chosen(only, LEVELS), first, quick)
    found = by_seed(engine, _work, (SystemSampler(), asked), range(seed, seed + seeds))
    return Table(summary(found, asked.levels))
