"""The pair model at 60 workloads × 20 contexts: against the obvious rankings, and against knowing the main effects."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import capped_mean
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.noisy_counts import LOG_FACTOR
from tests.support.changing import replace

SHAPE, FAILURES, PLANTED_RATIO = (60, 20), 934 * 13, 8.0
NOISE_SD = 9.4 * np.sqrt(13.0)  # of thirteen weeks' independent noise in each cell


def cloud(seed: int, *, planted_share: float = 0.03) -> tuple[LifeTable, Floats, Floats]:
    """A pair table with heavy-tailed exposure, the failures that main effects explain, and which pairs are worse."""
    rng = np.random.default_rng(seed)
    exposure = np.outer(rng.pareto(1.5, SHAPE[0]) + 0.2, rng.dirichlet(np.full(SHAPE[1], 5.0)))
    exposure *= rng.lognormal(0.0, 0.5, SHAPE)
    planted = rng.random(SHAPE) < planted_share
    explained = exposure * np.outer(rng.lognormal(0.0, 0.3, SHAPE[0]), rng.lognormal(0.0, 0.3, SHAPE[1]))
    ratio = np.where(planted, PLANTED_RATIO, 1.0)
    explained *= FAILURES / (explained * ratio).sum()
    levels = [tuple(str(level) for level in range(size)) for size in SHAPE]
    dimensions = (Dimension("workload", levels[0]), Dimension("context", levels[1]))
    events = rng.poisson(explained * ratio).astype(np.float64)
    return LifeTable(dimensions, events, 1e4 * exposure, exposure, np.zeros(SHAPE)), explained, planted.astype(float)


def noisy(table: LifeTable, sd: float, seed: int) -> LifeTable:
    rng = np.random.default_rng(1000 + seed)
    return replace(table, events=table.events + rng.normal(0.0, sd, SHAPE), noise_variance=np.full(SHAPE, sd**2))


def naive_rankings(table: LifeTable) -> tuple[Floats, Floats]:
    """Crude rates, and standardised excesses over the product of the margins."""
    events, exposure = table.events, table.exposure_node_hours
    expected = np.outer(events.sum(1) / exposure.sum(1), events.sum(0) / exposure.sum(0)) * exposure
    expected = np.maximum(expected * events.sum() / expected.sum(), 0.1)
    return events / exposure, (events - expected) / np.sqrt(expected + table.noise_variance)


def known_effects(table: LifeTable, explained: Floats) -> Floats:
    """Log odds of "8 times worse" by one who knows the main effects: the bound that no ranking can beat on average."""
    true = np.arange(2500.0)
    mean = np.stack([explained.ravel(), PLANTED_RATIO * explained.ravel()])[..., None]
    log_poisson = true * np.log(mean) - mean - gammaln(true + 1.0)
    noise = norm.pdf(table.events.ravel()[:, None], true, np.sqrt(table.noise_variance.ravel())[:, None])
    likelihood = (np.exp(log_poisson) * noise).sum(axis=-1)
    return np.asarray(np.diff(np.log(np.maximum(likelihood, 1e-300)), axis=0)[0], np.float64)


def precision(planted: Floats, score: Floats) -> float:
    return float(average_precision_score(planted.ravel(), score.ravel()))


def area(planted: Floats, score: Floats) -> float:
    return float(roc_auc_score(planted.ravel(), score.ravel()))


@pytest.fixture(scope="module")
def exact() -> list[tuple[LifeTable, Floats, Mismatches]]:
    clouds = [cloud(seed) for seed in range(4)]
    return [(table, planted, find_mismatches(table)) for table, _, planted in clouds]


@pytest.mark.nightly
def test_without_noise_it_beats_crude_rates_and_z_scores(exact: list[tuple[LifeTable, Floats, Mismatches]]) -> None:
    ours, crude, standardised = [], [], []
    for table, planted, found in exact:
        by_rate, by_z = naive_rankings(table)
        ours.append(precision(planted, found.probability_worse))
        crude.append(precision(planted, by_rate))
        standardised.append(precision(planted, by_z))
        assert area(planted, found.probability_worse) > 0.97
    assert np.mean(ours) > 0.92
    assert np.mean(ours) > np.mean(crude) + 0.05
    assert np.mean(ours) > np.mean(standardised) + 0.02


@pytest.mark.nightly
def test_under_heavy_noise_it_ranks_nearly_as_if_main_effects_were_known() -> None:
    ours, crude, standardised, bound = [], [], [], []
    for seed in range(4):
        table, explained, planted = cloud(seed)
        released = noisy(table, NOISE_SD, seed)
        by_rate, by_z = naive_rankings(released)
        ours.append(precision(planted, find_mismatches(released).probability_worse))
        crude.append(precision(planted, by_rate))
        standardised.append(precision(planted, by_z))
        bound.append(precision(planted, known_effects(released, explained)))
    assert np.mean(ours) > 2.0 * np.mean(crude)
    assert np.mean(ours) > 1.1 * np.mean(standardised)
    assert np.mean(ours) > 0.85 * np.mean(bound)


@pytest.mark.nightly
def test_intervals_hold_the_planted_ratio_and_narrower_ones_would_not(
    exact: list[tuple[LifeTable, Floats, Mismatches]],
) -> None:
    inside, inside_narrow, inside_others = [], [], []
    for table, planted, found in exact:
        many = (planted.ravel() > 0) & (table.events.ravel() >= 20.0)
        low, middle, high = (np.log(bound) for bound in (found.likely_low, found.ratio, found.likely_high))
        off = np.log(PLANTED_RATIO) - middle
        inside.append(((low - middle <= off) & (off <= high - middle))[many])
        inside_narrow.append(((0.5 * (low - middle) <= off) & (off <= 0.5 * (high - middle)))[many])
        inside_others.append(((low <= 0.0) & (high >= 0.0))[planted.ravel() == 0])
    assert np.mean(np.concatenate(inside)) > 0.88
    assert np.mean(np.concatenate(inside_narrow)) < 0.88  # half as wide would not pass
    assert np.mean(np.concatenate(inside_others)) > 0.97


@pytest.mark.nightly
def test_probabilities_are_calibrated(exact: list[tuple[LifeTable, Floats, Mismatches]]) -> None:
    said = np.concatenate([found.probability_worse for _, _, found in exact])
    true = np.concatenate([planted.ravel() for _, planted, _ in exact])
    for low, high in pairwise([0.0, 0.02, 0.1, 0.5, 0.9, 1.01]):
        inside = (said >= low) & (said < high)
        spread = np.sqrt(np.sum(said[inside] * (1.0 - said[inside])))
        assert abs(np.sum(true[inside] - said[inside])) < 3.5 * spread + 0.02 * inside.sum() + 1.0


@pytest.mark.parametrize(
    ("shrink", "noise_sd"),
    [
        (1e-2, 0.0),
        (1e-8, 0.0),
        (1e-5, 10.0),
        pytest.param(1e-2, 10.0, marks=pytest.mark.nightly),
        pytest.param(1e-8, 10.0, marks=pytest.mark.nightly),
    ],
)
def test_a_pair_with_hardly_any_exposure_is_accused_of_nothing(shrink: float, noise_sd: float) -> None:
    table, _, _ = cloud(0)
    table.exposure_node_hours[5, 3] *= shrink
    table.events[5, 3] = 0.0
    found = find_mismatches(noisy(table, noise_sd, 0))
    place = np.flatnonzero((found.workload == 5) & (found.context == 3))
    assert found.probability_worse[place] < 0.1
    assert found.ratio[place] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("excess", [2.0, 8.0])
def test_a_workload_on_one_context_alone_is_not_judged_by_itself(excess: float) -> None:
    """Its own count is nearly all that is known of the workload: the same excess says less than elsewhere."""
    table, _, _ = cloud(1, planted_share=0.0)
    rate = table.events.sum() / table.exposure_node_hours.sum()
    table.exposure_node_hours[7], table.events[7] = 0.0, 0.0
    table.exposure_node_hours[7, 0], table.exposure_node_hours[8, :] = 40.0 / rate, 40.0 / rate
    table.events[7, 0], table.events[8] = 40.0 * excess, 40.0
    table.events[8, 0] = 40.0 * excess
    found = find_mismatches(table)
    alone = np.flatnonzero(found.workload == 7)
    among_others = np.flatnonzero((found.workload == 8) & (found.context == 0))
    assert len(alone) == 1
    assert found.ratio[alone] < found.ratio[among_others]
    assert found.probability_worse[alone] < found.probability_worse[among_others]
    if excess > 2.0:  # at 2, little leaves a narrow prior around 1, and more leaves a doubt between 1 and 2
        width = np.log(found.ratio_high / found.ratio_low)
        assert width[alone] > 2.0 * width[among_others]


@pytest.mark.parametrize("factor", [20.0, 200.0])
def test_with_very_many_failures_the_planted_ratio_comes_back(factor: float) -> None:
    """Precise counts must not be explained by θ alone: main effects have to leave the contamination behind."""
    table, explained, planted = cloud(2)
    means = factor * explained * np.where(planted, PLANTED_RATIO, 1.0)
    found = find_mismatches(replace(table, events=np.random.default_rng(2).poisson(means).astype(np.float64)))
    assert precision(planted, found.probability_worse) > 0.999
    assert found.ratio[planted.ravel() > 0] == pytest.approx(np.full(int(planted.sum()), PLANTED_RATIO), rel=0.2)


def test_negative_and_absurd_counts_give_finite_verdicts() -> None:
    table, _, _ = cloud(3)
    released = noisy(table, 10.0, 3)
    released.events[0, :3] = -300.0, 5000.0, -0.4
    found = find_mismatches(released)
    for values in (found.expected, found.probability_worse, found.ratio, found.ratio_low, found.ratio_high):
        assert np.all(np.isfinite(values))
    assert np.all(found.ratio_low <= found.ratio)
    assert np.all(found.ratio <= found.ratio_high)
    assert found.probability_worse[1] > 0.99


UNITS = 150  # units of each pair, of very different size


def capped_cloud(seed: int, noise_sd: float) -> tuple[LifeTable, Floats, Floats]:
    """A table to which a unit adds one failure at most, what counts there by factor, and which pairs are worse."""
    table, explained, planted = cloud(seed)
    rng = np.random.default_rng(2000 + seed)
    sizes = rng.dirichlet(np.full(UNITS, 0.3), table.events.size).reshape(*SHAPE, UNITS)
    sizes *= 4.0 * explained[..., None]
    ratio = np.where(planted, PLANTED_RATIO, 1.0)
    events = np.minimum(rng.poisson(sizes * ratio[..., None]), 1).sum(axis=-1).astype(np.float64)
    counted = np.stack([capped_mean(sizes * factor, 1).sum(axis=-1) for factor in np.exp(LOG_FACTOR)], axis=-1)
    table = replace(table, events=events, exposure_node_hours=sizes.sum(axis=-1))
    return noisy(table, noise_sd, seed) if noise_sd else table, counted, planted


@pytest.mark.nightly
@pytest.mark.parametrize("noise_sd", [0.0, 2.0])
def test_a_ratio_comes_back_from_under_the_cap_only_if_the_cap_is_known(noise_sd: float) -> None:
    known, unknown, covered = [], [], []
    for seed in range(2):
        table, counted, planted = capped_cloud(seed, noise_sd)
        sure = (planted.ravel() > 0) & (table.exposure_node_hours.ravel() > 8.0)
        found, naive = find_mismatches(table, counted), find_mismatches(table)
        known.append(np.log(found.ratio[sure]))
        unknown.append(np.log(naive.ratio[sure]))
        covered.append(((found.ratio_low <= PLANTED_RATIO) & (found.ratio_high >= PLANTED_RATIO))[sure])
    assert np.mean(np.concatenate(known)) == pytest.approx(np.log(PLANTED_RATIO), abs=0.12)
    assert np.mean(np.concatenate(unknown)) < np.log(PLANTED_RATIO) - 0.3
    assert np.mean(np.concatenate(covered)) > 0.85


@pytest.mark.nightly
def test_a_cap_that_never_binds_changes_nothing() -> None:
    table, _, _ = cloud(0)
    counted = table.exposure_node_hours[..., None] * np.exp(LOG_FACTOR)
    capped, plain = find_mismatches(table, counted), find_mismatches(table)
    np.testing.assert_allclose(capped.probability_worse, plain.probability_worse, atol=1e-12)
    np.testing.assert_allclose(capped.ratio, plain.ratio)


@pytest.mark.nightly
def test_means_by_component_make_up_the_posterior(exact: list[tuple[LifeTable, Floats, Mismatches]]) -> None:
    for _, planted, found in exact[:1]:
        mean = (
            found.ratio_if_expected * (1.0 - found.probability_worse) + found.ratio_if_worse * found.probability_worse
        )
        sure = found.relative_variance < 0.01
        np.testing.assert_allclose(mean[sure], found.ratio[sure], rtol=0.1)
        assert np.all(found.ratio_if_worse >= 2.0 - 1e-9)
        assert np.median(found.relative_variance[planted.ravel() == 0]) < 0.05
