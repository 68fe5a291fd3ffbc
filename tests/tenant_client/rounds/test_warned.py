"""What came of warnings: what each history shows, and that one unit more or less moves the table by one."""

import numpy as np
from hypothesis import given, settings, strategies as st

from crypto.ids import LeaseId
from federation.protocol.plan import Marginal, Plan, PlanDimension
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from federation.protocol.subjects import CHECK, FAILED, FINE, HINT, NO_WARNING, OPTIONAL, Subject, norms
from tenant_client.doctor.advice.hints import STANDS_H
from tenant_client.rounds.counts import build_tables
from tenant_client.rounds.warned import LEAD_H, ReceivedHint, WarnedLease, warnings
from tests.support.changing import replace
from tests.support.plans import small_plan

WEEK_H = 168.0
LEASE = LeaseId(bytes(16))
Cells = list[tuple[str, str]]


def warnings_plan() -> Plan:
    levels = OPTIONAL[Subject.WARNINGS].levels
    dimensions = tuple(PlanDimension(name, own, ()) for name, own in levels.items())
    marginals = (Marginal("warnings", ("warning", "outcome"), (), 9.0, Subject.WARNINGS),)
    plan = small_plan(start_hour=336, end_hour=504, windows=tuple(range(0, 673, 168)))
    return replace(plan, dimensions=(*plan.dimensions, *dimensions), marginals=marginals)


PLAN = warnings_plan()


def hint(at_h: float, state: HintState = HintState.RAISED, *, received_h: float | None = None) -> ReceivedHint:
    ratios = 4.0, 2.0, 8.0
    said = Hint(1, at_h, LEASE, state, Suspicion.MEMORY, *ratios, 0.3, 24.0, Action.CHECKPOINT, 1)
    return ReceivedHint(said, at_h if received_h is None else received_h)


def lease(
    *hints: ReceivedHint, failed_h: tuple[float, ...] = (), start_h: float = 0.0, checked: bool = False
) -> WarnedLease:
    return WarnedLease("lease", start_h, checked, hints, failed_h)


def cells(one: WarnedLease, plan: Plan = PLAN) -> Cells:
    return [(warning, outcome) for shown in warnings(one, plan) for warning, outcome in shown.cells]


def test_a_hint_comes_true_while_it_is_open_and_not_after() -> None:
    assert cells(lease(hint(10.0), failed_h=(20.0,))) == [(HINT, FAILED)]
    cleared = hint(10.0), hint(30.0, HintState.CLEARED)
    assert cells(lease(*cleared, failed_h=(29.0,))) == [(HINT, FAILED)]
    assert cells(lease(*cleared, failed_h=(31.0,))) == [(HINT, FINE), (NO_WARNING, FAILED)]
    assert cells(lease(*cleared)) == [(HINT, FINE)]


def test_a_hint_dated_back_or_too_late_foretells_nothing() -> None:
    assert cells(lease(hint(10.0, received_h=21.0), failed_h=(20.0,))) == [(NO_WARNING, FAILED)]
    late = lease(hint(20.0 - LEAD_H / 2), hint(40.0, HintState.CLEARED), failed_h=(20.0,))
    assert cells(late) == [(NO_WARNING, FAILED)]
    in_time = lease(hint(20.0 - LEAD_H), hint(40.0, HintState.CLEARED), failed_h=(20.0,))
    assert cells(in_time) == [(HINT, FAILED)]


def test_a_hint_that_is_open_when_the_window_ends_is_undecided() -> None:
    assert cells(lease(hint(WEEK_H - 10.0))) == []
    assert cells(lease(hint(WEEK_H - 10.0), failed_h=(WEEK_H - 1.0,))) == [(HINT, FAILED)]
    assert cells(lease(hint(WEEK_H - 10.0), failed_h=(WEEK_H + 1.0,))) == [(NO_WARNING, FAILED)]
    long = replace(PLAN, start_hour=0, end_hour=504, windows=(0, 504))
    assert cells(lease(hint(10.0), failed_h=(11.0 + STANDS_H,)), long) == [(HINT, FINE), (NO_WARNING, FAILED)]
    repeated = lease(hint(10.0), hint(100.0, HintState.ESCALATED), failed_h=(11.0 + STANDS_H,))
    assert cells(repeated, long) == [(HINT, FAILED)]


def test_a_check_speaks_of_the_window_in_which_its_lease_begins() -> None:
    assert cells(lease(checked=True)) == [(CHECK, FINE)]
    assert cells(lease(checked=True, failed_h=(5.0,))) == [(CHECK, FAILED)]
    assert cells(lease(checked=True, failed_h=(WEEK_H + 5.0,))) == [(CHECK, FINE), (NO_WARNING, FAILED)]
    assert cells(lease(hint(10.0), checked=True, failed_h=(20.0,))) == [(HINT, FAILED)]
    assert cells(lease()) == []


hours = st.sampled_from([1.0, 20.0, 20.4, 100.0, 167.9, 168.0, 180.0, 335.9, 400.0, 503.0])
some_hints = st.lists(
    st.tuples(hours, st.sampled_from(list(HintState)), st.sampled_from([0.0, 0.0, 30.0])), max_size=5
).map(lambda drawn: [hint(at_h, state, received_h=at_h + delay) for at_h, state, delay in sorted(drawn)])


def counted(one: WarnedLease) -> np.ndarray:
    return build_tables(PLAN, (), bytes(32), list(warnings(one, PLAN)))[0]


@settings(deadline=None, max_examples=200)
@given(
    st.builds(WarnedLease, st.just("lease"), hours, st.booleans(), some_hints, st.lists(hours, max_size=4)),
    st.integers(0, 2),
)
def test_one_unit_more_or_less_moves_the_table_by_one_and_no_other_unit(whole: WarnedLease, week: int) -> None:
    begin_h, end_h = week * WEEK_H, (week + 1) * WEEK_H

    def kept(at_h: float) -> bool:
        return not begin_h <= at_h < end_h

    left = [one for one in whole.hints if kept(max(one.at_h, one.hint.at_h))]
    failed_h = [at_h for at_h in whole.failed_h if kept(at_h)]
    fewer = replace(whole, checked=whole.checked and kept(whole.start_h), hints=left, failed_h=failed_h)
    others = [one for one in warnings(whole, PLAN) if kept(one.at_h)]
    assert others == list(warnings(fewer, PLAN))
    moved = counted(whole) - counted(fewer)
    assert np.abs(moved).sum() <= norms(Subject.WARNINGS, 1)[0] == 1


def test_the_bound_is_reached_and_of_many_observations_of_a_unit_one_counts() -> None:
    busy = lease(hint(10.0), hint(30.0, HintState.CLEARED), hint(50.0), failed_h=(5.0, 20.0, 60.0, 70.0))
    assert len(cells(busy)) == 3
    assert counted(busy).sum() == 1
