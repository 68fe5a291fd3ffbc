"""The simulated hardware: what the provider keeps of it agrees with the cloud, and dates change no world."""

import numpy as np
import pytest

from provider_server.fleet.learning.hardware import label_of
from simulation.cloud.cloud import Cloud, build_cloud
from simulation.cloud.hardware import NODES, context_names, fleet, label
from simulation.cloud.scenario import load
from simulation.run.play import settings_of

START_HOUR = 168 * 2955


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    return build_cloud(load("quickstart"), np.random.default_rng(0))


def test_every_context_has_a_name_of_its_own_at_any_size() -> None:
    for contexts in (2, 3, 8, 20, 1000):
        names = context_names(contexts)
        assert len(set(names)) == len(names) == contexts


def test_the_map_numbers_contexts_as_leases_are_labelled(cloud: Cloud) -> None:
    kept = fleet(cloud, START_HOUR)
    names = context_names(cloud.scenario.contexts)
    assert [context.description for context in kept.contexts.contexts] == [f"{name}: {NODES} nodes" for name in names]
    assert [label_of(context.number) for context in kept.contexts.contexts] == [label(place) for place in range(8)]
    assert kept.until_hour == START_HOUR + 13 * 168


def test_nodes_have_levels_in_the_shares_of_the_leases(cloud: Cloud) -> None:
    kept = fleet(cloud, 0)
    for place, context in enumerate(kept.contexts.contexts):
        of_leases = cloud.leases.level[cloud.leases.context == place]
        for level in range(cloud.scenario.buildup_levels):
            share = np.mean([kept.levels[node] == level for node in context.nodes])
            assert abs(share - np.mean(of_leases == level)) <= 1 / NODES


def test_rates_of_the_map_lie_near_the_truth(cloud: Cloud) -> None:
    leases, hazard = cloud.leases, cloud.hazard
    hours = np.minimum(leases.end_h, 13 * 168.0) - leases.start_h
    rate = hazard.per_node_hour(leases.workload, leases.context, leases.level)
    expected = rate * leases.nodes * hazard.effective_hours(hours)
    for place, context in enumerate(fleet(cloud, 0).contexts.contexts):
        of = leases.context == place
        truth = 1000.0 * expected[of].sum() / (leases.nodes * hours)[of].sum()
        assert 0.8 * context.low < truth < 1.25 * context.high


@pytest.mark.parametrize("name", ["tiny", "quickstart", "standard"])
@pytest.mark.parametrize("start_week", [0, 5, 2955, 2956, 2967, 3001])
def test_dates_do_not_cut_a_run_into_more_epochs(name: str, start_week: int) -> None:
    scenario = load(name)
    usual, length = settings_of(scenario).weeks_per_epoch, settings_of(scenario, start_week).weeks_per_epoch
    weeks = range(start_week, start_week + scenario.weeks)
    assert len({week // length for week in weeks}) <= -(-scenario.weeks // usual)
    assert length >= usual == scenario.windows[-1]
