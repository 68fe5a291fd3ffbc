"""Exact federated survival regression for a consortium that trusts its sums: Newton's method over integer summaries.

The model is the piecewise-exponential one (Holford 1980, Laird & Olivier 1981): in band b a unit with covariates x
fails at the rate exp(a_b + x β), and a ridge, λ |β|² / 2, may be taken off the log likelihood. In a round each site
states, of its own rows and at the same coefficients, gradient, negated Hessian (its upper triangle) and log likelihood
as whole numbers in units of 2^-`fraction_bits`; the coordinator sees their sum and takes the step.

Guarantees. Whole numbers add up exactly in any order, mod 2^64 too, so masked sums are the plain ones. Each site
rounds an entry once, by half a unit: at 2^-40 and λ >= 1 that moves no coefficient by more than 1e-11 for ten sites.
An entry is refused, by OverflowError, if `sites` of its size could leave the range of a signed 64-bit number. The
first round only counts (events and time in each band): its step sets the baseline, not β.

Not promised: convergence at a scale too coarse for `TOLERANCE`, so a caller bounds the rounds; privacy beyond that of
sums. Exact sums over few rows can tell about one of them, and a Hessian has many
entries: this is for parties that have agreed to share sums. Noisy tables are the business of `hazard`.

    >>> rows = Rows(np.array([2.0, 1.0, 1.0, 4.0]), np.array([1, 0, 1, 0]), np.array([[1.0], [0.0], [1.0], [0.0]]))
    >>> model = PiecewiseExponential((0.0, np.inf), covariates=1, ridge=1.0)
    >>> here = start(model)
    >>> while not here.converged:
    ...     here = step(model, here, [site_summary(model, rows, here.coefficients)])
    >>> here.rounds, here.coefficients.round(6).tolist()
    (6, [-1.78629, 0.837904])
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from federation.protocol.life_table import Floats
from simulation.replay.bands import band_of, time_in_bands

Integers = NDArray[np.int64]
TOLERANCE = 1e-6  # of the last step; steps square near the answer, so it is then within about 1e-12 of it
SLACK = 1e-10  # by which a log likelihood may seem to fall, relative to itself, for rounding alone
MAX_STEP = 4.0  # of any coefficient, per round


@dataclass(frozen=True, eq=False)
class Rows:
    """One site's units: time under observation (n,), whether they failed at its end (n,), covariates (n, p)."""

    time: Floats
    failed: NDArray[np.integer] | NDArray[np.bool_]
    covariates: Floats

    def __post_init__(self) -> None:
        if self.covariates.ndim != 2 or not len(self.time) == len(self.failed) == len(self.covariates):
            raise ValueError("time, failed and covariates need one entry, or one line, per unit")
        if not (np.isfinite(self.covariates).all() and np.isfinite(self.time).all() and np.all(self.time >= 0.0)):
            raise ValueError("times must be finite and not negative, covariates finite")


@dataclass(frozen=True)
class PiecewiseExponential:
    """What all parties agree on beforehand: `edges` of the bands (the last may be inf), ridge and scale."""

    edges: tuple[float, ...]
    covariates: int
    ridge: float = 0.0
    fraction_bits: int = 40
    sites: int = 64

    @property
    def bands(self) -> int:
        """Number of baseline rates."""
        return len(self.edges) - 1

    @property
    def size(self) -> int:
        """Number of coefficients: first the log baseline rates, then one per covariate."""
        return self.bands + self.covariates

    @property
    def cells(self) -> int:
        """Length of a summary."""
        return 1 + self.size + self.size * (self.size + 1) // 2

    @property
    def precision(self) -> Floats:
        """The ridge of each coefficient (size,); baseline rates have none."""
        return np.repeat([0.0, self.ridge], [self.bands, self.covariates])


@dataclass(frozen=True, eq=False)
class Point:
    """Where the coordinator stands: `coefficients` to ask about next, and what led there."""

    coefficients: Floats
    rounds: int = 0
    converged: bool = False
    log_likelihood: float = -math.inf  # penalised, at the best coefficients so far
    step: Floats | None = None  # that led from those to `coefficients`


class Derivatives(NamedTuple):
    """Of the log likelihood, without the ridge: its value, gradient (size,) and negated Hessian (size, size)."""

    log_likelihood: float
    gradient: Floats
    information: Floats


def start(model: PiecewiseExponential) -> Point:
    """Before the first round: all coefficients are zero."""
    return Point(np.zeros(model.size))


def site_summary(model: PiecewiseExponential, rows: Rows, coefficients: Floats) -> Integers:
    """A site's summary (cells,): log likelihood, gradient, upper triangle of the negated Hessian, all scaled."""
    log_likelihood, gradient, information = derivatives(model, rows, coefficients)
    entries = np.concatenate([[log_likelihood], gradient, information[np.triu_indices(model.size)]])
    scaled = np.rint(np.ldexp(entries, model.fraction_bits))
    if not np.all(np.abs(scaled) < 2.0**63 / model.sites):
        raise OverflowError("a summary leaves its range: scale the covariates, or agree on fewer fraction bits")
    return np.asarray(scaled, np.int64)


def step(model: PiecewiseExponential, here: Point, summaries: Iterable[Integers]) -> Point:
    """The point after a round; `summaries` are those of all sites, or just their sum.

    Newton's step, halved for as long as the last one led downhill. ValueError where a band has no event, or where
    covariates are collinear and there is no ridge.
    """
    total = np.sum(list(summaries), axis=0, dtype=np.int64)
    if total.shape != (model.cells,):
        raise ValueError(f"summaries have shape {total.shape}, not ({model.cells},)")
    entries = np.ldexp(total.astype(np.float64), -model.fraction_bits)
    upper = np.zeros((model.size, model.size))
    upper[np.triu_indices(model.size)] = entries[1 + model.size :]
    information = upper + np.triu(upper, 1).T
    return _step(model, here, Derivatives(float(entries[0]), entries[1 : 1 + model.size], information))


def fit(model: PiecewiseExponential, rows: Rows, *, max_rounds: int = 50) -> Point:
    """The fit with all rows in one place and no rounding, which a federated one is compared with."""
    here = start(model)
    while not here.converged and here.rounds < max_rounds:
        here = _step(model, here, derivatives(model, rows, here.coefficients))
    return here


def derivatives(model: PiecewiseExponential, rows: Rows, coefficients: Floats) -> Derivatives:
    """What a site's summary holds, as floating-point numbers."""
    if rows.covariates.shape[1] != model.covariates:
        raise ValueError(f"rows have {rows.covariates.shape[1]} covariates, not {model.covariates}")
    edges, k = np.array(model.edges), model.bands
    score = rows.covariates @ coefficients[k:]
    expected = time_in_bands(rows.time, edges) * np.exp(coefficients[:k] + score[:, None])
    by_row, failed = expected.sum(axis=1), rows.failed.astype(np.float64)
    events = np.bincount(band_of(rows.time, edges), failed, k)
    gradient = np.concatenate([events - expected.sum(axis=0), rows.covariates.T @ (failed - by_row)])
    information = np.zeros((model.size, model.size))
    information[:k, :k] = np.diag(expected.sum(axis=0))
    information[:k, k:] = expected.T @ rows.covariates
    information[k:, :k] = information[:k, k:].T
    information[k:, k:] = (rows.covariates * by_row[:, None]).T @ rows.covariates
    value = float(events @ coefficients[:k] + failed @ score - by_row.sum())
    return Derivatives(value, gradient, information)


def _step(model: PiecewiseExponential, here: Point, found: Derivatives) -> Point:
    if not here.rounds:
        return Point(_baseline(model, found), 1)
    at, precision = here.coefficients, model.precision
    penalised = found.log_likelihood - 0.5 * float(precision @ at**2)
    if here.step is not None and penalised < here.log_likelihood - SLACK * abs(here.log_likelihood):
        back = here.step / 2.0
        smallest = float(np.abs(back).max()) < TOLERANCE
        return Point(at - back, here.rounds + 1, smallest, here.log_likelihood, back)
    try:
        factor = cho_factor(found.information + np.diag(precision))
    except LinAlgError as error:
        raise ValueError("covariates are collinear: leave some out, or agree on a ridge") from error
    move = np.asarray(cho_solve(factor, found.gradient - precision * at), np.float64)
    largest = float(np.abs(move).max())
    move *= MAX_STEP / max(largest, MAX_STEP)
    return Point(at + move, here.rounds + 1, largest < TOLERANCE, penalised, move)


def _baseline(model: PiecewiseExponential, found: Derivatives) -> Floats:
    """The crude rate of each band: where all coefficients are zero, the information is the time in it."""
    hours = np.diag(found.information)[: model.bands]
    events = found.gradient[: model.bands] + hours
    if np.any(events < 0.5):
        raise ValueError("a band without an event has no finite rate: agree on wider bands")
    return np.concatenate([np.log(events / hours), np.zeros(model.covariates)])
