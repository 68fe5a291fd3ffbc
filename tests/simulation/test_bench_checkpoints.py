"""The benchmark of intervals between checkpoints: its replay by hand and by Daly's model, and that it runs."""

import json
from math import expm1

import numpy as np
import pytest
from typer.testing import CliRunner

from simulation.bench.checkpoints import WAYS, Replay, Steps, replay_of
from simulation.bench.impact import trial_of
from simulation.cli import app
from simulation.cloud.cloud import build_cloud
from simulation.cloud.scenario import load
from simulation.judge.hint_evaluation import watch
from simulation.judge.user_loop import Costs, world_of
from tests.support import schemas

COSTS = Costs(checkpoint_takes_h=0.25, notice_h=0.25, restart_h=0.25)


def steps(*of_leases: list[float]) -> Steps:
    lease = np.array([place for place, ages in enumerate(of_leases) for _ in ages], np.int64)
    ages = np.array([age for ages in of_leases for age in ages])
    return Steps.of(lease, ages, ages)


def test_steps_hold_until_the_next_one_of_the_same_lease() -> None:
    found = steps([0.0, 4.0], [0.0], [0.0, 1.0])
    leases = np.array([0, 0, 0, 1, 2, 2])
    ages = np.array([0.0, 3.9, 4.0, 50.0, 0.5, 9.0])
    assert found.now(leases, ages).tolist() == [0.0, 0.0, 4.0, 0.0, 0.0, 1.0]
    assert found.next_h(leases, ages).tolist() == [4.0, 4.0, np.inf, np.inf, 1.0, np.inf]


def test_a_lease_by_hand() -> None:
    """Ten hours on two nodes, saved every two, failed at 3 and, while it recovers, at 3.25; saves at 5.75 and 8."""
    found = Replay(np.array([2]), np.array([10.0]), steps([3.0, 3.25]), COSTS).fixed(2.0)
    assert found["checkpoints"] == pytest.approx((0.25 + 0.25 + 0.25) / 10)
    assert found["lost"] == pytest.approx(0.75 / 10)
    assert found["recovery"] == pytest.approx(0.75 / 10)
    assert found["wasted"] == pytest.approx(2.25 / 10)


def test_a_hint_that_asks_saves_what_would_be_lost() -> None:
    replay = Replay(np.array([1]), np.array([10.0]), steps([5.0]), COSTS)
    never = replay.waste(lambda leases, _: np.zeros(len(leases)))
    asked = replay.waste(lambda leases, _: np.zeros(len(leases)), steps([4.5]))
    assert [never["lost"], never["checkpoints"]] == pytest.approx([0.5, 0.0])
    assert [asked["lost"], asked["checkpoints"]] == pytest.approx([0.025, 0.025])


def test_long_leases_waste_what_dalys_model_says_and_least_at_his_interval() -> None:
    rng, rate, hours, costs = np.random.default_rng(3), 0.05, 2000.0, Costs(notice_h=0.0, restart_h=0.0)
    ages = [np.sort(rng.random(rng.poisson(rate * hours)) * hours).tolist() for _ in range(300)]
    replay = Replay(np.ones(300, np.int64), np.full(300, hours), steps(*ages), costs)
    for interval in (0.5, 1.4, 6.0):
        of_model = 1.0 - interval * rate / expm1(rate * (interval + costs.checkpoint_takes_h))
        assert replay.fixed(interval)["wasted"] == pytest.approx(of_model, rel=0.03)
        assert replay.fixed(interval)["wasted"] != pytest.approx(0.8 * of_model, rel=0.03)
    own = replay.waste(lambda leases, _: np.full(len(leases), rate))["wasted"]
    assert own < min(replay.fixed(interval)["wasted"] for interval in (0.5, 6.0))
    assert own == pytest.approx(replay.fixed(1.4)["wasted"], rel=0.02)


def test_leases_fail_as_often_as_their_true_hazard_says() -> None:
    cloud = build_cloud(load("tiny"), np.random.default_rng(1))
    world = world_of(trial_of(cloud, 1))
    rows, leases, hazard = world.rows, cloud.leases, cloud.hazard
    told = watch(world, [None] * 9, leases.context[rows])
    per_hour = hazard.per_node_hour(leases.workload[rows], leases.context[rows], leases.level[rows])
    expected = 100 * float((per_hour * leases.nodes[rows]) @ hazard.effective_hours(world.hours))
    made = [replay_of(world, told, COSTS, np.random.default_rng([2, number])) for number in range(100)]
    failures = sum(len(replay.failures.at) for replay, _ in made)
    risen = 100 * int(np.sum(told.failed_h < world.courses.hours))  # these fail the same way each time
    assert expected > 1000
    assert -6 * expected**0.5 < failures - expected < 6 * expected**0.5 + risen
    replay, strain = made[0]
    assert np.all(replay.failures.at <= world.hours[np.asarray(replay.failures.keys // 1e5, np.int64)])
    begun = strain.now(np.arange(len(rows)), np.zeros(len(rows)))
    assert begun == pytest.approx(leases.nodes[rows] * hazard.level[leases.level[rows]])


@pytest.mark.nightly
def test_the_benchmark_runs_and_its_figures_are_in_order() -> None:
    result = CliRunner().invoke(
        app, ["bench", "checkpoints", "--quick", "--seeds", "1", "--json"], catch_exceptions=False
    )
    found = schemas.held("pharoah-sim bench checkpoints", result.stdout)
    assert set(found) == set(WAYS)
    assert json.loads(result.stdout)["oracle"]["over_oracle"] == 0.0
    assert found["oracle"]["wasted"] < min(found[name]["wasted"] for name in ("best_fixed", "fixed_1h", "fixed_4h"))
    assert found["best_fixed"]["wasted"] <= min(found[name]["wasted"] for name in ("fixed_1h", "fixed_4h")) * 1.01
