"""Which workloads fail on which contexts more often than both explain: a hierarchical model of three witnesses.

    failures of pair ac ~ rate λ_a κ_c θ_ac

λ and κ are main effects. Each witness (`noisy_counts`: tenants' counts under known noise; `own_failures`: what the
provider saw itself, exactly; `trials`: stand-ins that it ran on idle nodes) has its own λ and κ, since what it sees may
differ by workload and context; θ is the pair's, and the same for all. So a workload whose failures are seen twice as
often is accused of nothing. They are independent given θ: own failures are taken out of tenants' counts before
(`learning.findings`).

θ is continuous: most pairs are as expected, log θ ~ N(0, τ²); some are worse by any factor, log θ gamma, so θ has a
tail as heavy as Pareto's. Their share π, τ and the law of the worse are estimated from all pairs (empirical Bayes, by
EM, with weak priors that keep them away from their edges), so that sparse pairs are shrunk as far as the data of the
others say. A pair is *worse* where θ > 2.

So estimates and probabilities are right on average over all pairs. An interval of that kind is not one of a single
pair: few pairs are worse, so it is drawn towards one, and a small effect that is there lies outside of it more often
than not. The intervals that are published are those of the pair by itself, at a prior that prefers no ratio: they hold
95% of the time whatever the ratio is (measured in `simulation.studies.field`).

A pair is judged by what the *other* pairs say of its workload and context: its own count is taken out of the main
effects (leave one out, by one scoring step), and their uncertainty is integrated over. Main effects maximise the
likelihood with θ integrated out, given what the other witness says of it: each round, a pair enters their fit as the
count and variance that have the slope and curvature of its marginal likelihood. So a planted pair, once recognised,
does not make its whole row and column look bad. (With E[θ] as an offset instead, precise counts would be explained by
θ, and main effects would never move.)

Tables over pairs and the grid of θ are large, and passing through memory costs more than working them out. So pairs are
taken a few at a time (`PART`), and of each witness but one such table is kept: what it says of θ.

Not promised: causes. A pair can be worse because of what both have in common with something else; the strata and
controls that could tell are another model's.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

from federation.protocol.judgement import LIKELY
from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.analysis.blocks import Groups, Lent, lent
from provider_server.fleet.analysis.hazard import Cells, HazardFit, Model, fit_hazard, predict
from provider_server.fleet.analysis.noisy_counts import NoisyCounts
from provider_server.fleet.analysis.own_failures import Leases
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO, PART, log_sum, parts
from provider_server.fleet.analysis.trials import FEWEST, Trials

Places = NDArray[np.intp]
Some = Places | slice  # of the pairs
logger = logging.getLogger(__name__)

HALF_MORE, WORSE_FROM, FOURFOLD = np.log(1.5), np.log(2.0), np.log(4.0)
MAIN_EFFECT_SD = 0.4  # of log λ and log κ: beyond context and age, workloads differ by half, not tenfold
SEEN_EFFECT_SD = 0.7  # the same of what the provider sees: some failures leave no trace there
MOST_LEVERAGE, MOST_SHIFT = 0.95, 1.5  # how far one scoring step is trusted to take a pair out of its own main effects
MOST_PULL = 20.0  # failures: as hard as the prior of θ lets any pair pull main effects whose ratio is on the grid
MOST_REFITS = 30
LEAST_WEIGHT, MOST_ROUNDS = 1e-9, 500  # of main effects that did not settle at first
SETTLED = 0.01  # the standard deviation of what a refit changes in log rates: well below what is known of any
EM_STEPS = 10
SHARE_PRIOR = (2.0, 48.0)  # pseudo-counts of worse and other pairs: four per cent, worth fifty pairs
SPREAD_PRIOR = (0.2, 10.0)  # standard deviation of log θ among the expected, worth ten pairs
TAIL_PRIOR = (1.4, 0.9, 1.0)  # mean and variance of log θ among the worse, worth one pair
LOG_TINY = float(np.log(np.finfo(float).tiny))
FORMS = (1.0, 20.0)  # of the gamma law of log θ among the worse: from exponential to nearly one ratio


@dataclass(frozen=True, eq=False)
class Mismatches:
    """Verdicts on the P pairs with exposure; every array has shape (P,), `workload` and `context` are level positions.

    `expected` counts the failures that main effects alone would explain, `expected_by_others` those by what all other
    pairs say of these, with the standard deviation `log_sd` of its logarithm; `ratio` is θ's posterior median, and
    `likely_low` to `likely_high` the central 95% of its posterior. `ratio_low` to `ratio_high` is the 95% interval of
    the pair by itself: under a flat prior of log θ within the grid, and as far as `ratio` where that is drawn beyond.
    `probability_worse` is that of θ > 2, beside those of θ > 1.5 and θ > 4. `ratio_if_expected` and `ratio_if_worse`
    are θ's posterior means given which of the two it is; `relative_variance` is its variance over its squared mean.
    `share_worse`, `spread` and `scale` are of the prior; `shape` is how leases differ (infinite: not at all),
    `told_rate` and `seen_rate` the rates of what tenants count and of what the provider sees itself, over what its
    hazards explain. Of stand-ins' trials nothing is in these: they say what θ is. `stand_in_rate` is that of trials at
    θ = 1, 0 without any.

    `block` is the number of the block that a pair is in (`analysis.blocks`), `supported` whether θ > 2 is likelier than
    not by its own data, without what others lend.

    `log_prior` (grid,) and `log_likelihood` (P, grid) of θ are those behind all this, `lent` what other pairs add to
    the prior of each.
    """

    workload: Places
    context: Places
    expected: Floats
    told_rate: Floats
    seen_rate: Floats
    stand_in_rate: Floats
    probability_worse: Floats
    probability_half_more: Floats
    probability_fourfold: Floats
    ratio: Floats
    ratio_low: Floats
    ratio_high: Floats
    likely_low: Floats
    likely_high: Floats
    ratio_if_expected: Floats
    ratio_if_worse: Floats
    relative_variance: Floats
    share_worse: float
    spread: float
    scale: float
    shape: float
    block: Places
    supported: NDArray[np.bool_]
    log_prior: Floats
    log_likelihood: Floats
    lent: Lent
    expected_by_others: Floats
    log_sd: Floats


@dataclass(frozen=True)
class _Prior:
    share_worse: float = 0.04
    spread: float = 0.2
    scale: float = 1.0
    form: float = 2.0

    @property
    def mass(self) -> Floats:
        """Of the expected and of the worse, on the grid of log θ: (2, grid), one in all."""
        expected = np.exp(-0.5 * (LOG_RATIO / self.spread) ** 2)
        above = np.maximum(LOG_RATIO, np.finfo(float).tiny)
        log_worse = (self.form - 1.0) * np.log(above) - self.form * above / self.scale
        worse = np.where(LOG_RATIO > 0.0, np.exp(log_worse - log_worse.max()), 0.0)
        return np.stack([(1.0 - self.share_worse) * expected / expected.sum(), self.share_worse * worse / worse.sum()])

    @property
    def log_worse(self) -> Floats:
        """Of one that is worse (grid,), one in all: the law of those, where a ratio counts as worse."""
        worse = np.where(LOG_RATIO > WORSE_FROM, self.mass[1], 0.0)
        return np.asarray(np.log(np.maximum(worse / worse.sum(), np.finfo(float).tiny)), np.float64)

    @property
    def log_mass(self) -> Floats:
        """Of both together (grid,)."""
        return np.asarray(np.log(np.maximum(self.mass.sum(axis=0), np.finfo(float).tiny)), np.float64)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Mass on the grid of log θ (P, grid), one for each pair."""

    mass: Floats

    @classmethod
    def of(cls, log_likelihood: Floats, log_prior: Floats | float = 0.0) -> "_Posterior":
        """Of log likelihoods (P, grid) that are 0 at most; without a prior, every log ratio of the grid is alike."""
        mass = np.exp(log_likelihood + log_prior)
        return cls(mass / np.maximum(mass.sum(axis=1, keepdims=True), np.finfo(float).tiny))

    def above(self, log_ratio: float) -> Floats:
        """The probability of a larger θ (P,)."""
        return np.asarray(self.mass[:, log_ratio < LOG_RATIO].sum(axis=1), np.float64)

    def mean(self, *, worse: bool) -> Floats:
        """The mean of θ given that the pair is worse, or that it is not (P,)."""
        mass = self.mass * ((LOG_RATIO > WORSE_FROM) == worse)
        total = np.maximum(mass.sum(axis=1), np.finfo(float).tiny)
        return np.asarray(np.maximum(mass @ np.exp(LOG_RATIO), np.finfo(float).tiny) / total, np.float64)

    def relative_variance(self) -> Floats:
        """The variance of θ over its squared mean (P,)."""
        return np.asarray(
            (self.mass @ np.exp(2.0 * LOG_RATIO)) / (self.mass @ np.exp(LOG_RATIO)) ** 2 - 1.0, np.float64
        )

    def quantile(self, share: float) -> Floats:
        """The θ below which `share` of each pair's posterior lies (P,)."""
        below = (np.cumsum(self.mass, axis=1) < share).sum(axis=1)
        return np.asarray(np.exp(LOG_RATIO[np.minimum(below, len(LOG_RATIO) - 1)]), np.float64)


class _Witness(Protocol):
    """What one witness says of P pairs.

    `exposure` (P,) is what a rate of one would let it expect, `shape` how leases differ.
    """

    @property
    def exposure(self) -> Floats: ...

    @property
    def shape(self) -> float: ...

    def given(self, rate: Floats, ratio: Floats, log_prior: Callable[[Places], Floats]) -> "_Witness":
        """The same, where main effects are `rate` (P,), θ is `ratio` (P,), and others say `log_prior` of θ."""

    def only(self, rows: Places) -> "_Witness":
        """What it says of some of the pairs."""

    def at(self, log_rate: Floats) -> Floats:
        """log p(data | log rate + log θ) on the grid of log θ, shape (…, P, grid); `log_rate` (…, P)."""

    def uncapped(self) -> tuple[Floats, Floats]:
        """Counts and the variance of their noise, both (P,), to start from."""


@dataclass(frozen=True, eq=False)
class _Baseline:
    """The rate that main effects explain (P,); what the other pairs say of its logarithm (P,); the effects."""

    rate: Floats
    log_rate: Floats
    log_sd: Floats
    effects: Floats


@dataclass(frozen=True, eq=False)
class _Heard:
    """A witness, its main effects so far, and what it says of θ by itself: log p (P, grid)."""

    witness: _Witness
    table: LifeTable
    effect_sd: float
    base: _Baseline
    says: Floats

    @classmethod
    def first(
        cls, witness: _Witness, table: LifeTable, pairs: tuple[Places, ...], alike: Sequence[Places], effect_sd: float
    ) -> "_Heard":
        """Before anything is known of θ."""
        own = np.zeros(table.shape)
        own[pairs] = witness.exposure
        table = replace(table, exposure_node_hours=own)
        base = _main_effects(table, pairs, *witness.uncapped(), effect_sd, None)
        return cls(witness, table, effect_sd, base, _marginal(witness, base, alike))

    def again(
        self, pairs: tuple[Places, ...], alike: Sequence[Places], log_prior: Callable[[Places], Floats], ratio: Floats
    ) -> "_Heard":
        """With main effects under that log prior of θ, of some pairs (n, grid), where θ is `ratio` (P,) by now."""
        witness = self.witness.given(self.base.rate, ratio, log_prior)
        counts, variance = _as_counts(witness, self.base.rate, log_prior, alike)
        base = _main_effects(self.table, pairs, counts, variance, self.effect_sd, self.base.effects)
        return replace(self, witness=witness, base=base, says=_marginal(witness, base, alike))


@dataclass(frozen=True, eq=False)
class _Together:
    """What all witnesses say of θ."""

    heard: tuple[_Heard, ...]

    def __len__(self) -> int:
        return len(self.heard[0].says)

    def of(self, rows: Some) -> Floats:
        """log p of some pairs (n, grid), zero at most."""
        if len(self.heard) == 1:
            return self.heard[0].says[rows]
        total = self.but(None, rows)
        return np.asarray(total - total.max(axis=1, keepdims=True), np.float64)

    def but(self, one: _Heard | None, rows: Some) -> Floats:
        """What the others say, or all: up to a term per pair; (1, 1) if there is no other."""
        return np.asarray(sum((other.says[rows] for other in self.heard if other is not one), np.zeros((1, 1))))

    def parts(self) -> Iterator[Floats]:
        """All pairs in order, some at a time."""
        return map(self.of, _slices(len(self)))


def find_mismatches(
    table: LifeTable,
    counted: Floats | None = None,
    own: Leases | None = None,
    groups: Sequence[Places] = (),
    trials: LifeTable | None = None,
) -> Mismatches:
    """Fits the model to a released table over (workload, context); pairs without exposure get no verdict.

    `counted` (workloads, contexts, factors) is how many failures are expected to count where λκθ is exp(`LOG_FACTOR`);
    without it all do, λκθ times exposure. `own` is what the provider saw itself, lease by lease, which
    is not in the table's counts. `groups` of flat pairs may have a defect in common (`analysis.blocks`).
    `trials`, of the shape of `table`, are failures of stand-ins, and what hazards let one expect there. Main effects
    that do not come to rest are fitted in another way, and the log says so.
    """
    pairs = (*np.nonzero(table.exposure_node_hours > 0),)
    counts, variance, exposure = table.events[pairs], table.noise_variance[pairs], table.exposure_node_hours[pairs]
    told = NoisyCounts.of(counts, variance, exposure, None if counted is None else counted[pairs])
    alike = parts(np.argsort(exposure, kind="stable"))  # of like exposure, so that they need the same rates
    heard = [_Heard.first(told, table, pairs, alike, MAIN_EFFECT_SD)]
    if own is not None:
        seen = own.witness(np.ravel_multi_index(pairs, table.shape), table.events.size)
        heard.append(_Heard.first(seen, table, pairs, alike, SEEN_EFFECT_SD))
    jobs = len(heard)  # who saw these: all but stand-ins
    if trials is not None and trials.events.any():  # where no stand-in failed, nothing is known of their rates
        tried = Trials(trials.events[pairs], np.maximum(trials.exposure_node_hours[pairs], FEWEST))
        heard.append(_Heard.first(tried, table, pairs, alike, MAIN_EFFECT_SD))
    kin = _placed(groups, np.ravel_multi_index(pairs, table.shape), table.events.size)
    together = _Together((*heard,))
    prior, borrowed = _empirical_bayes(together, _Prior(), kin)
    for _ in range(MOST_REFITS):
        ratio, change = _ratios(together, borrowed), 0.0
        for place, one in enumerate(heard):

            def given(rows: Places, one: _Heard = one, now: _Together = together, prior: Lent = borrowed) -> Floats:
                return prior.of(rows) + now.but(one, rows)

            heard[place] = one.again(pairs, alike, given, ratio)
            together = _Together((*heard,))
            change = max(change, float(np.std(heard[place].base.log_rate - one.base.log_rate)))
        prior, borrowed = _empirical_bayes(together, prior, kin)
        if change < SETTLED:
            break
    expected = np.array([one.base.rate * one.witness.exposure for one in heard[:jobs]])
    by_others = np.array([np.exp(one.base.log_rate) * one.witness.exposure for one in heard[:jobs]])
    columns = _columns(together, borrowed)
    return Mismatches(
        workload=pairs[0],
        context=pairs[1],
        expected=expected.sum(axis=0),
        told_rate=heard[0].base.rate * columns["ratio"],
        seen_rate=sum((one.base.rate * columns["ratio"] for one in heard[1:jobs]), np.zeros(len(pairs[0]))),
        stand_in_rate=sum((one.base.rate for one in heard[jobs:]), np.zeros(len(pairs[0]))),
        **columns,
        share_worse=prior.share_worse,
        spread=prior.spread,
        scale=prior.scale,
        shape=min(one.witness.shape for one in heard),
        block=borrowed.block,
        log_prior=prior.log_mass,
        log_likelihood=_bounded(together),
        lent=borrowed,
        expected_by_others=by_others.sum(axis=0),
        log_sd=np.linalg.norm(by_others * [one.base.log_sd for one in heard[:jobs]], axis=0) / by_others.sum(axis=0),
    )


def _bounded(together: _Together) -> Floats:
    """What is said of all pairs (P, grid), `LOG_TINY` at least, where the first witness has had its table."""
    every = together.heard[0].says
    for rows in _slices(len(every)):
        every[rows] = np.maximum(together.of(rows), LOG_TINY)
    return every


def _slices(pairs: int) -> list[slice]:
    return [slice(first, first + PART) for first in range(0, pairs, PART)]


def _ratios(together: _Together, prior: Lent) -> Floats:
    """θ's posterior median (P,)."""
    every = _slices(len(together))
    return np.concatenate([_Posterior.of(together.of(rows), prior.of(rows)).quantile(0.5) for rows in every])


def _columns(together: _Together, prior: Lent) -> dict[str, Any]:
    """What is said of each pair's θ in the end, as `Mismatches` has it; all (P,)."""
    rows = [_said(together.of(part), prior.of(part), prior.of_all) for part in _slices(len(together))]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _said(log_likelihood: Floats, log_prior: Floats, log_alone: Floats) -> dict[str, Any]:
    posterior, by_itself = _Posterior.of(log_likelihood, log_prior), _Posterior.of(log_likelihood)
    ratio = posterior.quantile(0.5)
    return {
        "probability_worse": posterior.above(WORSE_FROM),
        "probability_half_more": posterior.above(HALF_MORE),
        "probability_fourfold": posterior.above(FOURFOLD),
        "ratio": ratio,
        "ratio_low": np.minimum(by_itself.quantile(0.025), ratio),
        "ratio_high": np.maximum(by_itself.quantile(0.975), ratio),
        "likely_low": posterior.quantile(0.025),
        "likely_high": posterior.quantile(0.975),
        "ratio_if_expected": posterior.mean(worse=False),
        "ratio_if_worse": posterior.mean(worse=True),
        "relative_variance": posterior.relative_variance(),
        "supported": _Posterior.of(log_likelihood, log_alone).above(WORSE_FROM) >= LIKELY,
    }


def _main_effects(
    table: LifeTable,
    pairs: tuple[Places, ...],
    counts: Floats,
    variance: Floats,
    effect_sd: float,
    start: Floats | None,
) -> _Baseline:
    """Main effects of counts and variances of their noise, both (P,).

    A count below minus its variance pulls harder the lower the rate, so there is no best one: it is taken as that.
    """
    counts, variance = np.maximum(counts, -variance), np.maximum(variance, 0.0)
    cells, terms = Cells.from_table(table), tuple((dimension.name,) for dimension in table.dimensions)
    model = Model(terms, prior_sd=effect_sd)
    fit = fit_hazard(cells, [_with_counts(table, pairs, counts, variance)], model, start=start)
    if not fit.converged:
        fit = _with_fixed_weights(table, pairs, counts, variance, model)
    rates = predict(fit, cells)
    expected = rates.value * cells.exposure_node_hours
    leverage = np.minimum(expected**2 / (expected + variance) * rates.log_sd**2, MOST_LEVERAGE)
    shift = leverage / (1.0 - leverage) * (counts - expected) / expected
    log_rate = np.log(rates.value) - np.clip(shift, -MOST_SHIFT, MOST_SHIFT)
    return _Baseline(rates.value, log_rate, rates.log_sd / np.sqrt(1.0 - leverage), fit.estimate)


def _with_counts(table: LifeTable, pairs: tuple[Places, ...], counts: Floats, variance: Floats) -> LifeTable:
    events, noise = np.zeros(table.shape), np.zeros(table.shape)
    events[pairs], noise[pairs] = counts, variance
    return replace(table, events=events, noise_variance=noise)


def _with_fixed_weights(
    table: LifeTable, pairs: tuple[Places, ...], counts: Floats, variance: Floats, model: Model
) -> HazardFit:
    """Main effects where they did not settle: what each pair's noise makes its count worth is that at the crude rate.

    Without noise left, and no count below zero, the likelihood has one maximum. It knows less of pairs far from the
    crude rate, so it is said in the log.
    """
    exposure = table.exposure_node_hours[pairs]
    expected = exposure * max(float(counts.sum()), float(np.sqrt(variance.sum())), 1.0) / exposure.sum()
    weight = np.zeros(table.shape)
    weight[pairs] = np.maximum(expected / (expected + variance), LEAST_WEIGHT)
    weighed = _with_counts(table, pairs, weight[pairs] * np.maximum(counts, 0.0), np.zeros(len(counts)))
    weighed = replace(weighed, exposure_node_hours=weight * table.exposure_node_hours)
    logger.warning("main effects of %d pairs did not settle: fitted again with fixed weights", len(counts))
    return fit_hazard(Cells.from_table(weighed), [weighed], model, max_iterations=MOST_ROUNDS)


def _as_counts(
    witness: _Witness, rate: Floats, log_prior: Callable[[Places], Floats], alike: Sequence[Places]
) -> tuple[Floats, Floats]:
    """Counts and variances of noise, both (P,), that pull main effects as strongly as the pairs do, θ integrated out.

    They give the log likelihood of log λκ the slope that p(y | λκ) = ∫ p(y | λκθ) p(θ) dθ has, and its curvature as far
    as a count can have it: no more than Poisson's. The slope is kept whatever the curvature, since main effects rest
    where slopes add up to nothing; a pair of .2 expected failures that had one pulled as if it had had .4. Only beyond
    what ratios on the grid can explain, a pair pulls no more than `MOST_PULL` failures, or twice as many as expected.
    """
    width, expected = 0.1, rate * witness.exposure
    low, middle, high = at = np.empty((3, len(rate)))
    for rows in alike:
        shifted = np.log(rate[rows]) + np.array([[-width], [0.0], [width]])
        at[:, rows] = log_sum(witness.only(rows).at(shifted) + log_prior(rows))[..., 0]
    slope = np.minimum((high - low) / (2.0 * width), np.maximum(expected, MOST_PULL))
    bend = np.maximum((2.0 * middle - low - high) / width**2, np.abs(slope) + 1e-9)
    curvature = np.minimum(bend, expected)
    return expected * (1.0 + slope / curvature), expected**2 / curvature - expected


def _marginal(witness: _Witness, base: _Baseline, alike: Sequence[Places]) -> Floats:
    """log p(data | θ) on the grid of log θ, shape (P, grid), integrated over what is uncertain about main effects."""
    nodes, weights = hermegauss(7)
    says = np.empty((len(base.log_rate), len(LOG_RATIO)))
    for rows in alike:
        at = witness.only(rows).at(base.log_rate[rows] + nodes[:, None] * base.log_sd[rows])
        top = at.max(axis=0)
        at -= top
        total = top + np.log(np.tensordot(weights, np.exp(at, out=at), 1))
        says[rows] = total - total.max(axis=1, keepdims=True)
    return says


def _placed(groups: Sequence[Places], pairs: Places, cells: int) -> Groups:
    """The places among `pairs` (flat) of those that each group of flat cells has."""
    place = np.full(cells, -1)
    place[pairs] = np.arange(len(pairs))
    return Groups([known[known >= 0] for known in (place[group] for group in groups)], len(pairs))


def _empirical_bayes(together: _Together, prior: _Prior, kin: Groups) -> tuple[_Prior, Lent]:
    """EM over the share of the worse, their law and the spread of the expected; then what each pair's kin lends it.

    The prior of all pairs, and what each has beyond it.
    """
    for _ in range(EM_STEPS):
        mass = _by_component(together, prior)
        expected, worse = mass.sum(axis=1)
        squares, *moments = (float(own @ LOG_RATIO**power) for own, power in ((mass[0], 2), (mass[1], 1), (mass[1], 2)))
        mean, variance, worth = TAIL_PRIOR
        scale = (moments[0] + worth * mean) / (worse + worth)
        around = (moments[1] + worth * (variance + mean**2)) / (worse + worth) - scale**2
        prior = _Prior(
            float((worse + SHARE_PRIOR[0]) / (worse + expected + sum(SHARE_PRIOR))),
            float(np.sqrt((squares + SPREAD_PRIOR[1] * SPREAD_PRIOR[0] ** 2) / (expected + SPREAD_PRIOR[1]))),
            float(scale),
            float(np.clip(scale**2 / around, *FORMS)),
        )
    return prior, lent(together.of, prior.log_mass, prior.log_worse, kin)


def _by_component(together: _Together, prior: _Prior) -> Floats:
    """The posterior mass of the expected and the worse, summed over pairs: (2, grid)."""
    mass, total = prior.mass, np.zeros(len(LOG_RATIO))
    both = mass.sum(axis=0)
    for said in together.parts():
        likelihood = np.exp(said)  # as often as there are steps: to keep it would be another table
        total += (1.0 / np.maximum(likelihood @ both, np.finfo(float).tiny)) @ likelihood
    return np.asarray(mass * total, np.float64)
