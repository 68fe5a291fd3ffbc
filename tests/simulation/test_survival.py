"""Survival from public departures and private failures, against lifelines."""

import csv
from pathlib import Path

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_lung

from federation.protocol.life_table import Floats
from simulation.replay.bands import band_of, quantile_bands
from simulation.replay.survival import survival_curve

PHILLY = Path(__file__).parents[3] / "shared" / "data" / "philly" / "jobs_15k.csv"


def lung() -> tuple[Floats, Floats]:
    data = load_lung()
    return data["time"].to_numpy(np.float64), data["status"].to_numpy(np.float64)


def counts(times: Floats, failed: Floats, edges: Floats) -> Floats:
    return np.bincount(band_of(times, edges), weights=failed, minlength=len(edges) - 1).astype(np.float64)


def kaplan_meier(times: Floats, failed: Floats, at: Floats) -> Floats:
    return np.asarray(KaplanMeierFitter().fit(times, failed).survival_function_at_times(at), np.float64)


def test_one_band_per_departure_and_exact_counts_are_kaplan_meier() -> None:
    times, failed = lung()
    edges = np.concatenate([[0.0], np.unique(times)])
    curve = survival_curve(times, edges, counts(times, failed, edges), np.zeros(len(edges) - 1))
    assert np.allclose(curve.survival, kaplan_meier(times, failed, curve.times), atol=1e-12)


def test_its_intervals_are_greenwoods() -> None:
    times, failed = lung()
    edges = np.concatenate([[0.0], np.unique(times)])
    curve = survival_curve(times, edges, counts(times, failed, edges), np.zeros(len(edges) - 1))
    middle = len(curve.times) // 2
    upper = KaplanMeierFitter().fit(times, failed).confidence_interval_.loc[curve.times[middle]].iloc[1]
    assert curve.high[middle] == pytest.approx(upper, abs=0.02)
    oracle = KaplanMeierFitter().fit(times, failed)
    greenwood = np.sqrt(oracle._cumulative_sq_.loc[curve.times].to_numpy())  # of log S, by lifelines itself
    assert np.log(curve.survival / curve.low)[:-1] / 1.959964 == pytest.approx(greenwood[:-1], rel=1e-6)


def test_as_noise_vanishes_so_does_the_prior() -> None:
    times, failed = lung()
    edges = np.concatenate([[0.0], np.unique(times)])
    exact = counts(times, failed, edges)
    known = survival_curve(times, edges, exact, np.zeros(len(exact)))
    nearly = survival_curve(times, edges, exact, np.full(len(exact), 1e-9))
    assert nearly.survival == pytest.approx(known.survival, abs=1e-6)
    assert nearly.low[:-1] == pytest.approx(known.low[:-1], abs=1e-4)


@pytest.mark.parametrize("noise_sd", [0.0, 0.5, 6.0])
def test_intervals_cover_the_population_as_often_as_they_say(noise_sd: float) -> None:
    rng, at, scores = np.random.default_rng(5), np.array([20.0, 50.0, 100.0, 150.0]), []
    truth = np.exp(-((at / 120.0) ** 1.3))
    for _ in range(150):
        life, censored = 120.0 * rng.weibull(1.3, 600), rng.exponential(150.0, 600)
        times, failed = np.minimum(life, censored), (life <= censored).astype(np.float64)
        edges = quantile_bands(times, 20)
        released = counts(times, failed, edges) + rng.normal(0.0, noise_sd, 20)
        curve = survival_curve(times, edges, released, np.full(20, noise_sd**2))
        place = np.searchsorted(curve.times, at, side="right") - 1
        scores.append(np.log(curve.survival[place] / truth) / np.log(curve.survival[place] / curve.low[place]))
    sizes = np.abs(scores)  # in half-widths
    assert 0.92 < np.mean(sizes < 1.0) < 0.985
    assert np.mean(sizes < 0.7) < 0.92  # intervals 30% narrower would not pass


def test_philly_at_epsilon_one_stays_near_the_pooled_curves() -> None:
    if not PHILLY.exists():
        pytest.skip(f"{PHILLY} is missing")
    with PHILLY.open(newline="") as text:
        jobs = list(csv.DictReader(text))
    hours = np.array([float(job["run_time"]) for job in jobs])
    failed = np.array([float(job["new_status"] == "Failed") for job in jobs])
    group = np.searchsorted([1, 4, 8], [int(job["gpu_num"]) for job in jobs])
    edges, rng, errors = quantile_bands(hours, 60), np.random.default_rng(6), []
    judged = [number for number in range(4) if np.sum(group == number) >= 1000]
    for number in judged:
        own, fails = hours[group == number], failed[group == number]
        exact = counts(own, fails, edges)
        for _ in range(10):
            stop = 1.0 - np.exp(-1.0)  # discrete Laplace noise of scale 1: the difference of two geometric counts
            noise = rng.geometric(stop, len(exact)) - rng.geometric(stop, len(exact))
            curve = survival_curve(own, edges, exact + noise, np.full(len(exact), 2.0 * (1.0 - stop) / stop**2))
            off = np.abs(curve.survival - kaplan_meier(own, fails, curve.times))
            errors.append(off[curve.at_risk >= 0.05 * len(own)].max())
    assert len(judged) == 3
    assert np.mean(errors) < 0.017
    assert np.max(errors) < 0.03


def test_noise_is_inside_the_interval_and_a_narrower_one_would_miss_it() -> None:
    rng = np.random.default_rng(2)
    times, failed = rng.exponential(100.0, 4000), (rng.random(4000) < 0.5).astype(np.float64)
    edges, noise_sd = quantile_bands(times, 20), 15.0
    exact, inside, inside_narrow = counts(times, failed, edges), [], []
    for _ in range(60):
        noisy = exact + rng.normal(0, noise_sd, len(exact))
        curve = survival_curve(times, edges, noisy, np.full(len(exact), noise_sd**2))
        at = np.searchsorted(curve.times, 70.0)
        truth = np.exp(-0.5 * curve.times[at] / 100.0)
        low, high = curve.low[at], curve.high[at]
        inside.append(low <= truth <= high)
        narrow = 0.5 * np.log(high / low) * 0.6
        inside_narrow.append(abs(np.log(curve.survival[at] / truth)) <= narrow)
    assert np.mean(inside) >= 0.87
    assert np.mean(inside_narrow) < np.mean(inside)


def test_negative_and_impossible_counts_stay_a_survival_curve() -> None:
    times, failed = lung()
    edges = quantile_bands(times, 6)
    noisy = counts(times, failed, edges) + np.array([-80.0, 50, -30, 90, -10, 20])
    curve = survival_curve(times, edges, noisy, np.full(6, 900.0))
    assert np.all(np.diff(curve.survival) <= 0)
    assert curve.survival[0] <= 1
    assert curve.survival[-1] >= 0
    assert curve.at(np.array([0.0])) == 1.0


@pytest.mark.parametrize("noise_sd", [0.0, 3.0])
def test_a_curve_that_reaches_zero_keeps_its_last_upper_bound(noise_sd: float) -> None:
    times, everybody_failed = np.arange(1.0, 41.0), np.ones(40)
    edges = quantile_bands(times, 5)
    noisy = counts(times, everybody_failed, edges) + 30.0 * noise_sd
    curve = survival_curve(times, edges, noisy, np.full(len(noisy), noise_sd**2))
    assert (curve.survival[-1], curve.low[-1]) == (0.0, 0.0)
    assert curve.high[-1] == curve.high[-2] > 0.0
    assert np.all(curve.high <= 1.0)
    assert np.all(curve.low <= curve.survival)
    assert np.all(curve.survival <= curve.high)


def test_no_noise_however_unlucky_meets_an_overflow() -> None:
    times, failed = lung()
    rng = np.random.default_rng(3)
    for bands in (2, 6, 20):
        edges = quantile_bands(times, bands)
        exact = counts(times, failed, edges)
        for noise_sd in (1.0, 10.0, 1e3, 1e6):
            noisy = exact + rng.normal(0.0, noise_sd, len(exact))
            curve = survival_curve(times, edges, noisy, np.full(len(exact), noise_sd**2))  # warnings are errors
            assert np.all(np.isfinite(curve.high))
            assert np.all((curve.low <= curve.survival) & (curve.survival <= curve.high))
        everything_failed = survival_curve(times, edges, exact + 1e4, np.ones(len(exact)))
        assert everything_failed.survival[-1] == 0.0 < everything_failed.high[-1] <= 1.0
