"""What `bench goodput` tells is exact without noise, and its noise is as wide as it says."""

import numpy as np

from federation.protocol.noise import SystemSampler
from federation.protocol.subjects import Subject
from simulation.bench.cell_noise import cell_noise, cell_sigma
from simulation.bench.goodput import BAD_CONTEXTS, CONTEXTS, LOST, LOST_ON_BAD, _tenant, _told


def test_without_noise_there_is_no_error_and_bad_contexts_are_those_that_are_named() -> None:
    rng = np.random.default_rng(0)
    lost = np.where(np.arange(CONTEXTS) < BAD_CONTEXTS, LOST_ON_BAD, LOST)
    exact = np.sum([_tenant(number, lost, (52,), rng)[0] for number in range(10)], axis=0)
    told = _told(exact, exact, 0.0, (0.0, 10, 52))
    assert (told.found, told.false_share, max(told.errors)) == (1.0, 0.0, 0.0)
    assert np.all(told.covered)
    assert np.all(told.covered_quantiles)


def test_the_noise_of_a_cell_has_the_variance_that_is_told() -> None:
    """4,000 cells: the standard error of a standard deviation is 1.1%, and eight of them are a tenth."""
    variance, drawn = cell_noise(Subject.GOODPUT, 0.2, 13, (4000,), SystemSampler())
    assert variance**0.5 == cell_sigma(Subject.GOODPUT, 0.2, 13)
    assert abs(drawn.std() / variance**0.5 - 1) < 0.09
