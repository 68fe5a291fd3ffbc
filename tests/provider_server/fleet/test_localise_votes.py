"""Names of faulty parts hold their false discovery rate, and fewer are found where the noise is more."""

import numpy as np
import pytest

from provider_server.fleet.analysis.votes import PartName, Spread, localise, patterns

UNITS, RAILS = 8, 4
SPREADS = [Spread(tuple(unit for unit in (first, (first + step) % UNITS) for _ in range(4)))
           for first in range(UNITS) for step in range(1, UNITS) for _ in range(6)]  # fmt: skip
EXPECTED = patterns(SPREADS, UNITS, RAILS)


def counted(fault: int | None, votes: float, sigma: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    mean = 0.05 * EXPECTED.baselines.sum(axis=0)
    if fault is not None:
        mean = mean + votes * EXPECTED.parts[fault] / EXPECTED.parts[fault].sum()
    noisy = 0.5 * rng.poisson(2 * mean) + rng.normal(0, sigma, len(mean))
    return noisy, np.full(len(mean), sigma**2)


def test_of_worlds_without_a_fault_a_tenth_at_most_have_a_part_named() -> None:
    rng = np.random.default_rng(0)
    named = sum(any(one.is_named for one in localise(EXPECTED, *counted(None, 0, 3.0, rng))) for _ in range(200))
    assert named <= 34  # more with a chance below one in a thousand, if each has a tenth


def test_a_part_with_many_votes_comes_first_and_is_named() -> None:
    rng = np.random.default_rng(1)
    for fault in range(0, len(EXPECTED.names), 3):
        first, *_ = localise(EXPECTED, *counted(fault, 200, 3.0, rng))
        assert (first.part, first.is_named) == (EXPECTED.names[fault], True)
        assert abs(first.votes - 200) < 4 * first.error + 20


def test_where_rows_scatter_more_than_is_stated_their_own_scale_is_taken() -> None:
    rng, wrong = np.random.default_rng(2), 0
    for _ in range(50):
        counts, variance = counted(None, 0, 6.0, rng)
        wrong += any(one.is_named for one in localise(EXPECTED, counts, variance / 9))
    assert wrong <= 14
    counts, variance = counted(0, 400, 6.0, rng)
    assert localise(EXPECTED, counts, variance / 9)[0].is_named


def test_a_row_that_was_not_released_is_no_evidence() -> None:
    counts, variance = counted(5, 200, 1.0, np.random.default_rng(3))
    variance[:] = np.inf
    variance[: RAILS + 1] = 1.0
    assert EXPECTED.names[5] not in [one.part for one in localise(EXPECTED, counts, variance) if one.is_named]


def test_own_evidence_moves_a_part_up() -> None:
    counts, variance = counted(5, 20, 6.0, np.random.default_rng(4))
    own = np.zeros(len(EXPECTED.names))
    own[5] = 12.0
    before = [one.part for one in localise(EXPECTED, counts, variance)].index(EXPECTED.names[5])
    after = [one.part for one in localise(EXPECTED, counts, variance, own=own)].index(EXPECTED.names[5])
    assert after == 0 <= before


def test_a_vote_within_one_unit_counts_half() -> None:
    alone = patterns([Spread((0, 0, 0))], 2, 1)
    assert alone.baselines[0].sum() == pytest.approx(0.5)
    assert PartName(0) in alone.names
