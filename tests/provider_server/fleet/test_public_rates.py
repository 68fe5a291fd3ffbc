"""Rates of published fleets foretell those of a fleet that they do not know, and say how unsure they are."""

from typing import get_args

import numpy as np
import pytest

from benchmarks.known_rates import counted
from federation.protocol.known_rates import Class, KnownRate, experience, known_rates
from provider_server.fleet.analysis.cold_start import NothingKnown
from provider_server.fleet.analysis.public_rates import experience_of, log_law
from simulation.studies.study import DATA


def a_row(fleet: int, rate: float, node_hours: float = 1e6) -> KnownRate:
    """A fleet with that many failures per node-hour."""
    return KnownRate(str(fleet), "", "gpu", max(rate * node_hours, 1.0), 8.0 * node_hours, "", "made up", "")


@pytest.mark.parametrize("cause", get_args(Class))
def test_the_table_says_what_its_rows_say(cause: Class) -> None:
    found, shipped = experience_of([row for row in known_rates() if row.cause == cause]), experience(cause)
    assert (shipped.failures, shipped.node_hours) == pytest.approx((found.failures, found.node_hours), rel=1e-3)


@pytest.mark.parametrize("spread", [0.2, 0.5, 0.8])  # published fleets differ by .3 to .7
def test_a_fleet_that_was_left_out_lies_in_the_interval_as_often_as_it_says(spread: float) -> None:
    rng, held = np.random.default_rng(7), []
    for _ in range(150):
        rates = np.exp(np.log(2e-4) + spread * rng.normal(size=7))
        counts = rng.poisson(rates * 1e6)
        known = experience_of([a_row(at, float(count) / 1e6) for at, count in enumerate(counts[1:])])
        low, high = known.interval()
        held.append(low <= rates[0] <= high)
    assert 0.9 <= np.mean(held) <= 1.0


def test_fleets_that_differ_more_teach_less() -> None:
    alike, apart = ([a_row(at, 1e-4 * by**at) for at in range(-2, 3)] for by in (1.1, 3.0))
    assert experience_of(alike).failures > 3 * experience_of(apart).failures
    assert log_law(experience_of(alike))[0] == pytest.approx(np.log(1e-4), abs=0.1)


def test_a_large_fleet_is_one_fleet() -> None:
    """A hundred times the exposure of one fleet hardly moves what others may expect."""
    rows = [a_row(at, rate) for at, rate in enumerate((1e-4, 2e-4, 4e-4))]
    larger = [*rows[:2], a_row(2, 4e-4, 1e8)]
    assert experience_of(larger).rate == pytest.approx(experience_of(rows).rate, rel=0.1)


def test_without_a_row_nothing_is_known() -> None:
    with pytest.raises(NothingKnown):
        experience_of([])


@pytest.mark.skipif(not (DATA / "titan").exists(), reason="needs shared/data/titan, infinitehbd and acme")
def test_rows_that_raw_data_speak_of_are_counted_from_them() -> None:
    table = {(row.fleet, row.cause): row for row in known_rates()}
    for fleet, cause, failures, gpu_hours in counted(DATA):
        row = table[fleet, cause]
        assert (row.failures, row.gpu_hours) == pytest.approx((failures, gpu_hours), rel=2e-3)
