"""Hazards under a cap: the fit settles on every scenario, where the alternating one swung, and its answer is right."""

import logging
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import poisson

from federation.protocol.causes import Domain
from federation.protocol.known_rates import experience
from federation.protocol.life_table import Floats
from provider_server.fleet.analysis import capped_hazard
from provider_server.fleet.analysis.cap_correction import ALIKE, cap_factor, capped_curvature, capped_mean, capped_slope
from provider_server.fleet.analysis.capped_hazard import TOLERANCE, Rates, Units, fit_capped
from provider_server.fleet.analysis.hazard import Unsettled
from provider_server.fleet.analysis.public_rates import log_law
from provider_server.fleet.learning import findings
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.learning.seen import Seen
from simulation.cloud.scenario import load, names
from simulation.studies.learning import Year, live, releases, small
from tests.support.changing import replace
from tests.support.factories import InsecureSilence
from tests.support.plans import InsecureSeeded

LEVELS, BANDS, JOBS = 6, 3, 900
EFFECT_SD = 1.0


@cache
def a_year(scenario: str) -> Year:
    """Six weeks of a scenario's cloud, under noise as shipped."""
    return live(small(load(scenario)), 3)


def a_fleet(seed: int, most: int) -> tuple[Units, Floats, Floats]:
    """Units of very different size, true hazards, and what counts of their failures."""
    rng = np.random.default_rng(seed)
    level, hours = rng.integers(0, LEVELS, JOBS), rng.pareto(1.5, (JOBS, BANDS)) + 0.1
    truth = 0.4 * np.exp(rng.normal(0, 0.7, (LEVELS, 1)) + rng.normal(0, 0.3, BANDS))
    worse = rng.random(JOBS) < 0.1
    weights = np.stack([~worse * 0.9 + worse * 0.2, ~worse * 0.1 + worse * 0.8], axis=1)
    factors = np.tile([1.0, 4.0], (JOBS, 1))
    actual = np.where(rng.random(JOBS) < weights[:, 1], 4.0, 1.0)
    failed = rng.poisson(truth[level] * hours * actual[:, None])
    counts = np.zeros((LEVELS, BANDS))
    for own, where in zip(failed, level, strict=True):
        kept = rng.permutation(np.repeat(np.arange(BANDS), own))[:most]
        np.add.at(counts[where], kept, 1.0)
    units = Units.of_levels(level, LEVELS, hours, weights, factors, np.full(JOBS, most))
    return units, truth, counts


def noisy(counts: Floats, sd: float, seed: int) -> tuple[Floats, Floats]:
    released = counts + np.random.default_rng(seed).normal(0, sd, counts.shape) if sd else counts
    return released, np.full(counts.shape, sd**2)


def fitted(units: Units, counts: Floats, variance: Floats) -> Rates:
    return fit_capped(units, counts, variance, effect_sd=EFFECT_SD)


# ---- another hand's objective ----------------------------------------------------------------------------------------


def what_counts(units: Units, hazard: Floats) -> Floats:
    """μ by its definition: the capped mean from the Poisson law, one component after the other."""
    total = np.zeros(hazard.shape)
    level, most = np.repeat(np.arange(len(hazard)), np.diff(units.starts)), int(units.most[0])
    for weight, factor in zip(units.weights.T, units.factors.T, strict=True):
        failures = factor[:, None] * hazard[level] * units.node_hours
        expected = failures.sum(axis=1)
        counting = sum(n * poisson.pmf(n, expected) for n in range(most)) + most * poisson.sf(most - 1, expected)
        np.add.at(total, level, failures * (weight * counting / expected)[:, None])
    return total


def objective(units: Units, counts: Floats, variance: Floats, theta: Floats, crude: float) -> float:
    log_hazard = theta[0] + theta[1 : 1 + LEVELS, None] + theta[1 + LEVELS :]
    mean = what_counts(units, np.exp(log_hazard))
    prior = (theta[0] - crude) ** 2 / capped_hazard.LEVEL_SD**2 + (theta[1:] ** 2).sum() / EFFECT_SD**2
    return float(((counts + variance) * np.log(mean + variance) - mean).sum() - prior / 2)


def crude_rate(units: Units, counts: Floats, variance: Floats) -> float:
    exposure = (units.node_hours.sum(axis=1) * (units.weights * units.factors).sum(axis=1)).sum()
    return float(np.log(max(counts.sum(), np.sqrt(variance.sum()), 1.0) / exposure))


def _highest(value: Callable[[Floats], float], start: Floats) -> Floats:
    def cost(at: Floats) -> float:
        return -value(at)

    found: Floats = minimize(cost, start, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-7}).x
    return found


@pytest.mark.parametrize(("most", "sd"), [(1, 0.0), (1, 6.0), (1, 40.0), (3, 6.0)])
def test_the_fit_is_the_maximum_that_a_general_optimiser_finds(most: int, sd: float) -> None:
    units, _, exact = a_fleet(1, most)
    counts, variance = noisy(exact, sd, 2)
    crude = crude_rate(units, counts, variance)
    start = np.concatenate([[crude], np.zeros(LEVELS + BANDS)])
    found = _highest(lambda at: objective(units, counts, variance, at, crude), start)
    theirs = np.exp(found[0] + found[1 : 1 + LEVELS, None] + found[1 + LEVELS :])
    np.testing.assert_allclose(fitted(units, counts, variance).hazard, theirs, rtol=5e-3)


@pytest.mark.parametrize(("most", "sd"), [(1, 0.0), (1, 12.0), (2, 60.0)])
def test_no_round_falls_and_near_the_answer_steps_square(most: int, sd: float) -> None:
    units, _, exact = a_fleet(2, most)
    counts, variance = noisy(exact, sd, 3)
    crude = crude_rate(units, counts, variance)
    own = capped_hazard._Objective.of(units, counts, variance, EFFECT_SD, ALIKE)
    here, values, sizes = own.at(own.crude), [], []
    for _ in range(12):
        step, promised = own.step(here)
        sizes.append(np.abs(step).max())
        values.append(objective(units, counts, variance, here.theta, crude))
        here = own.ascend(here, step, promised)
    assert np.all(np.diff(values) > -1e-9 * np.abs(values[-1]))
    assert values[-1] > values[0] + 1.0
    close = [size for size in sizes if size < 0.05]
    assert close[1] < 0.2 * close[0]
    assert close[-1] < TOLERANCE


@pytest.mark.parametrize("shape", [ALIKE, 0.3])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_curvature_and_slope_are_derivatives(most: int, shape: float) -> None:
    units, _, exact = a_fleet(3, most)
    own = capped_hazard._Objective.of(units, *noisy(exact, 5.0, 4), EFFECT_SD, shape)
    theta = own.crude + np.random.default_rng(5).normal(0, 0.4, len(own.crude))

    def score(at: Floats) -> Floats:
        point = own.at(at)
        pull = (own.counts - point.mean) / (point.mean + own.noise_variance)
        return own._onto(np.einsum("cab,cb->ca", point.slope, pull)) - own.precision * (at - own.crude)

    here, width = own.at(theta), 1e-5
    pull = (own.counts - here.mean) * own._weight(here)
    numeric = [(score(theta + nudge) - score(theta - nudge)) / (2 * width) for nudge in width * np.eye(len(theta))]
    np.testing.assert_allclose(own._curvature(here, own._weight(here), pull), -np.array(numeric), atol=1e-4, rtol=1e-5)
    expected = np.array([0.003, 0.4, 3.0, 20.0])
    for of, by in ((capped_mean, capped_slope), (capped_slope, capped_curvature)):
        rise = (of(expected + 1e-6, most, shape) - of(expected - 1e-6, most, shape)) / 2e-6
        np.testing.assert_allclose(by(expected, most, shape), rise, atol=1e-8)


# ---- it settles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "epsilon",
    [
        pytest.param(None, marks=pytest.mark.nightly),
        pytest.param(8.0, marks=pytest.mark.nightly),
        1.0,
        pytest.param(0.1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in ("hyperscale", "regional") else []) for name in names()],
)
def test_hazards_settle_on_every_scenario(
    scenario: str, epsilon: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    year = a_year(scenario)
    made = releases(year, epsilon, InsecureSeeded(20) if epsilon else InsecureSilence())
    with caplog.at_level(logging.INFO, logger=capped_hazard.__name__):
        found = learn(made, year.leases)
    rounds = [int(n) for n in re.findall(r"hazards settled in (\d+) rounds", caplog.text)]
    assert len(rounds) == 2  # without the pairs' risks, and with them
    assert max(rounds) <= 20
    assert found.rates


@pytest.mark.parametrize("scenario", ["quickstart", "standard"])
def test_no_level_and_no_band_could_gain_by_other_rates(scenario: str) -> None:
    """Published rates are a maximum of the objective. A fit that swings between two sets of rates is at none."""
    year = a_year(scenario)
    seen = Seen.of(releases(year, 1.0, InsecureSeeded(20)), year.leases, None)
    hazard = findings._fit_hazards(seen, findings._Risk.none(len(seen.node_hours))).base
    released = seen.hazard.at("domain", Domain.INFRASTRUCTURE)
    value = _value_of(seen, released.events, released.noise_variance, hazard > 0)
    steps = [np.where(np.arange(size) == at, 0.05, 0.0) for size in hazard.shape for at in range(size)]
    shifts = [step[:, None] if len(step) == len(hazard) else step for step in steps]
    gains = [value(hazard * np.exp(sign * shift)) - value(hazard) for shift in shifts for sign in (1.0, -1.0)]
    assert max(gains) < 1e-9
    assert min(gains) < -1e-3


def _value_of(seen: Seen, counts: Floats, variance: Floats, known: NDArray[np.bool_]) -> Callable[[Floats], float]:
    """The objective of hazards (levels, bands): the prior is that of the likeliest effects that add up to them."""
    levels, bands = known.shape
    level, band = np.nonzero(known)
    design = np.hstack([np.ones((len(level), 1)), np.eye(levels)[level], np.eye(bands)[band]])
    foretold, level_sd = log_law(experience())
    spread = np.array([level_sd**2, *[findings.CONTEXT_SD**2] * (levels + bands)])
    precision = np.linalg.pinv((design * spread) @ design.T, hermitian=True)

    def value(hazard: Floats) -> float:
        failures = (hazard[seen.level] * seen.node_hours).sum(axis=1)
        mean = (hazard * seen.by_level(cap_factor(failures, seen.most)[:, None]))[known]
        away = np.log(hazard[known]) - foretold
        fit = (counts + variance)[known] * np.log(mean + variance[known]) - mean
        return float(fit.sum() - away @ precision @ away / 2)

    return value


def test_rates_that_have_not_settled_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capped_hazard, "MOST_ROUNDS", 2)
    year = a_year("tiny")
    with pytest.raises(Unsettled, match=r"hazards have not settled in 2 rounds: one more would change a rate by"):
        learn(releases(year, None, InsecureSilence()), year.leases)


def test_exact_failures_where_nothing_ran_are_refused() -> None:
    units, _, counts = a_fleet(4, 1)
    empty = replace(units, node_hours=units.node_hours * [1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="exact failures where nothing ran"):
        fitted(empty, counts, np.zeros(counts.shape))
    silent = fitted(empty, counts, np.full(counts.shape, 4.0))
    assert np.all(silent.hazard[:, 2] == 0.0)
    assert np.all(silent.hazard[:, :2] > 0.0)


# ---- it is right -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("most", "sd"), [(1, 0.0), (1, 5.0), (3, 0.0)])
def test_intervals_hold_the_truth_as_often_as_they_say(most: int, sd: float) -> None:
    """Neither less, nor much more: half as wide, or wider by half, and this fails."""
    scores = []
    for seed in range(30):
        units, truth, exact = a_fleet(seed, most)
        found = fitted(units, *noisy(exact, sd, seed))
        scores.append((np.log(found.hazard / truth) / found.log_sd).ravel())
    z = np.concatenate(scores)
    assert abs(np.median(z)) < 0.3
    assert 0.90 < np.mean(np.abs(z) < 1.96) < 0.99
    assert 0.8 < z.std() < 1.2


def test_counts_beyond_the_number_of_units_give_a_high_rate_that_is_finite_and_unsure() -> None:
    units, truth, _ = a_fleet(5, 1)
    jobs = np.diff(units.starts)[:, None] + np.zeros(BANDS)
    found = fitted(units, 2.0 * jobs, np.full(jobs.shape, 400.0))
    assert np.all(np.isfinite(found.hazard))
    assert np.all(found.hazard > truth)
    assert np.all(found.hazard < 1e4 * truth)
    assert found.log_sd.min() > 0.3


def test_where_noise_drowns_the_total_what_is_foretold_stands_and_counts_that_speak_overrule_it() -> None:
    units, truth, counts = a_fleet(3, 4)
    foretold, sd = float(np.log(truth.mean())) - 2.0, 0.8

    def level(noise_sd: float) -> float:
        own, variance = noisy(counts, noise_sd, 8)
        found = fit_capped(units, own, variance, effect_sd=0.01, foretold=(foretold, sd))
        return float(np.log(found.hazard).mean())

    known = float(np.log(fitted(units, *noisy(counts, 0.0, 8)).hazard).mean())
    assert level(0.0) == pytest.approx(known, abs=0.3)
    assert level(1e5) == pytest.approx(foretold, abs=0.3)
