"""Contexts see how fast nodes are: planted slow hardware comes back, and where none is slow nothing is split."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.contexts import find_contexts
from provider_server.fleet.analysis.measured import STEP_SPREAD, STEP_TIME
from provider_server.fleet.analysis.selection import NodeTable, Selected
from provider_server.fleet.learning.benchmark_jobs import BadBenchmarks, BenchmarkJob, Pace, parse
from provider_server.fleet.learning.new_contexts import step_times
from provider_server.fleet.learning.performance import measures
from tests.support import changing
from tests.support.paced_fleets import KINDS, Condition, agreement, fleet, groups_of
from tests.support.planted_contexts import plant

UNSEEN = (101, 103)  # seeds that no rule was made by
MODEL = [Selected("model", 90.0, 0.005, 4.0)]


def job(node: str, seconds: float, run: int = 0, *, task: str = "decoder", context: int | str = 1) -> BenchmarkJob:
    return BenchmarkJob(
        f"{task} {node} {run}",
        context,
        1,
        0.0,
        0.1,
        "ok",
        "a",
        {"torch": "2.9"},
        {"node": node},
        Pace(task, seconds, 0.1),
    )


def a_fleet(models: Sequence[str], logs: Floats, failures: Floats | None = None) -> NodeTable:
    nodes = tuple(f"n{at:03}" for at in range(len(models)))
    failed = np.zeros(len(models)) if failures is None else failures
    hours, steps = np.full(len(models), 1000.0), {STEP_TIME: logs}
    return NodeTable(nodes, {}, {"model": tuple(models)}, failed, hours, steps)


# ---- planted fleets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS[1:])])
@pytest.mark.parametrize("slower", [0.08, pytest.param(0.15, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("noise", [0.01, pytest.param(0.05, marks=pytest.mark.nightly)])
def test_slow_hardware_is_a_context(kind: str, slower: float, noise: float) -> None:
    found = [agreement(Condition(400, 2, noise, slower, kind), seed)[0] for seed in UNSEEN]
    assert np.mean(found) >= 0.95


@pytest.mark.parametrize("nodes", [120, pytest.param(1200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("noise", [0.01, pytest.param(0.05, marks=pytest.mark.nightly)])
def test_where_no_hardware_is_slow_nothing_is_split(nodes: int, noise: float) -> None:
    assert [agreement(Condition(nodes, 2, noise, 0.0, "rack"), seed)[1] for seed in UNSEEN] == [1, 1]


def test_a_context_says_what_tells_it_apart() -> None:
    found, table, slow = groups_of(Condition(400, 2, 0.02, 0.15, "driver"), UNSEEN[0])
    slowest = table.categories["driver"][int(np.flatnonzero(slow)[0])]
    assert [one.description for one in found.contexts if f"driver {slowest}:" in one.description]


def test_groups_by_failures_are_split_by_speed_and_never_joined_nor_weighed_less() -> None:
    planted = plant(0, nodes=400, irrelevant=4)
    chosen = [Selected(name, gain, 0.005, 4.0) for name, gain in (("model", 60.0), ("driver", 40.0))]
    before = find_contexts(planted.table, chosen, None, np.random.default_rng(0))
    logs = np.where(planted.table.numbers["temperature"] > 68.0, 0.1, 0.0)
    logs += np.random.default_rng(1).normal(0.0, 0.01, len(logs))
    found = find_contexts(replace(planted.table, measures={STEP_TIME: logs}), chosen, None, np.random.default_rng(0))
    assert len(found.contexts) > len(before.contexts)
    assert all(len({before.of(node) for node in one.nodes}) == 1 for one in found.contexts)
    assert found.weights[:2] == pytest.approx(before.weights)
    assert found.features[2:] == ("temperature",)


def test_a_few_odd_nodes_and_a_name_for_each_node_make_no_context() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(0.0, 0.02, 300)
    logs[:4] += 1.0
    table = replace(a_fleet(["A"] * 300, logs), categories={"serial": tuple(f"s{at}" for at in range(300))})
    assert len(find_contexts(table, (), None, rng).contexts) == 1
    batch = ["odd"] * 4 + ["usual"] * 296
    assert len(find_contexts(replace(table, categories={"batch": tuple(batch)}), (), None, rng).contexts) == 1


def test_differences_that_do_not_matter_split_nothing_however_sure() -> None:
    logs = np.repeat([0.0, 0.02], 500) + np.random.default_rng(0).normal(0.0, 0.005, 1000)
    models = ["A"] * 500 + ["B"] * 500
    assert len(find_contexts(a_fleet(models, logs), (), None, np.random.default_rng(0)).contexts) == 1
    assert len(find_contexts(a_fleet(models, 3.0 * logs), (), None, np.random.default_rng(0)).contexts) == 2


def test_nodes_that_nobody_measured_go_where_their_hardware_goes() -> None:
    logs = np.repeat([0.0, 0.1], 20) + np.random.default_rng(0).normal(0.0, 0.01, 40)
    logs[[5, 25]] = np.nan
    found = find_contexts(a_fleet(["A"] * 20 + ["B"] * 20, logs), (), None, np.random.default_rng(0))
    assert {len(one.nodes) for one in found.contexts} == {20}
    assert found.of("n025") == found.of("n039") != found.of("n005")


# ---- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_is_slow_against_others_that_ran_the_same() -> None:
    nodes = [f"n{at}" for at in range(12)]
    jobs = [job(node, 0.2 * (1.1 if at < 3 else 1.0), task="decoder") for at, node in enumerate(nodes[:8])]
    jobs += [job(node, 5.0, task="diffusion") for node in nodes[6:]]  # other nodes, a longer job
    jobs += [job("n0", 0.2 * 3.0, run, task="decoder") for run in (1,)]  # another program ran beside it
    jobs += [job("n0", 0.22, run, task="decoder") for run in (2,)]
    found = measures(jobs, [*nodes, "idle"])[STEP_TIME]
    assert found[:3] == pytest.approx(np.log(1.1), abs=1e-6)
    assert found[3:12] == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(found[12])


def test_failed_runs_and_those_that_say_nothing_do_not_count() -> None:
    failed = changing.replace(job("n0", 9.0), outcome="hang")
    silent = changing.replace(job("n1", 9.0), pace=None)
    assert measures([failed, silent], ["n0", "n1"]) == {}
    assert set(measures([job("n0", 1.0)], ["n0"])) == {STEP_TIME, STEP_SPREAD}


@pytest.mark.parametrize("pace", [{"task": "a", "seconds_per_step": 0.0}, {"seconds_per_step": 1.0}, {"task": "a"}])
def test_a_pace_that_cannot_be_is_refused(pace: dict[str, object]) -> None:
    row = {"job": "1", "context": 1, "nodes": 1, "start_h": 0.0, "hours": 1.0, "outcome": "ok", "archetype": "a"}
    with pytest.raises(BadBenchmarks, match="line 1"):
        parse(json.dumps({**row, "pace": pace}).encode(), "made up")


# ---- new hardware ----------------------------------------------------------------------------------------------------


def test_new_hardware_has_a_step_time_on_the_day_it_arrives_with_jobs_and_without() -> None:
    rng = np.random.default_rng(0)
    models = ["A"] * 20 + ["B"] * 20 + ["C"] * 20
    found = find_contexts(a_fleet(models, np.full(60, np.nan), np.repeat([2.0, 8.0, 32.0], 20)), MODEL, None, rng)
    by_model = {model: f"context {found.of(f'n{at:03}')}" for model, at in (("A", 0), ("B", 20), ("C", 40))}
    seen = [job(f"n{at:03}", (0.2 if at < 20 else 0.26) * float(np.exp(rng.normal(0.0, 0.01)))) for at in range(40)]
    first = job("new", 0.16, context="gb300 west")
    steps = step_times([*seen, first], found)
    assert set(steps) == {*by_model.values(), "gb300 west"}
    assert steps[by_model["A"]].rate == pytest.approx(1.0, rel=0.04)  # the fleet's median node is one of these
    assert steps[by_model["B"]].rate / steps[by_model["A"]].rate == pytest.approx(1.3, rel=0.02)
    assert steps["gb300 west"].rate / steps[by_model["A"]].rate == pytest.approx(0.8, rel=0.03)
    assert steps["gb300 west"].basis == "benchmark jobs on 1 node"
    assert steps["gb300 west"].low < steps["gb300 west"].rate < steps["gb300 west"].high
    untried = steps[by_model["C"]]  # before its first job: what others take, and wide
    assert untried.basis.startswith("nearest of 3 known")
    assert untried.high / untried.low > 1.3
    assert step_times([], found) == {}


def test_planted_fleets_have_what_they_say() -> None:
    for kind in KINDS:
        table, slow = fleet(Condition(400, 1, 0.01, 0.08, kind), UNSEEN[0])
        assert 8 <= slow.sum() <= 240
        assert table.measures == {}
