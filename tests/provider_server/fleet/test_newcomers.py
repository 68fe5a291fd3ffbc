"""First rates of what is new: intervals hold the truth with much evidence and with none."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma, norm

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.cold_start import TRANSFER_SD, Known, Newcomer, NothingKnown, bootstrap

RATE = 1e-4  # per node-hour, on average
FAR_AWAY = 5.0  # times the width of where the known are


def world(rng: np.random.Generator, size: int, *, far: bool, smooth: bool) -> tuple[Floats, Floats]:
    """Distances (size, size) of the known and, last, of the newcomer; and all log rates, alike where near or not."""
    places = rng.random((size, 2))
    places[-1] += FAR_AWAY if far else 0.0
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    spread = rng.uniform(0.2, 1.0)
    covariance = np.exp(-apart / rng.uniform(0.1, 1.0)) if smooth else np.eye(size)
    log_rate = spread * np.linalg.cholesky(covariance + 1e-9 * np.eye(size)) @ rng.normal(size=size)
    if far:
        log_rate[-1] = spread * rng.normal() * np.sqrt(np.clip(apart[-1, :-1].min() / apart[:-1, :-1].max(), 1.0, 4.0))
    return apart, np.log(RATE) + log_rate


def trial(
    rng: np.random.Generator, node_hours: float, exposure: float, *, transfer_sd: float = TRANSFER_SD, far: bool = False
) -> tuple[bool, bool, float]:
    """Whether the interval holds the truth, whether half of it would, and its log width; a newcomer among eight."""
    apart, log_rate = world(rng, 9, far=far, smooth=bool(rng.random() < 0.7))
    log_sd = rng.uniform(0.05, 0.3, 8)
    known = [
        Known(str(place), float(log_rate[place] + rng.normal(0.0, sd)), float(sd)) for place, sd in enumerate(log_sd)
    ]
    truth = np.exp(log_rate[-1])
    failures = float(rng.poisson(node_hours * truth * np.exp(rng.normal(0.0, TRANSFER_SD))))
    counted = (rng.poisson(exposure * truth) + rng.normal(0.0, 8.0), 64.0, exposure)
    found = bootstrap(
        known,
        apart[-1, :-1],
        failures,
        node_hours,
        counted if exposure else None,
        between=apart[:-1, :-1],
        transfer_sd=transfer_sd,
    )
    low, middle, high = np.log([found.low, found.rate, found.high])
    half = (low + middle) / 2.0 <= np.log(truth) <= (high + middle) / 2.0
    return found.low <= truth <= found.high, bool(half), high - low


def trials(seed: int, node_hours: float, exposure: float, **how: Any) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    held, half, width = zip(*(trial(rng, node_hours, exposure, **how) for _ in range(120)), strict=True)
    return float(np.mean(held)), float(np.mean(half)), float(np.median(width))


def alone(failures: float, node_hours: float, released: tuple[float, float, float] | None = None) -> Newcomer:
    """Among three known at equal distances."""
    known = [Known(str(place), np.log(RATE) + place, 0.1) for place in range(3)]
    return bootstrap(known, np.full(3, 0.5), failures, node_hours, released)


# ---- intervals ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("far", [False, True])
def test_intervals_hold_the_truth_and_narrow_with_evidence(far: bool) -> None:  # noqa: FBT001
    widths = []
    for node_hours, exposure in ((0.0, 0.0), (2e4, 0.0), (2e6, 0.0), (2e6, 1e7)):
        held, half, width = trials(1, node_hours, exposure, far=far)
        assert held >= 0.9, (node_hours, exposure)
        assert half < 0.9, (node_hours, exposure)
        widths.append(width)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 3.0 * widths[-1]


def test_a_bench_that_is_taken_for_tenants_jobs_would_mislead() -> None:
    assert trials(2, 2e6, 0.0, transfer_sd=1e-6)[0] < 0.8


def test_what_is_far_from_everything_gets_a_wide_interval() -> None:
    rng = np.random.default_rng(3)
    apart, log_rate = world(rng, 9, far=False, smooth=True)
    known = [Known(str(place), float(log), 0.05) for place, log in enumerate(log_rate[:-1])]
    widths = []
    for distance in (0.01, 0.3, 1.0, 20.0):
        found = bootstrap(known, np.full(8, distance), 0.0, 0.0, None, between=apart[:-1, :-1])
        widths.append(np.log(found.high / found.low))
    assert widths == sorted(widths)
    assert widths[-1] > 2.0 * widths[-2]


def test_the_nearest_say_most_where_distance_matters() -> None:
    """Two clusters of rates a factor of ten apart; the newcomer is in the second."""
    cluster = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    known = [Known(f"known {place}", np.log(RATE) + 2.3 * own, 0.1) for place, own in enumerate(cluster)]
    between = np.where(cluster[:, None] == cluster, 0.1, 2.0) * (1.0 - np.eye(8))
    second = bootstrap(known, np.where(cluster == 1, 0.1, 2.0), 0.0, 0.0, None, between=between)
    assert 0.5 < second.rate / (10.0 * RATE) < 2.0
    assert second.low > 2.0 * RATE
    nowhere = bootstrap(known, np.full(8, 2.0), 0.0, 0.0, None, between=between)
    assert nowhere.low < RATE < 10.0 * RATE < nowhere.high


def test_one_known_is_enough_to_begin_with_and_none_is_not() -> None:
    found = bootstrap([Known("h100 a", np.log(RATE), 0.1)], np.array([0.3]), 0.0, 0.0, None)
    assert found.rate == pytest.approx(RATE, rel=0.05)
    assert found.high / found.low > 10.0
    with pytest.raises(NothingKnown, match="no context or workload has a rate yet"):
        bootstrap([], np.empty(0), 3.0, 1e4, None)


def test_much_evidence_leaves_nothing_of_the_prior() -> None:
    """Released: the exact gamma interval of a Poisson count. A bench: no narrower than its transfer to tenants."""
    counted = alone(0.0, 0.0, (2000.0, 0.0, 2e6))
    low, high = (float(gamma.ppf(share, 2000.0)) / 2e6 for share in (0.025, 0.975))
    assert (counted.low, counted.high) == pytest.approx((low, high), rel=0.01)
    bench = alone(20000.0, 2e7)
    assert np.log(bench.high / bench.low) == pytest.approx(2.0 * norm.ppf(0.975) * TRANSFER_SD, rel=0.15)


def test_noise_in_a_released_count_widens_and_a_count_below_zero_is_a_low_rate() -> None:
    exact, noisy = (alone(0.0, 0.0, (100.0, variance, 1e6)) for variance in (0.0, 900.0))
    assert noisy.high / noisy.low > 1.4 * exact.high / exact.low
    below = alone(0.0, 0.0, (-30.0, 900.0, 1e6))
    assert 0.0 < below.low < below.rate < below.high < 1e-4


def test_no_failure_in_many_hours_is_evidence() -> None:
    assert alone(0.0, 1e6).high < 0.2 * alone(0.0, 0.0).high


def test_its_basis_is_in_words() -> None:
    assert alone(3.0, 12000.0, (41.2, 25.0, 4e5)).basis == (
        "nearest of 3 known: 0, at distance 0.5; 3 failures in 12,000 node-hours of benchmark jobs;"
        " a released count of 41 (noise ± 10) in an exposure of 400,000"
    )
    assert alone(0.0, 0.0).basis.endswith("no benchmark jobs; no released count")


def test_impossible_input_is_refused() -> None:
    with pytest.raises(ValueError, match="node-hours"):
        alone(3.0, 0.0)
    with pytest.raises(ValueError, match="exposure"):
        alone(0.0, 0.0, (3.0, 1.0, 0.0))
    with pytest.raises(ValueError, match="so many distances"):
        bootstrap([Known("a", 0.0, 0.1)], np.zeros(2), 0.0, 0.0, None)
    with pytest.raises(ValueError, match="from 0 on"):
        bootstrap([Known("a", 0.0, 0.1)], np.array([-1.0]), 0.0, 0.0, None)
    with pytest.raises(ValueError, match="finite"):
        bootstrap([Known("a", -np.inf, 0.1)], np.array([1.0]), 0.0, 0.0, None)
