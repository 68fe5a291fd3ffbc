"""Placement by hazard: least interruptions of long jobs by brute force, and capacity as it was."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from provider_server.fleet.analysis.placement import choose, matched


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 50)), min_size=1, max_size=6, unique_by=lambda one: one[0])
)
def test_no_other_order_interrupts_less(jobs: list[tuple[int, int]]) -> None:
    hours, rates = (np.array(column, np.float64) for column in zip(*jobs, strict=True))
    ones = np.ones(len(jobs))
    place = matched(hours, ones, rates, ones)
    assert sorted(place.tolist()) == list(range(len(jobs)))
    least = min(float(hours @ rates[list(order)]) for order in itertools.permutations(range(len(jobs))))
    assert float(hours @ rates[place]) == pytest.approx(least)


def test_places_keep_their_capacity_to_within_one_job() -> None:
    rng = np.random.default_rng(1)
    hours, nodes = rng.exponential(24.0, 500), rng.integers(1, 5, 500)
    takes, rates, capacity = hours * nodes, rng.random(8), rng.random(8)
    place = matched(hours, takes, rates, capacity)
    filled = np.bincount(place, takes, 8)
    assert np.abs(filled - capacity * takes.sum() / capacity.sum()).max() <= takes.max()
    healthiest, riskiest = hours[place == rates.argmin()], hours[place == rates.argmax()]
    assert healthiest.min() >= riskiest.max()


def test_jobs_without_a_place_are_an_error() -> None:
    with pytest.raises(ValueError, match="capacity"):
        matched(np.ones(1), np.ones(1), np.ones(2), np.zeros(2))


def test_long_jobs_take_the_healthiest_and_short_ones_the_riskiest() -> None:
    rates = np.array([3.0, 1.0, 2.0, 9.0])
    assert choose(rates, 2, is_long=True).tolist() == [1, 2]
    assert choose(rates, 2, is_long=False).tolist() == [3, 0]
    assert len(choose(rates, 9, is_long=False)) == 4
