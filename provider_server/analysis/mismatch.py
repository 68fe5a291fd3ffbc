"""Which workloads fail on which contexts more often than both explain: a hierarchical Poisson model with known noise.

    y_ac = Poisson(E_ac λ_a κ_c θ_ac) + N(0, σ²_ac)

λ and κ are main effects, E is exposure, σ² the known variance of the noise. Where a cap lets only some failures count,
the mean is a concave function of λκθ instead (`find_mismatches`), so that a high θ is not mistaken for a lower one, nor
a noisy count for a θ that the cap hides. θ is a mixture: most pairs are as expected,
log θ ~ N(0, τ²); a few are worse, log θ uniform on [log 2, log 32]. The share π of the worse and τ are estimated
from all pairs (empirical Bayes, by EM, with weak priors that keep both away from their edges), so that sparse pairs are
shrunk as far as the data of the others say. The likelihood is exact: the Poisson law convolved with the noise, on
one grid of log means for all pairs (beyond `MOST_COUNTS` failures: its normal approximation).

A pair is judged by what the *other* pairs say of its workload and context: its own count is taken out of the main
effects (leave one out, by one scoring step), and their uncertainty is integrated over. Main effects maximise the
likelihood with θ integrated out: each round, a pair enters their fit as the count and variance that have the slope and
curvature of its marginal likelihood. So a planted pair, once recognised, does not make its whole row and column look
bad. (With E[θ] as an offset instead, precise counts would be explained by θ, and main effects would never move.)

Not promised: causes. A pair can be worse because of what both have in common with something else; the strata and
controls that could tell are another model's.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from federation.protocol.life_table import Floats, LifeTable
from provider_server.analysis.hazard import Cells, Model, fit_hazard, predict

Places = NDArray[np.intp]

WORSE_FROM, WORSE_TO = np.log(2.0), np.log(32.0)
LOG_RATIO = np.linspace(-3.0, WORSE_TO, 260)  # the grid of log θ; nothing is expected to be beyond what is worse
GRID_STEP = 0.02  # of the log mean
LOG_FACTOR = np.linspace(-4.0, 5.0, 19)  # of λκθ: where a cap's effect is worked out
MOST_COUNTS, FAINTEST = 3000.0, 1e-290  # where the normal law takes over: many failures, and underflow
MAIN_EFFECT_SD = 0.4  # of log λ and log κ: beyond context and age, workloads differ by half, not tenfold
MOST_LEVERAGE, MOST_SHIFT = 0.95, 1.5  # how far one scoring step is trusted to take a pair out of its own main effects
REFITS = 3
EM_STEPS = 10
SHARE_PRIOR = (3.0, 97.0)  # pseudo-counts of worse and other pairs: three per cent, worth a hundred pairs
SPREAD_PRIOR = (0.2, 10.0)  # standard deviation of log θ among the expected, worth ten pairs


@dataclass(frozen=True, eq=False)
class Mismatches:
    """Verdicts on the P pairs with exposure; every array has shape (P,), `workload` and `context` are level positions.

    `expected` counts the failures that main effects alone would explain; `ratio` is θ's posterior median with its
    central 95% interval; `probability_worse` the posterior probability of the worse component. `ratio_if_expected` and
    `ratio_if_worse` are θ's posterior means given the component; `relative_variance` is its variance over its
    squared mean.
    """

    workload: Places
    context: Places
    expected: Floats
    probability_worse: Floats
    ratio: Floats
    ratio_low: Floats
    ratio_high: Floats
    ratio_if_expected: Floats
    ratio_if_worse: Floats
    relative_variance: Floats
    share_worse: float
    spread: float


@dataclass(frozen=True)
class _Prior:
    share_worse: float
    spread: float

    @property
    def mass(self) -> Floats:
        """Of the expected and of the worse, on the grid of log θ: (2, grid), one in all."""
        expected = np.exp(-0.5 * (LOG_RATIO / self.spread) ** 2)
        worse = ((LOG_RATIO >= WORSE_FROM) & (LOG_RATIO <= WORSE_TO)).astype(np.float64)
        return np.stack([(1.0 - self.share_worse) * expected / expected.sum(), self.share_worse * worse / worse.sum()])


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Mass on the grid of log θ, expected and worse: (2, P, grid), one for each pair."""

    mass: Floats

    def mean(self, component: int) -> Floats:
        """The mean of θ given the component, 0 or 1 (P,)."""
        mass = self.mass[component]
        total = np.maximum(mass.sum(axis=1), np.finfo(float).tiny)
        return np.asarray(np.maximum(mass @ np.exp(LOG_RATIO), np.finfo(float).tiny) / total, np.float64)

    def relative_variance(self) -> Floats:
        """The variance of θ over its squared mean (P,)."""
        mass = self.mass.sum(axis=0)
        return np.asarray((mass @ np.exp(2.0 * LOG_RATIO)) / (mass @ np.exp(LOG_RATIO)) ** 2 - 1.0, np.float64)

    def quantile(self, share: float) -> Floats:
        """The θ below which `share` of each pair's posterior lies (P,)."""
        below = (np.cumsum(self.mass.sum(axis=0), axis=1) < share).sum(axis=1)
        return np.asarray(np.exp(LOG_RATIO[np.minimum(below, len(LOG_RATIO) - 1)]), np.float64)


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """log p(y | log mean) of the P pairs: `values` (P, grid) on the `grid` of log means of what counts.

    `log_share` (P, factors) is the log of what counts over what fails, on `LOG_FACTOR` around `log_exposure` (P,).
    """

    values: Floats
    grid: Floats
    log_exposure: Floats
    log_share: Floats | None

    def at(self, log_mean: Floats) -> Floats:
        """log p(y | log mean + log θ) on the grid of log θ, shape (P, grid); `log_mean` (P,) of what fails."""
        wanted = log_mean[:, None] + LOG_RATIO
        if self.log_share is not None:
            step = LOG_FACTOR[1] - LOG_FACTOR[0]
            factor = wanted - self.log_exposure[:, None]
            wanted = wanted + _read(self.log_share, (factor - LOG_FACTOR[0]) / step)
        return _read(self.values, (wanted - self.grid[0]) / GRID_STEP)


def _read(values: Floats, place: Floats) -> Floats:
    """Rows of `values` (P, n) at fractional places (P, m), linear in between and constant beyond."""
    place = np.clip(place, 0.0, values.shape[1] - 1.001)
    below = place.astype(np.intp)
    above, rows = place - below, np.arange(len(values))[:, None]
    return np.asarray((1.0 - above) * values[rows, below] + above * values[rows, below + 1], np.float64)


@dataclass(frozen=True, eq=False)
class _Baseline:
    """Failures that main effects explain (P,); what the other pairs say of their logarithm (P,); the effects."""

    expected: Floats
    log_mean: Floats
    log_sd: Floats
    effects: Floats


def find_mismatches(table: LifeTable, counted: Floats | None = None) -> Mismatches:
    """Fits the model to a released table over (workload, context); pairs without exposure get no verdict.

    `counted` (workloads, contexts, factors) is how many failures are expected to count where λκθ is exp(`LOG_FACTOR`);
    without it all do, λκθ times exposure. Unsettled where main effects do not come to rest.
    """
    pairs = (*np.nonzero(table.exposure_node_hours > 0),)
    counts, variance, exposure = table.events[pairs], table.noise_variance[pairs], table.exposure_node_hours[pairs]
    share = None if counted is None else _shares(counted[pairs], exposure)
    base = _main_effects(table, pairs, *_uncapped(counts, variance, exposure, share), None)
    grid = _log_mean_grid(base.log_mean, counts, variance)
    log_share = None if share is None else np.log(share)
    likelihood = _Likelihood(_log_likelihood(counts, variance, grid), grid, np.log(exposure), log_share)
    prior, posterior = _empirical_bayes(_marginal(likelihood, base), _Prior(0.03, 0.2))
    for _ in range(REFITS):
        base = _main_effects(table, pairs, *_as_counts(likelihood, base.expected, prior), base.effects)
        prior, posterior = _empirical_bayes(_marginal(likelihood, base), prior)
    return Mismatches(
        workload=pairs[0],
        context=pairs[1],
        expected=base.expected,
        probability_worse=posterior.mass[1].sum(axis=1),
        ratio=posterior.quantile(0.5),
        ratio_low=posterior.quantile(0.025),
        ratio_high=posterior.quantile(0.975),
        ratio_if_expected=posterior.mean(0),
        ratio_if_worse=posterior.mean(1),
        relative_variance=posterior.relative_variance(),
        share_worse=prior.share_worse,
        spread=prior.spread,
    )


def _shares(counted: Floats, exposure: Floats) -> Floats:
    """What counts over what fails, (P, factors)."""
    return np.clip(counted / (exposure[:, None] * np.exp(LOG_FACTOR)), np.finfo(float).tiny, 1.0)


def _uncapped(counts: Floats, variance: Floats, exposure: Floats, share: Floats | None) -> tuple[Floats, Floats]:
    """Counts and variances of noise as if no failure had gone uncounted, at λκθ of one: good enough to start from."""
    if share is None:
        return counts, variance
    at_one = share[:, np.argmin(np.abs(LOG_FACTOR))]
    return counts / at_one, variance / at_one**2 + exposure * (1.0 / at_one - 1.0)


def _main_effects(
    table: LifeTable, pairs: tuple[Places, ...], counts: Floats, variance: Floats, start: Floats | None
) -> _Baseline:
    """Main effects of counts and variances of their noise, both (P,)."""
    events, noise = np.zeros(table.shape), np.zeros(table.shape)
    events[pairs], noise[pairs] = counts, variance
    seen = replace(table, events=events, noise_variance=noise)
    cells, terms = Cells.from_table(table), tuple((dimension.name,) for dimension in table.dimensions)
    fit = fit_hazard(cells, [seen], Model(terms, prior_sd=MAIN_EFFECT_SD), start=start).settled()
    rates = predict(fit, cells)
    expected = rates.value * cells.exposure_node_hours
    leverage = np.minimum(expected**2 / (expected + variance) * rates.log_sd**2, MOST_LEVERAGE)
    shift = leverage / (1.0 - leverage) * (counts - expected) / expected
    log_mean = np.log(expected) - np.clip(shift, -MOST_SHIFT, MOST_SHIFT)
    return _Baseline(expected, log_mean, rates.log_sd / np.sqrt(1.0 - leverage), fit.estimate)


def _as_counts(likelihood: _Likelihood, expected: Floats, prior: _Prior) -> tuple[Floats, Floats]:
    """Counts and variances of noise, both (P,), that pull main effects as strongly as the pairs do, θ integrated out.

    They give the log likelihood of log λκ the slope and curvature that p(y | λκ) = ∫ p(y | λκθ) p(θ) dθ has.
    """
    width, log_prior = 0.1, np.log(np.maximum(prior.mass.sum(axis=0), np.finfo(float).tiny))
    low, middle, high = (
        logsumexp(likelihood.at(np.log(expected) + shift) + log_prior, axis=1) for shift in (-width, 0.0, width)
    )
    slope = (high - low) / (2.0 * width)
    curvature = np.maximum((2.0 * middle - low - high) / width**2, np.abs(slope) + 1e-9)
    return expected * (1.0 + slope / curvature), np.maximum(expected**2 / curvature - expected, 0.0)


def _log_mean_grid(log_expected: Floats, counts: Floats, variance: Floats) -> Floats:
    """Log means from far below what any pair expects to far above what any can have."""
    most = max(float(np.max(np.log(np.maximum(counts, 1.0) + 8.0 * np.sqrt(variance)))), float(log_expected.max()))
    return np.arange(log_expected.min() + LOG_RATIO[0] - 3.0, most + LOG_RATIO[-1], GRID_STEP)


def _log_likelihood(counts: Floats, variance: Floats, grid: Floats) -> Floats:
    """log p(y | log mean) up to a term per pair, shape (P, grid): Poisson, convolved with the noise if there is any."""
    most = counts + 8.0 * np.sqrt(variance)
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


def _marginal(likelihood: _Likelihood, base: _Baseline) -> Floats:
    """p(y | θ) on the grid of log θ, shape (P, grid), integrated over what is uncertain about the main effects."""
    nodes, weights = hermegauss(7)
    total = np.full((len(base.log_mean), len(LOG_RATIO)), -np.inf)
    for node, weight in zip(nodes, np.log(weights), strict=True):
        total = np.logaddexp(total, weight + likelihood.at(base.log_mean + node * base.log_sd))
    return np.asarray(np.exp(total - total.max(axis=1, keepdims=True)), np.float64)


def _empirical_bayes(likelihood: Floats, prior: _Prior) -> tuple[_Prior, _Posterior]:
    """EM over the share of the worse and the spread of the expected, then the posterior of every pair."""
    for _ in range(EM_STEPS):
        mass = _posterior(likelihood, prior).mass
        expected, worse = mass.sum(axis=(1, 2))
        squares = float((mass[0] @ LOG_RATIO**2).sum())
        prior = _Prior(
            float((worse + SHARE_PRIOR[0]) / (worse + expected + sum(SHARE_PRIOR))),
            float(np.sqrt((squares + SPREAD_PRIOR[1] * SPREAD_PRIOR[0] ** 2) / (expected + SPREAD_PRIOR[1]))),
        )
    return prior, _posterior(likelihood, prior)


def _posterior(likelihood: Floats, prior: _Prior) -> _Posterior:
    mass = prior.mass[:, None, :] * likelihood
    return _Posterior(mass / np.maximum(mass.sum(axis=(0, 2))[None, :, None], np.finfo(float).tiny))
