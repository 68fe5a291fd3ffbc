"""The likelihood of a count under noise: the sum that it stands for, whichever pairs it is worked out with."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, poisson

from provider_server.fleet.analysis.noisy_counts import NoisyCounts

COUNTS = np.array([-30.0, -4.0, 0.0, 3.0, 40.0, 700.0, 12.0, 2.0])
SDS = np.array([15.0, 2.0, 5.0, 1.0, 40.0, 9.0, 0.0, 300.0])
EXPOSURE = np.array([2.0, 0.1, 1.0, 5.0, 60.0, 500.0, 9.0, 20.0])
LOG_RATES = np.linspace(-2.0, 2.0, 9)
ALL = NoisyCounts.of(COUNTS, SDS**2, EXPOSURE, None)


def exactly(pair: int, log_rate: float) -> float:
    mean, true = EXPOSURE[pair] * np.exp(log_rate), np.arange(6000)
    if SDS[pair] == 0.0:
        return float(poisson.logpmf(COUNTS[pair], mean))
    return float(logsumexp(poisson.logpmf(true, mean) + norm.logpdf(COUNTS[pair], true, SDS[pair])))


@pytest.mark.parametrize("pair", range(len(COUNTS)))
def test_it_is_the_sum_over_all_failures_that_may_be_behind_a_count(pair: int) -> None:
    asked = np.array([exactly(pair, log_rate) for log_rate in LOG_RATES])
    likely = asked > asked.max() - 300.0  # beyond, sums underflow
    said = ALL.read(np.tile(LOG_RATES, (len(COUNTS), 1)))[pair]
    bend = 1e-4 * EXPOSURE[pair] * np.exp(LOG_RATES[likely])  # of a line between two points of the grid
    assert (np.abs(np.diff(said[likely]) - np.diff(asked[likely])) < 1e-6 + bend[1:] + bend[:-1]).all()


def test_which_pairs_and_rates_are_asked_for_together_changes_nothing() -> None:
    together = np.diff(ALL.read(np.tile(LOG_RATES, (len(COUNTS), 1))))
    for pair in range(len(COUNTS)):
        alone = ALL.only(np.array([pair]))
        one_by_one = [float(alone.read(np.array([[log_rate]]))[0, 0]) for log_rate in LOG_RATES]
        assert np.diff(one_by_one) == pytest.approx(together[pair], rel=1e-9, abs=1e-9)
