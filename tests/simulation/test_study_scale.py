"""The benchmark of scale: real rounds whose openings are checked, lines where rounds are too large, and its keys."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from crypto.masking import Words
from federation.protocol import noise
from federation.protocol.plan import Plan
from simulation.studies import scale, scale_round
from simulation.studies.scale_round import REAL_TENANTS, Costs, Keys, cells_plan, measure


@cache
def keys() -> Keys:
    return Keys.fresh(12)


def test_the_sizes_that_are_measured() -> None:
    assert len(scale.sizes(quick=False)) == 6
    assert scale.sizes(quick=False)[-1] == (10_000, 1_000_000)


@pytest.mark.nightly
def test_a_round_that_would_be_too_large_is_held_with_fewer_and_says_so() -> None:
    row = scale.row(40, 400, 20 * 400 * 6 * 8)  # six vectors
    assert (row.tenants, row.measured_tenants) == (40, 20)
    assert row.provider_bytes > 39 * row.tenant_bytes


def test_further_tenants_cost_what_each_of_a_smaller_round_does() -> None:
    first = Costs(3, tenant_cpu_seconds=1.0, trustee_cpu_seconds=1.0, provider_cpu_seconds=10.0, trustee_bytes=100)
    more = Costs(3, tenant_cpu_seconds=1.5, trustee_cpu_seconds=3.0, provider_cpu_seconds=20.0, trustee_bytes=150)
    line = scale.extended(first, 10, more, 20, 100)
    assert (line.tenant_cpu_seconds, line.trustee_cpu_seconds) == (1.5, 11.0)
    assert (line.provider_cpu_seconds, line.trustee_bytes) == (100.0, 550)


def opened(plan: Plan, factor: float) -> Words:
    """Noise of a round, more or less than it should be."""
    (variance,) = noise.noise_variances(plan, 12)
    drawn = np.random.default_rng(0).normal(0, factor * variance**0.5, plan.cells)
    return np.rint(drawn).astype(np.int64).astype(np.uint64)


def test_noise_that_is_a_fifth_too_wide_is_noticed() -> None:
    plan = cells_plan(keys(), 40_000)
    scale_round._check(plan, opened(plan, 1.0), 12)
    for factor in (0.8, 1.2):
        with pytest.raises(ArithmeticError, match="the variance of what was opened"):
            scale_round._check(plan, opened(plan, factor), 12)


def test_a_square_table_has_a_square_number_of_cells() -> None:
    with pytest.raises(ValueError, match="has no 10 cells"):
        cells_plan(keys(), 10)


def test_there_are_more_contributors_than_real_tenants_and_no_more_than_keys(tmp_path: Path) -> None:
    for contributors in (REAL_TENANTS, 13):
        with pytest.raises(ValueError, match="a round is measured with more than"):
            measure(keys(), tmp_path, 100, contributors)


def test_a_cipher_is_faster_than_masks_that_are_made_with_it() -> None:
    row = scale.speed(2_500)
    assert 0 < row.cipher_cpu_seconds < row.mask_cpu_seconds
