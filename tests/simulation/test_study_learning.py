"""The study of learning lives the same year twice, and its noise is that of the law and scale."""

from functools import cache
from types import MappingProxyType

import numpy as np
import pytest

from federation.protocol.causes import CAUSES, Domain
from provider_server.fleet.learning.findings import learn
from simulation.cloud.scenario import load
from simulation.studies.learning import Year, judge, live, releases, settings_for, small, true_rates
from tests.support.factories import InsecureSilence
from tests.support.plans import InsecureSeeded

QUICK = small(load("standard"))


@cache
def a_year() -> Year:
    return live(QUICK, 0)


@pytest.mark.nightly
def test_a_seed_is_a_year_and_another_seed_is_another() -> None:
    again, other = live(QUICK, 0), live(QUICK, 1)
    assert again.plans == a_year().plans
    for one, two in zip(a_year().exact, again.exact, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert a_year().exact[0][0].sum() != other.exact[0][0].sum()


def test_without_noise_a_release_holds_the_exact_counts() -> None:
    silent = releases(a_year(), 1.0, InsecureSilence())[-1]
    exact = releases(a_year(), None, InsecureSilence())[-1]
    for opened, table in zip(silent.tables, exact.tables, strict=True):
        assert np.allclose(opened.events, table.events, atol=1e-6)
        assert not table.noise_variance.any()
    assert exact.tables[0].events.sum() > 100


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_noise_has_the_variance_that_the_release_states_and_no_other(epsilon: float) -> None:
    noisy = releases(a_year(), epsilon, InsecureSeeded(3))[-1]
    exact = releases(a_year(), None, InsecureSilence())[-1]
    for opened, table in zip(noisy.tables, exact.tables, strict=True):
        ratio = float(np.mean((opened.events - table.events) ** 2 / opened.noise_variance))
        assert ratio == pytest.approx(1.0, abs=5.0 * np.sqrt(2.0 / table.events.size))
        assert abs(ratio * 0.7**2 - 1.0) > 5.0 * np.sqrt(2.0 / table.events.size)  # a scale 30% off would show


def test_twice_the_epsilon_is_about_half_the_noise() -> None:
    one, two = (settings_for(QUICK, epsilon).scales() for epsilon in (1.0, 2.0))
    assert np.array(one) / np.array(two) == pytest.approx(2.0)


def test_the_truth_is_what_the_cloud_was_drawn_from() -> None:
    """Expected failures add up to about those that happened, cap or no cap."""
    year = a_year()
    expected = 0.0
    for slices in year.slices:
        for lease, hours in zip(slices.leases, slices.node_hours, strict=True):
            place = lease.labels["context_level"]
            expected += sum(hours[b] * true_rates_of_year().get((place, str(b)), 0.0) for b in range(len(hours)))
    happened = sum(reason_is_infrastructure(year, row) for row in range(len(year.cloud.failures.reason)))
    assert expected == pytest.approx(happened, abs=5.0 * np.sqrt(happened))


@cache
def true_rates_of_year() -> MappingProxyType[tuple[str, str], float]:
    return MappingProxyType(true_rates(a_year()))


def reason_is_infrastructure(year: Year, row: int) -> bool:
    return bool(tuple(CAUSES.values())[year.cloud.failures.reason[row]].domain == Domain.INFRASTRUCTURE)


@pytest.mark.nightly
def test_the_judge_counts_what_was_planted() -> None:
    year = a_year()
    judged = judge(year, true_rates_of_year(), learn(releases(year, None, InsecureSilence()), year.leases))
    assert len(judged.planted_covered) == len(year.cloud.mismatched) == QUICK.mismatches
    assert judged.auroc > 0.8
    assert np.mean(judged.hazards_covered) > 0.9
