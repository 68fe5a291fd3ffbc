"""The comparison of factorisations: errors are those of the matrices, and ours is where theory says."""

import numpy as np
import pytest

from benchmarks.factorisations import banded, banded_inverse, dense, errors, inverse, rows, square_root

N = 13


def toeplitz(coefficients: np.ndarray) -> np.ndarray:
    return np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(N)] for i in range(N)])


@pytest.mark.parametrize("coefficients", [square_root(N), banded(square_root(N), 4), banded_inverse(N, 3)])
def test_errors_are_those_of_the_matrices(coefficients: np.ndarray) -> None:
    encoder = toeplitz(coefficients)
    decoder = np.tril(np.ones((N, N))) @ np.linalg.inv(encoder)
    sensitivity = np.linalg.norm(encoder, axis=0).max()
    expected = sensitivity * np.linalg.norm(decoder[-1]), sensitivity * np.linalg.norm(decoder) / np.sqrt(N)
    assert errors(coefficients) == pytest.approx(expected)
    assert inverse(inverse(coefficients)) == pytest.approx(coefficients)


def test_the_fixed_point_is_an_optimum_with_columns_of_norm_one() -> None:
    """For two openings the matrix is known by one number, which can be searched."""
    counting = np.tril(np.ones((2, 2)))
    found = [
        np.trace(counting.T @ counting @ np.linalg.inv(np.array([[1.0, c], [c, 1.0]])))
        for c in np.linspace(0, 0.9, 9001)
    ]
    assert dense(2)[1] ** 2 == pytest.approx(min(found) / 2, rel=1e-6)


def test_ours_is_within_a_few_percent_and_of_toeplitz_ones_the_best_for_the_last_total() -> None:
    found = {row.factorisation: row for row in rows(N)}
    assert found["square root"].last_total == pytest.approx(1.0, abs=2e-3)
    for name in ("BSR", "BiSR", "BLT", "Toeplitz"):
        assert found[name].last_total > 1.0
        assert 0.96 < found["Toeplitz"].all_totals <= found[name].all_totals * (1 + 1e-3) <= 1.0
    assert 0.92 < found["dense"].all_totals < found["Toeplitz"].all_totals
