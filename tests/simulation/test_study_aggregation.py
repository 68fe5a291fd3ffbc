"""The study of secure sums runs both sides on the same vectors, and fails if a sum is wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crypto.masking import Words, sum_of_masks
from federation.protocol.noise import Integers
from simulation.studies.aggregation import ALONE, BESIDE_FLOWER, check, committee_round, measure, secaggplus_round


def test_the_sizes_that_are_measured() -> None:
    assert BESIDE_FLOWER == ((100, 10_000), (100, 100_000), (100, 1_000_000))
    assert ALONE == ((1_000, 100_000), (10_000, 10_000))


def test_a_sum_that_is_off_by_one_in_one_cell_is_no_result() -> None:
    truth = np.arange(5)
    check("nobody", truth.copy(), truth)
    with pytest.raises(ArithmeticError, match="the sum of nobody is wrong in 1 of 5 cells"):
        check("nobody", truth + np.array([0, 0, 1, 0, 0]), truth)


def largest(_: int) -> Integers:
    return np.array([0, 1, 2**20 - 1])


def too_large(_: int) -> Integers:
    return np.array([0, 1, 2**20 + 1])


@pytest.mark.nightly
@pytest.mark.parametrize("side", [committee_round, secaggplus_round])
def test_both_sides_are_checked_against_the_truth(side: Callable[..., object]) -> None:
    side(16, largest, 16 * largest(0))
    with pytest.raises(ArithmeticError, match="is wrong in 1 of 3 cells"):
        side(16, largest, 16 * largest(0) + np.array([0, 0, 1]))


def test_a_count_that_secaggplus_clips_shows_and_the_committee_sums_it() -> None:
    committee_round(16, too_large, 16 * too_large(0))
    with pytest.raises(ArithmeticError, match=r"SecAgg\+ is wrong in 1 of 3 cells"):
        secaggplus_round(16, too_large, 16 * too_large(0))


def test_a_trustee_that_answers_wrongly_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Words:
        return sum_of_masks(*arguments) + np.uint64(1)

    monkeypatch.setattr("simulation.studies.aggregation.sum_of_masks", wrong)
    with pytest.raises(ArithmeticError, match="the committee is wrong in 10 of 10 cells"):
        measure(3, 10, flower=False)
