"""Matching, the sign test, Mantel–Haenszel and verdicts: against exact laws, a published example, and planted truth."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import Dimension, LifeTable
from provider_server.fleet.analysis.matching import (
    Arm,
    rosenbaum_gamma,
    sign_test_of_cells,
    upper_tail,
)
from provider_server.fleet.analysis.quasi_experiment import Criteria, PairVerdict, judge, mantel_haenszel
from tests.support.changing import replace

NONE = np.zeros(1)


def arm(events: list[list[float]], exposure: list[list[float]], variance: float = 0.0) -> Arm:
    return Arm(np.array(events), np.array(exposure), np.full(np.shape(events), variance))


def crowd(
    seed: int, ratio: float, *, noise_sd: float, failures: float, comparisons: int = 3000, strata: int = 4
) -> tuple[Arm, Arm]:
    """Comparisons with about `failures` expected of the treated; the untreated are a sum of nineteen noisy cells."""
    rng, shape = np.random.default_rng(seed), (comparisons, strata)
    rate = rng.lognormal(0.0, 0.5, shape)
    here, elsewhere = (
        rng.gamma(2.0, failures / strata / 2.0, shape),
        rng.gamma(2.0, 5.0 * failures / strata / 2.0, shape),
    )
    sides = []
    for exposure, mean, cells in ((here, ratio * rate * here, 1), (elsewhere, rate * elsewhere, 19)):
        noise = rng.normal(0.0, noise_sd * np.sqrt(cells), shape)
        variance = np.full(shape, cells * noise_sd**2)
        sides.append(Arm(rng.poisson(mean) + noise, exposure, variance))
    return sides[0], sides[1]


def without_noise(side: Arm) -> Arm:
    """What an analyst takes released counts for who does not know of the noise."""
    return Arm(np.maximum(np.round(side.events), 0.0), side.exposure_node_hours, np.zeros(side.events.shape))


# ---- the tail ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trials", "share"), [(1, 0.05), (3, 0.5), (20, 0.05), (60, 0.3), (400, 0.02), (4000, 0.5)])
def test_the_tail_is_the_binomial_one_within_a_few_per_cent(trials: int, share: float) -> None:
    value = np.arange(trials + 1.0)
    exact = binom.sf(value - 1.0, trials, share)
    rows = np.ones((len(value), 1))
    found = upper_tail(value, trials * rows, share * rows, np.zeros(len(value)))
    seen = exact > 1e-12
    assert found[seen] == pytest.approx(exact[seen], rel=0.05)
    normal = norm.sf(value - 0.5, trials * share, np.sqrt(trials * share * (1.0 - share)))
    if share < 0.1:  # what the normal law would say of skewed counts does not pass
        assert np.max(np.abs(normal[seen] / exact[seen] - 1.0)) > 0.5


def test_the_tail_of_several_strata_is_that_of_their_convolution() -> None:
    trials, share = np.array([[4.0, 9.0, 2.0]]), np.array([[0.1, 0.5, 0.8]])
    mass = np.ones(1)
    for count, chance in zip(trials[0], share[0], strict=True):
        mass = np.convolve(mass, binom.pmf(np.arange(count + 1.0), count, chance))
    for value in range(1, 13):
        found = upper_tail(np.array([float(value)]), trials, share, NONE)
        assert found == pytest.approx(mass[value:].sum(), rel=0.04)


@pytest.mark.parametrize(("trials", "share", "variance"), [(20, 0.05, 4.0), (20, 0.5, 1.0), (60, 0.3, 50.0)])
def test_the_tail_with_noise_is_the_binomial_convolved_with_it(trials: int, share: float, variance: float) -> None:
    value, count, rows = np.linspace(-2.0, trials + 3.0, 12), np.arange(trials + 1.0), np.ones((12, 1))
    exact = norm.sf((value[:, None] - count) / np.sqrt(variance)) @ binom.pmf(count, trials, share)
    assert upper_tail(value, trials * rows, share * rows, np.full(12, variance)) == pytest.approx(exact, rel=0.01)


# ---- pairs, the sign test, the bound -------------------------------------------------------------------------------


def test_rosenbaums_bound_is_that_of_smoking_and_lung_cancer() -> None:
    """Rosenbaum, Observational Studies (2002), §4.3.2: Hammond's 122 discordant pairs, in 110 of which a smoker died.

    The book's upper bounds, by the normal law, are 0.03 at Γ = 5 and 0.1 at 6. Ours are exact.
    """
    plus, minus = np.array([110.0]), np.array([12.0])
    limit = rosenbaum_gamma(plus, minus, NONE)
    assert 5.0 < limit < 6.0
    assert binomtest(110, 122, float(limit[0] / (1.0 + limit[0])), "greater").pvalue == pytest.approx(0.05, rel=1e-3)
    assert rosenbaum_gamma(minus, plus, NONE) == pytest.approx(limit)  # whichever side is worse
    assert rosenbaum_gamma(np.array([9.0]), np.array([8.0]), NONE) == pytest.approx(1.0)


def test_noise_lowers_the_bound() -> None:
    plus, minus = np.full(3, 110.0), np.full(3, 12.0)
    limits = rosenbaum_gamma(plus, minus, np.array([0.0, 100.0, 900.0]))
    assert limits[0] > limits[1] > limits[2] > 1.0


@pytest.mark.parametrize(("noise_sd", "failures"), [(0.0, 40.0), (5.0, 100.0), (10.0, 400.0)])
def test_the_sign_test_keeps_its_level_and_without_the_noise_it_would_not(noise_sd: float, failures: float) -> None:
    here, elsewhere = crowd(5, 1.0, noise_sd=noise_sd, failures=failures)
    rng = np.random.default_rng(5)
    found = sign_test_of_cells(here, elsewhere, rng, pair_node_hours=1.0, repeats=9)
    assert np.mean(found.p < 0.05) < 0.06  # repeated pairing makes it cautious where counts are exact
    if noise_sd:
        ignorant = without_noise(here), without_noise(elsewhere)
        assert np.mean(sign_test_of_cells(*ignorant, rng, pair_node_hours=1.0, repeats=9).p < 0.05) > 0.09


# ---- Mantel–Haenszel -----------------------------------------------------------------------------------------------


def test_mantel_haenszel_by_hand() -> None:
    found = mantel_haenszel(arm([[10.0, 20.0]], [[100.0, 300.0]]), arm([[5.0, 4.0]], [[200.0, 100.0]]))
    R, S = 10 * 200 / 300 + 20 * 100 / 400, 5 * 100 / 300 + 4 * 300 / 400
    greenland_robins = (15 * 100 * 200 / 300**2 + 24 * 300 * 100 / 400**2) / (R * S)
    assert found.value == pytest.approx(R / S) == pytest.approx(2.5)
    assert found.log_sd**2 == pytest.approx(greenland_robins)
    for bound in (
        found.low[0],
        found.high[0],
    ):  # the score interval's ends are where the score is 1.96 of its deviation
        assert (R - bound * S) ** 2 == pytest.approx(norm.ppf(0.975) ** 2 * bound * greenland_robins * R * S)
    wald = 2.5 * np.exp(np.array([-1.0, 1.0]) * norm.ppf(0.975) * np.sqrt(greenland_robins))
    assert [found.low[0], found.high[0]] == pytest.approx(wald, rel=0.1)


def test_noise_enters_the_variance_by_hand() -> None:
    sides = (arm([[10.0, 20.0]], [[100.0, 300.0]], 4.0), arm([[5.0, 4.0]], [[200.0, 100.0]], 1.0))
    found = mantel_haenszel(*sides)
    R, S = 35 / 3, 14 / 3
    noise = 4.0 * ((2 / 3) ** 2 + (1 / 4) ** 2) / R**2 + 1.0 * ((1 / 3) ** 2 + (3 / 4) ** 2) / S**2
    assert found.log_sd**2 == pytest.approx((10 / 3 + 4.5) / (R * S) + noise)


@pytest.mark.parametrize("failures", [0, 1, 4, 9, 17])
def test_one_stratum_is_the_conditional_binomial_test(failures: int) -> None:
    found = mantel_haenszel(arm([[float(failures)]], [[20.0]]), arm([[25.0]], [[100.0]]))
    tails = [binomtest(failures, failures + 25, 20 / 120, side).pvalue for side in ("less", "greater")]
    assert found.p == pytest.approx(min(1.0, 2.0 * min(tails)), rel=0.05)


def test_confounded_strata_mislead_the_crude_ratio_and_not_the_stratified_one() -> None:
    inside, outside = 0, 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        here, elsewhere = np.array([[2000.0, 200.0]]), np.array([[3000.0, 30000.0]])  # young, old
        rate = np.array([[0.01, 0.10]])
        sides = [
            Arm(rng.poisson(3.0 * rate * here).astype(float), here, 0.0 * here),
            Arm(rng.poisson(rate * elsewhere).astype(float), elsewhere, 0.0 * elsewhere),
        ]
        found = mantel_haenszel(*sides)
        inside += bool(found.low[0] <= 3.0 <= found.high[0])
        pooled = mantel_haenszel(
            *(
                Arm(s.events.sum(1, keepdims=True), s.exposure_node_hours.sum(1, keepdims=True), NONE[:, None])
                for s in sides
            )
        )
        outside += bool(pooled.high[0] < 1.0)
    assert inside >= 44
    assert outside >= 45  # it looks harmless, three times as many failures notwithstanding


@pytest.mark.parametrize("ratio", [1.0, 2.5, 6.0])
@pytest.mark.parametrize(("noise_sd", "failures"), [(0.0, 10.0), (0.0, 400.0), (5.0, 400.0), (15.0, 400.0)])
def test_intervals_cover_and_those_that_ignore_the_noise_do_not(ratio: float, noise_sd: float, failures: float) -> None:
    sides = crowd(6, ratio, noise_sd=noise_sd, failures=failures)
    found = mantel_haenszel(*sides)
    assert 0.93 < np.mean((found.low <= ratio) & (ratio <= found.high)) < 0.98
    if noise_sd:
        ignorant = mantel_haenszel(*(without_noise(side) for side in sides))
        assert np.mean((ignorant.low <= ratio) & (ratio <= ignorant.high)) < 0.92
        assert np.median(found.value) == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize(("noise_sd", "failures"), [(0.0, 10.0), (0.0, 400.0), (5.0, 400.0), (15.0, 400.0)])
def test_p_values_keep_their_level_far_into_the_tail(noise_sd: float, failures: float) -> None:
    p = mantel_haenszel(*crowd(7, 1.0, noise_sd=noise_sd, failures=failures, comparisons=20000)).p
    for level in (0.05, 0.01, 0.001):
        assert np.mean(p <= level) < 1.25 * level + 3.0 * np.sqrt(level / 20000)
    assert np.mean(p <= 0.05) > 0.03


def test_drowned_in_noise_the_ratio_is_unbounded_and_nothing_is_claimed() -> None:
    found = mantel_haenszel(arm([[3.0]], [[10.0]], 400.0), arm([[-8.0]], [[50.0]], 400.0))
    assert (found.low[0], found.high[0]) == (0.0, np.inf)
    assert found.p > 0.3
    apart = mantel_haenszel(arm([[3.0, 0.0]], [[10.0, 0.0]]), arm([[0.0, 7.0]], [[0.0, 50.0]]))
    assert np.isnan(apart.value[0])  # no stratum has both
    assert apart.p == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("events", "exposure", "variance"),
    [([[1.5]], [[2.0]], 0.0), ([[-1.0]], [[2.0]], 0.0), ([[1.0]], [[-2.0]], 0.0), ([[1.0]], [[2.0]], -1.0)],
)
def test_impossible_cells_are_refused(events: list[list[float]], exposure: list[list[float]], variance: float) -> None:
    with pytest.raises(ValueError, match=r"whole numbers|negative"):
        arm(events, exposure, variance)
    with pytest.raises(ValueError, match="shape"):
        Arm(np.ones((1, 2)), np.ones((1, 1)), np.ones((1, 1)))


# ---- verdicts ------------------------------------------------------------------------------------------------------

SHAPE = (60, 20, 4)
WORSE, CONFOUNDED = (3, 5), (8, 2)


def cloud(
    seed: int, *, noise_sd: float = 0.0, ratio: float = 1.0, hidden: float = 1.0, per_cell: float = 8.0
) -> tuple[LifeTable, LifeTable]:
    """Failures and script errors; `WORSE` is planted, and at `CONFOUNDED` something hidden multiplies both."""
    rng = np.random.default_rng(seed)
    dimensions = tuple(
        Dimension(name, tuple(f"{name[0]}{level}" for level in range(size)))
        for name, size in zip(("workload", "context", "band"), SHAPE, strict=True)
    )
    exposure = rng.gamma(2.0, 500.0, SHAPE)
    tables = []
    for planted in (ratio, 1.0):
        rate = per_cell / 1000.0 * rng.lognormal(0.0, 0.4, (SHAPE[0], 1, 1)) * rng.lognormal(0.0, 0.5, (1, 1, SHAPE[2]))
        mean = rate * exposure
        mean[WORSE] *= planted
        mean[CONFOUNDED] *= hidden
        noise = rng.normal(0.0, noise_sd, SHAPE)
        tables.append(LifeTable(dimensions, rng.poisson(mean) + noise, exposure, exposure, np.full(SHAPE, noise_sd**2)))
    return tables[0], tables[1]


def at(verdicts: tuple[PairVerdict, ...], pair: tuple[int, int]) -> PairVerdict:
    return next(v for v in verdicts if (v.workload, v.context) == (f"w{pair[0]}", f"c{pair[1]}"))


@pytest.mark.parametrize(("noise_sd", "ratio"), [(0.0, 2.5), (9.4, 6.0)])
def test_the_planted_pair_is_worse_and_the_confounded_one_is_not_blamed_on_its_context(
    noise_sd: float, ratio: float
) -> None:
    tables = cloud(10, noise_sd=noise_sd, ratio=ratio, hidden=6.0)
    verdicts = judge(*tables, np.random.default_rng(0))
    worse, confounded = at(verdicts, WORSE), at(verdicts, CONFOUNDED)
    assert worse.judgement is PairJudgement.WORSE
    assert worse.low <= ratio <= worse.high
    assert worse.q <= 0.05
    assert worse.sign_p < 0.01
    assert worse.gamma > 1.2
    assert not worse.control.fires
    assert confounded.judgement is PairJudgement.CONFOUNDED
    assert confounded.q <= 0.05
    assert confounded.control.fires
    assert "script errors" in confounded.reason
    assert sum(v.judgement is PairJudgement.WORSE for v in verdicts) <= 3
    assert len(verdicts) == SHAPE[0] * SHAPE[1]


def test_a_verdict_says_in_a_sentence_what_it_rests_on_and_what_to_do() -> None:
    worse = at(judge(*cloud(10, ratio=2.5), np.random.default_rng(0)), WORSE)
    best = worse.alternatives[0]
    assert [option.high for option in worse.alternatives] == sorted(option.high for option in worse.alternatives)
    assert best.high < worse.ratio
    assert worse.context not in {option.context for option in worse.alternatives}
    for said in ("w3 on c5", "95% interval", "matched node-hours", f"fails less on {best.context}", "script errors"):
        assert said in worse.reason
    assert worse.reason.endswith(".")
    assert worse.evidence.pairs > 0.0


def test_the_same_seed_gives_the_same_verdicts_and_the_pairing_hardly_matters() -> None:
    tables = cloud(11, ratio=2.5)
    first, same, other = (judge(*tables, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == same
    assert first != other
    assert [verdict.judgement for verdict in first] == [verdict.judgement for verdict in other]


@pytest.mark.nightly
def test_without_effects_hardly_any_table_has_a_pair_called_worse() -> None:
    accused = [
        any(v.judgement is PairJudgement.WORSE for v in judge(*cloud(seed, noise_sd=sd), np.random.default_rng(seed)))
        for sd in (0.0, 9.4)
        for seed in range(100, 110)
    ]
    assert sum(accused) <= 4  # 5% of tables, if that: binomial(20, 0.05) exceeds 4 once in 400 times


def test_few_failures_give_no_verdict_and_many_an_acquittal() -> None:
    sparse = judge(*cloud(12, per_cell=0.02), np.random.default_rng(0))
    assert {verdict.judgement for verdict in sparse} == {PairJudgement.TOO_LITTLE}
    assert "cannot be judged yet" in sparse[0].reason
    assert sparse[0].alternatives == ()
    dense = judge(*cloud(12, per_cell=60.0), np.random.default_rng(0))
    assert np.mean([verdict.judgement is PairJudgement.NOT_WORSE for verdict in dense]) > 0.98


def test_a_workload_on_one_context_alone_is_not_judged() -> None:
    tables = [
        replace(table, events=table.events.copy(), exposure_node_hours=table.exposure_node_hours.copy())
        for table in cloud(13)
    ]
    for table in tables:
        table.events[7, 1:], table.exposure_node_hours[7, 1:] = 0.0, 0.0
    alone = [v for v in judge(tables[0], tables[1], np.random.default_rng(0)) if v.workload == "w7"]
    assert [v.judgement for v in alone] == [PairJudgement.TOO_LITTLE]


@pytest.mark.parametrize(("noise_sd", "failures"), [(0.0, 80.0), (5.0, 400.0)])
def test_the_control_is_silent_at_its_level_and_fires_where_confounding_is_planted(
    noise_sd: float, failures: float
) -> None:
    level = Criteria().control_level
    silent = mantel_haenszel(*crowd(14, 1.0, noise_sd=noise_sd, failures=failures)).p
    assert 0.03 < np.mean(silent <= level) < 0.065
    confounded = mantel_haenszel(*crowd(15, 2.0, noise_sd=noise_sd, failures=failures)).p
    assert np.mean(confounded <= level) > 0.9


def test_tables_that_do_not_fit_are_refused() -> None:
    table, control = cloud(16)
    with pytest.raises(ValueError, match="same cells"):
        judge(table, control.marginal("workload", "context"), np.random.default_rng(0))
    turned = table.marginal("context", "workload")
    with pytest.raises(ValueError, match="asked for"):
        judge(turned, turned, np.random.default_rng(0))
