"""Published rates of failure, and what a fleet may expect by them before and after it has seen its own."""

from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import gamma

from federation.protocol.known_rates import Experience, KnownRate, experience, known_rates

FIRST = experience()


def test_every_row_names_its_source_and_is_there_once() -> None:
    seen = [(row.fleet, row.generation, row.cause) for row in known_rates()]
    assert len(seen) == len(set(seen))
    assert all(row.source and row.note and row.years for row in known_rates())


def test_parts_of_a_fleet_fail_less_often_than_the_whole() -> None:
    parts: defaultdict[str, float] = defaultdict(float)
    for row in known_rates():
        if row.cause in ("gpu", "network", "host"):
            parts[row.fleet] += row.failures
    whole = {row.fleet: row.failures for row in known_rates() if row.cause == "infrastructure"}
    compared = parts.keys() & whole.keys()
    assert compared == {"Llama 3", "Acme", "InfiniteHBD"}
    assert all(parts[fleet] <= whole[fleet] for fleet in compared)


@pytest.mark.parametrize("cause", ["infrastructure", "gpu", "memory", "network", "host"])
def test_published_fleets_lie_where_the_experience_of_them_all_says(cause: str) -> None:
    rows = [row for row in known_rates() if row.cause == cause]
    low, high = experience(rows[0].cause).interval()
    assert all(low < row.failures / row.node_hours < high for row in rows)


@pytest.mark.parametrize(("failures", "hours"), [(1.0, 3.0), (2.0, 1e4), (30.0, 1e5), (4000.0, 1e6)])
def test_intervals_are_those_of_the_gamma_law(failures: float, hours: float) -> None:
    low, high = Experience(failures, hours).interval()
    law = gamma(failures, scale=1.0 / hours)
    assert law.cdf(low) == pytest.approx(0.025, abs=0.013)  # too wide, where failures are few
    assert law.sf(high) == pytest.approx(0.025, abs=0.002)


def test_public_experience_is_outweighed_by_a_dozen_own_failures_and_never_forgotten_at_once() -> None:
    rate = 5.0 * FIRST.rate
    shares = [FIRST.after(rate * hours, hours).public_share for hours in (0.0, 1e3, 1e4, 1e5)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    dozen = FIRST.after(12.0, 12.0 / rate)
    assert abs(dozen.rate / rate - 1.0) < 0.6
    assert abs(FIRST.after(120.0, 120.0 / rate).rate / rate - 1.0) < 0.12


def test_own_failures_count_for_less_than_if_they_came_one_by_one() -> None:
    """So intervals of one's own are wider, by the root of how much failures come together in a published trace."""
    (low, high), (low_alone, high_alone) = FIRST.after(400.0, 1e6).interval(), Experience(400.0, 1e6).interval()
    assert np.log(high / low) / np.log(high_alone / low_alone) == pytest.approx(2.1**0.5, rel=0.02)


def test_no_failure_at_all_lowers_what_is_expected_and_nothing_makes_it_nought() -> None:
    calm = FIRST.after(0.0, 1e6)
    assert 0.0 < calm.interval()[0] < calm.rate < FIRST.interval()[0]


def test_the_share_behind_a_rate_falls_as_it_is_known_better() -> None:
    low, high = FIRST.interval()
    assert (
        FIRST.share_behind(low, high) == FIRST.share_behind(low / 9, high * 9) == FIRST.share_behind(0.0, high) == 1.0
    )
    assert FIRST.share_behind(0.9, 1.1) < 0.02


def test_a_row_without_exposure_or_source_is_refused() -> None:
    for change in ({"gpu_hours": 0.0}, {"failures": 0.0}, {"source": ""}):
        row = {"failures": 1.0, "gpu_hours": 1.0, "source": "a paper"} | change
        with pytest.raises(ValueError, match="a source named"):
            KnownRate(fleet="a", generation="", cause="gpu", years="2026", note="", **row)  # type: ignore[arg-type]
