"""Which workloads fail on which contexts more often than both explain: a hierarchical Poisson model with known noise.

    y_ac = Poisson(E_ac λ_a κ_c θ_ac) + N(0, σ²_ac)

λ and κ are main effects, E is exposure, σ² the known variance of the noise. θ is a mixture: most pairs are as expected,
log θ ~ N(0, τ²); a few are worse, log θ uniform on [log 2, log 32]. The share π of the worse and τ are estimated
from all pairs (empirical Bayes, by EM, with weak priors that keep both away from their edges), so that sparse pairs are
shrunk as far as the data of the others say. The likelihood is exact: the Poisson law convolved with the noise, on
one grid of log means for all pairs. Main effects are refitted with θ's posterior mean as an offset, so that a
planted pair does not make its whole row and column look bad.

Not promised: causes. A pair can be worse because of what both have in common with something else; the strata and
controls that could tell are another model's.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from crypto.life_table import Floats, LifeTable
from provider_server.analysis.hazard import Cells, Model, fit_hazard, predict

Places = NDArray[np.intp]

WORSE_FROM, WORSE_TO = np.log(2.0), np.log(32.0)
MAIN_EFFECT_SD = 0.4  # of log λ and log κ: beyond context and age, workloads differ by half, not tenfold
GRID_POINTS = 400
REFITS = 3
EM_STEPS = 10
SHARE_PRIOR = (3.0, 97.0)  # pseudo-counts of worse and other pairs: three per cent, worth a hundred pairs
SPREAD_PRIOR = (0.2, 10.0)  # standard deviation of log θ among the expected, worth ten pairs


@dataclass(frozen=True, eq=False)
class Mismatches:
    """Verdicts on the P pairs with exposure; every array has shape (P,), `workload` and `context` are level positions.

    `expected` counts the failures that main effects alone would explain; `ratio` is θ's posterior median with its
    central 95% interval; `probability_worse` the posterior probability of the worse component.
    """

    workload: Places
    context: Places
    expected: Floats
    probability_worse: Floats
    ratio: Floats
    ratio_low: Floats
    ratio_high: Floats
    share_worse: float
    spread: float


@dataclass(frozen=True)
class _Prior:
    share_worse: float
    spread: float


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Mass on the grid of log θ, shape (P, grid), of either component; both together sum to one for each pair."""

    log_ratio: Floats
    expected: Floats
    worse: Floats

    @property
    def mass(self) -> Floats:
        return self.expected + self.worse


def find_mismatches(table: LifeTable) -> Mismatches:
    """Fits the model to a released table over (workload, context); pairs without exposure get no verdict."""
    pairs = (*np.nonzero(table.exposure_node_hours > 0),)
    counts, variance = table.events[pairs], table.noise_variance[pairs]
    grid = _log_mean_grid(counts, variance)
    likelihood = _likelihood(counts, variance, grid)
    expected, effects = _main_effects(table, pairs, np.ones(len(counts)), None)
    prior, posterior = _empirical_bayes(likelihood, grid, np.log(expected), _Prior(0.03, 0.2))
    for _ in range(REFITS):
        offset = (posterior.mass * np.exp(posterior.log_ratio)).sum(axis=1)
        expected, effects = _main_effects(table, pairs, offset, effects)
        prior, posterior = _empirical_bayes(likelihood, grid, np.log(expected), prior)
    low, middle, high = (_quantile(posterior, share) for share in (0.025, 0.5, 0.975))
    return Mismatches(
        workload=pairs[0],
        context=pairs[1],
        expected=expected,
        probability_worse=posterior.worse.sum(axis=1),
        ratio=np.exp(middle),
        ratio_low=np.exp(low),
        ratio_high=np.exp(high),
        share_worse=prior.share_worse,
        spread=prior.spread,
    )


def _main_effects(
    table: LifeTable, pairs: tuple[Places, ...], offset: Floats, start: Floats | None
) -> tuple[Floats, Floats]:
    """Expected failures E λ κ of each pair, shape (P,), with `offset` = E[θ] inside the exposure; and the effects."""
    exposure = table.exposure_node_hours.copy()
    exposure[pairs] *= offset
    weighted = replace(table, exposure_node_hours=exposure)
    cells, terms = Cells.from_table(weighted), tuple((dimension.name,) for dimension in table.dimensions)
    fit = fit_hazard(cells, [weighted], Model(terms, prior_sd=MAIN_EFFECT_SD), start=start)
    return predict(fit, cells).value * table.exposure_node_hours[pairs], fit.estimate


def _log_mean_grid(counts: Floats, variance: Floats) -> Floats:
    """Log means from far below one failure to far above what any pair can have."""
    return np.linspace(np.log(1e-3), np.log(_most(counts, variance)) + 1.0, GRID_POINTS)


def _most(counts: Floats, variance: Floats) -> float:
    """A count that no pair's true count exceeds, for all practical purposes."""
    return float(max(20.0, np.max(counts + 8 * np.sqrt(variance)) + 10.0))


def _likelihood(counts: Floats, variance: Floats, grid: Floats) -> Floats:
    """p(y | log mean) up to a factor per pair, shape (P, grid): Poisson, convolved with the noise if there is any."""
    true = np.arange(int(_most(counts, variance)) + 1)
    log_poisson = true[:, None] * grid - np.exp(grid) - gammaln(true + 1)[:, None]
    quiet = variance == 0
    rows = np.empty((len(counts), len(grid)))
    rows[quiet] = log_poisson[np.clip(np.round(counts[quiet]).astype(int), 0, None)]
    if not quiet.all():
        y, spread = counts[~quiet, None], variance[~quiet, None]
        log_noise = -0.5 * (y - true) ** 2 / spread
        top = log_noise.max(axis=1, keepdims=True)
        mixed = np.exp(log_noise - top) @ np.exp(log_poisson)
        rows[~quiet] = np.log(np.maximum(mixed, np.finfo(float).tiny))
    scaled: Floats = np.exp(rows - rows.max(axis=1, keepdims=True))
    return scaled


def _empirical_bayes(
    likelihood: Floats, grid: Floats, log_expected: Floats, prior: _Prior
) -> tuple[_Prior, _Posterior]:
    """EM over the share of the worse and the spread of the expected, then the posterior of every pair."""
    log_ratio = grid - log_expected[:, None]
    for _ in range(EM_STEPS):
        posterior = _posterior(likelihood, log_ratio, prior)
        worse, other = posterior.worse.sum(), posterior.expected.sum()
        squares = (posterior.expected * log_ratio**2).sum()
        prior = _Prior(
            float((worse + SHARE_PRIOR[0]) / (worse + other + sum(SHARE_PRIOR))),
            float(np.sqrt((squares + SPREAD_PRIOR[1] * SPREAD_PRIOR[0] ** 2) / (other + SPREAD_PRIOR[1]))),
        )
    return prior, _posterior(likelihood, log_ratio, prior)


def _posterior(likelihood: Floats, log_ratio: Floats, prior: _Prior) -> _Posterior:
    expected = (
        np.exp(-0.5 * (log_ratio / prior.spread) ** 2) * (1 - prior.share_worse) / (prior.spread * np.sqrt(2 * np.pi))
    )
    inside = (log_ratio >= WORSE_FROM) & (log_ratio <= WORSE_TO)
    mass = np.stack([expected, inside * (prior.share_worse / (WORSE_TO - WORSE_FROM))]) * likelihood
    mass /= np.maximum(mass.sum(axis=(0, 2), keepdims=True), np.finfo(float).tiny)
    return _Posterior(log_ratio, mass[0], mass[1])


def _quantile(posterior: _Posterior, share: float) -> Floats:
    """log θ below which `share` of each pair's posterior lies; shape (P,)."""
    cumulative = np.cumsum(posterior.mass, axis=1)
    at = np.minimum((cumulative < share).sum(axis=1), cumulative.shape[1] - 1)
    found: Floats = posterior.log_ratio[np.arange(len(at)), at]
    return found
