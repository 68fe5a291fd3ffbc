"""The chances of `tests/support/chances.py` hold: exactly where they can be added up, and in samples of a seed."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from tests.support import chances
from tests.support.chances import RARE, fits, has_variance, missed, missed_variance

LAW = np.array([0.5, 0.3, 0.2])
OTHER = np.array([0.2, 0.3, 0.5])
SIZE = 40
OFTEN = 0.05
ALL = [np.array([a, b, SIZE - a - b]) for a, b in product(range(SIZE + 1), repeat=2) if a + b <= SIZE]


@pytest.mark.parametrize("rare", [OFTEN, 1e-4, 1e-8])
def test_a_right_law_is_refused_and_a_wrong_one_taken_no_more_often_than_stated(
    monkeypatch: pytest.MonkeyPatch, rare: float
) -> None:
    monkeypatch.setattr(chances, "RARE", rare)
    right, wrong = multinomial(SIZE, LAW), multinomial(SIZE, OTHER)
    refused = sum(right.pmf(counts) for counts in ALL if not fits(counts, LAW))
    taken = sum(wrong.pmf(counts) for counts in ALL if fits(counts, LAW))
    assert 0.02 * rare < refused <= rare
    assert 0.1 * missed(SIZE, LAW, OTHER) < taken <= missed(SIZE, LAW, OTHER)


def test_quantiles_are_exact_far_into_the_tails() -> None:
    low, high = chances._quantiles(1_000_000, LAW)
    each = RARE / (2 * len(low))
    for chance, least, most in zip((0.5, 0.3, 0.2, 0.5, 0.8), low, high, strict=True):
        law = binom(1_000_000, chance)
        assert law.cdf(least - 1) <= each < law.cdf(least)
        assert law.sf(most) <= each < law.sf(most - 1)


@pytest.mark.nightly
@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.25])
def test_variances_are_refused_and_missed_as_often_as_stated(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    monkeypatch.setattr(chances, "RARE", OFTEN)
    samples = np.random.default_rng(1).normal(0.0, np.sqrt(ratio), (4000, 100))
    taken = np.mean([has_variance(sample, 1.0) for sample in samples])
    assert taken == pytest.approx(1.0 - OFTEN if ratio == 1.0 else missed_variance(100, ratio), abs=0.03)
