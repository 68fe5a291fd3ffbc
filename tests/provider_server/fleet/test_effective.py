"""The cap of a unit: what it hides is known, cell by cell, and fits on corrected exposure return the true rates."""

import numpy as np
import pytest

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import cap_factor, capped_mean
from provider_server.fleet.analysis.hazard import Cells, Model, fit_hazard, predict

Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def capped(rng: np.random.Generator, failures: Counts, cap: int) -> Counts:
    """At most `cap` of each unit's failures (rows), chosen at random among its cells (columns)."""
    kept = np.zeros_like(failures)
    for row, own in enumerate(failures):
        each = np.repeat(np.arange(len(own)), own)
        kept[row] = np.bincount(rng.permutation(each)[:cap], minlength=len(own))
    return kept


@pytest.mark.parametrize("cap", [1, 3])
def test_every_cell_of_a_unit_shrinks_by_the_same_factor(cap: int) -> None:
    rng = np.random.default_rng(1)
    means = np.array([0.2, 1.0, 2.5])
    kept = capped(rng, rng.poisson(means, (20_000, 3)), cap)
    expected = means * cap_factor(means.sum(keepdims=True), cap)
    assert kept.mean(axis=0) == pytest.approx(expected, abs=4.0 * np.sqrt(cap / 20_000))
    assert np.all(np.abs(kept.mean(axis=0) - means * cap_factor(means, cap)) > 0.005)  # cell by cell would be wrong


@pytest.mark.parametrize("cap", [1, 2, 7])
def test_the_factor_is_a_share_that_falls_and_has_both_limits(cap: int) -> None:
    means = np.geomspace(1e-12, 1e4, 200)
    factor = cap_factor(means, cap)
    assert np.all((factor > 0.0) & (factor <= 1.0))
    assert np.all(np.diff(factor) <= 1e-12)
    assert factor[0] == pytest.approx(1.0)
    assert means[-1] * factor[-1] == pytest.approx(cap)
    assert capped_mean(np.zeros(3), cap).tolist() == [0.0, 0.0, 0.0]


def counted_by_context(rng: np.random.Generator, hours: Floats, context: Counts, rates: Floats) -> LifeTable:
    counted = np.minimum(rng.poisson(hours * rates[context]), 1)
    size = (len(rates),)
    events = np.bincount(context, counted, len(rates)).astype(np.float64)
    levels = Dimension("context", tuple(str(level) for level in range(len(rates))))
    return LifeTable((levels,), events, np.zeros(size), np.zeros(size), np.zeros(size))


def test_fit_and_correction_alternate_to_the_true_rates() -> None:
    """Units of very different size on good and bad contexts: the cap hides most where the rate is highest."""
    rng = np.random.default_rng(2)
    rates = np.array([0.002, 0.006, 0.02])
    hours, context = 168.0 * rng.pareto(1.5, 60_000) * 0.3 + 1.0, rng.integers(0, 3, 60_000)
    table = counted_by_context(rng, hours, context, rates)
    factor, found = np.ones(len(hours)), []
    for _ in range(30):
        exposure = np.bincount(context, hours * factor, 3).astype(np.float64)
        cells = Cells(table.dimensions, np.arange(3)[None], exposure)
        found.append(predict(fit_hazard(cells, [table], Model((("context",),))), cells).value)
        factor = cap_factor(hours * found[-1][context], 1)
    assert found[0][2] < 0.5 * rates[2]
    assert found[-1] == pytest.approx(rates, rel=0.03)
