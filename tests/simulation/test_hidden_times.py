"""Times of leaving kept secret: what the provider sees, what one exit moves, and what is estimated from noisy exits."""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crypto.ids import RoundId
from crypto.masking import MaskKey
from federation.base.visible import json_text
from federation.protocol.life_table import Dimension, LifeTable
from federation.protocol.noise import Integers
from federation.protocol.plan import MaskTrustee, Plan
from federation.protocol.privacy_cost import plan_loss
from provider_server.rounds.planning import PlanSettings, make_plan
from simulation.replay import lives, lung_times, titan_times
from simulation.replay.bands import time_in_bands
from simulation.replay.hidden_times import DIED, LEFT, expected_hours, hidden, survival_at_edges
from simulation.replay.lives import DELTA, Life, Replay
from simulation.replay.lung_times import LungTimesResult, replay_lung_times
from simulation.replay.titan import PLACES, guessed_deaths, levels_of
from simulation.replay.titan_times import TitanTimesResult, replay_titan_times
from tenant_client.doctor.records.journal import LabelledFailure
from tenant_client.rounds.counts import build_tables
from tests.support import schemas
from tests.support.plans import InsecureSeeded

TITAN = Path(__file__).resolve().parents[3] / "shared" / "data" / "titan" / "gpu_lifetimes.csv.gz"
needs_titan = pytest.mark.skipif(not TITAN.exists(), reason=f"../shared/data/titan/{TITAN.name} is missing")

HORIZON_H = lung_times.EDGES[-1]
LUNG = lung_times.settings(1.0), {"reason": (DIED, LEFT)}
TITANS = titan_times.settings(1.0), {**levels_of(PLACES), "reason": (DIED,)}


def life(number: int, hours: float, reason: str | None) -> Life:
    return Life(f"owner {number % 3}", str(number), hours, reason, dict.fromkeys(PLACES, "1"))


def a_plan(settings: PlanSettings, levels: dict[str, tuple[str, ...]]) -> Plan:
    trustees = [MaskTrustee(1, MaskKey(bytes(32)).public)]
    window = 0, math.ceil(HORIZON_H)
    return make_plan(settings, RoundId(bytes(16)), window, [], trustees, levels, windows=window)


def counts(plan: Plan, units: Sequence[Life]) -> tuple[Integers, ...]:
    labelled = [LabelledFailure(one.failure, one.labels) for one in units if one.failure is not None]
    return build_tables(plan, labelled, bytes(32))


# ---- what is promised ------------------------------------------------------------------------------------------------


def test_the_providers_side_is_the_same_whatever_the_times_and_outcomes(tmp_path: Path) -> None:
    one = [life(number, 100.0 + number, None) for number in range(6)]
    other = [life(number, 9000.0 - 7 * number, "unknown" if number % 2 else None) for number in range(6)]

    def seen(units: list[Life], name: str) -> list[tuple[object, ...]]:
        replay = Replay(tmp_path / name, units, *LUNG, private=True, rounds=1)
        with closing(replay):
            return [(str(of.lease), of.nodes, of.start_h, of.end_h, of.labels) for of in replay.leases]

    assert seen(hidden(one, HORIZON_H), "a") == seen(hidden(other, HORIZON_H), "b")
    assert seen(one, "c") != seen(other, "d"), "with public times the leases tell them"


def test_journals_hold_the_times_that_leases_do_not(tmp_path: Path) -> None:
    units = hidden([life(number, 100.0 + number, "unknown" if number % 2 else None) for number in range(6)], HORIZON_H)
    replay = Replay(tmp_path, units, *LUNG, private=False, rounds=1)
    with closing(replay):
        exits = replay.round().table("exits")
    assert exits.at("reason", DIED).events.tolist() == [3.0] + [0.0] * 8
    assert exits.at("reason", LEFT).events.tolist() == [3.0] + [0.0] * 8


@pytest.mark.parametrize(("settings", "levels"), [LUNG, TITANS])
def test_another_exit_of_one_unit_costs_epsilon_and_a_whole_plan_would_cost_more(
    settings: PlanSettings, levels: dict[str, tuple[str, ...]]
) -> None:
    plan = a_plan(settings, levels)
    others = [life(number, 5000.0, None) for number in range(1, 5)]
    exits = [(10.0, None), (10.0, "unknown"), (8000.0, "unknown"), (2.0 * HORIZON_H, None)]
    tables = [counts(plan, hidden([life(0, *one), *others], HORIZON_H)) for one in exits]
    moved = [[np.abs(a - b) for a, b in zip(one, other, strict=True)] for one in tables for other in tables]
    taxicab = np.max([[int(table.sum()) for table in of] for of in moved], axis=0)
    squares = np.max([[int((table**2).sum()) for table in of] for of in moved], axis=0)
    assert taxicab.max() == squares.max() == 2, "the worst is reached"
    assert np.all(taxicab <= 2)
    loss = plan_loss(plan)  # of an exit present or absent: L1 and L2 distances of 1 in each table
    swapped = replace(loss, epsilon=2 * loss.epsilon, rho=2 * loss.rho)  # L1 of 2, L2 of the root of 2
    assert 0.999 < swapped.at(DELTA) <= 1.0
    assert plan_loss(a_plan(replace(settings, epsilon=1.0), levels)).of_group(2).at(DELTA) > 1.3


def test_who_is_there_at_the_horizon_leaves_then_whatever_came_later() -> None:
    (one,) = hidden([life(0, 2.0 * HORIZON_H, "unknown")], HORIZON_H)
    assert (one.hours, one.secret_hours, one.reason) == (HORIZON_H, HORIZON_H, LEFT)


def test_departures_of_their_own_are_guessed_to_be_deaths() -> None:
    assert guessed_deaths(np.array([5.0, 3.0, 5.0, 4.0])).tolist() == [False, True, False, True]


# ---- what is estimated -----------------------------------------------------------------------------------------------


def test_without_noise_and_with_narrow_bands_the_curve_is_kaplan_meiers() -> None:
    from lifelines import KaplanMeierFitter

    rng, edges = np.random.default_rng(3), np.linspace(0.0, 100.0, 20_001)
    hours, died = rng.uniform(0.0, 99.0, 300), rng.random(300) < 0.7
    exits = [np.histogram(hours[of], edges)[0].astype(np.float64) for of in (died, ~died)]
    pooled = KaplanMeierFitter().fit(hours, died).survival_function_at_times(edges)
    assert survival_at_edges(300, *exits) == pytest.approx(np.asarray(pooled), abs=0.005)


def test_counts_that_noise_made_impossible_give_a_falling_curve_between_one_and_zero() -> None:
    curve = survival_at_edges(20, np.array([-3.0, 30.0, -1.0]), np.array([5.0, -9.0, 0.5]))
    assert curve[0] == 1.0
    assert np.all(np.diff(curve) <= 0.0)
    assert np.all(curve >= 0.0)


def exits_by(place: np.ndarray, hours: np.ndarray, edges: np.ndarray, noise_sd: float, seed: int) -> LifeTable:
    levels = int(place.max()) + 1
    table = LifeTable.zeros(
        [Dimension(name, tuple(map(str, range(n)))) for name, n in (("place", levels), ("band", 4))]
    )
    events = np.array([np.histogram(hours[place == level], edges)[0] for level in range(levels)], np.float64)
    noise = np.random.default_rng(seed).normal(0.0, noise_sd, events.shape)
    return replace(table, events=events + noise, noise_variance=np.full(events.shape, noise_sd**2))


def invented(units: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two places, each of which makes a unit leave earlier or later, by itself; hours until it leaves."""
    rng = np.random.default_rng(4)
    places = np.array([rng.integers(0, 4, units), rng.integers(0, 3, units)])
    scale = 40.0 * np.array([0.5, 1.0, 1.5, 2.0])[places[0]] * np.array([0.7, 1.0, 1.4])[places[1]]
    return places, np.minimum(rng.exponential(scale), 99.0), np.linspace(0.0, 100.0, 5)


def test_without_noise_each_levels_hours_are_those_that_its_units_were_there() -> None:
    places, hours, edges = invented(20_000)
    exits = [exits_by(place, hours, edges, 0.0, 0) for place in places]
    expected, actual = expected_hours(places, exits, edges).sum(axis=1), time_in_bands(hours, edges).sum(axis=1)
    for place in places:
        means = [np.bincount(place, values) / np.bincount(place) for values in (expected, actual)]
        assert means[0] == pytest.approx(means[1], rel=0.12)  # exits lie earlier in a band than in its middle
        assert np.asarray(np.corrcoef(means))[0, 1] > 0.99


def test_noise_leaves_hours_within_what_can_be_and_near_those_without() -> None:
    places, hours, edges = invented(4_000)
    exact, noisy = (
        expected_hours(places, [exits_by(place, hours, edges, sd, seed) for seed, place in enumerate(places)], edges)
        for sd in (0.0, 20.0)
    )
    assert np.all((noisy >= 0.0) & (noisy <= 25.0))
    assert np.all(np.diff(noisy, axis=1) <= 1e-9), "nobody comes back"
    assert 0.001 < np.abs(noisy.mean(axis=0) - exact.mean(axis=0)).max() < 2.0


# ---- on the data -----------------------------------------------------------------------------------------------------


@pytest.fixture
def noise_from_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures under noise are then the same each time; what noise does over many draws is a benchmark's business."""
    monkeypatch.setattr(lives, "SystemSampler", lambda: InsecureSeeded(11))


def lung(epsilon: float | None, seeds: int) -> LungTimesResult:
    (result,) = [step for step in replay_lung_times(epsilon, seeds) if step is not None]
    schemas.held("pharoah-sim replay lung --hide-times", json_text(result))
    return result


@pytest.mark.nightly
@pytest.mark.usefixtures("noise_from_a_seed")
def test_a_curve_with_hidden_times_costs_more_error_than_one_without_and_less_than_was_published() -> None:
    result = lung(1.0, 4)
    assert result.label_privacy_rmse_survival < result.rmse_survival < result.published_rmse_survival
    assert result.rmse_survival > result.rmse_survival_of_bands_alone > 0.001


@pytest.mark.nightly
@needs_titan
@pytest.mark.usefixtures("noise_from_a_seed")
def test_titans_ratios_with_hidden_times_are_worse_than_what_public_times_give_for_nothing() -> None:
    (result,) = [step for step in replay_titan_times(TITAN, 1.0, 1) if step is not None]
    assert isinstance(result, TitanTimesResult)
    schemas.held("pharoah-sim replay titan --hide-times", json_text(result))
    assert result.label_privacy_mean_abs_log_hr_error < result.mean_abs_log_hr_error < 0.5 * result.mean_abs_log_hr
    assert result.guessed_mean_abs_log_hr_error < result.mean_abs_log_hr_error
    assert result.guessed_max_abs_log_hr_error == pytest.approx(0.201, abs=0.001)
