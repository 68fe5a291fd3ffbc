"""No table of finite numbers stops a week: main effects settle, or are fitted again in a way that does."""

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from federation.protocol.life_table import Dimension, LifeTable
from provider_server.fleet.analysis import mismatch
from provider_server.fleet.analysis.hazard import HazardFit, fit_hazard
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.own_failures import Leases
from tests.support.changing import replace

SEEDS = st.integers(0, 2**32 - 1)


def a_table(rng: np.random.Generator) -> LifeTable:
    """Of any size of exposure, failures and noise; many counts are far below zero."""
    shape = (int(rng.integers(1, 6)), int(rng.integers(1, 5)))
    exposure = 10.0 ** rng.uniform(-3.0, 4.0) * rng.lognormal(0.0, rng.choice([0.1, 1.0, 3.0]), shape)
    exposure *= rng.random(shape) < rng.choice([0.5, 1.0])
    exposure[0, 0] = 1.0
    variance = np.where(rng.random(shape) < 0.7, 10.0 ** rng.uniform(-2.0, 5.0), 0.0)
    events = rng.poisson(exposure * 10.0 ** rng.uniform(-3.0, 1.0)) + rng.normal(0.0, 20.0, shape) * np.sqrt(variance)
    levels = [tuple(str(level) for level in range(size)) for size in shape]
    dimensions = (Dimension("workload", levels[0]), Dimension("context", levels[1]))
    ran = exposure > 0.0
    return LifeTable(dimensions, np.where(ran, events, 0.0), exposure, exposure, np.where(ran, variance, 0.0))


def own_leases(rng: np.random.Generator, table: LifeTable) -> Leases | None:
    """None, or some of a few tenants."""
    if rng.integers(2):
        return None
    leases, failures = int(rng.integers(1, 50)), 10.0 ** rng.uniform(-2.0, 2.0)
    explained = rng.gamma(0.5, 10.0 ** rng.uniform(-3.0, 3.0), leases)
    pair, tenant = rng.integers(0, table.events.size, leases), rng.integers(0, 4, leases)
    return Leases(rng.poisson(failures, leases).astype(np.float64), explained, pair, tenant)


def is_finite(found: Mismatches) -> bool:
    columns = found.probability_worse, found.ratio, found.ratio_low, found.ratio_high, found.expected, found.log_sd
    return all(bool(np.isfinite(column).all()) for column in columns)


@pytest.mark.nightly
@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_any_table_gets_an_answer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = a_table(rng)
    assert is_finite(find_mismatches(table, own=own_leases(rng, table)))


def far_below_its_noise() -> LifeTable:
    """Ten failures everywhere, but for a pair whose count is far below minus the variance of its noise."""
    levels = tuple(str(level) for level in range(6))
    table = LifeTable.zeros((Dimension("workload", levels), Dimension("context", levels)))
    events, variance = np.full(table.shape, 10.0), np.ones(table.shape)
    events[2, 3] = -200.0
    ten = np.full(table.shape, 10.0)
    return replace(table, events=events, noise_variance=variance, exposure_node_hours=ten)


def test_a_count_far_below_its_noise_stops_nothing_and_accuses_nobody() -> None:
    found = find_mismatches(far_below_its_noise())
    assert is_finite(found)
    assert found.probability_worse.max() < 0.5
    others = (found.workload != 2) & (found.context != 3)
    assert found.expected[others] == pytest.approx(10.0, rel=0.25)


def test_main_effects_that_do_not_settle_are_fitted_again_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def never_at_first(*given: Any, **options: Any) -> HazardFit:
        return fit_hazard(*given, **({"max_iterations": 1} | options))

    table = replace(far_below_its_noise(), noise_variance=np.full((6, 6), 4.0))
    table.events[:3], table.events[2, 3] = 20.0, 60.0
    usual = find_mismatches(table)
    assert not caplog.records
    monkeypatch.setattr(mismatch, "fit_hazard", never_at_first)
    with caplog.at_level(logging.WARNING):
        found = find_mismatches(table)
    assert "did not settle" in caplog.text
    assert found.expected == pytest.approx(usual.expected, rel=0.15)
    assert np.argmax(found.probability_worse) == np.argmax(usual.probability_worse) == 2 * 6 + 3
