"""Survival models on real data beside their peers: six centres, a trial's institutions, columns that were held out."""

from pathlib import Path

import numpy as np
import pytest

from federation.base.visible import json_text
from federation.protocol.plan import Mechanism
from provider_server.rounds.planning import MarginalSpec
from simulation.replay import lives
from simulation.replay.brca import (
    EDGES_YEARS,
    FLOWER_DP_ROUNDS,
    RIDGE,
    BrcaResult,
    bootstrap_concordances,
    concordance,
    federated,
    noise_multiplier,
    read,
    replay_brca,
)
from simulation.replay.federated_newton import PiecewiseExponential, Rows, fit
from simulation.replay.lives import DataError
from simulation.replay.lung import LungResult, replay_lung
from simulation.replay.titan import HoldoutResult, replay_titan_holdout
from tests.support import schemas
from tests.support.plans import InsecureSeeded

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
BRCA = DATA / "brca"
TITAN = DATA / "titan" / "gpu_lifetimes.csv.gz"

needs_brca = pytest.mark.skipif(not BRCA.exists(), reason="../shared/data/brca is missing")
needs_titan = pytest.mark.skipif(not TITAN.exists(), reason=f"../shared/data/titan/{TITAN.name} is missing")


@pytest.fixture(autouse=True)
def noise_from_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures under noise are then the same each time; what noise does over many draws is a benchmark's business."""
    monkeypatch.setattr(lives, "SystemSampler", lambda: InsecureSeeded(11))


def brca(epsilon: float, seeds: int) -> BrcaResult:
    (result,) = [step for step in replay_brca(BRCA, epsilon, seeds) if step is not None]
    schemas.held("pharoah-sim replay brca", json_text(result))
    return result


def lung(epsilon: float | None, seeds: int) -> LungResult:
    (result,) = [step for step in replay_lung(epsilon, seeds) if step is not None]
    schemas.held("pharoah-sim replay lung", json_text(result))
    return result


def held_out(epsilon: float | None, seeds: int) -> HoldoutResult:
    (result,) = [step for step in replay_titan_holdout(TITAN, epsilon, seeds) if step is not None]
    schemas.held("pharoah-sim replay titan --holdout", json_text(result))
    return result


@needs_brca
def test_six_centres_rank_the_pooled_test_patients_in_eight_exact_rounds() -> None:
    result = brca(1.0, 2)
    assert (result.centres, result.train_patients, result.test_patients) == (6, 866, 222)
    assert result.rounds <= 8
    assert result.max_abs_coefficient_difference_to_pooled <= 1e-9
    assert result.pooled_test_concordance >= 0.84
    assert result.pooled_test_concordance > result.flower_fedavg_dp_concordance
    assert result.flower_fedavg_concordance > 0.8, "a baseline that did not learn would be no peer"
    assert result.published_concordance["FedAdam100"] == pytest.approx(0.8421, abs=1e-4)
    assert result.pooled_test_concordance_low < 0.79 < 0.89 < result.pooled_test_concordance_high < 0.91
    assert result.concordance_above_cox_low < 0.0 < result.concordance_above_cox < result.concordance_above_cox_high
    paired = result.concordance_above_cox_high - result.concordance_above_cox_low
    alone = result.pooled_test_concordance_high - result.pooled_test_concordance_low
    assert paired < alone / 4, "models that are judged on the same patients differ by less than patients do"


def test_a_resamples_concordance_is_lifelines_of_the_patients_drawn() -> None:
    from lifelines.utils import concordance_index

    rng, n, resamples = np.random.default_rng(2), 40, 5
    test = Rows(rng.integers(1, 12, n).astype(float), rng.random(n) < 0.5, np.zeros((n, 1)))
    scores = np.array([rng.integers(0, 9, n), rng.normal(size=n)], np.float64)
    got = bootstrap_concordances(test, scores, resamples, np.random.default_rng(7))
    drawn = np.random.default_rng(7).multinomial(n, np.full(n, 1.0 / n), size=resamples)
    rows = [np.repeat(np.arange(n), counts) for counts in drawn]
    expected = [[concordance_index(test.time[of], -score[of], test.failed[of]) for score in scores] for of in rows]
    assert got == pytest.approx(np.array(expected), abs=1e-12)


@needs_brca
def test_one_centre_alone_ranks_worse_than_six() -> None:
    split = read(BRCA)
    model = PiecewiseExponential((0.0, np.inf), split.test.covariates.shape[1], RIDGE)
    alone = fit(model, split.train[0]).coefficients
    assert concordance(model, split.test, alone) < concordance(model, split.test, fit(model, split.pooled).coefficients)


@needs_brca
def test_a_centre_that_is_left_out_moves_the_coefficients() -> None:
    split = read(BRCA)
    model = PiecewiseExponential(EDGES_YEARS, split.test.covariates.shape[1], RIDGE)
    fewer, _ = federated(model, split.train[:-1], 20)
    assert np.abs(fewer - fit(model, split.pooled).coefficients).max() > 1e-3


def test_the_private_baseline_composes_to_its_epsilon() -> None:
    # rho = rounds / 2 z^2; epsilon <= rho + 2 sqrt(rho ln(1 / delta)) (Bun & Steinke 2016), which is a little looser
    rho = FLOWER_DP_ROUNDS / (2.0 * noise_multiplier(1.0) ** 2)
    loose = rho + 2.0 * np.sqrt(rho * np.log(1e5))
    assert 1.0 <= loose <= 1.3


def test_a_folder_without_the_split_is_refused(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("pid,E\n")
    with pytest.raises(DataError, match="'age_at_index'"):
        list(replay_brca(tmp_path, 1.0, 1))
    (tmp_path / "patients.csv").unlink()
    with pytest.raises(DataError, match="is missing"):
        list(replay_brca(tmp_path, 1.0, 1))


def test_lives_may_be_lived_again_until_after_today() -> None:
    """Each of three rounds is of thirty years, and what is counted has to be over by the tenants' clocks."""
    labels = {"study": "all"}
    old = [lives.Life(f"owner {n % 3}", f"life {n}", 260_000.0, "nvlink_error", labels) for n in range(6)]
    marginals = [MarginalSpec("survival", ("study", "band"), (), 1.0)]
    settings = lives.settings_of(1.0, Mechanism.DISCRETE_LAPLACE, (0.0, 1e6), marginals)
    with lives.replaying(old, settings, {"study": ("all",)}, private=False, rounds=3) as replay:
        assert [replay.round().tables[0].events.sum() for _ in range(3)] == [6.0, 6.0, 6.0]


@pytest.mark.nightly
def test_at_epsilon_one_the_trials_survival_curve_stays_near_kaplan_meier() -> None:
    result = lung(1.0, 4)
    assert (result.institutions, result.patients, result.deaths) == (19, 228, 165)
    assert result.rmse_survival <= 0.0235
    assert result.rmse_survival > result.rmse_survival_of_bands_alone > 0.001, "noise and bands both cost something"


@pytest.mark.nightly
def test_a_tenth_of_the_budget_costs_error() -> None:
    assert lung(0.1, 3).rmse_survival > 1.5 * lung(None, 1).rmse_survival


@pytest.mark.nightly
@needs_titan
def test_at_epsilon_one_columns_that_were_held_out_are_ranked_better_than_by_cox_without_privacy() -> None:
    result = held_out(1.0, 1)
    assert (result.folds, result.gpus, result.deaths) == (5, 30_207, 5_089)
    assert result.concordance > result.lifelines_cox_concordance > 0.79
    assert result.lifelines_cox_interactions_concordance > result.lifelines_cox_concordance
    assert 0.8014 - 0.01 < result.concordance < 0.8014 + 0.002, "near the answer without noise"
