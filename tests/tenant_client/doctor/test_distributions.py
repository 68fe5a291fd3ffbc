"""Distributions of our own against SciPy's."""

import math

import pytest
from hypothesis import given, settings, strategies as st
from scipy import special

from tenant_client.doctor.advice.distributions import at_least_heads, t_below, t_quantile

FREEDOMS = st.integers(1, 200) | st.floats(0.5, 1e4)


@given(FREEDOMS, st.floats(-1e6, 1e6))
def test_students_t_is_scipys(freedom: float, t: float) -> None:
    assert t_below(freedom, t) == pytest.approx(special.stdtr(freedom, t), rel=1e-9, abs=1e-14)


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(1e-9, 1 - 1e-9))
def test_its_quantiles_are_scipys(freedom: int, probability: float) -> None:
    assert t_quantile(freedom, probability) == pytest.approx(special.stdtrit(freedom, probability), rel=1e-7, abs=1e-9)


def test_its_quantiles_are_those_of_printed_tables() -> None:
    """Abramowitz and Stegun, table 26.10."""
    assert t_quantile(1, 0.975) == pytest.approx(12.706, abs=5e-4)
    assert t_quantile(9, 0.995) == pytest.approx(3.250, abs=5e-4)
    assert t_quantile(30, 0.95) == pytest.approx(1.697, abs=5e-4)


@given(st.integers(1, 20_000), st.data())
def test_heads_of_a_coin_are_scipys(tosses: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(1, tosses + 1))
    theirs = special.bdtrc(least - 1, tosses, 0.5) if least <= tosses else 0.0
    assert at_least_heads(least, tosses) == pytest.approx(theirs, rel=1e-8, abs=1e-300)


@given(st.integers(1, 60), st.data())
def test_heads_of_a_coin_are_those_that_are_counted(tosses: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(1, tosses))
    counted = sum(math.comb(tosses, heads) for heads in range(least, tosses + 1)) / 2**tosses
    assert at_least_heads(least, tosses) == pytest.approx(counted, rel=1e-12)
