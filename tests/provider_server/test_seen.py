"""What learning starts from: each pair's total as of the release that tells most of it, and just its job-weeks."""

from functools import cache

import numpy as np
import pytest

from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.learning.seen import NEWEST, Seen
from provider_server.rounds.release import Release
from simulation.bench.learning import Year, begun, noise_of, opened, relocated, small, with_next_round
from simulation.cloud.cloud import build_cloud, moved
from simulation.cloud.scenario import load
from tests.support.plans import InsecureSeeded

LEFT_AFTER = 1  # weeks


@cache
def a_year_in_which_all_jobs_of_a_pair_leave() -> tuple[Year, tuple[Release, ...], tuple[str, str]]:
    """Six weeks, opened each week; and the pair, by its tokens, that runs most and no more after the first week."""
    home = build_cloud(small(load("standard")), np.random.default_rng(3))
    leases, sampler, made = home.leases, InsecureSeeded(21), list[Release]()
    code, many = np.unique(leases.workload * home.scenario.contexts + leases.context, return_counts=True)
    workload, context = (int(one) for one in divmod(code[np.argmax(many)], home.scenario.contexts))
    late = (leases.start_h >= LEFT_AFTER * HOURS_PER_WEEK) & (leases.workload == workload)
    elsewhere = np.where(late & (leases.context == context), (context + 1) % home.scenario.contexts, leases.context)
    year = relocated(begun(home), moved(home, elsewhere, np.random.default_rng(4)))
    while (later := with_next_round(year)) is not None:
        year = later
        noise = noise_of(year.plans[-1], home.scenario.tenants, sampler)
        made.append(opened(year, year.plans[-1], noise, made))
    return year, tuple(made), (f"workload {workload}", f"context {context}")


def told(table: LifeTable, whole: LifeTable) -> Floats:
    """How much a total tells, in failures without noise, at the average rate."""
    expected = table.exposure_node_hours * whole.events.sum() / whole.exposure_node_hours.sum()
    return np.asarray(expected**2 / (expected + table.noise_variance), np.float64)


@pytest.mark.nightly
def test_a_pair_that_runs_no_more_keeps_the_total_of_the_time_when_it_did() -> None:
    year, made, (workload, context) = a_year_in_which_all_jobs_of_a_pair_leave()
    pairs, last = Seen.of(made, year.leases, None).pairs, made[-1].table("pairs")
    cell = pairs.levels("workload").index(workload), pairs.levels("context").index(context)
    held = [release.table("pairs").aligned(pairs.dimensions) for release in made]
    kept = next(place for place, table in enumerate(held) if table.events[cell] == pairs.events[cell])
    assert LEFT_AFTER - 1 <= kept < len(made) - 1  # what began before it left may run on for two weeks
    assert pairs.noise_variance[cell] == held[kept].noise_variance[cell] < last.noise_variance[cell]
    older = pairs.events != last.events
    assert np.all(told(pairs, last)[older] > NEWEST * (1.0 - 1e-9) * told(last, last)[older])
    assert np.mean(older) < 0.5


@pytest.mark.nightly
def test_exposure_of_a_total_is_that_of_its_own_job_weeks() -> None:
    year, made, _ = a_year_in_which_all_jobs_of_a_pair_leave()
    seen = Seen.of(made, year.leases, None)
    np.testing.assert_allclose(seen.by_pair(seen.node_hours.sum(axis=1)), seen.pairs.exposure_node_hours)
    assert not np.allclose(seen.pairs.exposure_node_hours, made[-1].table("pairs").exposure_node_hours)
