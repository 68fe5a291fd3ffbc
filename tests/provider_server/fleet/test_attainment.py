"""What contexts delivered, told from noisy bands: intervals hold what they say, and would not under other noise."""

import numpy as np
import pytest

from federation.protocol.subjects import GOODPUT_EDGES
from provider_server.fleet.analysis.attainment import attained_share, by_context

EXACT = np.array([10.0, 10.0, 20.0, 60.0, 100.0])  # 160 of 200 reach 90%
TARGET = GOODPUT_EDGES.index(0.9)
RUNS, SIGMA = 2000, 20.0


def covered(stated: float, exact: np.ndarray = EXACT) -> float:
    """How many of the intervals hold the truth where the noise has `SIGMA` and `stated` is what is told."""
    rng, true = np.random.default_rng(7), exact[TARGET:].sum() / exact.sum()
    told = (attained_share(exact + rng.normal(0, SIGMA, 5), GOODPUT_EDGES, TARGET, stated**2) for _ in range(RUNS))
    return float(np.mean([one.low <= true <= one.high for one in told]))


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_intervals_hold_the_truth_nineteen_times_in_twenty_however_few_units_there_are(scale: float) -> None:
    assert 0.935 <= covered(SIGMA, EXACT * scale) <= 0.98


def test_intervals_for_less_noise_than_there_is_hold_too_little() -> None:
    assert covered(SIGMA * 0.7) < 0.9


def test_without_noise_shares_are_exact_and_quantiles_are_the_bands_they_lie_in() -> None:
    (found,) = by_context(["c"], EXACT[np.newaxis], np.zeros(1), GOODPUT_EDGES, (0.9, 0.9))
    assert [one.share for one in found.attained] == [0.95, 0.9, 0.8, 0.5]
    assert all(one.high - one.low < 2e-3 for one in found.attained)
    tenth, half = found.quantiles
    assert (tenth.low, tenth.high) == (0.8, 0.9)  # a tenth is below 80%, and a tenth is the quantile
    assert (half.low, half.high) == (0.95, 1.0)


def test_of_contexts_that_meet_the_aim_few_are_named_and_those_that_miss_it_by_far_come_first() -> None:
    rng = np.random.default_rng(3)
    counts = np.tile(EXACT, (20, 1))
    counts[4] = EXACT[::-1]
    names = [str(number) for number in range(20)]
    false, found = 0, 0
    for _ in range(80):
        noisy = counts + rng.normal(0, SIGMA, counts.shape)
        told = by_context(names, noisy, np.full(20, SIGMA**2), GOODPUT_EDGES, (0.9, 0.8))
        named = {one.context for one in told if one.is_missed}
        found += "4" in named and told[0].context == "4"
        false += bool(named - {"4"})
    assert found >= 76
    assert false <= 24  # of all runs: a false name in one list of two or three is less than its share of the named


def test_where_noise_outweighs_the_units_nothing_is_excluded() -> None:
    told = attained_share(np.array([1.0, -2.0, 0.5, 1.0, -1.0]), GOODPUT_EDGES, TARGET, 400.0)
    assert (told.low, told.high) == (0.0, 1.0)
