"""A refusal as it travels: what a tenant says comes back, and nothing else is taken over."""

import pytest
from hypothesis import given, strategies as st

from crypto.errors import BudgetExceeded, PlanRefused
from federation.protocol.refusals import Refused, Rule
from tests.support.plans import small_plan

SECRET = "shape 4096x11008 of tenant seven"


@given(rule=st.none() | st.sampled_from(Rule), limit=st.none() | st.floats(0, 1e12))
def test_what_is_said_is_read(rule: Rule | None, limit: float | None) -> None:
    said = Refused("PlanRefused", rule, float(f"{limit:.9g}") if rule and limit is not None else None)
    assert Refused.read(str(said)) == said


@given(st.text(max_size=80))
def test_any_text_is_a_refusal_of_known_words_or_none(text: str) -> None:
    read = Refused.read(text)
    assert read is None or (read.name.isidentifier() and len(str(read)) <= 64 + 32 + 32)


@pytest.mark.parametrize(
    "text", ["", SECRET, "A" * 65, "PlanRefused forged 5", "PlanRefused delta nan", "a\nb", "a  b"]
)
def test_other_texts_are_none(text: str) -> None:
    assert Refused.read(text) is None


def test_of_an_error_the_class_and_the_rule_are_told_and_not_its_text() -> None:
    assert str(Refused.of(BudgetExceeded(SECRET, hint=SECRET))) == "BudgetExceeded"
    assert str(Refused.of(PlanRefused(SECRET, hint=SECRET))) == "PlanRefused"
    ruled = PlanRefused(SECRET, hint=SECRET, rule=Rule.OWNERS, limit=5)
    assert str(Refused.of(ruled)) == "PlanRefused owners_minimum 5"


def test_every_rule_has_words_for_a_person() -> None:
    plan = small_plan(owners_minimum=3)
    assert Refused("PlanRefused", Rule.OWNERS, 5).about(plan) == "owners_minimum 3 is below their policy's 5"
    assert Refused("PlanRefused", Rule.EPSILON, 0.5).about(plan) == "epsilon_per_window 1 is above their policy's 0.5"
    for rule in Rule:
        assert Refused("PlanRefused", rule).about(plan)
    assert "budget" in Refused("BudgetExceeded").about(plan)
