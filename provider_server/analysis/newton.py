"""Exact federated survival regression for a consortium that trusts its sums: Newton's method over integer summaries.

The model is the piecewise-exponential one (Holford 1980, Laird & Olivier 1981): in band b a unit with covariates x
fails at the rate exp(a_b + x β), and a ridge, λ |β|² / 2, may be taken off the log likelihood. In a round each site
states, of its own rows and at the same coefficients, gradient, negated Hessian (its upper triangle) and log likelihood
as whole numbers in units of 2^-`fraction_bits`; the coordinator sees their sum and takes the step.

Guarantees. Whole numbers add up exactly in any order, mod 2^64 too, so masked sums are the plain ones. Each site
rounds an entry once, by half a unit: at 2^-40 and λ >= 1 that moves no coefficient by more than 1e-11 for ten sites.
An entry is refused, by OverflowError, if `sites` of its size could leave the range of a signed 64-bit number. The
first round only counts (events and time in each band): its step sets the baseline, not β.

Not promised: privacy beyond that of sums. Exact sums over few rows can tell about one of them, and a Hessian has many
entries: this is for parties that have agreed to share sums. Noisy tables are the business of `hazard`.

    >>> rows = Rows(np.array([2.0, 1.0, 1.0, 4.0]), np.array([1, 0, 1, 0]), np.array([[1.0], [0.0], [1.0], [0.0]]))
    >>> model = PiecewiseExponential((0.0, 4.0), covariates=1, ridge=1.0)
    >>> here = start(model)
    >>> while not here.converged:
    ...     here = step(model, here, [site_summary(model, rows, here.coefficients)])
    >>> here.rounds, here.coefficients.round(6).tolist()
    (5, [-1.592281, 0.632121])
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.life_table import Floats
from provider_server.analysis.bands import band_of, time_in_bands

Integers = NDArray[np.int64]
TOLERANCE = 1e-6  # of a step relative to the last; where steps are this small the next one would be its square
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
    """What all parties agree on beforehand: `edges` of the bands in the unit of time, covariates, ridge and scale."""

    edges: tuple[float, ...]
    covariates: int
    ridge: float = 0.0
    fraction_bits: int = 40
    sites: int = 1024

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


def start(model: PiecewiseExponential) -> Point:
    """Before the first round: all coefficients are zero."""
    return Point(np.zeros(model.size))


def site_summary(model: PiecewiseExponential, rows: Rows, coefficients: Floats) -> Integers:
    """A site's summary (cells,): log likelihood, gradient, upper triangle of the negated Hessian, all scaled."""
    log_likelihood, gradient, information = _derivatives(model, rows, coefficients)
    entries = np.concatenate([[log_likelihood], gradient, information[np.triu_indices(model.size)]])
    scaled = np.rint(np.ldexp(entries, model.fraction_bits))
    if not np.all(np.abs(scaled) < 2.0**63 / model.sites):
        raise OverflowError("a summary leaves its range: scale the covariates, or agree on fewer fraction bits")
    return np.asarray(scaled, np.int64)


def step(model: PiecewiseExponential, here: Point, summaries: Iterable[Integers]) -> Point:
    """The point after a round; `summaries` are those of all sites, or just their sum.

    Newton's step, halved for as long as it led downhill. ValueError where a band has no event, or where covariates are
    collinear and there is no ridge.
    """
    log_likelihood, gradient, information = _unpack(model, np.sum(list(summaries), axis=0, dtype=np.int64))
    if not here.rounds:
        return _baseline(model, gradient, information)
    at, precision = here.coefficients, model.precision
    penalised = log_likelihood - 0.5 * float(precision @ at**2)
    if here.step is not None and penalised < here.log_likelihood - 1e-9 * abs(here.log_likelihood):
        half = here.step / 2.0
        return Point(at - half, here.rounds + 1, log_likelihood=here.log_likelihood, step=half)
    move = _solve(information + np.diag(precision), gradient - precision * at)
    largest = float(np.abs(move).max())
    move *= min(1.0, MAX_STEP / max(largest, MAX_STEP))
    return Point(at + move, here.rounds + 1, largest < TOLERANCE, penalised, move)


def fit(model: PiecewiseExponential, rows: Rows, *, max_rounds: int = 50) -> Point:
    """The same fit with all rows in one place and without rounding: what a federated one is compared with."""
    here = start(model)
    while not here.converged and here.rounds < max_rounds:
        here = _pooled_step(model, here, rows)
    return here


def _pooled_step(model: PiecewiseExponential, here: Point, rows: Rows) -> Point:
    raise NotImplementedError
