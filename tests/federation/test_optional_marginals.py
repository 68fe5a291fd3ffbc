"""Marginals of other subjects than failures cost what their own sensitivity says, not that of failures."""

import math

import pytest

from federation.protocol.causes import Domain
from federation.protocol.plan import Marginal, Mechanism, PlanDimension, Subject, norms
from federation.protocol.privacy_cost import noise_scales, plan_loss, zcdp_rho
from tests.support.changing import replace
from tests.support.plans import small_plan

PARTS = PlanDimension("part", ("a" * 32, "b" * 32), (5, 5))


def test_a_vote_moves_two_cells_by_one() -> None:
    assert norms(Subject.VOTES, failures_per_unit=3) == (2.0, math.sqrt(2))
    assert norms(Subject.FAILURES, failures_per_unit=3) == (3.0, 3.0)


def test_votes_cost_twice_the_rho_of_failures_under_one_scale() -> None:
    plan = replace(small_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN), dimensions=(*small_plan().dimensions, PARTS))
    scale = 100.0
    votes, failures = (
        plan_loss(replace(plan, marginals=(Marginal("m", ("part",), (), scale, counts),))).rho
        for counts in (Subject.VOTES, Subject.FAILURES)
    )
    assert votes == pytest.approx(2 * failures, rel=1e-6)


def test_votes_under_the_scale_of_failures_are_more_than_the_plan_says() -> None:
    (scale,) = noise_scales(Mechanism.DISCRETE_GAUSSIAN, 1.0, 1e-8, 1, (1.0,))
    plan = replace(small_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN), dimensions=(*small_plan().dimensions, PARTS))
    enough, short = (
        plan_loss(replace(plan, marginals=(Marginal("m", ("part",), (), own, Subject.VOTES),))).rho
        for own in (scale * math.sqrt(2), scale)
    )
    assert enough <= zcdp_rho(1.0, 1e-8) < short


def test_votes_have_no_domains() -> None:
    with pytest.raises(ValueError, match="no failure domains"):
        Marginal("m", ("part",), (Domain.SCRIPT,), 1.0, Subject.VOTES)
