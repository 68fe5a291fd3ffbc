"""What the accountant charges is what OpenDP charges, never less than the truth, and never more than little above it.

Oracles: OpenDP's conversion, maps, odometer and filter; the privacy loss distributions of dp-accounting; exact Rényi
divergences of convolutions; and an audit, in which an attacker with the best threshold tries to tell two tables apart.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings, strategies as st
from opendp.mod import OpenDPException
from scipy.stats import nbinom, norm

from crypto.masking import add_words
from federation.protocol.life_table import Floats
from federation.protocol.noise import NoiseSampler, SystemSampler, from_ring, noise_share, to_ring
from federation.protocol.plan import Marginal, Mechanism, Plan
from federation.protocol.privacy_cost import (
    NO_LOSS,
    PrivacyLoss,
    distributed_gaussian_rho,
    noise_scales,
    plan_loss,
    zcdp_epsilon,
    zcdp_rho,
)
from tests.support.chances import proven_epsilon, sure_epsilon
from tests.support.changing import replace
from tests.support.plans import InsecureScale, cells_plan, small_plan

DELTA = 1e-8
GAUSSIAN, LAPLACE = Mechanism

# From sigma and number of releases: epsilon at delta 1e-8, measured with OpenDP 0.16.
REFERENCE = [(10.0, 1, 0.5236), (30.0, 52, 1.3135), (60.0, 365, 1.7682), (3.0, 10, 6.4528)]


@cache
def l2() -> tuple[Any, Any]:
    dp.enable_features("contrib")
    return dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")


def opendp_gaussian(scale: float) -> Any:
    return l2() >> dp.m.then_gaussian(scale=scale)


def opendp_laplace(scale: float) -> Any:
    dp.enable_features("contrib")
    return (dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")) >> dp.m.then_laplace(scale=scale)


def opendp_epsilon(rho: float, delta: float) -> float:
    conversion: Any = dp.c.make_zCDP_to_approxDP(opendp_gaussian(1.0))
    return float(conversion.map(d_in=math.sqrt(2 * rho)).epsilon(delta=delta))


# ---- from rho to epsilon and back ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(-25, 5).map(math.exp), st.floats(-35, -0.1).map(math.exp))
def test_epsilon_is_that_of_opendp(rho: float, delta: float) -> None:
    assert zcdp_epsilon(rho, delta) == pytest.approx(opendp_epsilon(rho, delta), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("sigma", "releases", "epsilon"), REFERENCE)
def test_epsilon_of_known_cases(sigma: float, releases: int, epsilon: float) -> None:
    assert zcdp_epsilon(releases / (2 * sigma**2), DELTA) == pytest.approx(epsilon, abs=5e-5)


@pytest.mark.parametrize(("sigma", "releases"), [case[:2] for case in REFERENCE])
def test_epsilon_is_never_below_the_privacy_loss_distribution_and_little_above(sigma: float, releases: int) -> None:
    single = privacy_loss_distribution.from_discrete_gaussian_mechanism(sigma)
    tight = single.self_compose(releases).get_epsilon_for_delta(DELTA)
    assert tight <= zcdp_epsilon(releases / (2 * sigma**2), DELTA) <= 1.07 * tight
    assert zcdp_epsilon(0.8 * releases / (2 * sigma**2), DELTA) < tight  # 11% less noise would be noticed


def test_epsilon_at_the_ends() -> None:
    assert zcdp_epsilon(0.0, DELTA) == zcdp_epsilon(0.0, 0.0) == 0.0
    assert zcdp_epsilon(0.1, 0.0) == zcdp_epsilon(math.inf, DELTA) == zcdp_epsilon(math.nan, DELTA) == math.inf


@settings(deadline=None)
@given(st.floats(-11, 5).map(math.exp), st.floats(-35, -0.1).map(math.exp))
def test_rho_is_the_largest_that_epsilon_allows(epsilon: float, delta: float) -> None:
    rho = zcdp_rho(epsilon, delta)
    assert zcdp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-7)
    assert zcdp_epsilon(1.0001 * rho, delta) > epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (1.0, 1.0), (0.0, DELTA), (-1.0, DELTA), (math.nan, DELTA)])
def test_no_rho_buys_pure_privacy(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="only Laplace noise allows delta 0"):
        zcdp_rho(epsilon, delta)


# ---- what a plan costs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "failures"), list(product([0.5, 1.0, 7.5, 200.0], [1, 3])))
def test_a_marginal_costs_what_opendp_says(scale: float, failures: int) -> None:
    gaussian = cells_plan(100, scale, failures_per_unit=failures)
    assert plan_loss(gaussian).rho == pytest.approx(opendp_gaussian(scale).map(float(failures)), rel=1e-9)
    assert plan_loss(gaussian).epsilon == 0
    laplace = cells_plan(100, scale, failures_per_unit=failures, mechanism=LAPLACE)
    assert plan_loss(laplace).epsilon == pytest.approx(opendp_laplace(scale).map(failures))
    assert plan_loss(laplace).rho == 0


def test_the_marginals_of_a_plan_compose() -> None:
    gaussians: Any = dp.c.make_composition([opendp_gaussian(3.0), opendp_gaussian(5.0)])
    assert plan_loss(small_plan()).rho == pytest.approx(gaussians.map(1.0))
    laplaces: Any = dp.c.make_composition([opendp_laplace(3.0), opendp_laplace(5.0)])
    assert plan_loss(small_plan(mechanism=LAPLACE)).epsilon == pytest.approx(laplaces.map(1))


@given(st.lists(st.floats(0.5, 100.0), min_size=1, max_size=8))
@settings(deadline=None, max_examples=25)
def test_charges_add_up_as_in_opendps_odometer(scales: list[float]) -> None:
    odometer = dp.c.make_fully_adaptive_composition(*l2(), output_measure=dp.zero_concentrated_divergence())
    queryable = odometer(np.zeros(3, np.int64))
    total = NO_LOSS
    for scale in scales:
        queryable(opendp_gaussian(scale))
        total += plan_loss(cells_plan(3, scale))
    assert total.rho == pytest.approx(queryable.privacy_loss(1.0), rel=1e-9)


@given(st.lists(st.floats(1.0, 20.0), min_size=1, max_size=8), st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=50)
def test_a_limit_ends_where_opendps_filter_ends(scales: list[float], limit: float) -> None:
    odometer = dp.c.make_fully_adaptive_composition(*l2(), output_measure=dp.zero_concentrated_divergence())
    queryable = dp.c.make_privacy_filter(odometer, d_in=1.0, d_out=limit)(np.zeros(3, np.int64))
    spent = NO_LOSS
    for scale in scales:
        spent += plan_loss(cells_plan(3, scale))
        if spent.rho > limit:
            with pytest.raises(OpenDPException, match="exhausted"):
                queryable(opendp_gaussian(scale))
            return
        queryable(opendp_gaussian(scale))


def test_losses_of_both_kinds_add_up_by_basic_composition() -> None:
    loss = PrivacyLoss(0.25, 0.005) + PrivacyLoss(0.5, 0.0) + NO_LOSS
    assert loss == PrivacyLoss(0.75, 0.005)
    assert loss.at(DELTA) == pytest.approx(0.75 + 0.5236, abs=5e-5)
    assert PrivacyLoss(0.75, 0.0).at(0.0) == 0.75
    assert loss.at(0.0) == math.inf


@pytest.mark.parametrize(("mechanism", "weeks"), list(product(Mechanism, [1, 2, 5])))
def test_a_group_of_weeks_costs_as_much_as_a_unit_with_as_many_failures(mechanism: Mechanism, weeks: int) -> None:
    grouped = plan_loss(small_plan(mechanism=mechanism)).of_group(weeks)
    direct = plan_loss(small_plan(mechanism=mechanism, failures_per_unit=weeks))
    assert (grouped.epsilon, grouped.rho) == pytest.approx((direct.epsilon, direct.rho), rel=1e-9)
    if mechanism is LAPLACE:
        assert PrivacyLoss(1 / 3, 0.0).of_group(weeks).epsilon == pytest.approx(opendp_laplace(3.0).map(weeks))
    else:
        assert PrivacyLoss(0.0, 1 / 18).of_group(weeks).rho == pytest.approx(opendp_gaussian(3.0).map(float(weeks)))


# ---- how much noise a budget buys ------------------------------------------------------------------------------------


def plan_of(mechanism: Mechanism, scales: Sequence[float], failures: int) -> Plan:
    marginals = tuple(Marginal(f"m{number}", ("band",), (), scale) for number, scale in enumerate(scales))
    return small_plan(mechanism=mechanism, marginals=marginals, failures_per_unit=failures)


@pytest.mark.parametrize("mechanism", Mechanism)
@settings(deadline=None)
@given(
    epsilon=st.floats(0.05, 8.0),
    delta=st.floats(-28, -7).map(math.exp),
    failures=st.integers(1, 4),
    weights=st.lists(st.floats(0.2, 1.0), min_size=1, max_size=4).map(tuple),
)
def test_noise_scales_spend_the_budget_and_no_more(
    mechanism: Mechanism, epsilon: float, delta: float, failures: int, weights: tuple[float, ...]
) -> None:
    scales = noise_scales(mechanism, epsilon, delta, failures, weights)
    spent = plan_loss(plan_of(mechanism, scales, failures)).at(delta)
    assert (1 - 1e-3) * epsilon <= spent <= epsilon
    assert (1 - 1e-5) * epsilon <= spent
    smaller = [0.9999 * scale for scale in scales]
    assert plan_loss(plan_of(mechanism, smaller, failures)).at(delta) > epsilon


@pytest.mark.parametrize("mechanism", Mechanism)
def test_noise_scales_share_out_by_weight(mechanism: Mechanism) -> None:
    heavy, light = noise_scales(mechanism, 1.0, DELTA, 1, (3.0, 1.0))
    costs = [plan_loss(plan_of(mechanism, [scale], 1)) for scale in (heavy, light)]
    assert costs[0].rho + costs[0].epsilon == pytest.approx(3 * (costs[1].rho + costs[1].epsilon))
    assert noise_scales(mechanism, 1.0, DELTA, 1, (30.0, 10.0)) == pytest.approx((heavy, light))


def test_gaussian_noise_needs_a_delta() -> None:
    assert noise_scales(LAPLACE, 1.0, 0.0, 1, (1.0,)) == pytest.approx((1.0,), rel=2e-6)
    with pytest.raises(ValueError, match="only Laplace noise allows delta 0"):
        noise_scales(GAUSSIAN, 1.0, 0.0, 1, (1.0,))


# ---- leases of several windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [1, 2, 13])
def test_a_lease_of_several_windows_pays_as_a_group(windows: int) -> None:
    """OpenDP's maps at a distance of so many units, each of which moves the same cell by one."""
    pure, concentrated = opendp_laplace(2.0).map(windows), opendp_gaussian(30.0).map(float(windows))
    group = PrivacyLoss(opendp_laplace(2.0).map(1), opendp_gaussian(30.0).map(1.0)).of_group(windows)
    assert group.epsilon == pytest.approx(pure)
    assert group.rho == pytest.approx(concentrated)


# ---- sums of many small shares ---------------------------------------------------------------------------------------


def exact_rho(share_scale: float, shares: int) -> float:
    """The smallest rho of a sum of discrete Gaussians at sensitivity 1: sup over orders of D_a(P || P + 1) / a."""
    support = np.arange(-40, 41)
    mass = np.exp(-(support**2) / (2 * share_scale**2))
    law = mass / mass.sum()
    total = law
    for _ in range(shares - 1):
        total = np.convolve(total, law)
    middle, reach = len(total) // 2, int(12 * share_scale * math.sqrt(shares))
    log_law = np.log(total[middle - reach - 1 : middle + reach + 2])
    one, other = log_law[1:], log_law[:-1]
    orders = np.exp(np.linspace(math.log(1.01), math.log(6), 60))
    return max(float(np.log(np.exp(a * one + (1 - a) * other).sum()) / (a - 1) / a) for a in orders)


@pytest.mark.parametrize(("share_scale", "shares"), [(0.75, 2), (0.75, 4), (1.0, 3), (1.5, 3), (2.0, 2)])
def test_the_bound_holds_for_the_exact_sum(share_scale: float, shares: int) -> None:
    ideal = 1 / (2 * shares * share_scale**2)
    bound = distributed_gaussian_rho(1.0, share_scale, shares, cells=1)
    assert (1 - 1e-9) * ideal <= exact_rho(share_scale, shares) <= (1 + 1e-9) * bound
    assert (share_scale < 1.0) == (bound > 1.01 * ideal)


def test_the_bound_ends_where_its_theorem_ends() -> None:
    assert math.isfinite(distributed_gaussian_rho(1.0, math.sqrt(0.5) + 1e-9, 3, 10))
    assert distributed_gaussian_rho(1.0, math.sqrt(0.5) - 1e-9, 3, 10) == math.inf
    tiny = cells_plan(10, 0.008, noise_shares=10)
    assert plan_loss(tiny).at(DELTA) == math.inf


def test_one_share_is_the_mechanism_itself() -> None:
    for scale in (1.0, 30.0):
        assert distributed_gaussian_rho(1.0, scale, 1, 10**6) == pytest.approx(opendp_gaussian(scale).map(1.0))


@pytest.mark.parametrize("shares", [10_001, 30_000, 10**6])
def test_very_many_shares_are_bounded_from_above(shares: int) -> None:
    share_scale, cells = 1.3, 1000
    k = np.arange(1, shares)
    tau = 10 * np.exp(-2 * math.pi**2 * share_scale**2 * k / (k + 1)).sum()
    ideal = 1 / (math.sqrt(shares) * share_scale)
    exact = min(ideal**2 + 2 * tau * cells, (ideal + tau * math.sqrt(cells)) ** 2) / 2
    assert exact <= distributed_gaussian_rho(1.0, share_scale, shares, cells) * (1 + 1e-12)
    assert distributed_gaussian_rho(1.0, share_scale, shares, cells) <= exact * 1.01


def test_a_plan_that_claims_a_quintillion_shares_is_priced_at_once() -> None:
    crowd = {"noise_shares": 10**18, "cohort_minimum": 10**18}
    assert plan_loss(small_plan(**crowd)).at(DELTA) == math.inf
    marginals = tuple(replace(marginal, noise_scale=2.0**32) for marginal in small_plan().marginals)
    priced = plan_loss(small_plan(marginals=marginals, **crowd)).at(DELTA)
    assert priced < 1e-6


# ---- an audit --------------------------------------------------------------------------------------------------------

# An attacker says "without" where the output is at most a threshold, which theory gives. A claim that holds is beaten,
# and wrong noise is acquitted, with the chances of `tests/support/chances.py`; what the runs
# are sure to prove is computed.
RUNS = {LAPLACE: 40_000, GAUSSIAN: 200_000}
LAPLACE_THRESHOLD, GAUSSIAN_THRESHOLD = 0.0, -0.5


def outputs(plan: Plan, contributions: int, sampler: NoiseSampler) -> tuple[Floats, Floats]:
    """What is released of two neighbouring tables, without and with one failure, once per cell.

    Both get the same noise. That is fair: each bound below holds for its own table, whatever the other's noise is.
    """
    shares = [noise_share(plan, sampler) for _ in range(contributions)]
    cells = len(shares[0])
    without, with_one = (
        from_ring(plan, add_words([*shares, to_ring(plan, [np.full(cells, count, np.int64)])]))[0] for count in (0, 1)
    )
    return without, with_one


def laplace_audit(contributions: int, sampler: NoiseSampler) -> float:
    (scale,) = noise_scales(LAPLACE, 1.0, 0.0, 1, (1.0,))
    plan = cells_plan(RUNS[LAPLACE], scale, mechanism=LAPLACE, noise_shares=4, cohort_minimum=4)
    assert plan_loss(plan).at(0.0) <= 1.0
    without, with_one = outputs(plan, contributions, sampler)
    return proven_epsilon(without <= LAPLACE_THRESHOLD, with_one <= LAPLACE_THRESHOLD, 0.0)


def sure_of_laplace(scale: float = 1.0, shares: int = 4) -> float:
    """What the audit is sure to prove of the sum of so many of four shares at a scale."""
    one = nbinom(shares / 4, -math.expm1(-1 / scale)).pmf(np.arange(401))
    law = np.convolve(one, one[::-1])  # of -400 … 400
    return sure_epsilon(RUNS[LAPLACE], law[:401].sum(), law[:400].sum(), 0.0)


def test_an_audit_of_laplace_noise_proves_nearly_the_claimed_epsilon_and_no_more() -> None:
    assert sure_of_laplace() > 0.84
    assert 0.84 < laplace_audit(4, SystemSampler()) <= 1.0


def test_an_audit_convicts_laplace_noise_that_is_30_percent_too_small() -> None:
    assert sure_of_laplace(0.7) > 1.2
    assert laplace_audit(4, InsecureScale(0.7)) > 1.2


def test_an_audit_convicts_a_sum_of_which_one_laplace_share_of_four_is_missing() -> None:
    assert sure_of_laplace(shares=3) > 1.0
    assert laplace_audit(3, SystemSampler()) > 1.0


AUDIT_DELTA = 0.1  # where an attacker needs few runs to show that Gaussian noise is too small


def gaussian_audit(sampler: NoiseSampler) -> tuple[float, float]:
    """What the plan claims and what the audit proves."""
    plan = cells_plan(RUNS[GAUSSIAN], 1.0, noise_shares=1, cohort_minimum=1)
    without, with_one = outputs(plan, 1, sampler)
    proven = proven_epsilon(without <= GAUSSIAN_THRESHOLD, with_one <= GAUSSIAN_THRESHOLD, AUDIT_DELTA)
    return plan_loss(plan).at(AUDIT_DELTA), proven


def sure_of_gaussian(scale: float = 1.0) -> float:
    """In the ring a count is 256 steps, and a discrete law at t is the continuous one at t and half a step."""
    right, wrong = (float(norm.cdf((GAUSSIAN_THRESHOLD + 1 / 512 - count) / scale)) for count in (0, 1))
    return sure_epsilon(RUNS[GAUSSIAN], right, wrong, AUDIT_DELTA)


def test_an_audit_of_gaussian_noise_proves_no_more_than_the_claimed_epsilon() -> None:
    claimed, proven = gaussian_audit(SystemSampler())
    assert 0.5 * claimed < sure_of_gaussian()
    assert 0.5 * claimed < proven <= claimed


def test_an_audit_convicts_gaussian_noise_that_is_30_percent_too_small() -> None:
    claimed, proven = gaussian_audit(InsecureScale(0.7))
    assert claimed < sure_of_gaussian(0.7)
    assert claimed < proven
