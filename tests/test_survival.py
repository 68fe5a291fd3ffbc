"""Survival from public departures and private failures, against lifelines."""

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_lung

from crypto.life_table import Floats
from provider_server.analysis.bands import band_of, quantile_bands
from provider_server.analysis.survival import survival_curve


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
