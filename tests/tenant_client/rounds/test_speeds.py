"""A lease in a window, whatever its step times, changes the table of slow ones by no more than its price is made of."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from federation.protocol.plan import Marginal, Plan, PlanDimension
from federation.protocol.subjects import Subject, norms
from tenant_client.doctor.records.paces import Slice
from tenant_client.rounds.counts import build_tables
from tenant_client.rounds.speeds import PacedUnit, speeds, units_of
from tests.support.changing import replace
from tests.support.plans import small_plan

CONTEXTS = ("a" * 32, "b" * 32, "c" * 32)
WEEK_S = 168 * 3600


def speed_plan() -> Plan:
    plan = small_plan()
    dimensions = (PlanDimension("context", CONTEXTS, (5, 5, 5)), PlanDimension("pace", ("slow", "usual"), ()))
    marginals = (Marginal("speed", ("context", "pace"), (), 9.0, Subject.SPEED),)
    return replace(plan, dimensions=(*plan.dimensions, *dimensions), marginals=marginals)


def unit(number: int, context: str, step_s: float, workload: str = "w", window: int = 0) -> PacedUnit:
    return PacedUnit(f"lease {number}", window, float(number), context, workload, step_s)


def counted(units: list[PacedUnit]) -> np.ndarray:
    return build_tables(speed_plan(), (), bytes(32), speeds(units))[0]


some_units = st.lists(
    st.tuples(st.sampled_from(CONTEXTS), st.sampled_from([1.0, 1.05, 1.2, 1.3]), st.sampled_from("vw")),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(some_units, st.data())
def test_one_unit_more_or_less_moves_the_table_by_no_more_than_its_norms(
    drawn: list[tuple[str, float, str]], data: st.DataObject
) -> None:
    units = [unit(number, *one) for number, one in enumerate(drawn)]
    gone = data.draw(st.integers(0, len(units) - 1))
    moved = counted(units) - counted([one for number, one in enumerate(units) if number != gone])
    l1, l2 = norms(Subject.SPEED, 1)
    assert np.abs(moved).sum() <= l1 == 3
    assert math.sqrt((moved**2).sum()) <= l2 + 1e-12


def test_the_bound_is_reached_by_a_unit_that_turns_the_word_about_the_next() -> None:
    units = [unit(0, CONTEXTS[0], 1.0), unit(1, CONTEXTS[1], 1.3), unit(2, CONTEXTS[2], 1.3)]
    moved = counted(units) - counted([units[0], units[2]])
    assert np.abs(moved).sum() == 3


def test_a_unit_says_nothing_of_one_in_another_window() -> None:
    before, after = unit(0, CONTEXTS[0], 1.0), unit(1, CONTEXTS[1], 1.3, window=1)
    assert not counted([before, after]).any()
    assert (
        counted([before, after, unit(2, CONTEXTS[2], 1.6, window=1)])
        == counted([after, unit(2, CONTEXTS[2], 1.6, window=1)])
    ).all()


def test_slow_is_ten_percent_more_than_on_the_context_before() -> None:
    assert counted([unit(0, CONTEXTS[0], 1.0), unit(1, CONTEXTS[1], 1.1)]).tolist() == [[0, 0], [1, 0], [0, 0]]
    assert counted([unit(0, CONTEXTS[0], 1.0), unit(1, CONTEXTS[1], 1.09)]).tolist() == [[0, 0], [0, 1], [0, 0]]
    assert not counted([unit(0, CONTEXTS[0], 1.0), unit(1, CONTEXTS[0], 2.0)]).any()  # not elsewhere
    assert not counted([unit(0, CONTEXTS[0], 1.0, "v"), unit(1, CONTEXTS[1], 2.0, "w")]).any()  # another workload


def test_units_come_from_slices_of_leases_that_are_known_in_windows_up_to_the_plans() -> None:
    slices = [Slice(600 * at, timed=10, stepping_s=10.0 * step) for at, step in enumerate((1.0, 2.0, 9.0))]
    later = [Slice(WEEK_S, timed=10, stepping_s=50.0), Slice(WEEK_S + 600, timed=0)]
    outside = [Slice(at_s, timed=10, stepping_s=10.0) for at_s in (-600, 3 * WEEK_S)]
    paces = {("u", 1): [*slices, *later, *outside], ("unknown", 1): slices}
    plan = small_plan(start_hour=336, end_hour=504, windows=(0, 168, 336, 504, 672))
    found = units_of(paces, {"u": "c"}, {"u": "exact"}, plan)
    assert found == [PacedUnit("u", 0, 0.0, "c", "exact", 2.0), PacedUnit("u", 1, 168.0, "c", "exact", 5.0)]
    longer = small_plan(end_hour=504, windows=(0, 504, 672))
    assert units_of(paces, {"u": "c"}, {"u": "exact"}, longer) == [PacedUnit("u", 0, 0.0, "c", "exact", 3.5)]


def test_a_plan_cannot_count_speeds_or_votes_by_other_dimensions() -> None:
    with pytest.raises(ValueError, match="counts speed by context, pace"):
        Marginal("speed", ("pace", "context"), (), 9.0, Subject.SPEED)
    with pytest.raises(ValueError, match="counts votes by part"):
        Marginal("votes", ("context",), (), 9.0, Subject.VOTES)
