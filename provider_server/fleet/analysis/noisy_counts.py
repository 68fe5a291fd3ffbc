"""What tenants' counts of each pair say of its rate: a Poisson law that a cap bends, convolved with known noise.

    y = N + noise,   N ~ Poisson(what counts of E x failures),   noise ~ N(0, σ²)

for P pairs with exposures E (P,) and every rate x on a grid. Where a cap lets only some failures count, what counts is
a concave function of x; that function is given. The likelihood is exact: one grid of log means serves all pairs
(beyond `MOST_COUNTS` failures: its normal approximation). Of that grid, what is asked for is worked out anew each time,
pairs of like exposure together (`only`): all of it would be the largest table of the learner. Noise is a sum of
discrete Laplace noises in truth; their exact law in place of the normal one ranked pairs no better.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, wrightomega

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO, NARROWEST, Rows, narrowness

Places = NDArray[np.intp]

GRID_STEP = 0.02  # of the log mean
LOG_FACTOR = np.linspace(-4.0, 5.0, 19)  # of the rate: where a cap's effect is worked out
LEAST_SHARE = 1e-3  # of a pair's failures that may count; less says nothing under any noise
FARTHEST = 8.0  # standard deviations of noise
MOST_COUNTS, FAINTEST = 3000.0, 1e-290  # where the normal law takes over: many failures, and underflow
AROUND = 5  # steps of the grid: a likelihood of so many failures has its peak within them
FAR = 10.0  # standard deviations of noise: further from the likeliest failures, none add to a sum


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Counts of P pairs, the variance of their noise and their exposure, all (P,).

    `log_share` (P, factors) is the log of what counts over what fails, at the rates `LOG_FACTOR`; None where all do.
    `poisson` (failures, log means) is the law of as many failures as are mixed, at the grid of `log_means`; `narrow`
    (P,) is what log likelihoods are divided by (`ratio_grid.narrowness`).
    """

    counts: Floats
    variance: Floats
    exposure: Floats
    log_share: Floats | None
    log_means: Floats
    poisson: Floats
    narrow: Floats

    @classmethod
    def of(cls, counts: Floats, variance: Floats, exposure: Floats, counted: Floats | None) -> "NoisyCounts":
        """`counted` (P, factors) is how many of the failures are expected to count at each rate."""
        share = None
        if counted is not None:
            share = np.log(np.clip(counted / (exposure[:, None] * np.exp(LOG_FACTOR)), LEAST_SHARE, 1.0))
        log_means = _log_means(np.log(exposure * _crude(counts, variance, exposure)), counts, variance)
        poisson = _poisson(counts, variance, log_means)
        made = cls(counts, variance, exposure, share, log_means, poisson, np.ones(len(counts)))
        return made._blunted()

    def only(self, rows: Places) -> "NoisyCounts":
        """Of some pairs."""
        counts, variance, exposure = (column[rows] for column in (self.counts, self.variance, self.exposure))
        share, narrow = None if self.log_share is None else self.log_share[rows], self.narrow[rows]
        return replace(self, counts=counts, variance=variance, exposure=exposure, log_share=share, narrow=narrow)

    def _blunted(self) -> "NoisyCounts":
        """With what the pairs are divided by whose failures are so many: their likelihoods peak where they counted."""
        narrow = np.ones(len(self.counts))
        for pair in np.flatnonzero(self.counts > NARROWEST**-2 / 2.0):
            place = int((np.log(self.counts[pair]) - self.log_means[0]) / GRID_STEP)
            peak = self.only(np.array([pair]))._log_likelihood(slice(place - AROUND, place + AROUND + 1))
            narrow[pair] = narrowness(peak, GRID_STEP)[0]
        return replace(self, narrow=narrow)

    @property
    def shape(self) -> float:
        """Infinite: of single leases, sums tell nothing."""
        return np.inf

    def given(self, rate: Floats, ratio: Floats, log_prior: object) -> "NoisyCounts":  # any witness has it
        """The same whatever is known of pairs."""
        return self

    def at(self, log_rate: Floats) -> Floats:
        """log p(y | log rate + log θ) on the grid of log θ, shape (…, P, grid); `log_rate` (…, P)."""
        return self.read(log_rate[..., None] + LOG_RATIO)

    def read(self, log_rate: Floats) -> Floats:
        """log p(y | log rate), up to a term per pair, of as many rates for each pair as `log_rate` (…, P, n) has."""
        place = log_rate + (np.log(self.exposure)[:, None] - self.log_means[0])
        if self.log_share is not None:
            shares = Rows(self.log_share)
            for own, asked in zip(_layers(place), _layers(log_rate), strict=True):
                own += shares.at((asked - LOG_FACTOR[0]) / (LOG_FACTOR[1] - LOG_FACTOR[0]))
        place /= GRID_STEP
        np.clip(place, 0.0, len(self.log_means) - 1.001, out=place)
        first, last = int(place.min()), int(place.max()) + 2
        place -= first
        rows = Rows(self._log_likelihood(slice(first, last)))
        for own in _layers(place):
            rows.at(own)
        return np.asarray(place, np.float64)

    def _log_likelihood(self, part: slice) -> Floats:
        """log p(y | log mean) up to a term per pair, on a part of the grid: Poisson, convolved with noise if any."""
        grid, sd = self.log_means[part], np.sqrt(self.variance)
        # far below none, all say the same: else laws of very many failures, which spread, would seem the likeliest
        counts = np.maximum(self.counts, -FARTHEST * sd)
        many = counts + FARTHEST * sd > MOST_COUNTS
        quiet, noisy = (self.variance == 0.0) & ~many, (self.variance > 0.0) & ~many
        rows = np.empty((len(counts), len(grid)))
        rows[many] = _normal_law(counts[many, None], self.variance[many, None], np.exp(grid))
        true = np.maximum(np.round(counts[quiet, None]), 0.0)
        rows[quiet] = true * grid - np.exp(grid) - gammaln(true + 1.0)
        if noisy.any():
            rows[noisy] = self._mixed(counts[noisy], self.variance[noisy], part)
        return rows / self.narrow[:, None]

    def _mixed(self, counts: Floats, variance: Floats, part: slice) -> Floats:
        """Of pairs with noise; of the failures that it mixes, those that matter to any pair at any mean."""
        grid, sd, last = self.log_means[part], np.sqrt(variance), len(self.poisson) - 1
        least, most = (
            variance * wrightomega(counts / variance + log_mean - np.log(variance)) for log_mean in (grid[0], grid[-1])
        )
        low, high = np.clip([np.min(least - FAR * sd), np.max(most + FAR * sd) + 1.0], 0, last).astype(np.intp)
        top = -0.5 * ((counts - np.clip(np.round(counts), 0.0, last)) ** 2 / variance)[:, None]
        true = np.arange(low, high + 1.0)
        log_noise = -0.5 * (counts[:, None] - true) ** 2 / variance[:, None]
        mixed = np.exp(log_noise - top) @ self.poisson[low : high + 1, part]
        pair, place = np.nonzero(mixed <= FAINTEST)
        values = np.log(np.maximum(mixed, FAINTEST)) + top
        values[pair, place] = _normal_law(counts[pair], variance[pair], np.exp(grid)[place])
        return np.asarray(values, np.float64)

    def uncapped(self) -> tuple[Floats, Floats]:
        """Counts and variances of noise as if no failure had gone uncounted, at a rate of one: enough to start from."""
        if self.log_share is None:
            return self.counts, self.variance
        at_one = np.exp(self.log_share[:, np.argmin(np.abs(LOG_FACTOR))])
        return self.counts / at_one, self.variance / at_one**2 + self.exposure * (1.0 / at_one - 1.0)


def _layers(values: Floats) -> Floats:
    """Values (…, P, n) as (m, P, n)."""
    return values.reshape(-1, *values.shape[-2:])


def _crude(counts: Floats, variance: Floats, exposure: Floats) -> float:
    """The rate of all pairs together, as far as noise lets it be told from none."""
    return max(float(counts.sum()), float(np.sqrt(variance.sum())), 1.0) / float(exposure.sum())


def _log_means(log_expected: Floats, counts: Floats, variance: Floats) -> Floats:
    """Log means from far below what any pair expects to far above what any can have."""
    most = max(float(np.max(np.log(np.maximum(counts, 1.0) + FARTHEST * np.sqrt(variance)))), float(log_expected.max()))
    return np.arange(log_expected.min() + LOG_RATIO[0] - 5.0, most + LOG_RATIO[-1], GRID_STEP)


def _poisson(counts: Floats, variance: Floats, grid: Floats) -> Floats:
    """p(failures | log mean), shape (failures, grid), of as many failures as counts under noise may stand for."""
    most = float(np.max(counts + FARTHEST * np.sqrt(variance)))
    true = np.arange(min(MOST_COUNTS, max(20.0, most + 10.0)) + 1.0)[:, None]
    return np.asarray(np.exp(true * grid - np.exp(grid) - gammaln(true + 1.0)), np.float64)


def _normal_law(counts: Floats, noise: Floats, mean: Floats) -> Floats:
    """The same by the normal law, for very many failures and for far tails, where the sum underflows."""
    spread = (mean + noise) / np.where(noise > 0.0, noise, 1.0)
    return np.asarray(-0.5 * (counts - mean) ** 2 / (mean + noise) - 0.5 * np.log(spread), np.float64)
