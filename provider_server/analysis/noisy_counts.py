"""What tenants' counts of each pair say of its rate: a Poisson law that a cap bends, convolved with known noise.

    y = N + noise,   N ~ Poisson(what counts of E x failures),   noise ~ N(0, σ²)

for P pairs with exposures E (P,) and every rate x on a grid. Where a cap lets only some failures count, what counts is
a concave function of x; that function is given. The likelihood is exact: one grid of log means serves all pairs
(beyond `MOST_COUNTS` failures: its normal approximation).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from federation.protocol.life_table import Floats
from provider_server.analysis.ratio_grid import LOG_RATIO, blunted, read_rows

Places = NDArray[np.intp]

LEAST_EXPOSURE = 1e-6  # failures expected: less says nothing under any noise
GRID_STEP = 0.02  # of the log mean
LOG_FACTOR = np.linspace(-4.0, 5.0, 19)  # of the rate: where a cap's effect is worked out
LEAST_SHARE = 1e-3  # of a pair's failures that may count; less says nothing under any noise
FARTHEST = 8.0  # standard deviations of noise
MOST_COUNTS, FAINTEST = 3000.0, 1e-290  # where the normal law takes over: many failures, and underflow


@dataclass(frozen=True, eq=False)
class NoisySight:
    """Own failures of all pairs under noise: counts, its variance, exposure, all flat, and `counted` as below."""

    counts: Floats
    variance: Floats
    exposure: Floats
    counted: Floats

    def witness(self, chosen: Places, pairs: int) -> "NoisyCounts":
        """What they say of the pairs at the flat positions `chosen`, of so many; nothing where nobody looked."""
        exposure = np.maximum(self.exposure, LEAST_EXPOSURE)
        columns = (column.reshape(pairs, -1)[chosen] for column in (self.counts, self.variance, exposure, self.counted))
        counts, variance, looked, counted = columns
        return NoisyCounts.of(counts[:, 0], variance[:, 0], looked[:, 0], counted)


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Counts of P pairs, the variance of their noise and their exposure, all (P,).

    `log_share` (P, factors) is the log of what counts over what fails, at the rates `LOG_FACTOR`; None where all do.
    """

    counts: Floats
    variance: Floats
    exposure: Floats
    log_share: Floats | None
    log_means: Floats
    values: Floats

    @classmethod
    def of(cls, counts: Floats, variance: Floats, exposure: Floats, counted: Floats | None) -> "NoisyCounts":
        """`counted` (P, factors) is how many of the failures are expected to count at each rate."""
        share = None
        if counted is not None:
            share = np.log(np.clip(counted / (exposure[:, None] * np.exp(LOG_FACTOR)), LEAST_SHARE, 1.0))
        log_means = _log_means(np.log(exposure * _crude(counts, variance, exposure)), counts, variance)
        values = blunted(_log_likelihood(counts, variance, log_means), GRID_STEP)
        return cls(counts, variance, exposure, share, log_means, values)

    @property
    def shape(self) -> float:
        """Infinite: of single leases, sums tell nothing."""
        return np.inf

    def given(self, rate: Floats) -> "NoisyCounts":  # any witness has it
        """The same at any rate."""
        return self

    def at(self, log_rate: Floats) -> Floats:
        """log p(y | log rate + log θ) on the grid of log θ, shape (P, grid); `log_rate` (P,)."""
        return self.read(log_rate[:, None] + LOG_RATIO)

    def read(self, log_rate: Floats) -> Floats:
        """log p(y | log rate), up to a term per pair, of as many rates for each pair as `log_rate` (P, n) has."""
        log_mean = log_rate + np.log(self.exposure)[:, None]
        if self.log_share is not None:
            place = (log_rate - LOG_FACTOR[0]) / (LOG_FACTOR[1] - LOG_FACTOR[0])
            log_mean = log_mean + read_rows(self.log_share, place)
        return read_rows(self.values, (log_mean - self.log_means[0]) / GRID_STEP)

    def uncapped(self) -> tuple[Floats, Floats]:
        """Counts and variances of noise as if no failure had gone uncounted, at a rate of one: enough to start from."""
        if self.log_share is None:
            return self.counts, self.variance
        at_one = np.exp(self.log_share[:, np.argmin(np.abs(LOG_FACTOR))])
        return self.counts / at_one, self.variance / at_one**2 + self.exposure * (1.0 / at_one - 1.0)


def _crude(counts: Floats, variance: Floats, exposure: Floats) -> float:
    """The rate of all pairs together, as far as noise lets it be told from none."""
    return max(float(counts.sum()), float(np.sqrt(variance.sum())), 1.0) / float(exposure.sum())


def _log_means(log_expected: Floats, counts: Floats, variance: Floats) -> Floats:
    """Log means from far below what any pair expects to far above what any can have."""
    most = max(float(np.max(np.log(np.maximum(counts, 1.0) + FARTHEST * np.sqrt(variance)))), float(log_expected.max()))
    return np.arange(log_expected.min() + LOG_RATIO[0] - 5.0, most + LOG_RATIO[-1], GRID_STEP)


def _log_likelihood(counts: Floats, variance: Floats, grid: Floats) -> Floats:
    """log p(y | log mean) up to a term per pair, shape (P, grid): Poisson, convolved with the noise if there is any."""
    # far below none all say the same: without this, laws of very many failures, which spread, would seem the likeliest
    counts = np.maximum(counts, -FARTHEST * np.sqrt(variance))
    most = counts + FARTHEST * np.sqrt(variance)
    many = most > MOST_COUNTS
    true = np.arange(min(MOST_COUNTS, max(20.0, float(most.max()) + 10.0)) + 1.0)
    log_poisson = true[:, None] * grid - np.exp(grid) - gammaln(true + 1.0)[:, None]
    quiet, noisy = (variance == 0.0) & ~many, (variance > 0.0) & ~many
    rows = _normal_law(counts, variance, grid)
    rows[quiet] = log_poisson[np.clip(np.round(counts[quiet]).astype(np.intp), 0, None)]
    if noisy.any():
        log_noise = -0.5 * (counts[noisy, None] - true) ** 2 / variance[noisy, None]
        top = log_noise.max(axis=1, keepdims=True)
        mixed = np.exp(log_noise - top) @ np.exp(log_poisson)
        rows[noisy] = np.where(mixed > FAINTEST, np.log(np.maximum(mixed, FAINTEST)) + top, rows[noisy])
    return np.asarray(rows - rows.max(axis=1, keepdims=True), np.float64)


def _normal_law(counts: Floats, variance: Floats, grid: Floats) -> Floats:
    """The same by the normal law, for very many failures and for far tails, where the sum underflows."""
    mean, noise = np.exp(grid), variance[:, None]
    spread = (mean + noise) / np.where(noise > 0.0, noise, 1.0)
    return np.asarray(-0.5 * (counts[:, None] - mean) ** 2 / (mean + noise) - 0.5 * np.log(spread), np.float64)
