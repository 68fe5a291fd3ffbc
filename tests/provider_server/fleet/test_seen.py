"""What learning starts from: sums of disjoint windows, for each pair over those that tell most of it."""

import operator
from functools import cache, reduce

import numpy as np
import pytest

from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.learning.seen import Seen
from provider_server.fleet.release import Release
from simulation.cloud.cloud import build_cloud, moved
from simulation.cloud.scenario import load
from simulation.run.play import settings_of
from simulation.studies.learning import Year, begun, next_window, noise_of, opened, relocated, small, with_next_round
from tests.support.plans import InsecureSeeded

pytestmark = pytest.mark.nightly


@cache
def a_year_in_which_all_jobs_of_a_pair_leave() -> tuple[Year, tuple[Release, ...], tuple[str, str]]:
    """The pair, by its tokens, runs most in the first window, and hardly at all after it."""
    home = build_cloud(small(load("standard")), np.random.default_rng(3))
    leases, sampler = home.leases, InsecureSeeded(21)
    code, many = np.unique(leases.workload * home.scenario.contexts + leases.context, return_counts=True)
    workload, context = (int(one) for one in divmod(code[np.argmax(many)], home.scenario.contexts))
    late = (leases.start_h >= next_window(settings_of(home.scenario), 0)[1]) & (leases.workload == workload)
    elsewhere = np.where(late & (leases.context == context), (context + 1) % home.scenario.contexts, leases.context)
    year = relocated(begun(home), moved(home, elsewhere, np.random.default_rng(4)))
    made: list[Release] = []
    while (later := with_next_round(year)) is not None:
        year = later
        made.append(opened(year, len(made), noise_of(year.plans[-1], home.scenario.tenants, sampler)))
    return year, tuple(made), (f"workload {workload}", f"context {context}")


def test_a_pair_that_runs_no_more_keeps_the_total_of_the_window_in_which_it_did() -> None:
    year, made, (workload, context) = a_year_in_which_all_jobs_of_a_pair_leave()
    pairs = Seen.of(made, year.leases, None).pairs
    cell = pairs.levels("workload").index(workload), pairs.levels("context").index(context)
    tables = [release.table("pairs").aligned(pairs.dimensions) for release in made]
    assert len(tables) > 2
    assert pairs.events[cell] == tables[0].events[cell]
    assert pairs.noise_variance[cell] == tables[0].noise_variance[cell]


def test_no_total_tells_less_than_all_windows_together_would() -> None:
    year, made, _ = a_year_in_which_all_jobs_of_a_pair_leave()
    pairs = Seen.of(made, year.leases, None).pairs
    whole = reduce(operator.add, (release.table("pairs") for release in made)).aligned(pairs.dimensions)
    rate = whole.events.sum() / whole.exposure_node_hours.sum()
    kept, all_of_them = told(pairs, rate), told(whole, rate)
    assert np.all(kept >= all_of_them * (1.0 - 1e-9))
    assert 0.2 < np.mean(kept > all_of_them * 1.01) < 0.8


def told(table: LifeTable, rate: float) -> Floats:
    """How much a total tells, in failures without noise, where this many fail an hour."""
    expected = rate * table.exposure_node_hours
    return np.asarray(expected**2 / np.maximum(expected + table.noise_variance, 1e-12), np.float64)


def test_exposure_of_a_total_is_that_of_its_own_units() -> None:
    year, made, _ = a_year_in_which_all_jobs_of_a_pair_leave()
    seen = Seen.of(made, year.leases, None)
    np.testing.assert_allclose(seen.by_pair(seen.node_hours.sum(axis=1)), seen.pairs.exposure_node_hours)
    whole = sum(release.table("pairs").aligned(seen.pairs.dimensions).exposure_node_hours for release in made)
    assert not np.allclose(seen.pairs.exposure_node_hours, whole)
