"""Ours beside other factorisations of the counting matrix: errors of totals at equal privacy, over n openings.

    python -m benchmarks.factorisations [--json]

A factorisation A = B C releases C x + z and decodes B (C x + z); z has the deviation of the largest column of C, so the
price is the same for all. Errors are standard deviations of totals, relative to ours: of the last total, and the root
of the mean variance of all totals. One participation: a job-week is in one opening.

- square root: Henzinger, Upadhyay & Upadhyay (SODA 2023); ours is this in integers, F_k = round(256 f_k)
- BSR: the first p coefficients of the square root; Kalinin & Lampert, Banded square root matrix factorization for
  differentially private model training (NeurIPS 2024); the best p
- BiSR: the first p coefficients of its inverse; Kalinin et al., Back to square roots (2025); the best p
- BLT: C with coefficients 1, and the sum of w_i t_i^(k-1); Dvijotham et al., Efficient and near-optimal noise
  generation for streaming differential privacy (FOCS 2024); three buffers, fitted to all totals
- Toeplitz: any decreasing coefficients, fitted to all totals
- dense: the optimum for the mean variance of all totals, by the fixed point of Denisov et al. (NeurIPS 2022)
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from crypto.continual_counting import WEIGHT_ONE, weights

Floats = NDArray[np.float64]
Family = Callable[[int, Floats], Floats]

OPENINGS = (6, 13, 52)
BUFFERS = 3
ROUNDS = 2_000  # of the fixed point, which has settled long before


@dataclass(frozen=True)
class Row:
    """Errors of a factorisation over `openings`, relative to ours; below 1 is better than ours."""

    openings: int
    factorisation: str
    last_total: float
    all_totals: float


def rows(openings: int) -> Iterator[Row]:
    """Ours first."""
    ours = errors(np.array(weights(openings)) / WEIGHT_ONE)
    found = {
        "ours": ours,
        "square root": errors(square_root(openings)),
        "BSR": best(errors(banded(square_root(openings), band)) for band in range(1, openings + 1)),
        "BiSR": best(errors(banded_inverse(openings, band)) for band in range(1, openings + 1)),
        "BLT": errors(fitted(openings, blt, [0.3] * BUFFERS + [0.5, 2.0, 4.0])),
        "Toeplitz": errors(fitted(openings, decreasing, np.log(-np.diff(square_root(openings))))),
        "dense": dense(openings),
    }
    for name, (last, everything) in found.items():
        yield Row(openings, name, last / ours[0], everything / ours[1])


def square_root(openings: int) -> Floats:
    """Coefficients of the square root of the counting matrix: binom(2k, k) / 4^k."""
    k = np.arange(1, openings)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


def banded(coefficients: Floats, band: int) -> Floats:
    """The first `band` of them, zero beyond."""
    return np.where(np.arange(len(coefficients)) < band, coefficients, 0.0)


def banded_inverse(openings: int, band: int) -> Floats:
    """The coefficients whose inverse has the first `band` of the square root's inverse."""
    return inverse(banded(inverse(square_root(openings)), band))


def blt(openings: int, parameters: Floats) -> Floats:
    """Coefficients of a buffered linear Toeplitz matrix from unbounded parameters: outputs, then decays."""
    outputs, decays = np.abs(parameters[:BUFFERS]), 1 / (1 + np.exp(-parameters[BUFFERS:]))
    return np.concatenate([[1.0], (outputs * decays ** np.arange(openings - 1)[:, None]).sum(axis=1)])


def decreasing(openings: int, parameters: Floats) -> Floats:
    """Coefficients from the logarithms of their steps down; the first is 1."""
    return 1.0 - np.concatenate([[0.0], np.cumsum(np.exp(parameters))])


def fitted(openings: int, family: Family, start: Sequence[float] | Floats) -> Floats:
    """The coefficients of a family with the least error of all totals."""

    def error(parameters: Floats) -> float:
        return float(np.log(errors(family(openings, parameters))[1]))

    found = minimize(error, np.asarray(start), method="L-BFGS-B", options={"maxfun": 200_000, "maxiter": 5_000})
    return family(openings, found.x)


def errors(coefficients: Floats) -> tuple[float, float]:
    """Of the last total, and of all, for the Toeplitz matrix C with these coefficients."""
    decoding = np.cumsum(inverse(coefficients))  # the first column of B = A C^-1
    squares = np.cumsum(decoding**2)  # of the rows of B
    sensitivity = float(np.sqrt((coefficients**2).sum()))
    return sensitivity * float(np.sqrt(squares[-1])), sensitivity * float(np.sqrt(squares.mean()))


def inverse(coefficients: Floats) -> Floats:
    """Coefficients of the inverse of a lower triangular Toeplitz matrix."""
    found = np.zeros(len(coefficients))
    found[0] = 1 / coefficients[0]
    for k in range(1, len(coefficients)):
        found[k] = -np.dot(coefficients[1 : k + 1], found[k - 1 :: -1]) / coefficients[0]
    return found


def best(errors_of: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The one with the least error of all totals."""
    return min(errors_of, key=lambda of: of[1])


def dense(openings: int) -> tuple[float, float]:
    """Of the optimum over all matrices whose columns have norm 1: X = C'C minimises the trace of A'A X^-1."""
    counting = np.tril(np.ones((openings, openings)))
    gram, scale, middle = counting.T @ counting, np.ones(openings), np.eye(openings)
    for _ in range(ROUNDS):
        root = np.sqrt(scale)
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        middle = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
        scale = np.diag(middle).copy()
    columns = middle / np.sqrt(np.outer(scale, scale))
    variances = np.einsum("ij,ji->i", counting, np.linalg.solve(columns, counting.T))
    return float(np.sqrt(variances[-1])), float(np.sqrt(variances.mean()))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    as_json = parser.parse_args().json
    found = [row for openings in OPENINGS for row in rows(openings)]
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in found]}))
        return
    for row in found:
        print(f"{row.openings:>3} {row.factorisation:<12} {row.last_total:.3f} {row.all_totals:.3f}")


if __name__ == "__main__":
    main()
