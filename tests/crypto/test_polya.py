"""The Pólya shares: their tables to the last bit that is claimed, and draws at the very borders of a table."""

import os
from bisect import bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from scipy.stats import nbinom

from crypto import inversion
from crypto.inversion import Integers, chacha20
from crypto.polya import LARGEST_SCALE, shares, table
from federation.protocol.life_table import Floats
from tests.support.chances import RARE, fits, missed

PARTS = [
    (0.1, Fraction(1)),
    (0.5, Fraction(1, 7)),
    (2.0, Fraction(1, 10)),
    (20.0, Fraction(19, 3060)),
    (50.0, Fraction(1, 10_000)),
]


def entries(scale: float, part: Fraction) -> list[int]:
    law = table(scale, part)
    return [(int(high) << 64) + int(low) for high, low in zip(law.high, law.low, strict=True)]


def exact(scale: float, part: Fraction, size: int) -> list[Decimal]:
    """2^128 P(X <= k) for k < size, by a rising factorial, in 200 digits."""
    with localcontext() as context:
        context.prec = 200
        p, total, sums = (-1 / Decimal(scale)).exp(), Decimal(0), []
        share = Decimal(part.numerator) / Decimal(part.denominator)
        term = (1 - p) ** share
        for k in range(size):
            total += term
            sums.append(total * 2**128)
            term *= p * (share + k) / (k + 1)
        return sums


@pytest.mark.parametrize(("scale", "part"), PARTS)
def test_every_entry_of_a_table_is_the_exact_law_to_its_last_bit(scale: float, part: Fraction) -> None:
    drawn = entries(scale, part)
    law = exact(scale, part, len(drawn))
    errors = [abs(entry - right) for entry, right in zip(drawn, law, strict=True)]
    assert max(errors) < 1 + Decimal(2) ** -80
    assert abs(drawn[len(drawn) // 2] + 2 - law[len(drawn) // 2]) > 1
    assert Decimal(2) ** 128 - law[-1] < 1  # what is left out
    assert drawn == sorted(drawn)


@pytest.mark.parametrize("part", [Fraction(1), Fraction(1, 9)])
def test_the_bound_holds_up_to_the_largest_scale(part: Fraction) -> None:
    law = table(LARGEST_SCALE, part)
    assert 2 * (len(law.high) + 2) < 2**20  # two draws, each within (T + 2) 2^-128: together within 2^-108
    expected = nbinom(float(part), -np.expm1(-1 / LARGEST_SCALE)).cdf(np.arange(len(law.high)))
    assert np.abs(law.high / 2**64 - expected).max() < 1e-9


def said(word: int, _length: int) -> bytes:
    return word.to_bytes(8, "little")


def test_draws_invert_the_table_at_its_very_borders() -> None:
    law, drawn = table(2.0, Fraction(1, 10)), entries(2.0, Fraction(1, 10))
    for number in (0, 1, 7, len(drawn) - 1):
        high, low = divmod(drawn[number], 2**64)
        for more in (0, max(low - 1, 0), low, 2**64 - 1):
            counts = inversion.counted(law, np.array([high], np.uint64), partial(said, more))
            assert counts.tolist() == [bisect_right(drawn, (high << 64) + more)]
    nothing = inversion.counted(law, np.array([0, 2**64 - 1], np.uint64), lambda length: b"\xff" * length)
    assert nothing.tolist() == [0, len(drawn)]


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_ten_shares_make_one_discrete_laplace_and_a_wrong_scale_shows(factor: float) -> None:
    size, scale, reach = 100_000, 2.0, 12
    support = np.arange(-reach, reach + 1)

    def law(scale: float) -> Floats:
        whole = np.arange(-400, 401)
        mass = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(whole) / scale)
        return np.bincount(np.clip(whole, -reach, reach) + reach, weights=mass).astype(np.float64)

    def counts(scale: float) -> Integers:
        drawn = sum(shares(scale, Fraction(1, 10), size, chacha20(os.urandom(32))) for _ in range(10))
        return np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(support))

    assert fits(counts(scale), law(scale))
    assert missed(size, law(scale), law(factor * scale)) < RARE
    assert not fits(counts(factor * scale), law(scale))


@pytest.mark.parametrize(
    ("scale", "part"), [(0.0, Fraction(1)), (LARGEST_SCALE * 1.1, Fraction(1)), (2.0, Fraction(3, 2))]
)
def test_there_is_no_table_beyond_the_range(scale: float, part: Fraction) -> None:
    with pytest.raises(ValueError, match="tables for scales up to 4096"):
        table(scale, part)


def test_all_of_a_tiny_scale_is_at_zero() -> None:
    assert shares(1e-9, Fraction(1, 2), 100, chacha20(os.urandom(32))).tolist() == [0] * 100
