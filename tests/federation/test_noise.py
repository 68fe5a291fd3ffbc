"""The sum of the shares has the law that the plan promises, and a test here would see a wrong scale or a missing share.

Noise comes from the operating system's generator, so these tests are statistical. Each fails by chance in less than one
of 10^9 runs: a right law is refused, and a wrong one that is shown is missed, with at most the chances of
`tests/support/chances.py`; where a test shows a wrong law, it computes them. Every cell of a plan is an experiment of
its own.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.stats import nbinom, norm

from crypto import discrete_gaussian as gaussian_tables, polya
from crypto.masking import add_words
from federation.protocol import noise
from federation.protocol.life_table import Floats
from federation.protocol.noise import SystemSampler, from_ring, noise_share, noise_variances, table_entries, to_ring
from federation.protocol.plan import LARGEST_NOISE_SCALE, Marginal, Mechanism, Plan, PlanDimension
from federation.protocol.privacy_cost import distributed_gaussian_rho, plan_loss
from tests.support.chances import RARE, fits, has_variance, missed, missed_variance
from tests.support.opendp import opendp_laplace
from tests.support.plans import InsecureScale, cells_plan, noisy_sum, small_plan

SAMPLER = SystemSampler()
SHARES = 5
GAUSSIAN_SUMS, LAPLACE_SUMS = 10_000, 20_000
GAUSSIAN_SCALE, LAPLACE_SCALE = 3.0, 2.0
WRONG_SCALES = (0.7, 1.3)

Probabilities = NDArray[np.float64]


# ---- samples, as counts per bin -------------------------------------------------------------------------------------


def around_zero(sample: Floats | NDArray[np.int64], reach: int) -> NDArray[np.int64]:
    """Counts of -reach … reach, where both ends gather all beyond."""
    return np.bincount(np.clip(sample, -reach, reach).astype(np.int64) + reach, minlength=2 * reach + 1)


def gathered(law: Probabilities, reach: int) -> Probabilities:
    """A law over -n … n in the bins of `around_zero`."""
    middle = len(law) // 2
    inner = law[middle - reach : middle + reach + 1].copy()
    inner[0] += law[: middle - reach].sum()
    inner[-1] += law[middle + reach + 1 :].sum()
    return inner


# ---- the laws, from their definitions --------------------------------------------------------------------------------

SUPPORT = np.arange(-400, 401)


def discrete_gaussian(scale: float) -> Probabilities:
    mass = np.exp(-(SUPPORT**2) / (2 * scale**2))
    law: Probabilities = mass / mass.sum()
    return law


def rounded_gaussian(scale: float) -> Probabilities:
    law: Probabilities = np.diff(norm.cdf(np.arange(-400.5, 401) / scale))
    return law


def discrete_laplace(scale: float) -> Probabilities:
    return discrete_laplace_on(SUPPORT, scale)


def discrete_laplace_on(support: NDArray[np.int64], scale: float) -> Probabilities:
    law: Probabilities = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(support) / scale)
    return law


def partial_laplace(scale: float, part: float) -> Probabilities:
    """The law of `part` of all Pólya shares: a difference of two negative-binomial draws, by convolution."""
    one = nbinom(part, -np.expm1(-1 / scale)).pmf(np.arange(401))
    law: Probabilities = np.convolve(one, one[::-1])
    return law


# ---- discrete Gaussian ---------------------------------------------------------------------------------------------


@cache
def gaussian_shares() -> tuple[Floats, ...]:
    """All shares of the noise of `GAUSSIAN_SUMS` cells, in counts."""
    plan = cells_plan(GAUSSIAN_SUMS, GAUSSIAN_SCALE, noise_shares=SHARES)
    return tuple(from_ring(plan, noise_share(plan, SAMPLER))[0] for _ in range(SHARES))


def test_the_sum_of_gaussian_shares_has_the_variance_of_the_plan() -> None:
    assert has_variance(np.sum(gaussian_shares(), axis=0), GAUSSIAN_SCALE**2)


@pytest.mark.parametrize("missing", range(SHARES))
def test_one_missing_gaussian_share_shows(missing: int) -> None:
    rest = [share for number, share in enumerate(gaussian_shares()) if number != missing]
    assert missed_variance(GAUSSIAN_SUMS, 1 - 1 / SHARES) < RARE
    assert not has_variance(np.sum(rest, axis=0), GAUSSIAN_SCALE**2)


@pytest.mark.parametrize("factor", WRONG_SCALES)
def test_a_gaussian_scale_that_is_30_percent_off_shows(factor: float) -> None:
    size = 1500
    plan = cells_plan(size, GAUSSIAN_SCALE, noise_shares=SHARES)
    assert missed_variance(size, factor**2) < RARE
    assert has_variance(noisy_sum(plan, SHARES, SAMPLER), GAUSSIAN_SCALE**2)
    assert not has_variance(noisy_sum(plan, SHARES, InsecureScale(factor)), GAUSSIAN_SCALE**2)


def test_contributions_beyond_the_shares_add_variance_as_stated() -> None:
    size, contributors = 1000, 2 * SHARES
    plan = cells_plan(size, GAUSSIAN_SCALE, noise_shares=SHARES, cohort_minimum=SHARES)
    sample = noisy_sum(plan, contributors, SAMPLER)
    (stated,) = noise_variances(plan, contributors)
    assert stated == pytest.approx(2 * GAUSSIAN_SCALE**2)
    assert has_variance(sample, stated)
    assert missed_variance(size, 2.0) < RARE
    assert not has_variance(sample, GAUSSIAN_SCALE**2)


def test_the_sum_of_gaussian_shares_has_the_shape_of_a_gaussian() -> None:
    """In the ring the scale is 768, where the discrete law and the continuous one differ by less than 1e-6 per bin."""
    bins, size = 50, GAUSSIAN_SUMS
    even = np.full(bins, 1 / bins)

    def binned(sample: Floats) -> NDArray[np.int64]:
        ranks = norm.cdf(sample / GAUSSIAN_SCALE)
        return np.bincount(np.minimum((ranks * bins).astype(np.int64), bins - 1), minlength=bins)

    assert fits(binned(np.sum(gaussian_shares(), axis=0)), even)
    edges = norm.ppf(np.linspace(0, 1, bins + 1))
    for factor in WRONG_SCALES:
        assert missed(size, even, np.diff(norm.cdf(edges / factor))) < RARE
        assert not fits(binned(factor * np.sum(gaussian_shares(), axis=0)), even)


@pytest.mark.parametrize(("scale", "reach"), [(0.6, 2), (1.5, 4), (20.0, 35)])
def test_a_gaussian_share_is_a_discrete_gaussian(scale: float, reach: int) -> None:
    size = 6000
    law = gathered(discrete_gaussian(scale), reach)
    assert fits(around_zero(SAMPLER.gaussian(scale, size), reach), law)
    for factor in WRONG_SCALES:
        assert missed(size, law, gathered(discrete_gaussian(factor * scale), reach)) < RARE
        assert not fits(around_zero(SAMPLER.gaussian(factor * scale, size), reach), law)


def test_a_rounded_gaussian_is_not_a_discrete_one() -> None:
    size = 10_000
    law, rounded = gathered(discrete_gaussian(0.6), 2), gathered(rounded_gaussian(0.6), 2)
    insecure = np.random.default_rng(1).normal(0, 0.6, size)
    assert missed(size, law, rounded) < RARE
    assert not fits(around_zero(np.rint(insecure), 2), law)
    assert fits(around_zero(np.rint(insecure), 2), rounded)


def test_shares_and_cells_are_independent() -> None:
    """Correlations of independent cells are normal with variance 1/n; a draw used twice has correlation 1."""
    bound = norm.isf(RARE) / np.sqrt(GAUSSIAN_SUMS - 1)
    shares = gaussian_shares()
    pairs = [(shares[0][:-1], shares[0][1:]), (shares[0], shares[1]), (shares[3], shares[4])]
    assert all(abs(np.corrcoef(*pair)[0, 1]) < bound for pair in pairs)


# ---- discrete Laplace ----------------------------------------------------------------------------------------------


@cache
def laplace_shares() -> tuple[Floats, ...]:
    """All shares of the noise of `LAPLACE_SUMS` cells."""
    plan = laplace_plan(LAPLACE_SUMS)
    return tuple(from_ring(plan, noise_share(plan, SAMPLER))[0] for _ in range(SHARES))


def laplace_plan(cells: int) -> Plan:
    return cells_plan(cells, LAPLACE_SCALE, noise_shares=SHARES, mechanism=Mechanism.DISCRETE_LAPLACE)


REACH = 6
LAPLACE = gathered(discrete_laplace(LAPLACE_SCALE), REACH)


def test_the_sum_of_polya_shares_is_a_discrete_laplace() -> None:
    assert fits(around_zero(np.sum(laplace_shares(), axis=0), REACH), LAPLACE)


@pytest.mark.parametrize("missing", range(SHARES))
def test_one_missing_polya_share_shows(missing: int) -> None:
    rest = np.sum([share for number, share in enumerate(laplace_shares()) if number != missing], axis=0)
    true = gathered(partial_laplace(LAPLACE_SCALE, 1 - 1 / SHARES), REACH)
    assert missed(LAPLACE_SUMS, LAPLACE, true) < RARE
    assert not fits(around_zero(rest, REACH), LAPLACE)
    assert fits(around_zero(rest, REACH), true)


@pytest.mark.parametrize("factor", WRONG_SCALES)
def test_a_laplace_scale_that_is_30_percent_off_shows(factor: float) -> None:
    size = 10_000
    plan = laplace_plan(size)
    assert missed(size, LAPLACE, gathered(discrete_laplace(factor * LAPLACE_SCALE), REACH)) < RARE
    assert fits(around_zero(noisy_sum(plan, SHARES, SAMPLER), REACH), LAPLACE)
    assert not fits(around_zero(noisy_sum(plan, SHARES, InsecureScale(factor)), REACH), LAPLACE)


@pytest.mark.parametrize(("scale", "shares", "reach"), [(0.5, 3, 2), (1.0, 1, 3), (8.0, 25, 20), (300.0, 4, 20)])
def test_other_scales_and_numbers_of_shares(scale: float, shares: int, reach: int) -> None:
    size = 12_000
    total = np.sum([SAMPLER.laplace_share(scale, shares, size) for _ in range(shares)], axis=0)
    support = np.arange(-40_000, 40_001)
    step = max(1, round(scale / 10))  # wide laws go into bins of several integers
    bins = around_zero(np.floor_divide(total + step // 2, step), reach)
    right, wrong = (binned_law(discrete_laplace_on(support, b), step, reach) for b in (scale, 1.3 * scale))
    assert fits(bins, right)
    assert missed(size, wrong, right) < RARE
    assert not fits(bins, wrong)


def binned_law(law: Probabilities, step: int, reach: int) -> Probabilities:
    support = np.arange(-(len(law) // 2), len(law) // 2 + 1)
    bins = np.clip(np.floor_divide(support + step // 2, step), -reach, reach) + reach
    gathered_law: Probabilities = np.bincount(bins, weights=law).astype(np.float64)
    return gathered_law


def test_opendps_discrete_laplace_is_the_law_that_the_sum_of_polya_shares_has() -> None:
    assert fits(around_zero(opendp_laplace(LAPLACE_SCALE, LAPLACE_SUMS), REACH), LAPLACE)
    for factor in WRONG_SCALES:
        assert missed(LAPLACE_SUMS, LAPLACE, gathered(discrete_laplace(factor * LAPLACE_SCALE), REACH)) < RARE
        assert not fits(around_zero(opendp_laplace(factor * LAPLACE_SCALE, LAPLACE_SUMS), REACH), LAPLACE)


# ---- the work of an answer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", Mechanism)
def test_the_work_is_known_before_it_is_done(mechanism: Mechanism) -> None:
    plan = cells_plan(10, 20.0, noise_shares=SHARES, mechanism=mechanism)
    laplace = len(polya.table(20.0, Fraction(1, SHARES)).high)
    gaussian = len(gaussian_tables.table(noise.gaussian_scale(plan, plan.marginals[0], Fraction(1, SHARES))).high)
    made = laplace if mechanism is Mechanism.DISCRETE_LAPLACE else gaussian
    assert made <= table_entries(plan) <= 1.2 * made


# ---- the largest scales ----------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", Mechanism)
def test_the_largest_scale_still_has_its_full_variance(mechanism: Mechanism) -> None:
    size, scale = 2000, LARGEST_NOISE_SCALE[mechanism]
    plan = cells_plan(size, scale, noise_shares=1, mechanism=mechanism)
    sample = noisy_sum(plan, 1, SAMPLER)
    ranks = norm.cdf(sample / scale) if mechanism is Mechanism.DISCRETE_GAUSSIAN else laplace_ranks(sample / scale)
    counts = np.bincount((ranks * 20).astype(np.int64), minlength=20)
    assert fits(counts, np.full(20, 1 / 20))
    assert np.abs(sample).max() < 2**40


def laplace_ranks(values: Floats) -> Floats:
    return np.where(values < 0, np.exp(-np.abs(values)) / 2, 1 - np.exp(-np.abs(values)) / 2)


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("beyond", [1.0000001, 1e10, 1e60, 1e290])
def test_a_larger_scale_makes_no_plan(mechanism: Mechanism, beyond: float) -> None:
    with pytest.raises(ValueError, match="the noise scale of marginal 'all' must be at most"):
        cells_plan(1, LARGEST_NOISE_SCALE[mechanism] * beyond, mechanism=mechanism)


# ---- the ring ------------------------------------------------------------------------------------------------------

COUNTS = st.integers(-(2**52), 2**52)  # what float64 still holds exactly


@pytest.mark.parametrize("mechanism", Mechanism)
@settings(deadline=None)
@given(st.lists(st.tuples(COUNTS, COUNTS), min_size=9, max_size=9))
def test_counts_come_back_from_the_ring(mechanism: Mechanism, pairs: list[tuple[int, int]]) -> None:
    plan = small_plan(mechanism=mechanism)
    one, two = (tables_of(counts) for counts in zip(*pairs, strict=True))
    for tables in (one, two):
        back = from_ring(plan, to_ring(plan, tables))
        assert [table.shape for table in back] == [(2, 3), (3,)]
        assert all(np.array_equal(left, right) for left, right in zip(back, tables, strict=True))
    total = from_ring(plan, add_words([to_ring(plan, one), to_ring(plan, two)]))
    for table, left, right in zip(total, one, two, strict=True):
        assert np.array_equal(table, left + right)


def tables_of(counts: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array(counts[:6], np.int64).reshape(2, 3), np.array(counts[6:], np.int64)


def test_the_layout_of_the_ring() -> None:
    words = to_ring(small_plan(), tables_of((0, 1, -1, 2, 3, 4, 5, 6, -7)))
    assert words.dtype == np.uint64
    assert words.tolist() == [0, 256, 2**64 - 256, 512, 768, 1024, 1280, 1536, 2**64 - 7 * 256]
    unscaled = to_ring(small_plan(mechanism=Mechanism.DISCRETE_LAPLACE), tables_of((0, 1, -1, 2, 3, 4, 5, 6, -7)))
    assert unscaled.tolist() == [0, 1, 2**64 - 1, 2, 3, 4, 5, 6, 2**64 - 7]


def test_sums_near_the_wrap() -> None:
    plan = small_plan()
    words = np.array([2**63 - 2**12, 2**63, 2**63 + 2**12, 2**64 - 1, 1, 0, 0, 0, 0], np.uint64)
    table, _ = from_ring(plan, words)
    assert table.reshape(-1).tolist() == [2**55 - 16, -(2**55), -(2**55) + 16, -1 / 256, 1 / 256, 0]
    once_around = add_words([words, words, np.uint64(2) * ~words])
    assert once_around.tolist() == [2**64 - 2] * 9


def test_noise_takes_the_scale_of_its_marginal() -> None:
    """Ten cells at scale 1000 behind 1000 cells at scale 1: mixed up, they would be seen at once.

    All ten are below 60 with a chance of 0.06^10, which is less than 1e-12.
    """
    dimensions = PlanDimension("few", tuple("0123456789"), ()), PlanDimension("many", tuple(map(str, range(1000))), ())
    marginals = Marginal("many", ("many",), (), 1.0), Marginal("few", ("few",), (), 1000.0)
    for mechanism in Mechanism:
        plan = small_plan(dimensions=dimensions, marginals=marginals, mechanism=mechanism, noise_shares=1)
        words = noise_share(plan, SAMPLER)
        assert words.dtype == np.uint64
        many, few = from_ring(plan, words)
        assert np.abs(many).max() < 60 < np.abs(few).max()


# ---- stated variances ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contributors", [10, 12, 35])
def test_variances_grow_with_the_contributions_beyond_the_shares(contributors: int) -> None:
    stated = noise_variances(small_plan(), contributors)
    assert stated == pytest.approx([9.0 * contributors / 10, 25.0 * contributors / 10])


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0, 30.0])
def test_the_laplace_variance_is_that_of_the_discrete_law(scale: float) -> None:
    plan = cells_plan(1, scale, mechanism=Mechanism.DISCRETE_LAPLACE)
    law = discrete_laplace_on(np.arange(-4000, 4001), scale)
    exact = float((law * np.arange(-4000, 4001) ** 2).sum())
    assert noise_variances(plan, 10) == pytest.approx([exact])
    assert noise_variances(plan, 10) != pytest.approx([2 * scale**2], rel=1e-5)  # the continuous law's


# ---- why counts are scaled before noise is added --------------------------------------------------------------------

CENTRAL_SCALE, CELLS = 30.0, 10**6
IDEAL = 1 / (2 * CENTRAL_SCALE**2)


@pytest.mark.parametrize(
    ("shares", "rho"), [(100, pytest.approx(IDEAL, rel=1e-6)), (1000, pytest.approx(1.5, rel=0.1)), (10_000, None)]
)
def test_without_scaling_many_tiny_shares_give_no_privacy(shares: int, rho: float | None) -> None:
    unscaled = distributed_gaussian_rho(1.0, CENTRAL_SCALE / np.sqrt(shares), shares, CELLS)
    if rho is None:
        assert unscaled > 1e9
    else:
        assert unscaled == rho


@pytest.mark.parametrize("shares", [1, 2, 10, 100, 1000, 10_000])
def test_with_scaling_any_number_of_shares_is_as_good_as_one_noise(shares: int) -> None:
    scaled = distributed_gaussian_rho(256.0, 256 * CENTRAL_SCALE / np.sqrt(shares), shares, CELLS)
    assert scaled == pytest.approx(IDEAL, rel=1e-9)
    plan = cells_plan(1000, CENTRAL_SCALE, noise_shares=shares, cohort_minimum=shares)
    assert plan_loss(plan).rho == pytest.approx(IDEAL, rel=1e-9)


@pytest.mark.parametrize(
    "mistake",
    [lambda sample: sample / 256, lambda sample: np.full_like(sample, sample[0]), np.abs],
    ids=["the scaling is undone twice", "one draw serves all cells", "noise is never negative"],
)
def test_these_tests_would_see_plain_mistakes(mistake: Callable[[Floats], Floats]) -> None:
    sample = mistake(np.sum(gaussian_shares(), axis=0))
    ranks = norm.cdf(sample / GAUSSIAN_SCALE)
    counts = np.bincount(np.minimum((ranks * 50).astype(np.int64), 49), minlength=50)
    assert not fits(counts, np.full(50, 1 / 50))
