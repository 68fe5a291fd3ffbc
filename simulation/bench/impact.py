"""The impact of checks and hints over a year of `standard`, without running the protocol.

Releases are drawn as in `simulation.bench.learning`: with the protocol's noise, but without the protocol. Bundles are
composed from the findings, with names hashed to tokens. `pharoah-sim run` gives the same figures from the whole
protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, replace
from functools import cache
from hashlib import sha256
from typing import TypedDict

import numpy as np

from crypto.ids import Token
from federation.protocol.bundle import Bundle
from federation.protocol.noise import NoiseSampler
from provider_server.learning.bundle import compose
from provider_server.learning.findings import Findings, learn
from provider_server.rounds.release import Release
from simulation.bench.learning import EPSILONS, Year, labels_of, live, releases, small
from simulation.cloud.cloud import Cloud
from simulation.cloud.scenario import Scenario, load
from simulation.judge.histories import Histories, alone, with_bundle
from simulation.judge.impact import Impact, OwnHistory, impact, on_mismatch
from simulation.judge.user_loop import Costs, Trial, learning_weeks, world_of
from simulation.run.engines import Engine

STRICT, OWN, NO_ROOM = "_on_mismatch_only", "_with_own_history", "_with_own_history_little_room"
LITTLE_ROOM = Costs(room_share=0.05)
JOINED = "epsilon_1"  # at this level of privacy tenants join their own history, too
LEVELS = (
    *(f"{name}{way}" for name in EPSILONS for way in ("", STRICT)),
    *(f"{JOINED}{way}" for way in (OWN, NO_ROOM)),
    "own_history",
    "without_pharoah",
)
KEYS = tuple(field.name for field in fields(Impact))


@cache
def token(name: str) -> Token:
    """What a name is called in bundles."""
    return Token(sha256(name.encode()).digest()[: Token.length])


def trial_of(cloud: Cloud, seed: int) -> Trial:
    """A cloud whose tokens stand for the names that `bench_learning` gives its leases."""
    leases, scenario = cloud.leases, cloud.scenario
    contexts = {str(token(f"context {number}")): number for number in range(scenario.contexts)}
    pairs = [(context, level) for context in range(scenario.contexts) for level in range(scenario.buildup_levels)]

    def labels(row: int) -> Mapping[str, str]:
        workload, context, level = (int(column[row]) for column in (leases.workload, leases.context, leases.level))
        return {key: str(token(name)) for key, name in labels_of(scenario, 0, workload, context, level).items()}

    return Trial(cloud, labels, contexts, {str(token(f"context {c} level {n}")): (c, n) for c, n in pairs}, seed)


def bundles_of(year: Year, made: Sequence[Release]) -> list[Bundle]:
    """The bundles that the provider publishes from these releases, in time for each of the weeks of learning."""
    weeks = learning_weeks(year.cloud.scenario.weeks)
    return [compose(week, (), made[:week], with_tokens(learn(made[:week], year.leases))) for week in weeks]


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


def impacts(engine: Engine, seeds: int, sampler: NoiseSampler, *, quick: bool) -> Iterator[tuple[str, Impact]]:
    """The impact of each level of privacy, seed by seed; with `quick`, of a small cloud."""
    for of_seed in engine.map(_work, (sampler, quick), range(seeds)):
        yield from of_seed


def _work(shared: tuple[NoiseSampler, bool], seed: int) -> list[tuple[str, Impact]]:
    sampler, quick = deepcopy(shared)  # as in `learning`
    return [*_of_seed(small(load("standard")) if quick else load("standard"), seed, sampler)]


def _of_seed(scenario: Scenario, seed: int, sampler: NoiseSampler) -> Iterator[tuple[str, Impact]]:
    year = live(scenario, seed)
    trial = trial_of(year.cloud, seed)
    world, histories = world_of(trial), Histories(trial)
    for name, epsilon in EPSILONS.items():
        bundles = bundles_of(year, releases(year, epsilon, sampler))
        yield name, impact(world, bundles)
        yield f"{name}{STRICT}", impact(world, bundles, on_mismatch)
        if name == JOINED:
            yield f"{name}{OWN}", impact(world, bundles, own=OwnHistory(histories, with_bundle))
            yield f"{name}{NO_ROOM}", impact(world, bundles, costs=LITTLE_ROOM, own=OwnHistory(histories, with_bundle))
            yield "own_history", impact(world, bundles, own=OwnHistory(histories, alone))
    yield "without_pharoah", impact(world, [None] * len(learning_weeks(scenario.weeks)))


class Range(TypedDict):
    """A figure over clouds."""

    mean: float
    least: float
    most: float


def summary(found: Sequence[tuple[str, Impact]]) -> dict[str, dict[str, Range | None]]:
    """Mean, least and most over seeds of every figure, by level of privacy; None where no seed had it."""
    return {level: {key: _range(found, level, key) for key in KEYS} for level in LEVELS}


def _range(found: Sequence[tuple[str, Impact]], level: str, key: str) -> Range | None:
    values = [value for name, one in found if name == level and (value := asdict(one)[key]) is not None]
    if not values:
        return None
    return {"mean": float(np.mean(values)), "least": min(values), "most": max(values)}


def lines(found: Mapping[str, Mapping[str, Range | None]]) -> Iterator[str]:
    """A line per figure."""
    for level, figures in found.items():
        for key, figure in figures.items():
            shown = "n/a" if figure is None else "{mean:.3f} ({least:.3f} to {most:.3f})".format_map(figure)
            yield f"{level} {key}: {shown}"
