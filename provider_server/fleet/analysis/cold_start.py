"""A first rate for a new context or workload with few failures of its own, from known ones and from benchmark jobs.

The log rates of the K known are a random field: normal around a common level (of which nothing is assumed), with
variance τ² and correlation (1 - ν) exp(-(d / λ)^p) at distance d; each is itself known up to its own standard
deviation. None of these parameters is estimated: they are averaged over, weighed by how well they explain the known
(ordinary kriging with uncertain parameters; Cressie 1993, §3.2; Handcock & Stein 1993). So the nearest say most where
distance has mattered so far, and all of them alike where it has not (ν = 1). A newcomer further away than any two
known are from each other varies more: in proportion, up to `MOST_STRETCH` times the variance, and by up to the spread
that was assumed before anything was known. What results is a prior, wide and with long tails where the known are few.

Two likelihoods update it, on one grid of log rates: benchmark jobs, whose failures are counted exactly (Poisson), and a
released count with the known variance of its noise (the quasi-likelihood of variance m + σ²). Benchmarks are not what
tenants run: their rate may differ from tenants' by `TRANSFER_SD` on the log scale, so however many there are, the
interval stays as wide as that until released counts take over.

Guarantee: by simulation, 95% intervals hold the true rate in 93% of the cases or more, without evidence of its own,
with little and with much, near the known and far away (docs/learning.md). Not promised: as much (88 to 92% before
there is evidence) where the known are a few tight clusters and the newcomer is outside all of them; benchmarks that are
unlike tenants' jobs by much more than `transfer_sd`.

    >>> known = (Known("h100 a", np.log(0.001), 0.1), Known("h100 b", np.log(0.002), 0.1))
    >>> found = bootstrap(known, np.array([0.1, 0.9]), failures=0.0, node_hours=0.0, released=None)
    >>> found.basis
    'nearest of 2 known: h100 a, at distance 0.1; no benchmark jobs; no released count'
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from crypto.errors import PharoahError
from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.intervals import NORMAL_95

LEAST_VARIANCE = 1e-6
TRANSFER_SD = 0.25  # of the log rate between benchmark jobs and what tenants run
SPREADS = np.geomspace(0.05, 2.5, 12)  # τ
SPREAD_SD = 1.0  # of its half-normal prior: rates differ by factors, not by decades
LENGTHS = 2.0 ** np.arange(-3.0, 2.0)  # λ over the distance of two typical known ones, equally probable
POWERS, NUGGETS = (1.0, 3.0), (0.01, 0.2)  # p, and ν where distance matters; equally probable
UNRELATED = 0.5  # the prior odds that distance does not matter
MOST_STRETCH = 4.0
STEP = 0.02  # of the grid of log rates
LIKELY = 8.0  # in log weight below the likeliest setting: others are dropped
FAR = 5.0  # standard deviations at which the grid ends


class NothingKnown(PharoahError):
    """No context or workload has a rate yet to start from."""

    default_hint = "run benchmark jobs on a context that tenants use, or wait for the first release"


@dataclass(frozen=True)
class Known:
    """Something whose log rate is known up to a standard deviation."""

    name: str
    log_rate: float
    log_sd: float


@dataclass(frozen=True)
class Newcomer:
    """A rate (posterior median) with its 95% interval; `basis` says in words what it is based on."""

    rate: float
    low: float
    high: float
    basis: str


def bootstrap(
    known: Sequence[Known],
    distances: Floats,
    failures: float,
    node_hours: float,
    released: tuple[float, float, float] | None,
    *,
    between: Floats | None = None,
    transfer_sd: float = TRANSFER_SD,
) -> Newcomer:
    """The rate of something new, at `distances` (K,) from the known, in any one unit.

    `failures` is what benchmark jobs counted in `node_hours`; `released` a count, the variance of its noise and its
    exposure, in the unit of `node_hours`. `between` (K, K) are distances among the known; without it they are taken to
    be as near each other as their distances to the newcomer allow: intervals are then wider than need be.
    NothingKnown without any known; ValueError for impossible input.
    """
    between = np.abs(np.subtract.outer(distances, distances)) if between is None else between
    _check(known, distances, between, failures, node_hours, released)
    prior = _Prior.of(known, distances, between)
    grid = prior.grid(_crude(failures, node_hours), _crude(released[0], released[2]) if released else None)
    log_mass = prior.log_density(grid) + _benchmarked(grid, failures, node_hours, transfer_sd)
    if released:
        log_mass += _released(grid, *released)
    low, middle, high = _quantiles(grid, log_mass)
    return Newcomer(middle, low, high, _basis(known, distances, failures, node_hours, released))


def foretold(known: Sequence[Known], distances: Floats, between: Floats) -> tuple[float, float]:
    """The mean log rate of something new, and its standard deviation, before there is evidence of its own."""
    _check(known, distances, between, 0.0, 0.0, None)
    prior = _Prior.of(known, distances, between)
    weight = np.exp(prior.log_weight)
    mean = float(weight @ prior.mean)
    return mean, float(np.sqrt(weight @ (prior.sd**2 + (prior.mean - mean) ** 2)))


def _check(
    known: Sequence[Known],
    distances: Floats,
    between: Floats,
    failures: float,
    node_hours: float,
    released: tuple[float, float, float] | None,
) -> None:
    size = len(known)
    if not known:
        raise NothingKnown("no context or workload has a rate yet to compare with")
    if distances.shape != (size,) or between.shape != (size, size) or not np.array_equal(between, between.T):
        raise ValueError(f"{size} known need so many distances, and a symmetric matrix of them in between")
    if not (np.all(distances >= 0.0) and np.all(between >= 0.0)):
        raise ValueError("distances must be numbers from 0 on")
    if not all(np.isfinite(one.log_rate) and 0.0 <= one.log_sd < np.inf for one in known):
        raise ValueError("log rates must be finite, their standard deviations also and not negative")
    if not (failures >= 0.0 and node_hours >= 0.0) or (failures > 0.0 and node_hours == 0.0):
        raise ValueError("failures of benchmark jobs need node-hours in which they happened")
    if released and not (released[1] >= 0.0 and released[2] > 0.0):
        raise ValueError("a released count needs a variance from 0 on and positive exposure")


@dataclass(frozen=True, eq=False)
class _Prior:
    """A mixture of normal laws of the log rate: means, standard deviations and log weights, all (settings,)."""

    mean: Floats
    sd: Floats
    log_weight: Floats

    @classmethod
    def of(cls, known: Sequence[Known], distances: Floats, between: Floats) -> "_Prior":
        log_rate, log_sd = np.array([[one.log_rate, one.log_sd] for one in known], np.float64).T
        apart = np.block([[between, distances[:, None]], [distances[None, :], np.zeros((1, 1))]])
        widest = float(between.max())
        stretch = min(max(1.0, float(distances.min()) / widest), MOST_STRETCH) if widest > 0.0 else 1.0
        log_odds, correlations = zip(*_correlations(apart / _typical(apart)), strict=True)
        fits = [_krige(log_rate, log_sd, correlation, stretch) for correlation in correlations]
        mean, variance, log_weight = np.concatenate(fits, axis=1)
        log_spread = norm.logpdf(SPREADS, 0.0, SPREAD_SD) + np.log(SPREADS)  # the grid is even in log τ
        log_weight += np.add.outer(log_odds, log_spread).ravel()
        likely = log_weight > log_weight.max() - LIKELY
        return cls(mean[likely], np.sqrt(variance[likely]), log_weight[likely] - logsumexp(log_weight[likely]))

    def grid(self, *crude: float | None) -> Floats:
        """Log rates from far below to far above what is possible, and beyond crude rates that were seen."""
        seen = [rate for rate in crude if rate is not None]
        low = min([float((self.mean - FAR * self.sd).min()), *(rate - 2.0 for rate in seen)])
        high = max([float((self.mean + FAR * self.sd).max()), *(rate + 2.0 for rate in seen)])
        return np.arange(low, high, STEP)

    def log_density(self, grid: Floats) -> Floats:
        """The log density on the grid."""
        away = (grid[:, None] - self.mean) / self.sd
        density = np.exp(-0.5 * away**2) @ (np.exp(self.log_weight) / self.sd)
        return np.asarray(np.log(np.maximum(density, np.finfo(float).tiny)), np.float64)


def _typical(apart: Floats) -> float:
    """The median distance of two that are not in one place; one where all are."""
    positive = apart[apart > 0.0]
    return float(np.median(positive)) if positive.size else 1.0


def _correlations(apart: Floats) -> Iterator[tuple[float, Floats]]:
    """Log odds and correlation matrices, at distances over that of two typical ones."""
    settings = list(product(LENGTHS, POWERS, NUGGETS))
    yield np.log(UNRELATED), np.eye(len(apart))
    for length, power, nugget in settings:
        near = np.exp(-((apart / length) ** power))
        yield -np.log(len(settings)), _valid((1.0 - nugget) * near + nugget * np.eye(len(apart)))


def _valid(matrix: Floats) -> Floats:
    """A correlation matrix, where the distances are not those of points in any space: negative eigenvalues go."""
    values, vectors = np.linalg.eigh(matrix)
    matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
    scale = np.sqrt(np.diag(matrix))
    return np.asarray(matrix / np.outer(scale, scale), np.float64)


def _krige(log_rate: Floats, log_sd: Floats, correlation: Floats, stretch: float) -> Floats:
    """For each of `SPREADS` the newcomer's mean and variance, and the log likelihood of what is known: (3, spreads).

    The newcomer is the last in `correlation`. The level has a flat prior, so the likelihood is the restricted one.
    """
    size, variances = len(log_rate), SPREADS[:, None] ** 2
    near = correlation[:size, size]
    covariance = variances[:, :, None] * correlation[:size, :size] + np.diag(log_sd**2 + LEAST_VARIANCE)
    inverse = np.linalg.inv(covariance)
    information = inverse.sum(axis=(1, 2))
    level = inverse.sum(axis=1) @ log_rate / information
    rest = log_rate - level[:, None]
    weight = np.einsum("tij,tj->ti", inverse, variances * near)
    mean = level + np.sum(weight * rest, axis=1)
    unexplained = variances[:, 0] * (stretch - weight @ near) + (1.0 - 1.0 / stretch) * SPREAD_SD**2
    variance = unexplained + (1.0 - weight.sum(axis=1)) ** 2 / information
    misfit = np.einsum("ti,tij,tj->t", rest, inverse, rest)
    log_likelihood = -0.5 * (np.linalg.slogdet(covariance)[1] + np.log(information) + misfit)
    return np.stack([mean, np.maximum(variance, LEAST_VARIANCE), log_likelihood])


def _crude(count: float, exposure: float) -> float | None:
    return float(np.log(max(count, 1.0) / exposure)) if exposure > 0.0 else None


def _benchmarked(grid: Floats, failures: float, node_hours: float, transfer_sd: float) -> Floats:
    """The log likelihood of exact counts on the grid, averaged over how far benchmarks are from tenants' jobs."""
    if not node_hours:
        return np.zeros(len(grid))
    width = int(np.ceil(4.0 * transfer_sd / STEP))
    steps = STEP * np.arange(-width, width + 1)
    log_rate = STEP * np.arange(-width, len(grid) + width) + grid[0]
    values = failures * log_rate - node_hours * np.exp(log_rate)
    kernel = norm.pdf(steps, 0.0, max(transfer_sd, STEP / 10.0))
    mixed = np.convolve(np.exp(values - values.max()), kernel, "valid")
    return np.asarray(np.log(np.maximum(mixed, np.finfo(float).tiny)), np.float64)


def _released(grid: Floats, count: float, variance: float, exposure: float) -> Floats:
    mean = exposure * np.exp(grid)
    return np.asarray((count + variance) * np.log(mean + variance) - mean, np.float64)


def _quantiles(grid: Floats, log_mass: Floats) -> tuple[float, float, float]:
    """The rates below which 2.5%, half and 97.5% of the mass lie."""
    mass = np.exp(log_mass - log_mass.max())
    below = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    low, middle, high = np.exp(np.interp([0.025, 0.5, 0.975], below, grid)).tolist()
    return low, middle, high


def _basis(
    known: Sequence[Known],
    distances: Floats,
    failures: float,
    node_hours: float,
    released: tuple[float, float, float] | None,
) -> str:
    nearest = int(np.argmin(distances))
    words = [f"nearest of {len(known)} known: {known[nearest].name}, at distance {distances[nearest]:.2g}"]
    words.append(
        f"{failures:g} failures in {node_hours:,.0f} node-hours of benchmark jobs"
        if node_hours
        else "no benchmark jobs"
    )
    if released is None:
        words.append("no released count")
    else:
        count, variance, exposure = released
        noise = f" (noise ± {NORMAL_95 * np.sqrt(variance):.0f})" if variance else ""
        words.append(f"a released count of {count:.0f}{noise} in an exposure of {exposure:,.0f}")
    return "; ".join(words)
