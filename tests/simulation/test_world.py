"""Faults of nodes: what the generator promises, what the judge tells apart, and both beside a real fleet."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from federation.protocol.causes import CAUSES, Domain
from provider_server.fleet.analysis.recurrent import spells
from simulation.cloud.cloud import Cloud, build_cloud
from simulation.cloud.node_faults import Use, draw_faults, fitted, fleet_outages
from simulation.cloud.node_places import placed
from simulation.cloud.profiles import Floats, Ints
from simulation.cloud.scenario import load
from simulation.judge.world import figures, ks_distance, recency, weibull_shape
from simulation.studies import world

TRACE = Path(__file__).resolve().parents[3] / "shared/data/infinitehbd/fault_trace.json.gz"
needs_trace = pytest.mark.skipif(not TRACE.exists(), reason=f"../shared/data/infinitehbd/{TRACE.name} is missing")
PLAIN = world.exponential()
INFRASTRUCTURE = np.array([cause.domain is Domain.INFRASTRUCTURE for cause in CAUSES.values()])


def _cloud(name: str, seed: int, *, node_faults: bool) -> Cloud:
    scenario = msgspec.structs.replace(load(name), node_faults=node_faults)
    return build_cloud(scenario, np.random.default_rng(seed))


def test_no_node_fails_while_it_is_down_and_every_fault_lies_in_its_stretch() -> None:
    node = np.array([0, 0, 1, 2])
    use = Use(node, np.zeros(4, np.int64), np.array([0.0, 600.0, 0.0, 300.0]), np.array([500.0, 900.0, 900.0, 900.0]))
    often = msgspec.structs.replace(fitted(), returning=0.6, together=0.5)

    def at_h(row: Ints, uniform: Floats) -> Floats:
        spread: Floats = use.start_h[row] + uniform * (use.end_h - use.start_h)[row]
        return spread

    seen = 0
    for seed in range(50):
        found = draw_faults(often, use, np.full(4, 5.0), at_h, np.random.default_rng(seed))
        assert np.all((use.start_h[found.row] <= found.at_h) & (found.at_h < use.end_h[found.row]))
        same = use.node[found.row][1:] == use.node[found.row][:-1]
        assert np.all(found.at_h[1:][same] >= found.back_h[:-1][same])
        seen += len(found.row)
    assert seen > 200


def test_what_comes_back_and_together_does_not_change_how_many_faults_there_are() -> None:
    at_once = msgspec.structs.replace(
        fitted(), down_most_h=1e-6, return_median_h=1.0, return_log_sd=0.5, lemon_variance=0.0, wave_variance=0.0
    )
    counts = [fleet_outages(at_once, 400, 4000.0, np.random.default_rng(seed)).height for seed in range(60)]
    asked = 400 * 4000.0 * at_once.per_node_hour
    assert np.mean(counts) == pytest.approx(asked, rel=0.05)
    assert np.var(counts) > 1.5 * asked  # in clusters: not a Poisson count


def test_faults_that_come_together_are_of_one_kind_in_one_group() -> None:
    together = msgspec.structs.replace(PLAIN, together=1.0)
    found = fleet_outages(together, 40, 2000.0, np.random.default_rng(2))
    events = found.group_by("start_h").agg(pl.col("node").n_unique(), pl.col("kind").n_unique())
    assert events["node"].to_numpy().mean() > 2
    assert events["kind"].max() == 1


def test_an_exponential_fleet_has_shapes_of_one_and_no_recency() -> None:
    found = spells(
        fleet_outages(PLAIN, 2000, 8000.0, np.random.default_rng(3)),
        [f"node-{number}" for number in range(2000)],
        0.0,
        8000.0,
        world.HARDWARE,
    )
    told = figures(found)
    assert told.fleet_gap_cv == pytest.approx(1.0, abs=0.1)
    assert told.fleet_gap_shape == pytest.approx(1.0, abs=0.05)
    assert told.node_gap_shape == pytest.approx(1.0, abs=0.15)
    faults, days = recency(found, 30)
    assert faults == pytest.approx(days, rel=0.15)


def test_shapes_and_distances_agree_with_scipy() -> None:
    from scipy import stats

    rng = np.random.default_rng(4)
    one, other = rng.weibull(0.6, 400), rng.weibull(0.8, 300)
    assert ks_distance(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic)
    shape, _, _ = stats.weibull_min.fit(np.maximum(one, 0.01), floc=0)
    assert weibull_shape(one, np.ones(400, bool)) == pytest.approx(shape, rel=1e-3)
    cut = np.minimum(one, 1.0)
    assert weibull_shape(cut, one <= 1.0) == pytest.approx(0.6, abs=0.12)
    assert weibull_shape(cut, np.ones(400, bool)) > 0.75  # what censoring is for


def test_nodes_of_leases_are_free_when_they_are_given_and_of_one_context() -> None:
    leases = _cloud("tiny", 1, node_faults=False).leases
    places = placed(leases, 336.0)
    use = places.use
    same = use.node[1:] == use.node[:-1]
    assert np.all(leases.start_h[places.lease[1:]][same] >= leases.end_h[places.lease[:-1]][same])
    assert np.array_equal(np.bincount(places.lease, minlength=len(leases.nodes)), leases.nodes)
    assert all(len(set(use.group[use.node == node])) == 1 for node in set(use.node.tolist()))


def test_histories_of_nodes_leave_leases_as_they_are_and_failures_nearly_as_many() -> None:
    quiet = msgspec.structs.replace(load("quickstart"), failures_per_week=load("regional").failures_per_week)
    quiet = msgspec.structs.replace(quiet, jobs_per_week=2000)
    without, with_ = (
        build_cloud(msgspec.structs.replace(quiet, node_faults=on), np.random.default_rng(7)) for on in (False, True)
    )
    assert np.array_equal(without.leases.start_h, with_.leases.start_h)
    assert without.struck is None
    assert with_.struck is not None
    own = INFRASTRUCTURE[with_.failures.reason]
    assert np.array_equal(with_.struck.node >= 0, own)
    assert np.array_equal(np.isfinite(with_.struck.back_h), own)
    usual = INFRASTRUCTURE[without.failures.reason].sum()
    assert 0.6 * usual < own.sum() < 1.3 * usual
    places = placed(with_.leases, with_.scenario.weeks * 168.0)
    pairs = set(zip(places.lease.tolist(), places.use.node.tolist(), strict=True))
    struck = zip(with_.failures.lease[own].tolist(), with_.struck.node[own].tolist(), strict=True)
    assert all(pair in pairs for pair in struck)


@needs_trace
def test_the_fitted_fleet_is_like_the_half_it_was_fitted_to_and_an_exponential_one_is_not() -> None:
    drawn = list(world.steps("first", 60, 0, 5_000))
    rows = {row.name: row for row in world.compared(TRACE, "first", drawn).rows}
    assert rows["fitted"].off == ()
    assert rows["fitted"].outside == ()
    assert set(rows["exponential"].off) == {*world.TOLERANCES, *world.KS_TOLERANCES}
    assert set(rows["exponential"].outside) == set(world.TOLERANCES)


@needs_trace
@pytest.mark.parametrize(
    ("without", "missed"),
    [
        ({"returning": 0.0}, {"node_gap_shape", "ratio_7_days"}),
        ({"wave_variance": 0.0, "together": 0.0}, {"fleet_gap_cv", "fleet_gap_shape"}),
    ],
)
def test_each_part_of_the_fitted_fleet_is_needed(without: dict[str, float], missed: set[str]) -> None:
    process = msgspec.structs.replace(fitted(), **without)
    measured, classes = world.trace(TRACE, "first")
    drawn = [world.fleet(process, "first", (6_000, draw)) for draw in range(60)]
    assert missed <= set(world.row("altered", drawn, measured, classes).off)


@needs_trace
def test_nodes_fail_after_repairs_as_in_the_half_that_was_not_fitted() -> None:
    of_nodes = {"node_gap_shape", "ratio_7_days", "ratio_30_days", "ks_node_gaps"}
    rows = {row.name: row for row in world.compared(TRACE, "second", list(world.steps("second", 60, 0, 7_000))).rows}
    assert not of_nodes & set(rows["fitted"].off)
    assert of_nodes <= set(rows["exponential"].off)


@needs_trace
@pytest.mark.nightly
def test_the_shipped_cloud_lacks_recency_and_has_it_with_histories_and_reasons_are_those_of_acme() -> None:
    of_nodes = {"node_gap_shape", "ratio_7_days", "ratio_30_days"}
    drawn = [each for each in world.steps("second", 1, 4, 9_000) if each[0].startswith("regional")]
    rows = {row.name: row for row in world.compared(TRACE, "second", drawn).rows}
    assert of_nodes <= set(rows["regional"].off)
    assert not of_nodes & set(rows["regional_histories"].off)
    assert not {"reasons_from_acme", "lost_time_from_acme", "classes_from_trace"} & set(rows["regional"].off)


@needs_trace
def test_gaps_are_over_their_mean() -> None:
    measured, classes = world.trace(TRACE, "first")
    assert measured.gaps.fleet.mean() == pytest.approx(1.0)
    assert measured.gaps.node.mean() == pytest.approx(1.0)
    assert classes == {"gpu": 59, "network": 48, "node": 31}


def test_too_few_faults_are_refused() -> None:
    empty = spells(fleet_outages(PLAIN, 2, 1.0, np.random.default_rng(0)), ["node-0", "node-1"], 0.0, 1.0)
    with pytest.raises(ValueError, match="too few faults"):
        figures(empty)
