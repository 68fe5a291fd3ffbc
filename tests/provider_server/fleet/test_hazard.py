"""The hazard model against scikit-learn, lifelines, a published Cox model, and its own promises about noise."""

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter, PiecewiseExponentialFitter
from numpy.typing import NDArray
from sklearn.linear_model import PoissonRegressor

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.hazard import Cells, HazardFit, Model, fit_hazard, predict, predict_levels
from simulation.replay.bands import band_of, bands_from_departures, quantile_bands, time_in_bands
from tests.support.changing import replace

TITAN = Path(__file__).parents[4] / "shared" / "data" / "titan"
PLACES = {"col": 25, "row": 8, "cage": 3, "slot": 8, "node": 4}
RHO = 0.0171  # what epsilon 1 at delta 1e-8 is, as zCDP


def dimension(name: str, size: int) -> Dimension:
    return Dimension(name, tuple(str(level) for level in range(size)))


def cube(rng: np.random.Generator, sizes: Mapping[str, int], *, node_hours: float, empty: float = 0.0) -> LifeTable:
    """A cube of Poisson counts with log-linear rates; a share of its cells has no exposure."""
    dimensions = tuple(dimension(name, size) for name, size in sizes.items())
    shape = tuple(sizes.values())
    exposure = rng.gamma(2.0, node_hours / 2.0, shape) * (rng.random(shape) >= empty)
    effects = np.meshgrid(*(rng.normal(0.0, 0.6, size) for size in shape), indexing="ij")
    rates = 1e-3 * np.exp(np.sum(effects, axis=0))
    return LifeTable(dimensions, rng.poisson(exposure * rates).astype(float), exposure, exposure, np.zeros(shape))


def noisy(table: LifeTable, rng: np.random.Generator, sd: float) -> LifeTable:
    noise = rng.normal(0.0, sd, table.shape)
    return replace(table, events=table.events + noise, noise_variance=np.full(table.shape, sd**2))


def one_way(table: LifeTable) -> list[LifeTable]:
    return [table.marginal(axis.name) for axis in table.dimensions]


def main_effects(table: LifeTable, prior_sd: float = 5.0) -> Model:
    return Model(tuple((axis.name,) for axis in table.dimensions), prior_sd=prior_sd)


def by_scikit_learn(table: LifeTable) -> Floats:
    """Intercept and treatment contrasts by unpenalised Poisson regression on the cells."""
    index = np.nonzero(table.exposure_node_hours > 0)
    exposure = table.exposure_node_hours[index]
    columns = [index[axis] == level for axis, size in enumerate(table.shape) for level in range(1, size)]
    oracle = PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=1e-12, max_iter=200)
    oracle.fit(np.array(columns, float).T, table.events[index] / exposure, sample_weight=exposure)
    return np.array([oracle.intercept_, *oracle.coef_])


@pytest.mark.parametrize("seed", range(3))
def test_without_noise_one_way_marginals_give_the_poisson_maximum_likelihood(seed: int) -> None:
    table = cube(np.random.default_rng(seed), {"a": 5, "b": 4, "c": 6}, node_hours=2e4, empty=0.3)
    fit = fit_hazard(Cells.from_table(table), one_way(table), main_effects(table, prior_sd=np.inf))
    assert fit.converged
    assert fit.estimate == pytest.approx(by_scikit_learn(table), abs=1e-5)
    assert np.abs(fit.noise_covariance).max() < 1e-12


def test_redundant_exact_marginals_change_nothing() -> None:
    table = cube(np.random.default_rng(3), {"a": 5, "b": 4, "c": 6}, node_hours=2e4)
    cells, model = Cells.from_table(table), main_effects(table, prior_sd=np.inf)
    tables = [*one_way(table), table.marginal("c", "a"), table.marginal("a"), table]
    assert fit_hazard(cells, tables, model).estimate == pytest.approx(by_scikit_learn(table), abs=1e-5)


def test_covariance_is_the_inverse_poisson_information() -> None:
    table = cube(np.random.default_rng(4), {"a": 3, "b": 4}, node_hours=5e4)
    fit = fit_hazard(Cells.from_table(table), one_way(table), main_effects(table, prior_sd=np.inf))
    a, b = (place.ravel() for place in np.indices(table.shape))
    columns = [np.ones(12), *(a == level for level in (1, 2)), *(b == level for level in (1, 2, 3))]
    design = np.array(columns, float).T
    means = table.exposure_node_hours.ravel() * np.exp(design @ fit.estimate)
    assert fit.covariance == pytest.approx(np.linalg.inv(design.T @ (means[:, None] * design)), rel=1e-6)


def test_bands_alone_are_the_piecewise_exponential_model_of_lifelines() -> None:
    rng = np.random.default_rng(5)
    times, edges = np.minimum(rng.exponential(30.0, 400), 60.0), np.array([0.0, 10.0, 25.0, 60.0])
    failed = (times < 60.0) & (rng.random(400) < 0.7)
    exposure = time_in_bands(times, edges).sum(axis=0)
    events = np.bincount(band_of(times, edges)[failed], minlength=3).astype(float)
    table = LifeTable((dimension("band", 3),), events, exposure, exposure, np.zeros(3))
    cells = Cells.from_table(table)
    rates = predict(fit_hazard(cells, [table], main_effects(table, prior_sd=np.inf)), cells)
    oracle = PiecewiseExponentialFitter([10.0, 25.0]).fit(times, failed)
    assert 1.0 / rates.value == pytest.approx(oracle.params_.to_numpy(), rel=1e-3)
    assert rates.log_sd == pytest.approx((oracle.summary["se(coef)"] / oracle.params_).to_numpy(), rel=1e-2)


def test_one_band_per_failure_is_the_cox_model_of_lifelines() -> None:
    rng = np.random.default_rng(6)
    group = rng.integers(0, 3, 100)
    life = rng.exponential(10.0, 100) * np.array([1.0, 0.6, 0.3])[group]
    end = np.sort(life)[80]  # the study ends with a failure
    times, failed = np.minimum(life, end), life <= end
    edges = np.concatenate([[0.0], np.unique(times)])
    spent = time_in_bands(times, edges)
    unit, band = np.nonzero(spent > 0)
    dimensions = (dimension("group", 3), dimension("band", len(edges) - 1))
    cells = Cells(dimensions, np.array([group[unit], band]), spent[unit, band])
    events = np.zeros((3, len(edges) - 1))
    np.add.at(events, (group[failed], band_of(times[failed], edges)), 1.0)
    table = LifeTable(dimensions, events, events, events, np.zeros(events.shape))
    fit = fit_hazard(cells, one_way(table), Model((("group",), ("band",)), prior_sd=np.inf))
    frame = pd.DataFrame({"one": group == 1, "two": group == 2, "time": times, "failed": failed}).astype(float)
    oracle = CoxPHFitter().fit(frame, "time", "failed")
    assert np.log(fit.ratios("group")[1].value) == pytest.approx(oracle.params_.to_numpy(), abs=1e-4)
    assert fit.ratios("group")[1].log_sd == pytest.approx(oracle.standard_errors_.to_numpy(), rel=1e-3)


@pytest.mark.parametrize("sd", [0.0, 8.0])
def test_counts_of_cells_say_the_same_beside_a_total_that_says_nothing(sd: float) -> None:
    """Counts of cells alone have a way of their own, without a matrix of a row for each cell."""
    rng = np.random.default_rng(17)
    table = cube(rng, {"a": 7, "b": 4}, node_hours=2e4)
    cells, counts, model = Cells.from_table(table), noisy(table, rng, sd), main_effects(table, prior_sd=0.5)
    total = counts.marginal("a")
    deaf = replace(total, noise_variance=np.full(total.shape, 1e18))
    alone, beside = (fit_hazard(cells, tables, model) for tables in ([counts], [counts, deaf]))
    assert alone.converged
    assert alone.estimate == pytest.approx(beside.estimate, abs=1e-6)
    assert alone.covariance == pytest.approx(beside.covariance, rel=1e-5, abs=1e-9)
    assert alone.noise_covariance == pytest.approx(beside.noise_covariance, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("terms", [(("a",), ("b",), ("a", "b")), (("b", "a"),), (("b",), ("a", "b"))])
def test_a_saturated_model_returns_the_crude_rates_whatever_its_coding(terms: tuple[tuple[str, ...], ...]) -> None:
    table = cube(np.random.default_rng(7), {"a": 3, "b": 4}, node_hours=5e4)
    cells = Cells.from_table(table)
    fit = fit_hazard(cells, [table], Model(terms, prior_sd=np.inf))
    assert len(fit.coefficients) == 12
    assert predict(fit, cells).value == pytest.approx((table.events / table.exposure_node_hours).ravel(), rel=1e-6)
    assert predict(fit, cells).log_sd == pytest.approx(table.events.ravel() ** -0.5, rel=1e-5)


@pytest.mark.parametrize("terms", [(("a",), ("b",)), (("a", "b"),), (("a",),)])
def test_predictions_do_not_depend_on_the_reference_level(terms: tuple[tuple[str, ...], ...]) -> None:
    rng = np.random.default_rng(8)
    table = cube(rng, {"a": 3, "b": 4}, node_hours=1e4, empty=0.2)
    cells, tables = Cells.from_table(table), [noisy(table, rng, 8.0)]
    first = predict(fit_hazard(cells, tables, Model(terms, prior_sd=1.0, walk_sd={"b": 0.5})), cells)
    other = Model(terms, reference={"a": "2", "b": "1"}, prior_sd=1.0, walk_sd={"b": 0.5})
    second = predict(fit_hazard(cells, tables, other), cells)
    assert first.value == pytest.approx(second.value, rel=1e-5)
    assert first.log_sd == pytest.approx(second.log_sd, rel=1e-5)


def test_rates_by_level_are_averages_over_exposure() -> None:
    table = cube(np.random.default_rng(9), {"a": 3, "b": 4}, node_hours=5e4)
    cells = Cells.from_table(table)
    fit = fit_hazard(cells, one_way(table), main_effects(table, prior_sd=np.inf))
    by_level, crude = predict_levels(fit, cells, "a"), table.marginal("a")
    assert by_level.value == pytest.approx(crude.events / crude.exposure_node_hours, rel=1e-6)
    assert by_level.log_sd == pytest.approx(crude.events**-0.5, rel=0.02)
    low, high = by_level.interval()
    assert np.all((low < by_level.value) & (by_level.value < high))


SIZES, REPEATS = {"a": 4, "b": 6}, 200


@pytest.fixture(scope="module")
def z_scores() -> tuple[Floats, Floats]:
    """Errors of the contrasts in standard errors, about the population and about the answer without noise."""
    rng = np.random.default_rng(30)
    table = cube(rng, SIZES, node_hours=5e4)  # 121 events or more at every level
    cells, model = Cells.from_table(table), main_effects(table)
    effects = fit_hazard(cells, one_way(table), model)
    means = predict(effects, cells).value.reshape(table.shape) * table.exposure_node_hours
    population, clean = [], []
    for _ in range(REPEATS):
        drawn = replace(table, events=rng.poisson(means).astype(float))
        quiet = fit_hazard(cells, one_way(drawn), model, start=effects.estimate)
        released = [noisy(marginal, rng, 20.0) for marginal in one_way(drawn)]
        fit = fit_hazard(cells, released, model, start=quiet.estimate)
        population.append((fit.estimate - effects.estimate)[1:] / np.sqrt(np.diag(fit.covariance)[1:]))
        clean.append((fit.estimate - quiet.estimate)[1:] / np.sqrt(np.diag(fit.noise_covariance)[1:]))
    return np.array(population), np.array(clean)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [0, 1], ids=["population", "noise"])
def test_intervals_cover_as_often_as_they_say_and_narrower_ones_would_not(
    z_scores: tuple[Floats, Floats], kind: int
) -> None:
    scores = np.abs(z_scores[kind])
    assert 0.93 < np.mean(scores < 1.96) < 0.97
    assert np.mean(scores < 0.7 * 1.96) < 0.90  # the same test rejects intervals that are 30% too narrow
    assert np.mean(scores < 1.3 * 1.96) > 0.975  # and 30% too wide


def test_a_level_with_negative_noisy_events_stays_finite_and_wide() -> None:
    rng = np.random.default_rng(11)
    table = cube(rng, {"a": 3, "band": 10}, node_hours=2e4)
    bands = noisy(table.marginal("band"), rng, 13.0)
    bands.events[[0, 4]] = -20.0, -35.0
    fit = fit_hazard(Cells.from_table(table), [noisy(table.marginal("a"), rng, 13.0), bands], main_effects(table))
    assert fit.converged
    levels, ratios = fit.ratios("band")
    worst = ratios.log_sd[levels.index(("4",))]
    assert 2.0 < worst < 20.0
    assert ratios.value[levels.index(("4",))] < np.median(ratios.value)
    sound = table.marginal("a").events / table.marginal("a").exposure_node_hours
    assert np.log(fit.ratios("a")[1].value) == pytest.approx(np.log(sound[1:] / sound[0]), abs=0.6)


def test_a_first_band_with_17_events_does_not_blow_up_the_others() -> None:
    rng = np.random.default_rng(12)
    exposure = np.full((3, 30), 2e4)
    means = np.full((3, 30), 70.0) * np.array([1.0, 2.0, 0.5])[:, None]
    means[:, 0] = 17.0 / 3.0
    dimensions = (dimension("a", 3), dimension("band", 30))
    truth = LifeTable(dimensions, rng.poisson(means).astype(float), exposure, exposure, np.zeros((3, 30)))
    cells = Cells.from_table(truth)
    for seed in range(10):
        released = [noisy(marginal, np.random.default_rng(seed), 13.0) for marginal in one_way(truth)]
        fit = fit_hazard(cells, released, main_effects(truth))
        assert fit.converged
        assert np.log(fit.ratios("a")[1].value) == pytest.approx(np.log([2.0, 0.5]), abs=0.1)


def test_a_random_walk_bridges_neighbouring_bands() -> None:
    rng = np.random.default_rng(13)
    exposure, rates = np.full((1, 40), 1e4), 2e-3 * np.exp(np.sin(np.linspace(0.0, 5.0, 40)))[None]
    dimensions = (dimension("all", 1), dimension("band", 40))
    truth = LifeTable(dimensions, rng.poisson(exposure * rates).astype(float), exposure, exposure, np.zeros((1, 40)))
    cells, released = Cells.from_table(truth), [noisy(truth.marginal("band"), rng, 13.0)]
    rough = predict(fit_hazard(cells, released, Model((("band",),))), cells)
    smooth = predict(fit_hazard(cells, released, Model((("band",),), walk_sd={"band": 0.2})), cells)
    flat = predict(fit_hazard(cells, released, Model((("band",),), walk_sd={"band": 1e-4})), cells)
    errors = [np.abs(np.log(fit.value) - np.log(rates[0])).mean() for fit in (rough, smooth)]
    assert errors[1] < 0.6 * errors[0]
    assert np.all(smooth.log_sd < rough.log_sd)
    assert np.ptp(np.log(flat.value)) < 1e-3


def test_one_level_and_no_term_at_all_leave_the_crude_rate() -> None:
    table = cube(np.random.default_rng(14), {"a": 1, "b": 5}, node_hours=2e4)
    cells, crude = Cells.from_table(table), table.events.sum() / table.exposure_node_hours.sum()
    for model in (Model(()), Model((("a",),))):
        fit = fit_hazard(cells, [table.marginal("a")], model)
        assert fit.ratios("a")[0] == ()
        assert predict(fit, cells).value == pytest.approx(np.full(5, crude))


def test_a_level_without_exposure_is_known_by_its_prior_alone() -> None:
    table = cube(np.random.default_rng(15), {"a": 4, "b": 5}, node_hours=2e4)
    table.exposure_node_hours[3], table.events[3] = 0.0, 0.0
    cells, bare = Cells.from_table(table), main_effects(table, prior_sd=np.inf)
    with pytest.raises(ValueError, match="no exposure, and no prior"):
        fit_hazard(cells, one_way(table), bare)
    fit = fit_hazard(cells, one_way(table), main_effects(table, prior_sd=2.0))
    assert fit.converged
    assert fit.ratios("a")[1].log_sd[-1] > 2.0
    assert np.isnan(predict_levels(fit, cells, "a").value[-1])


def test_more_noise_never_narrows_an_interval() -> None:
    rng = np.random.default_rng(16)
    table = cube(rng, {"a": 4, "b": 5}, node_hours=2e4)
    cells, widths = Cells.from_table(table), []
    for sd in (0.0, 5.0, 20.0):
        tables = [replace(one, noise_variance=np.full(one.shape, sd**2)) for one in one_way(table)]
        widths.append(np.diag(fit_hazard(cells, tables, main_effects(table)).covariance))
    assert np.all(widths[0] < widths[1])
    assert np.all(widths[1] < widths[2])


def test_a_noisy_total_below_zero_stays_finite_and_says_nothing() -> None:
    table = cube(np.random.default_rng(17), {"a": 4, "b": 5}, node_hours=10.0)
    released = replace(table, events=np.full(table.shape, -3.0), noise_variance=np.full(table.shape, 9.0))
    fit = fit_hazard(Cells.from_table(table), [released], main_effects(table))
    assert fit.converged
    assert np.sqrt(fit.covariance[0, 0]) > 3.0


def test_the_reference_level_may_be_far_from_the_average() -> None:
    table = cube(np.random.default_rng(21), {"a": 3, "b": 4}, node_hours=3e4)
    table.events[0], table.events[1:] = 1.0, 400.0
    cells, tables = Cells.from_table(table), one_way(table)
    bare = fit_hazard(cells, tables, main_effects(table, prior_sd=np.inf))
    held = fit_hazard(cells, tables, main_effects(table))
    assert held.estimate == pytest.approx(bare.estimate, abs=0.1 * np.sqrt(bare.covariance[0, 0]))


def test_what_does_not_fit_together_is_refused() -> None:
    table = cube(np.random.default_rng(18), {"a": 4, "b": 5}, node_hours=2e4, empty=0.5)
    cells = Cells.from_table(table)
    stranger = cube(np.random.default_rng(18), {"a": 3}, node_hours=2e4)
    with pytest.raises(ValueError, match="levels of"):
        fit_hazard(cells, [stranger], Model((("a",),)))
    with pytest.raises(ValueError, match="exact events where there is no exposure"):
        fit_hazard(cells, [replace(table, events=table.events + 1.0)], main_effects(table))
    with pytest.raises(KeyError):
        fit_hazard(cells, [table], Model((("nowhere",),)))
    with pytest.raises(ValueError, match="positive exposure"):
        Cells(table.dimensions, np.zeros((2, 1), np.intp), np.zeros(1))
    with pytest.raises(ValueError, match="one row per dimension"):
        Cells(table.dimensions, np.zeros((3, 1), np.intp), np.ones(1))


def test_a_bulk_departure_gets_an_edge_on_both_sides() -> None:
    rng = np.random.default_rng(19)
    times = np.concatenate([rng.uniform(0.0, 1000.0, 900), rng.uniform(400.0, 401.0, 100)])
    edges = bands_from_departures(times, 30)
    assert {400.0, 401.0} <= set(edges.tolist())
    assert len(edges) == 31
    assert (edges[0], edges[-1]) == (0.0, times.max())
    assert np.all(np.diff(edges) > 0)
    assert bands_from_departures(times, 30, bulk_share=0.2).tolist().count(400.0) == 0


def test_bands_partition_the_time_of_every_unit() -> None:
    times = np.random.default_rng(20).exponential(100.0, 500)
    for edges in (bands_from_departures(times, 12), quantile_bands(times, 12), bands_from_departures(times[:3], 8)):
        inside = np.minimum(times, edges[-1])
        assert time_in_bands(times, edges).sum(axis=1) == pytest.approx(inside)
        assert np.all(time_in_bands(inside, edges)[np.arange(500), band_of(inside, edges)] > 0)
    with pytest.raises(ValueError, match="at least one of them positive"):
        bands_from_departures(np.zeros(3), 5)


class Titan:
    """Old batch: the cells that are public, the six tables of deaths, and the published answer."""

    def __init__(self) -> None:
        with gzip.open(TITAN / "gpu_lifetimes.csv.gz", "rt", newline="") as text:
            lives = [row for row in csv.DictReader(text) if row["batch"] == "old"]
        days = np.array([float(row["time"]) for row in lives]) / 86400.0
        edges = bands_from_departures(days, 30)
        spent = time_in_bands(days, edges)
        unit, band = np.nonzero(spent > 0)
        places = [np.array([int(row[name]) for row in lives], np.intp) for name in PLACES]
        self.dimensions = (*(dimension(name, size) for name, size in PLACES.items()), dimension("band", len(edges) - 1))
        self.cells = Cells(self.dimensions, np.array([*(p[unit] for p in places), band]), 24.0 * spent[unit, band])
        dead = np.array([row["dead"] == "TRUE" for row in lives])
        levels: Sequence[NDArray[np.intp]] = (*places, band_of(days, edges))
        self.deaths = [np.bincount(level[dead]).astype(float) for level in levels]
        with (TITAN / "published_hazard_ratios.csv").open(newline="") as text:
            rows = list(csv.DictReader(text))
        self.published = np.log([float(row["pub_hr"]) for row in rows if row["fit_hr"]])

    def fit(self, variance: Floats, rng: np.random.Generator, model: Model) -> HazardFit:
        tables = []
        for axis, deaths, of in zip(self.dimensions, self.deaths, variance, strict=True):
            released = deaths + rng.normal(0.0, np.sqrt(of), len(axis))
            tables.append(LifeTable((axis,), released, deaths, deaths, np.full(len(axis), of)))
        return fit_hazard(self.cells, tables, model)


@pytest.fixture(scope="module")
def titan() -> Titan:
    for name in ("gpu_lifetimes.csv.gz", "published_hazard_ratios.csv"):
        if not (TITAN / name).exists():
            pytest.skip(f"{TITAN / name} is missing")
    return Titan()


def test_titan_without_noise_returns_the_published_hazard_ratios(titan: Titan) -> None:
    model = Model(tuple((axis.name,) for axis in titan.dimensions), prior_sd=np.inf)
    fit = titan.fit(np.zeros(6), np.random.default_rng(0), model)
    assert len(titan.deaths[-1]) == 30
    assert fit.converged
    assert np.abs(fit.estimate[1:44] - titan.published).max() < 0.005


@pytest.mark.nightly
def test_titan_at_epsilon_one_stays_near_the_published_hazard_ratios(titan: Titan) -> None:
    model = Model(tuple((axis.name,) for axis in titan.dimensions))
    errors, scores = [], []
    for seed in range(4):
        fit = titan.fit(np.full(6, 6.0 / (2.0 * RHO)), np.random.default_rng(seed), model)
        assert fit.converged
        errors.append(fit.estimate[1:44] - titan.published)
        scores.append(errors[-1] / np.sqrt(np.diag(fit.noise_covariance)[1:44]))
    assert np.abs(errors).mean() < 0.10
    assert 0.90 < np.mean(np.abs(scores) < 1.96) < 0.995
