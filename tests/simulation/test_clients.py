"""Tenants whose rates and bursts follow published clients."""

import msgspec
import numpy as np
import pytest
from scipy import stats

from simulation.cloud.cloud import build_cloud
from simulation.cloud.profiles import draw_clients, published
from simulation.cloud.scenario import load


def test_shares_and_bursts_have_the_laws_that_the_table_says_and_are_not_those_of_zipf() -> None:
    scenario = msgspec.structs.replace(load("standard"), tenants=4_000)
    drawn = {
        measured: draw_clients(msgspec.structs.replace(scenario, measured_clients=measured), np.random.default_rng(3))
        for measured in (False, True)
    }
    assert sum(one.share for one in drawn[True]) == pytest.approx(1.0)
    assert [one.share for one in drawn[True]] == sorted((one.share for one in drawn[True]), reverse=True)
    laws, chance = published(), {}
    for measured, those in drawn.items():
        rates, bursts = np.log([one.share for one in those]), np.log([one.burstiness for one in those])
        scaled = (rates - rates.mean()) / laws.rate_sigma, (bursts - np.log(laws.week_median)) / laws.week_sigma
        chance[measured] = [stats.kstest(one, "norm").pvalue for one in scaled]
    assert min(chance[True]) > 1e-9
    assert max(chance[False]) < 1e-9


def test_the_rest_of_a_tenant_stays_as_it_is() -> None:
    shipped, measured = (
        draw_clients(msgspec.structs.replace(load("quickstart"), measured_clients=on), np.random.default_rng(5))
        for on in (False, True)
    )
    for one, other in zip(shipped, measured, strict=True):
        assert (one.workloads, one.context_shares, one.median_h) == (
            other.workloads,
            other.context_shares,
            other.median_h,
        )


def test_a_cloud_of_measured_clients_is_built() -> None:
    scenario = msgspec.structs.replace(load("tiny"), measured_clients=True)
    cloud = build_cloud(scenario, np.random.default_rng(1))
    assert {lease.tenant for week in range(scenario.weeks) for lease in cloud.week(week).leases}
