"""What is seen of failures differs by size, age and level: that is found, and is no difference between leases."""

import numpy as np
import pytest

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.own_failures import Leases, differing
from provider_server.fleet.analysis.own_hazard import Places, seen_share

JOB_WEEKS, LEVELS, SIZES = 60_000, 12, 5
OF_LEVEL = np.linspace(0.7, 1.5, LEVELS)  # how wrong hazards are
OF_KIND = np.array([0.2, 0.4, 0.8, 1.2, 1.8])[:, None] * np.array([0.8, 1.2])


def units(seed: int, failures: float = 30_000.0) -> tuple[Floats, Places, Places, Floats]:
    """What hazards explain of units in two bands, their levels and sizes, and what is seen of it on average."""
    rng = np.random.default_rng(seed)
    explained = rng.gamma(0.5, 1.0, (JOB_WEEKS, 2))
    level, size = rng.integers(-1, LEVELS, JOB_WEEKS), rng.integers(0, SIZES, JOB_WEEKS)
    mean = explained * OF_LEVEL[level, None] * OF_KIND[size]
    return explained, level, size, mean * failures / mean.sum()


def test_what_is_seen_is_found_by_level_size_and_age() -> None:
    explained, level, size, mean = units(1)
    share = seen_share(explained, np.random.default_rng(2).poisson(mean).astype(np.float64), level, size)
    np.testing.assert_allclose(share, mean / explained / (mean.sum() / explained.sum()), rtol=0.15)
    assert (explained * share).sum() == pytest.approx(explained.sum(), rel=0.02)


def test_what_differs_by_size_is_no_difference_between_leases() -> None:
    explained, level, size, mean = units(3)
    seen = np.random.default_rng(4).poisson(mean).astype(np.float64)
    scale, one_pair = mean.sum() / explained.sum(), np.zeros(JOB_WEEKS, np.intp)

    def shape(explained: Floats) -> float:
        return differing(Leases(seen.sum(axis=1), scale * explained.sum(axis=1), one_pair, one_pair), np.ones(1)).shape

    assert shape(explained) < 5.0
    assert shape(explained * seen_share(explained, seen, level, size)) > 20.0


def test_a_few_failures_say_little_and_none_nothing() -> None:
    explained, level, size, mean = units(5, failures=20.0)
    few = seen_share(explained, np.random.default_rng(6).poisson(mean).astype(np.float64), level, size)
    assert np.abs(np.log(few)).max() < 1.0
    assert seen_share(explained, np.zeros_like(explained), level, size) == pytest.approx(
        np.ones_like(explained), rel=0.1
    )
