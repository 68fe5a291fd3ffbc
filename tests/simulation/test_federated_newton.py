"""Exact federated Newton: sums of whole numbers give the pooled fit, which an independent optimiser finds too."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from scipy.optimize import minimize

from federation.protocol.life_table import Floats
from simulation.replay.federated_newton import (
    PiecewiseExponential,
    Point,
    Rows,
    derivatives,
    fit,
    site_summary,
    start,
    step,
)

EDGES = (0.0, 1.0, 2.5, np.inf)
MODEL = PiecewiseExponential(EDGES, covariates=4, ridge=1.0)


def drawn(units: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    covariates = np.column_stack([rng.normal(size=(units, 2)), rng.integers(0, 2, (units, 2))])
    dies = rng.exponential(size=units) / (0.3 * np.exp(covariates @ np.array([0.8, -0.5, 0.4, 0.0])))
    leaves = rng.uniform(0.0, 5.0, units)
    return Rows(np.minimum(dies, leaves), dies <= leaves, covariates)


def together(sites: list[Rows]) -> Rows:
    return Rows(
        np.concatenate([rows.time for rows in sites]),
        np.concatenate([rows.failed for rows in sites]),
        np.concatenate([rows.covariates for rows in sites]),
    )


def federated(model: PiecewiseExponential, sites: list[Rows]) -> Point:
    here = start(model)
    while not here.converged and here.rounds < 30:
        here = step(model, here, [site_summary(model, rows, here.coefficients) for rows in sites])
    return here


SITES = [drawn(units, seed) for seed, units in enumerate((40, 300, 7, 120, 60, 90))]


def test_sites_together_find_the_pooled_coefficients_in_eight_rounds() -> None:
    here = federated(MODEL, SITES)
    assert here.rounds <= 8
    assert np.abs(here.coefficients - fit(MODEL, together(SITES)).coefficients).max() < 1e-9


def test_the_answer_is_where_a_general_optimiser_finds_the_penalised_maximum() -> None:
    pooled = together(SITES)

    def lost(at: Floats) -> tuple[float, Floats]:
        found = derivatives(MODEL, pooled, at)
        ridge = 0.5 * float(MODEL.precision @ at**2)
        return ridge - found.log_likelihood, MODEL.precision * at - found.gradient

    best = minimize(lost, np.zeros(MODEL.size), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    assert np.abs(best - federated(MODEL, SITES).coefficients).max() < 1e-6
    assert np.abs(best - federated(PiecewiseExponential(EDGES, 4, 2.0), SITES).coefficients).max() > 1e-4


def test_derivatives_are_those_of_the_log_likelihood() -> None:
    at = np.array([-1.0, -1.2, -0.7, 0.3, -0.2, 0.1, 0.4])
    exact = derivatives(MODEL, SITES[1], at)
    for place, moved in enumerate(np.eye(MODEL.size) * 1e-5):
        above, below = derivatives(MODEL, SITES[1], at + moved), derivatives(MODEL, SITES[1], at - moved)
        assert (above.log_likelihood - below.log_likelihood) / 2e-5 == pytest.approx(exact.gradient[place], abs=1e-4)
        assert -(above.gradient - below.gradient) / 2e-5 == pytest.approx(exact.information[place], abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_without_a_ridge_lifelines_finds_the_same_over_a_piecewise_exponential_baseline() -> None:
    pooled = together(SITES)
    frame = pd.DataFrame(pooled.covariates, columns=list("abcd")).assign(time=pooled.time, failed=pooled.failed)
    theirs = CoxPHFitter(baseline_estimation_method="piecewise", breakpoints=list(EDGES[1:-1]))
    theirs.fit(frame, "time", "failed", fit_options={"gtol": 1e-8})
    ours = fit(PiecewiseExponential(EDGES, 4), pooled)
    assert ours.log_likelihood == pytest.approx(theirs.log_likelihood_, abs=1e-6)
    assert theirs.params_["beta_"][list("abcd")].to_numpy() == pytest.approx(ours.coefficients[3:], abs=1e-5)


def test_summaries_are_whole_numbers_and_add_up_the_same_in_any_order_and_modulo_2_to_the_64() -> None:
    at = fit(MODEL, together(SITES), max_rounds=3).coefficients
    summaries = [site_summary(MODEL, rows, at) for rows in SITES]
    assert {summary.dtype for summary in summaries} == {np.dtype(np.int64)}
    assert {summary.shape for summary in summaries} == {(MODEL.cells,)}
    rng = np.random.default_rng(1)
    masks = rng.integers(0, 2**64, (len(SITES), MODEL.cells), np.uint64)
    masked = sum((summary.view(np.uint64) + mask for summary, mask in zip(summaries, masks, strict=True)), np.uint64(0))
    assert np.array_equal((masked - masks.sum(axis=0)).view(np.int64), np.sum(summaries[::-1], axis=0))


def test_a_step_from_all_summaries_is_the_step_from_their_sum() -> None:
    summaries = [site_summary(MODEL, rows, np.zeros(MODEL.size)) for rows in SITES]
    apart = step(MODEL, start(MODEL), summaries).coefficients
    assert np.array_equal(apart, step(MODEL, start(MODEL), [np.sum(summaries, axis=0)]).coefficients)


def test_a_site_that_is_left_out_changes_the_answer() -> None:
    assert np.abs(federated(MODEL, SITES[:-1]).coefficients - federated(MODEL, SITES).coefficients).max() > 1e-3


def test_too_coarse_a_scale_misses_the_pooled_answer() -> None:
    coarse = PiecewiseExponential(EDGES, 4, 1.0, fraction_bits=8)
    assert np.abs(federated(coarse, SITES).coefficients - fit(coarse, together(SITES)).coefficients).max() > 1e-6


def test_a_step_that_leads_downhill_is_halved_until_it_does_not() -> None:
    far = Point(np.full(MODEL.size, 1.5), 2, log_likelihood=-1000.0, step=np.full(MODEL.size, 1.0))
    wide = replace(MODEL, fraction_bits=24)
    back = step(wide, far, [site_summary(wide, together(SITES), far.coefficients)])
    assert back.coefficients == pytest.approx(np.ones(MODEL.size))
    assert back.log_likelihood == far.log_likelihood


def test_an_entry_that_could_leave_64_bits_is_refused() -> None:
    large = Rows(SITES[0].time, SITES[0].failed, SITES[0].covariates * 1e5)
    with pytest.raises(OverflowError, match="scale the covariates"):
        site_summary(MODEL, large, np.zeros(MODEL.size))
    with pytest.raises(OverflowError, match="scale the covariates"):
        site_summary(MODEL, SITES[0], np.full(MODEL.size, np.nan))


def test_what_has_no_finite_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="a band without an event"):
        fit(PiecewiseExponential((0.0, 4.99, 4.991, np.inf), 4), together(SITES))
    twice = Rows(SITES[1].time, SITES[1].failed, SITES[1].covariates[:, [0, 0, 1, 1]])
    with pytest.raises(ValueError, match="collinear"):
        fit(PiecewiseExponential(EDGES, 4), twice)
    assert fit(MODEL, twice).converged, "a ridge shares the effect out"


def test_rows_and_summaries_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="covariates, not 3"):
        fit(PiecewiseExponential(EDGES, 3), SITES[0])
    with pytest.raises(ValueError, match="summaries have shape"):
        step(MODEL, start(MODEL), [np.zeros(3, np.int64)])
    with pytest.raises(ValueError, match="one entry, or one line, per unit"):
        Rows(np.ones(2), np.ones(3, bool), np.ones((3, 1)))
    with pytest.raises(ValueError, match="finite"):
        Rows(np.array([1.0, np.nan]), np.ones(2, bool), np.ones((2, 1)))
