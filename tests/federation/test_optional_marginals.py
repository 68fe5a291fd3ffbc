"""Marginals of other subjects than failures cost what their own sensitivity says, not that of failures."""

import math

import pytest

from federation.protocol.causes import Domain
from federation.protocol.plan import Marginal, Mechanism, PlanDimension
from federation.protocol.privacy_cost import noise_scales, plan_loss, zcdp_rho
from federation.protocol.subjects import OPTIONAL, TOKEN_DIMENSIONS, Subject, norms
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


@pytest.mark.parametrize("subject", OPTIONAL)
def test_every_optional_subject_is_priced_by_the_cells_it_moves(subject: Subject) -> None:
    own = OPTIONAL[subject]
    levels = {"part": PARTS, "context": PlanDimension("context", ("a" * 32, "b" * 32), (5, 5))}
    public = {name: PlanDimension(name, words, ()) for name, words in own.levels.items()}
    known = {one.name for one in small_plan().dimensions}
    added = tuple(one for name, one in (levels | public).items() if name in own.dimensions and name not in known)
    plan = replace(small_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN), dimensions=(*small_plan().dimensions, *added))
    optional, failures = (
        plan_loss(replace(plan, marginals=(Marginal("m", own.dimensions, (), 100.0, counts),))).rho
        for counts in (subject, Subject.FAILURES)
    )
    assert optional == pytest.approx(own.cells * failures, rel=1e-6)
    assert set(own.dimensions) - set(own.levels) <= TOKEN_DIMENSIONS
