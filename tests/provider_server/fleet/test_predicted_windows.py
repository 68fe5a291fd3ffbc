"""Windows, here of a week: models judged on weeks they have not seen, alarms and calibration.

Planted truth is found, what is not there is not, and intervals and error rates are what they are said to be.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce

import numpy as np
import pytest
from scipy.stats import binom, poisson

from federation.protocol.causes import Domain
from federation.protocol.life_table import LifeTable
from federation.protocol.noise import Integers
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.calibration import Calibration, calibrate
from provider_server.fleet.analysis.drift import Alarm, Watched, alarms, windows_between
from provider_server.fleet.analysis.prediction import (
    Comparison,
    Expected,
    Prediction,
    PredictionVerdict,
    compare,
    is_no_worse,
    log_score,
    predict,
    score,
)
from provider_server.fleet.exposure import rows_of
from provider_server.fleet.learning import publication_gate as windows
from provider_server.fleet.learning.publication_gate import infrastructure, mean_risks, predict_window
from provider_server.fleet.release import Release
from simulation.cloud.scenario import load
from simulation.studies.learning import Year, live, releases, small
from tests.support.changing import replace

Rates = Mapping[tuple[str, str], float]
WEEKS, COUNTED = 16, 320.0
YOUNG = (1.3, 1.1, 1.0, 0.9)


class InsecureSeeded:
    """Noise of the right scale from a seed, so that a test of what follows from it is the same each time."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def gaussian(self, scale: float, size: int) -> Integers:
        """Not needed here."""
        raise NotImplementedError

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """Differences of negative binomial draws."""
        drawn = self._rng.negative_binomial(float(1 / Fraction(shares)), 1 - np.exp(-1 / scale), (2, size))
        return np.asarray(drawn[0] - drawn[1], np.int64)


# ---- a cloud whose rates are known -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class World:
    """Leases and plans of a small cloud, rates and risks made up for it, and what they predict week by week."""

    year: Year
    rates: Rates
    risks: Rates
    truth: tuple[Prediction, ...]

    def predicted(self, rates: Rates, risks: Rates) -> list[Prediction]:
        """The same units under another model."""
        return [predict(rates, risks, own, 1, {}) for own in self.year.slices]


@cache
def world() -> World:
    scenario = replace(small(load("standard")), weeks=WEEKS, windows=tuple(range(1, WEEKS + 1)))
    year, rng = live(scenario, 3), np.random.default_rng(1)
    levels, workloads, contexts = (_levels(year, name) for name in ("context_level", "workload", "context"))
    hazard = {level: float(np.exp(rng.normal(0.0, 0.7))) for level in levels}
    rates = {(level, str(band)): own * factor for level, own in hazard.items() for band, factor in enumerate(YOUNG)}
    risks = {(a, c): float(np.exp(rng.normal(0.0, 0.3)) * (8.0 if rng.random() < 0.03 else 1.0))
             for a in workloads for c in contexts}  # fmt: skip
    made = World(year, rates, risks, ())
    share, truth = 0.002, []
    for _ in range(12):
        truth = made.predicted({key: share * rate for key, rate in rates.items()}, risks)
        counted = float(np.mean([one.counted.mean.sum() for one in truth]))
        share *= COUNTED / counted
    return World(year, {key: share * rate for key, rate in rates.items()}, risks, tuple(truth))


def _levels(year: Year, name: str) -> tuple[str, ...]:
    return next(dimension.levels for dimension in year.plans[-1].dimensions if dimension.name == name)


def drawn(truth: Sequence[Prediction], rng: np.random.Generator) -> Year:
    """The cloud's year once more, with failures drawn from `truth`."""
    year = world().year
    exact = [_tables(plan.tables, [m.name for m in plan.marginals], one, rng)
             for plan, one in zip(year.plans, truth, strict=True)]  # fmt: skip
    return replace(year, exact=tuple(exact))


def _tables(
    tables: Sequence[LifeTable], names: Sequence[str], truth: Prediction, rng: np.random.Generator
) -> tuple[Integers, ...]:
    counted = np.minimum(rng.poisson(truth.failures.sum(axis=1)), truth.most)
    job = np.repeat(np.arange(len(counted)), counted)
    band = np.minimum((rng.random(len(job))[:, None] > np.cumsum(truth.shares, axis=1)[job]).sum(axis=1), 3)
    found = []
    for name, table in zip(names, tables, strict=True):
        counts = np.zeros(table.shape, np.int64)
        if name in ("pairs", "hazard"):
            own = table.at("domain", Domain.INFRASTRUCTURE) if name == "hazard" else table
            row, known, lengths = rows_of(own, truth.leases)
            cells = np.zeros((int(np.prod(lengths)), 4 if name == "hazard" else 1), np.int64)
            own_band = band if name == "hazard" else np.zeros_like(band)
            np.add.at(cells, (row[job], own_band), known[job].astype(np.int64))
            if name == "hazard":
                counts[..., table.levels("domain").index(Domain.INFRASTRUCTURE)] = cells
            else:
                counts = cells.reshape(own.shape)
        found.append(counts)
    return tuple(found)


def shaken(rates: Rates, sd: float, rng: np.random.Generator) -> Rates:
    return {key: rate * float(np.exp(rng.normal(0.0, sd))) for key, rate in rates.items()}


def held_out(made: Sequence[Release], span: int) -> tuple[LifeTable, ...]:
    """The sums of the last so many windows."""
    tables = [infrastructure(one.plan, one.tables) for one in made[len(made) - span :]]
    return tuple(reduce(operator.add, column) for column in zip(*tables, strict=True))


@cache
def a_release_series(epsilon: float | None, seed: int = 5) -> tuple[Release, ...]:
    return tuple(releases(drawn(world().truth, np.random.default_rng(seed)), epsilon, InsecureSeeded(seed)))


# ---- predictions and scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_counts_under_the_cap_have_the_predicted_mean_and_variance(most: int) -> None:
    """Draws by unit; a variance that is a fifth off would show."""
    rng, truth = np.random.default_rng(2), replace(world().truth[-1], most=most)
    plan = world().year.plans[-1]
    names = [marginal.name for marginal in plan.marginals]
    counts = np.array([_tables(plan.tables, names, truth, rng)[names.index("hazard")][..., 0] for _ in range(300)])
    table = plan.tables[names.index("hazard")].at("domain", Domain.INFRASTRUCTURE)
    expected = truth.expected(table)
    large = expected.mean > 0.5
    z = (counts.mean(axis=0) - expected.mean)[large] / np.sqrt(expected.variance[large] / 300)
    assert np.abs(z).max() < 4.5
    ratio = counts.var(axis=0, ddof=1)[large].sum() / expected.variance[large].sum()
    assert ratio == pytest.approx(1.0, abs=0.06)


def test_predicting_a_released_week_finds_the_rows_that_counted_it() -> None:
    cloud, made = world(), a_release_series(None)
    found = predict_window(cloud.rates, cloud.risks, made[3], cloud.year.leases)
    assert np.allclose(found.failures.sum(), cloud.truth[3].failures.sum())
    (pairs, hazard) = infrastructure(made[3].plan, made[3].tables)
    for table in (pairs, hazard):
        assert found.expected(table).mean.sum() == pytest.approx(table.events.sum(), abs=5 * np.sqrt(COUNTED))
        assert np.array_equal(found.expected(table).mean > 0, table.exposure_node_hours > 0)


def test_a_mix_takes_out_of_the_rates_what_the_risks_bring_in() -> None:
    """Rates of what ran, and risks besides: without the mix the risks would count twice."""
    cloud, made = world(), a_release_series(None)
    mix = mean_risks(cloud.risks, made, cloud.year.leases)
    rates = {(level, band): rate * mix.get(level, 1.0) for (level, band), rate in cloud.rates.items()}
    exact = predict_window(cloud.rates, cloud.risks, made[3], cloud.year.leases).failures.sum()
    mixed = predict_window(rates, cloud.risks, made[3], cloud.year.leases, mix).failures.sum()
    assert mixed == pytest.approx(exact)
    assert predict_window(rates, cloud.risks, made[3], cloud.year.leases).failures.sum() > 1.1 * exact


def test_a_level_without_rate_has_the_mean_one_and_no_rate_at_all_is_refused() -> None:
    cloud = world()
    level = cloud.truth[0].leases[0].labels["context_level"]
    less = {key: rate for key, rate in cloud.rates.items() if key[0] != level}
    found = predict(less, {}, cloud.year.slices[0], 1, {})
    assert np.allclose(found.rates[0, 0], np.mean([rate for (_, band), rate in less.items() if band == "0"]))
    with pytest.raises(ValueError, match="at least one"):
        predict({}, {}, cloud.year.slices[0], 1, {})


def test_a_log_score_is_a_density() -> None:
    mean, variance = np.array([0.3, 4.0, 4.0, 50.0, 900.0]), np.array([0.29, 4.0, 2.0, 35.0, 600.0])
    counts = np.arange(0.0, 1500.0)
    for one, var in zip(mean, variance, strict=True):
        law = Expected(np.full(len(counts), one), np.full(len(counts), var))
        assert np.exp(log_score(counts, np.zeros(len(counts)), law)).sum() == pytest.approx(1.0, abs=0.01)
        grid = np.arange(-200.0, 1500.0, 0.5)
        law = Expected(np.full(len(grid), one), np.full(len(grid), var))
        density = np.exp(log_score(grid, np.full(len(grid), 30.0), law))
        assert 0.5 * density.sum() == pytest.approx(1.0, abs=0.01)
        assert 0.5 * (density * grid).sum() == pytest.approx(one, abs=0.02 * one + 0.02)
        assert 0.5 * (density * (grid - one) ** 2).sum() == pytest.approx(var + 30.0, rel=0.03)


def test_the_law_of_small_counts_is_that_of_poisson_and_of_a_capped_unit() -> None:
    count = np.arange(8.0)
    plain = log_score(count, np.zeros(8), Expected(np.full(8, 1.5), np.full(8, 1.5)))
    assert np.allclose(plain, poisson.logpmf(count, 1.5), atol=1e-4)
    once = log_score(count[:2], np.zeros(2), Expected(np.full(2, 0.4), np.full(2, 0.24)))
    assert np.allclose(np.exp(once), binom.pmf(count[:2], 1, 0.4), atol=0.02)


# ---- the gate --------------------------------------------------------------------------------------------------------


def rival_models(cloud: World, rng: np.random.Generator) -> dict[str, list[Prediction]]:
    keys = list(cloud.rates)
    shuffled = {key: cloud.rates[keys[at]] for key, at in zip(keys, rng.permutation(len(keys)), strict=True)}
    return {
        "constant": [week.flat() for week in cloud.truth],
        "shuffled": cloud.predicted(shuffled, cloud.risks),
        "garbage": cloud.predicted({key: 20.0 * rng.random() for key in keys}, {}),
    }


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_the_truth_beats_every_other_model_and_they_are_refused(epsilon: float | None) -> None:
    cloud, made = world(), a_release_series(epsilon)
    span = 8
    tables = held_out(made, span)
    truth = score(cloud.truth[-span:], tables)
    for name, model in rival_models(cloud, np.random.default_rng(4)).items():
        found = compare(score(model[-span:], tables), truth)
        assert found.verdict is PredictionVerdict.WORSE, name
        assert not is_no_worse(found)
        assert compare(truth, score(model[-span:], tables)).verdict is PredictionVerdict.BETTER
    assert is_no_worse(compare(truth, truth))
    assert compare(truth, truth).verdict is PredictionVerdict.NO_WORSE


def test_one_noisy_week_cannot_tell_what_eight_can() -> None:
    cloud, made = world(), a_release_series(0.7)
    distance = []
    for span in (1, 8):
        tables = held_out(made, span)
        constant = [week.flat() for week in cloud.truth[-span:]]
        found = compare(score(constant, tables), score(cloud.truth[-span:], tables))
        distance.append(found.difference / found.standard_error)
    assert distance[1] < -2.0 < distance[0]


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_a_model_as_good_as_the_other_is_hardly_ever_refused(epsilon: float | None) -> None:
    """Two models, each wrong by chance alike: one in forty or fewer is refused, and standard errors are not absurd."""
    cloud, rng, z = world(), np.random.default_rng(9), []
    for seed in range(6):
        made = releases(drawn(cloud.truth, rng), epsilon, InsecureSeeded(seed))
        for at in range(4, WEEKS, 3):
            tables = infrastructure(made[at].plan, made[at].tables)
            for _ in range(2):
                one, other = (shaken(cloud.rates, 0.3, rng) for _ in range(2))
                scores = [
                    score([predict(rates, cloud.risks, cloud.year.slices[at], 1, {})], tables) for rates in (one, other)
                ]
                found = compare(*scores)
                z.append(found.difference / found.standard_error)
    refused = np.mean(np.array(z) < -2.0)
    assert refused <= 0.07
    assert 0.4 < np.std(z) < 1.25


def test_scores_of_other_cells_are_not_compared() -> None:
    cloud, made = world(), a_release_series(None)
    pairs, hazard = held_out(made, 1)
    with pytest.raises(ValueError, match="same cells"):
        compare(score(cloud.truth[-1:], [pairs]), score(cloud.truth[-1:], [hazard]))


def test_the_gate_is_at_two_standard_errors() -> None:
    assert is_no_worse(Comparison(-1.99, 1.0, 5))
    assert not is_no_worse(Comparison(-2.01, 1.0, 5))
    assert Comparison(2.01, 1.0, 5).verdict is PredictionVerdict.BETTER


# ---- drift -----------------------------------------------------------------------------------------------------------


def things(
    rng: np.random.Generator, *, many: int, change: int = 99, ratio: float = 1.0, sd: float = 0.0, off: float = 0.0,
    log_sd: float = 0.0, count: int = 52, mean: float = 20.0,
) -> list[Watched]:  # fmt: skip
    """Things with a predicted mean a week, of which the first changes; `off` is a lasting error of each prediction."""
    found = []
    for number in range(many):
        predicted = mean * np.exp(rng.normal(0.0, 0.1, count))
        true = predicted * np.exp(rng.normal(0.0, off))
        true[change:] *= ratio if number == 0 else 1.0
        counted = rng.poisson(true) + rng.normal(0.0, sd, count)
        hours = tuple(range(0, 168 * count, 168))
        found.append(Watched(str(number), hours, counted, predicted, predicted, np.full(count, sd**2), log_sd))
    return found


@pytest.mark.parametrize("sd", [0.0, 45.0])
def test_false_alarms_are_as_rare_as_they_are_said_to_be(sd: float) -> None:
    """Ten times 52 weeks of 20 things at one a year: ten at most are expected."""
    rng = np.random.default_rng(3)
    count = sum(len(alarms(things(rng, many=20, sd=sd), 52.0)) for _ in range(10))
    assert count <= 16
    many = sum(len(alarms(things(rng, many=20, sd=sd), 2.0)) for _ in range(3))
    assert many > 10  # a threshold that is far lower gives many


def test_quarters_show_a_change_within_a_year_and_sooner_than_a_bound_of_weeks_would() -> None:
    delays: dict[float, list[int]] = {windows_between(13 * HOURS_PER_WEEK): [], windows_between(HOURS_PER_WEEK): []}
    for seed in range(12):
        drawn = things(np.random.default_rng(seed), many=20, change=8, ratio=2.0, sd=45.0, mean=130.0, count=16)
        for between, late in delays.items():
            found = (one.raised_hour // 168 - 8 for one in alarms(drawn, between) if one.what == "0")
            late.append(min(found, default=99))
    quarters, weeks = delays.values()
    assert np.median(quarters) <= 4
    assert sum(quarters) < sum(weeks)


def test_windows_are_fewer_where_they_are_longer_and_never_so_few_that_one_alarm_in_twenty_is_false() -> None:
    assert [windows_between(weeks * HOURS_PER_WEEK) for weeks in (1, 4, 13, 52)] == [104.0, 26.0, 20.0, 20.0]


@pytest.mark.parametrize(("ratio", "sd", "within"), [(2.0, 0.0, 5), (0.4, 0.0, 8), (2.0, 25.0, 22)])
def test_a_change_is_found_and_dated(ratio: float, sd: float, within: int) -> None:
    rng, delays, covered, dated = np.random.default_rng(4), [], [], []
    for _ in range(12):
        found = [one for one in alarms(things(rng, many=20, change=20, ratio=ratio, sd=sd), 104.0) if one.what == "0"]
        late = [one for one in found if one.raised_hour >= 20 * 168]
        delays.append(late[0].raised_hour // 168 - 20 if late else 99)
        if late:
            covered.append(late[0].low <= ratio <= late[0].high)
            dated.append(abs(late[0].since_hour // 168 - 20))
            assert ("more" in late[0].text) == (ratio > 1.0)
    assert np.median(delays) <= within
    assert np.median(dated) <= 4
    assert np.mean(covered) > 0.6  # chosen for being large, so less than 95%


def test_a_prediction_that_may_be_off_all_along_raises_no_alarm_for_that() -> None:
    rng = np.random.default_rng(6)
    allowed = [len(alarms(things(rng, many=10, mean=200.0, off=0.15, log_sd=0.15), 104.0)) for _ in range(5)]
    denied = [len(alarms(things(rng, many=10, mean=200.0, off=0.15), 104.0)) for _ in range(5)]
    assert sum(allowed) <= 6
    assert sum(denied) > 50


def test_the_newest_week_decides_on_what_was_known_then() -> None:
    """Alarms of a prefix of the weeks are the alarms of all of them that were raised by then."""
    whole = things(np.random.default_rng(7), many=5, change=10, ratio=3.0)
    part = [
        replace(one, hours=one.hours[:30], counted=one.counted[:30], predicted=one.predicted[:30],
                variance=one.variance[:30], noise_variance=one.noise_variance[:30])
        for one in whole
    ]  # fmt: skip
    early = [one for one in alarms(whole, 104.0) if one.raised_hour < 30 * 168]
    assert early
    for one, other in zip(alarms(part, 104.0), early, strict=True):
        assert (one.what, one.raised_hour, one.since_hour) == (other.what, other.raised_hour, other.since_hour)


def test_nothing_watched_raises_nothing() -> None:
    assert alarms([], 104.0) == ()
    empty = np.zeros(120)
    unseen = Watched("x", tuple(range(120)), empty, empty, empty, empty)
    assert alarms([unseen], 104.0) == ()


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_what_is_watched_in_releases_scatters_as_it_is_said_to(epsilon: float | None) -> None:
    cloud, rng, squares = world(), np.random.default_rng(10), []
    for seed in range(3):
        made = releases(drawn(cloud.truth, rng), epsilon, InsecureSeeded(seed))
        found = [one for one in windows.watched(made, cloud.truth) if one.what.startswith(("context", "total"))]
        squares += [(one.counted - one.predicted) ** 2 / (one.noise_variance + one.variance) for one in found]
    every = np.concatenate(squares)
    reach = 4.0 * np.sqrt(2.5 / len(every))
    assert every.mean() == pytest.approx(1.0, abs=reach)
    assert abs(every.mean() * 1.3 - 1.0) > reach


def test_a_context_that_fails_more_is_found_in_releases() -> None:
    cloud, change = world(), 6
    bad = "context 5"
    truth = [
        week.times(np.array([[4.0 if at >= change and own.labels["context"] == bad else 1.0] for own in week.leases]))
        for at, week in enumerate(cloud.truth)
    ]
    for epsilon, within in ((None, 2), (4.0, 9)):
        made = releases(drawn(truth, np.random.default_rng(11)), epsilon, InsecureSeeded(3))
        found = alarms(windows.watched(made, cloud.truth), 104.0)
        own = [one for one in found if one.what == f"context {bad}"]
        assert own
        assert change <= own[0].raised_hour // 168 <= change + within
        assert own[0].low > 1.0
        assert isinstance(own[0], Alarm)


# ---- calibration -----------------------------------------------------------------------------------------------------


def calibrated(epsilon: float | None, seed: int, power: float = 1.0) -> Calibration:
    """Four weeks of the hazard table; a model whose log rates are `power` times as far from their mean as they are."""
    cloud = world()
    made = releases(drawn(cloud.truth, np.random.default_rng(seed)), epsilon, InsecureSeeded(seed))
    tables = [infrastructure(made[at].plan, made[at].tables)[1] for at in range(8, 12)]
    models = []
    for week in cloud.truth[8:12]:
        middle = np.average(np.log(week.rates), weights=week.failures)
        models.append(week.times(np.exp((power - 1.0) * (np.log(week.rates) - middle))))
    return calibrate(models, tables)


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [pytest.param(None, marks=pytest.mark.nightly), 2.0])
def test_a_perfect_model_is_calibrated_in_95_of_100(epsilon: float | None) -> None:
    found = [calibrated(epsilon, seed) for seed in range(25)]
    assert np.mean([one.slope_low <= 1.0 <= one.slope_high for one in found]) >= 0.84
    assert np.mean([one.ratio_low <= 1.0 <= one.ratio_high for one in found]) >= 0.84
    inside = [(one.low <= one.predicted) & (one.predicted <= one.high) for one in found]
    assert 0.91 <= np.mean(inside) <= 0.99
    assert np.mean([one.p < 0.05 for one in found]) <= 0.2
    assert np.mean([one.slope for one in found]) == pytest.approx(1.0, abs=0.15)
    third = [abs(one.slope - 1.0) < (one.slope_high - one.slope_low) / 6.0 for one in found]
    assert np.mean(third) < 0.9  # intervals a third as wide would not do


@pytest.mark.nightly
@pytest.mark.parametrize(("power", "slope"), [(2.0, 0.5), (0.5, 2.0)])
def test_an_overconfident_and_a_timid_model_are_told_by_their_slope(power: float, slope: float) -> None:
    found = [calibrated(None, seed, power) for seed in range(4)]
    for one in found:
        assert not one.slope_low <= 1.0 <= one.slope_high
        assert one.slope == pytest.approx(slope, rel=0.35)
        assert one.p < 0.01


def test_bins_hold_all_cells_and_about_equally_many_predicted_failures() -> None:
    one = calibrated(None, 3)
    assert len(one.predicted) == 10
    assert np.all(one.predicted > 0.04 * one.predicted.sum())
    assert one.ratio_total == pytest.approx(one.observed.sum() / one.predicted.sum())


def test_a_model_that_predicts_nothing_is_not_calibrated() -> None:
    week = world().truth[0]
    with pytest.raises(ValueError, match="no failure at all"):
        calibrate([week.times(np.zeros(1))], held_out(a_release_series(None)[:1], 1)[1:])
