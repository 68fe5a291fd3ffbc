"""Correlated noise decodes to the exact totals plus noise of the stated variance, and a job-week pays what is claimed.

Oracles: exact fractions for the factors; sums of Python integers for the ring; `LifeTable.aligned` for layouts; and an
audit in which an attacker sees every opening of a series and uses the best statistic there is. Statistical tests fail
by chance in less than one of 10^9 runs (`tests/support/chances.py`); noise is the product's, as shares of several
tenants.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from crypto.continual_counting import (
    MOST_WEEKS,
    WEIGHT_ONE,
    combine,
    decoding,
    running_total,
    running_variance,
    squared_sensitivity,
    weights,
)
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from crypto.ids import RoundId
from crypto.masking import Words, add_words
from federation.protocol.life_table import Dimension, Floats, LifeTable, births, embed
from federation.protocol.noise import SCALE_BITS, NoiseSampler, SystemSampler, contribution, open_groups
from federation.protocol.plan import LONGEST_HORIZON, Mechanism, Plan, Series
from federation.protocol.privacy_cost import noise_scales, plan_loss
from tests.support.chances import RARE, has_variance, missed_variance, proven_epsilon, sure_epsilon
from tests.support.plans import InsecureScale, cells_plan

HORIZONS = (4, 13, 52)


# ---- the factors -----------------------------------------------------------------------------------------------------


def square_root(horizon: int) -> list[Fraction]:
    return [Fraction(math.comb(2 * k, k), 4**k) for k in range(horizon)]


def product(left: Sequence[Fraction | int], right: Sequence[Fraction | int]) -> list[Fraction | int]:
    """First column of the product of two lower-triangular Toeplitz matrices, given by theirs."""
    return [sum(left[j] * right[k - j] for j in range(k + 1)) for k in range(len(left))]


@cache
def exact_decoding(horizon: int) -> tuple[Fraction, ...]:
    """First column of A F^-1: b_k = N_k / 256^(k+1) with integers N_k."""
    column, numerators = weights(horizon), list[int]()
    for k in range(horizon):
        fed_back = sum(column[j] * 256 ** (j - 1) * numerators[k - j] for j in range(1, k + 1))
        numerators.append(256**k - fed_back)
    return tuple(Fraction(numerator, 256 ** (k + 1)) for k, numerator in enumerate(numerators))


def test_the_weights_are_the_square_root_of_counting_in_integers() -> None:
    assert weights(5) == (256, 128, 96, 80, 70)
    assert WEIGHT_ONE == 1 << SCALE_BITS[Mechanism.DISCRETE_GAUSSIAN] == weights(1)[0]
    exact = square_root(MOST_WEEKS)
    assert product(exact[:52], exact[:52]) == [1] * 52
    assert all(abs(weight - 256 * root) <= Fraction(1, 2) for weight, root in zip(weights(520), exact, strict=True))
    assert weights(MOST_WEEKS)[:52] == weights(52)
    assert min(weights(MOST_WEEKS)) == 6


@pytest.mark.parametrize("horizon", HORIZONS)
def test_decoding_undoes_the_weights_to_totals(horizon: int) -> None:
    exact = exact_decoding(horizon)
    assert product(exact, weights(horizon)) == [1] * horizon
    assert np.allclose(decoding((True,) * horizon)[::-1], [float(share) for share in exact], rtol=1e-12, atol=0)
    unrounded = [root / 256 for root in square_root(horizon)]
    assert (product(unrounded, weights(horizon)) == [1] * horizon) == (horizon <= 5)


def test_decoding_is_stable_to_the_longest_horizon() -> None:
    exact = np.array([float(share) for share in exact_decoding(MOST_WEEKS)])
    assert np.allclose(decoding((True,) * MOST_WEEKS)[::-1], exact, rtol=1e-11, atol=0)
    assert not decoding((True,) * MOST_WEEKS).flags.writeable
    assert (exact**2).sum() * 256**2 == pytest.approx(sum(root**2 for root in square_root(MOST_WEEKS)), rel=1e-3)


@pytest.mark.parametrize("horizon", [-1, 0, MOST_WEEKS + 1])
def test_a_horizon_beyond_the_limits_has_no_weights(horizon: int) -> None:
    for function in (weights, squared_sensitivity):
        with pytest.raises(ValueError, match="a horizon of 1 to 520 weeks"):
            function(horizon)
    assert LONGEST_HORIZON <= MOST_WEEKS


# ---- sums in the ring ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(1, 13), st.integers(0, 13))
def test_combining_is_the_weighted_sum_of_integers(data: st.DataObject, weeks: int, to_come: int) -> None:
    tables = [data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3)) for _ in range(weeks)]
    combined = combine([np.array(table, np.uint64) for table in tables], weeks + to_come)
    column = weights(weeks)
    naive = [sum(column[weeks - 1 - s] * tables[s][cell] for s in range(weeks)) % 2**64 for cell in range(3)]
    assert combined.dtype == np.uint64
    assert combined.tolist() == naive


@pytest.mark.parametrize("cells", [0, 1, 2**13 - 1, 2**13, 2**14 + 1])
def test_combining_works_block_by_block_and_leaves_its_arguments_alone(cells: int) -> None:
    tables = [np.arange(cells, dtype=np.uint64) + np.uint64(2**63 + week) for week in range(3)]
    before = [table.copy() for table in tables]
    assert np.array_equal(combine(tables, 4), np.uint64(96) * tables[0] + np.uint64(128) * tables[1] + (tables[2] << 8))
    assert all(np.array_equal(table, kept) for table, kept in zip(tables, before, strict=True))


def test_masks_come_off_a_combination_as_they_went_on() -> None:
    random = np.random.default_rng(0)
    counts, masks = (random.integers(0, 2**64, (4, 5), np.uint64) for _ in range(2))
    masked = combine(list(counts + masks), 4)
    assert np.array_equal(masked - combine(list(masks), 4), combine(list(counts), 4))
    assert not np.array_equal(masked - combine(list(masks[::-1]), 4), combine(list(counts), 4))


def test_a_series_has_as_many_weeks_as_its_horizon_and_one_layout() -> None:
    week = np.zeros(3, np.uint64)
    for weeks in (0, 5):
        with pytest.raises(ValueError, match=f"has 1 to 4 weeks, not {weeks}"):
            combine([week] * weeks, 4)
    with pytest.raises(ValueError, match="embed the earlier ones"):
        combine([week, np.zeros(4, np.uint64)], 4)
    with pytest.raises(ValueError, match="embed the earlier ones"):
        running_total([np.zeros(3), np.zeros(4)])


# ---- rows that are born within a series ------------------------------------------------------------------------------


def layout(workloads: str, bands: str) -> tuple[LifeTable, ...]:
    """Two tables, one of them over both dimensions; levels are letters."""
    workload, band = Dimension("workload", tuple(workloads)), Dimension("band", tuple(bands))
    return LifeTable.zeros([workload, band]), LifeTable.zeros([band])


GROWING = [layout("ab", "x"), layout("abc", "x"), layout("abc", "xy"), layout("abcd", "xy")]


def flat(tables: Sequence[LifeTable]) -> Floats:
    return np.concatenate([table.events.reshape(-1) for table in tables])


@pytest.mark.parametrize(
    ("old", "new"), [(GROWING[0], GROWING[3]), (GROWING[1], GROWING[2]), (layout("ab", "xy"), layout("cbda", "zyx"))]
)
def test_embedding_places_cells_by_the_names_of_their_levels(
    old: tuple[LifeTable, ...], new: tuple[LifeTable, ...]
) -> None:
    cells = np.arange(1, 1 + len(flat(old)), dtype=np.uint64)
    ends = np.cumsum([table.events.size for table in old])[:-1]
    aligned = [
        LifeTable(table.dimensions, part.reshape(table.shape).astype(np.float64), *([np.zeros(table.shape)] * 3))
        for table, part in zip(old, np.split(cells, ends), strict=True)
    ]
    expected = flat([one.aligned(wide.dimensions) for one, wide in zip(aligned, new, strict=True)])
    carried = embed(old, new, cells)
    assert carried.dtype == np.uint64
    assert np.array_equal(carried, expected)
    assert np.array_equal(embed(new, new, carried), carried)


def test_a_cell_without_a_place_is_not_dropped_in_silence() -> None:
    old = layout("ab", "x")
    for new, complaint in [
        (layout("a", "x"), "'b' is gone"),
        (old[:1], "2 of them do not fit 1"),
        ((old[1], old[0]), "the same dimensions in the same order"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            embed(old, new, np.zeros(3))
    with pytest.raises(ValueError, match="are not those of tables with 3 cells"):
        embed(old, old, np.zeros(4))


def test_births_are_the_positions_of_the_first_plan_with_the_cell() -> None:
    assert births(GROWING).tolist() == [0, 2, 0, 2, 1, 2, 3, 3, 0, 2]
    assert births(GROWING[:1]).tolist() == [0, 0, 0]
    assert births([GROWING[0], GROWING[0], GROWING[1]]).tolist() == [0, 0, 2, 0]
    with pytest.raises(ValueError, match="'b' is gone"):
        births([layout("ab", "x"), layout("a", "x"), layout("ab", "x")])


def openings(counts: Sequence[Words], layouts: Sequence[Sequence[LifeTable]], horizon: int) -> list[Floats]:
    """What is opened each week without any noise, as signed ring units in that week's layout."""
    opened = []
    for week, latest in enumerate(layouts):
        embedded = [embed(layouts[s], latest, counts[s]) for s in range(week + 1)]
        opened.append(combine(embedded, horizon).astype(np.int64).astype(np.float64))
    return opened


@pytest.mark.nightly
@settings(deadline=None, max_examples=25)
@given(st.integers(4, 52), st.integers(0, 2**32))
def test_totals_are_exact_without_noise_whenever_a_cell_is_born(horizon: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    layouts = [GROWING[number] for number in sorted(random.integers(0, 4, horizon))]
    counts = [random.integers(0, 1000, len(flat(tables))).astype(np.uint64) for tables in layouts]
    opened = openings(counts, layouts, horizon)
    for week, latest in enumerate(layouts):
        observed = [embed(layouts[s], latest, opened[s]) for s in range(week + 1)]
        truth = sum(embed(layouts[s], latest, counts[s]).astype(np.int64) for s in range(week + 1))
        assert np.abs(running_total(observed) - truth).max() < 1e-7


def test_a_lost_week_or_a_swapped_one_shows() -> None:
    counts = [np.array([100 + week], np.uint64) for week in range(4)]
    opened = [combine(counts[: week + 1], 4).astype(np.float64) for week in range(4)]
    assert running_total(opened).item() == pytest.approx(406)
    assert running_total(opened[1:]).item() != pytest.approx(406, abs=1)
    assert running_total(opened[::-1]).item() != pytest.approx(406, abs=1)


# ---- the variance of running totals ----------------------------------------------------------------------------------

CELLS, SCALE, SHARES = 40_000, 3.0, 3


def in_series(cells: int, scale: float, horizon: int) -> Plan:
    """A plan of the series; what opens a week depends on its cells and horizon only."""
    series = Series(RoundId(bytes(16)), 0, tuple(range(1, horizon + 1)), 0)
    return cells_plan(cells, scale, noise_shares=SHARES, cohort_minimum=SHARES, series=series)


def contributed(plan: Plan, counts: NDArray[np.int64], contributors: int, sampler: NoiseSampler) -> Words:
    """The sum of one week's contributions: one tenant has all the counts, and every tenant a share of the noise."""
    nothing = np.zeros(plan.cells, np.int64)
    return add_words(contribution(plan, [held], sampler) for held in (counts, *[nothing] * (contributors - 1)))


def off_the_masks(plan: Plan, sums: Sequence[Words]) -> list[Floats]:
    """The opening of each week of a series, as signed ring units."""
    counts = [total[: plan.cells] for total in sums]
    opened = [open_groups(plan, counts[:week], [total], SHARES)[0] for week, total in enumerate(sums)]
    return [opening.astype(np.int64).astype(np.float64) for opening in opened]


@pytest.mark.parametrize("horizon", HORIZONS)
def test_measured_variance_is_that_of_the_formula_and_not_one_15_percent_off(horizon: int) -> None:
    plan, birth = in_series(2 * CELLS, SCALE, horizon), horizon // 2
    contributors = [SHARES + week % 2 for week in range(horizon)]  # more than the shares only add noise
    variances = [(WEIGHT_ONE * SCALE) ** 2 * some / SHARES for some in contributors]
    late = np.arange(2 * CELLS) >= CELLS
    alive = [~late | (week >= birth) for week in range(horizon)]
    counts = [np.where(alive[week], (np.arange(2 * CELLS) + week) % 3, 0) for week in range(horizon)]
    sums = [contributed(plan, *week, SystemSampler()) for week in zip(counts, contributors, strict=True)]
    observed = [np.where(*week, 0.0) for week in zip(alive, off_the_masks(plan, sums), strict=True)]
    noise = running_total(observed) - np.sum(counts, axis=0)
    early_variance, late_variance = running_variance(variances, np.array([0, birth]))
    for part, variance, since in ((noise[~late], early_variance, 0), (noise[late], late_variance, birth)):
        assert has_variance(part, variance)
        independent = sum(variances[since:]) / WEIGHT_ONE**2
        for wrong in (1.15 * variance, variance / 1.15, independent):
            assert missed_variance(CELLS, variance / wrong) < RARE
            assert not has_variance(part, wrong)


def test_the_variance_of_every_week_is_the_exact_one() -> None:
    variances = [float(week % 3 + 1) for week in range(52)]
    shares = exact_decoding(52)
    for week, birth in ((0, 0), (1, 0), (1, 1), (51, 0), (51, 13), (51, 51)):
        exact = sum(shares[week - s] ** 2 * int(variances[s]) for s in range(birth, week + 1))
        found = running_variance(variances[: week + 1], np.array([[birth]]))
        assert found == pytest.approx(np.array([[float(exact)]]), rel=1e-12)


@pytest.mark.parametrize("birth", [-1, 3])
def test_no_cell_is_born_outside_the_weeks(birth: int) -> None:
    with pytest.raises(ValueError, match="born at positions 0 to 2"):
        running_variance([1.0, 1.0, 1.0], np.array([0, birth]))


# ---- what correlation is good for ------------------------------------------------------------------------------------


def variances_at_equal_cost(horizon: int, epsilon: float = 1.0) -> tuple[Floats, Floats]:
    """Variance of the running total in each week, in counts²: with correlated noise, and with a noise per week."""
    budget = Mechanism.DISCRETE_GAUSSIAN, epsilon, 1e-8, 1, (1.0,)
    (ours,), (apart,) = noise_scales(*budget, horizon=horizon), noise_scales(*budget)
    fresh, first = [(WEIGHT_ONE * ours) ** 2] * horizon, np.zeros(1, np.int64)
    correlated = [running_variance(fresh[: week + 1], first).item() for week in range(horizon)]
    return np.array(correlated), np.array([(week + 1) * apart**2 for week in range(horizon)])


@pytest.mark.parametrize(("horizon", "last", "first_better"), [(4, 0.554, 1), (13, 0.271, 2), (52, 0.104, 3)])
def test_at_equal_cost_totals_have_less_noise_than_with_a_noise_per_week(
    horizon: int, last: float, first_better: int
) -> None:
    ours, apart = variances_at_equal_cost(horizon)
    theory = float(sum(root**2 for root in square_root(horizon)))
    assert ours[-1] / apart[-1] == pytest.approx(theory**2 / horizon, rel=1e-3)
    assert ours[-1] / apart[-1] == pytest.approx(last, abs=5e-4)
    assert (ours < apart).tolist() == [week >= first_better for week in range(horizon)]
    assert ours[0] / apart[0] == pytest.approx(theory, rel=1e-3)  # what the first weeks pay for the later ones


def test_the_advantage_is_the_same_for_every_epsilon_and_none_for_one_week() -> None:
    for epsilon in (0.5, 4.0):
        ours, apart = variances_at_equal_cost(13, epsilon)
        assert ours / apart == pytest.approx(np.divide(*variances_at_equal_cost(13)), rel=1e-9)
    ours, apart = variances_at_equal_cost(1)
    assert ours == pytest.approx(apart)


# ---- an audit --------------------------------------------------------------------------------------------------------

# 400,000 runs of 13 weeks with and without one job-week in the first, which every opening contains. The claim is an
# epsilon of 2 at delta 0.01; noise that is that of a single round costs 3.01 over the horizon. The attacker says "with"
# beyond a threshold, which theory gives in standard deviations. A claim that holds is exceeded, and wrong noise
# acquitted, with the chances of `tests/support/chances.py`; what the runs
# are sure to prove is computed.
RUNS, WEEKS = 400_000, 13
EPSILON, DELTA = 2.0, 0.01


def likelihood_ratios(plan: Plan, sampler: NoiseSampler) -> tuple[Floats, Floats]:
    """The attacker's statistic, one run per cell, without and with the job-week; both get the same noise.

    The log likelihood ratio of Gaussian openings is, up to a linear map, the sum of F_t O_t. Noise in common is fair:
    each bound below holds for its own history, whatever the other's noise is.
    """
    nothing = np.zeros(plan.cells, np.int64)
    without = [contributed(plan, nothing, SHARES, sampler) for _ in range(WEEKS)]
    job = np.concatenate([nothing + 1, nothing]).astype(np.uint64)
    with_job = [without[0] + job, *without[1:]]
    lower, upper = (np.tensordot(weights(WEEKS), off_the_masks(plan, sums), axes=1) for sums in (without, with_job))
    return lower, upper


@dataclass(frozen=True)
class Audit:
    """What noise bought for `paid_for` weeks costs over 13 weeks, and what the runs prove and are sure to prove."""

    claimed: float
    proven: float
    sure: float


def audit(deviations: float, *, factor: float = 1.0, paid_for: int = WEEKS) -> Audit:
    """Of noise that is too large by `factor`; the attacker's threshold is so many standard deviations of it."""
    (scale,) = noise_scales(Mechanism.DISCRETE_GAUSSIAN, EPSILON, DELTA, 1, (1.0,), horizon=paid_for)
    plan, length = in_series(RUNS, scale, WEEKS), math.sqrt(sum(weight**2 for weight in weights(WEEKS)))
    without, with_job = likelihood_ratios(plan, InsecureScale(factor) if factor != 1.0 else SystemSampler())
    noise = factor * WEIGHT_ONE * scale  # of one opening, in ring units
    threshold = deviations * noise * length
    sure = sure_epsilon(RUNS, float(norm.sf(deviations - length / noise)), float(norm.sf(deviations)), DELTA)
    proven = proven_epsilon(with_job > threshold, without > threshold, DELTA)
    return Audit(plan_loss(plan).at(DELTA), proven, sure)


def test_an_audit_of_a_series_proves_no_more_than_the_claimed_epsilon() -> None:
    found = audit(2.26)
    assert found.claimed == pytest.approx(EPSILON, rel=1e-5)
    assert found.sure > 0.65 * EPSILON
    assert 0.65 * EPSILON < found.proven <= found.claimed <= EPSILON


@pytest.mark.nightly
@pytest.mark.parametrize(("factor", "deviations", "at_least"), [(0.5, 3.1, 1.5 * EPSILON), (0.7, 2.66, EPSILON)])
def test_an_audit_convicts_a_series_whose_noise_is_too_small(factor: float, deviations: float, at_least: float) -> None:
    found = audit(deviations, factor=factor)
    assert found.sure > at_least
    assert found.proven > at_least
    assert found.claimed <= EPSILON


def test_an_audit_convicts_a_series_that_pays_for_its_first_week_only_and_the_accountant_knows() -> None:
    found = audit(2.62, paid_for=1)
    assert found.sure > EPSILON
    assert EPSILON < found.proven <= found.claimed
