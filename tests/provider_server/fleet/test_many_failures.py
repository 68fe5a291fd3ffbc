"""Of pairs with very many failures a likelihood is narrower than the grid: it must accuse nobody for that."""

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.protocol.judgement import surest
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.mismatch import find_mismatches
from provider_server.fleet.analysis.own_failures import Leases
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO, NARROWEST, narrowness

SHAPE = (16, 10)


def ratios_and_table(seed: int, mean: float) -> tuple[Floats, LifeTable]:
    """So many failures of a pair; three in a hundred fail eight times as often, and others differ by a tenth."""
    rng = np.random.default_rng(seed)
    exposure = np.outer(rng.lognormal(0.0, 0.7, SHAPE[0]), rng.lognormal(0.0, 0.4, SHAPE[1]))
    exposure *= mean / exposure.mean()
    usual = np.outer(rng.lognormal(0.0, 0.3, SHAPE[0]), rng.lognormal(0.0, 0.3, SHAPE[1]))
    ratio = np.where(rng.random(SHAPE) < 0.03, 8.0, 1.0) * np.exp(0.1 * rng.normal(size=SHAPE))
    failures = rng.poisson(exposure * usual * ratio).astype(np.float64)
    levels = [tuple(str(level) for level in range(size)) for size in SHAPE]
    dimensions = Dimension("workload", levels[0]), Dimension("context", levels[1])
    return ratio.ravel(), LifeTable(dimensions, failures, exposure, exposure, np.zeros(SHAPE))


def accused(probability: Floats) -> NDArray[np.bool_]:
    chosen = np.zeros(len(probability), np.bool_)
    chosen[surest(probability)] = True
    return chosen


@pytest.mark.parametrize("mean", [1e5, pytest.param(1e3, marks=pytest.mark.nightly)])
def test_very_many_failures_accuse_the_planted_pairs_and_no_other(mean: float) -> None:
    ratio, table = ratios_and_table(0, mean)
    found = find_mismatches(table)
    assert accused(found.probability_worse).tolist() == (ratio > 2.0).tolist()
    assert ((found.ratio_low <= ratio) & (ratio <= found.ratio_high)).mean() > 0.9


@pytest.mark.nightly
def test_very_many_own_failures_accuse_the_planted_pairs_and_no_other() -> None:
    ratio, table = ratios_and_table(1, 1e4)
    pair = np.arange(table.events.size)
    own = Leases(table.events.ravel(), table.exposure_node_hours.ravel(), pair, np.zeros_like(pair))
    found = find_mismatches(table, own=own)
    assert accused(found.probability_worse).tolist() == (ratio > 2.0).tolist()


def test_a_narrow_likelihood_is_as_wide_as_the_grid_tells_and_a_wide_one_stays() -> None:
    grid = np.arange(-1.0, 1.0, 0.02)
    narrow, wide = (-0.5 * ((grid - 0.013) / sd) ** 2 for sd in (0.001, 3.0 * NARROWEST))
    much, none = narrowness(np.stack([narrow, wide]), 0.02)
    assert none == 1.0
    assert np.diff(narrow / much, 2) == pytest.approx(-((0.02 / NARROWEST) ** 2), rel=1e-6)
    assert pytest.approx(LOG_RATIO[1] - LOG_RATIO[0]) == NARROWEST
