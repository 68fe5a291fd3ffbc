"""A lease in a window, whatever was seen, changes the table of goodput by one, and no other window's band."""

import numpy as np
from hypothesis import given, settings, strategies as st

from federation.protocol.plan import Marginal, Plan, PlanDimension
from federation.protocol.subjects import GOODPUT_BANDS, Subject, norms
from tenant_client.doctor.records.attempts import Attempt, AttemptCause, AttemptState
from tenant_client.doctor.records.paces import Slice
from tenant_client.rounds.counts import build_tables
from tenant_client.rounds.goodputs import GoodputUnit, goodputs, units_of
from tests.support.changing import replace
from tests.support.plans import small_plan

CONTEXT, LEASE = "a" * 32, "lease"
WEEK_S = 168 * 3600
LONG_BEFORE_S = -10.0 * WEEK_S
SEEN = dict[tuple[str, int], list[Slice]]


def goodput_plan() -> Plan:
    dimensions = (PlanDimension("context", (CONTEXT,), (5,)), PlanDimension("goodput", GOODPUT_BANDS, ()))
    marginals = (Marginal("goodput", ("context", "goodput"), (), 9.0, Subject.GOODPUT),)
    plan = small_plan(start_hour=336, end_hour=504, windows=tuple(range(0, 673, 168)))
    return replace(plan, dimensions=(*plan.dimensions, *dimensions), marginals=marginals)


PLAN = goodput_plan()


def attempt(number: int, begun_s: float, ended_s: float | None, state: AttemptState, unit: str = LEASE) -> Attempt:
    return Attempt(unit, number, state, begun_s, ended_s, None, None, AttemptCause(), 0, ())


def seen(begun_s: int, until_s: int, *, step_s: float = 1.0, saved: int | None = None) -> list[Slice]:
    """Slices in which every second trains, at a step time; a checkpoint has `saved` steps from the first slice on."""
    steps = int(600 / step_s)
    return [Slice(at, 600.0, steps, steps, steps * step_s, saved=saved) for at in range(begun_s, until_s, 600)]


def counted(attempts: list[Attempt], slices: SEEN) -> np.ndarray:
    return build_tables(PLAN, (), bytes(32), goodputs(units_of(attempts, slices, PLAN), {LEASE: CONTEXT}))[0]


def shares(attempts: list[Attempt], slices: SEEN) -> list[float]:
    return [round(one.share, 3) for one in units_of(attempts, slices, PLAN)]


SLOTS = [1008 * week + slot for week in range(3) for slot in (0, 1, 6, 500, 1006, 1007)]
some_slices = st.lists(
    st.builds(
        Slice,
        at_s=st.sampled_from(SLOTS).map(lambda slot: 600 * slot),
        observed_s=st.just(600.0),
        steps=st.sampled_from([0, 300, 600]),
        timed=st.sampled_from([0, 10, 10]),
        stepping_s=st.sampled_from([10.0, 20.0]),
        saved=st.sampled_from([None, 100, 700]),
    ),
    min_size=4,
    max_size=12,
    unique_by=lambda one: one.at_s,
).map(lambda slices: sorted(slices, key=lambda one: one.at_s))
some_attempts = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.499, 0.999, 1.4, 2.0]).map(lambda weeks: weeks * WEEK_S),
        st.sampled_from([None, 0.1, 0.9, 1.1, 1.7]).map(lambda weeks: None if weeks is None else weeks * WEEK_S),
        st.sampled_from(list(AttemptState)),
        some_slices,
    ),
    min_size=1,
    max_size=2,
)


def without(week: int, attempts: list[Attempt], slices: SEEN) -> tuple[list[Attempt], SEEN]:
    """What was seen, but for one week: no slices, and no start or end within it."""
    begin_s, end_s = week * WEEK_S, (week + 1) * WEEK_S
    left = {key: [one for one in own if not begin_s <= one.at_s < end_s] for key, own in slices.items()}
    changed = []
    for one in attempts:
        ends_then = one.ended_at_s is not None and begin_s <= one.ended_at_s < end_s
        begins_then = begin_s <= one.started_at_s < end_s
        changed.append(
            replace(
                one,
                started_at_s=LONG_BEFORE_S if begins_then else one.started_at_s,
                ended_at_s=None if ends_then else one.ended_at_s,
                state=AttemptState.INTERRUPTED if ends_then else one.state,
            )
        )
    return changed, left


@settings(deadline=None, max_examples=60)
@given(some_attempts, st.integers(0, 2))
def test_one_unit_more_or_less_moves_the_table_by_one_and_no_other_share(
    drawn: list[tuple[float, float | None, AttemptState, list[Slice]]], week: int
) -> None:
    attempts, slices = [], {}
    for number, (begun_s, lasted_s, state, own) in enumerate(drawn):
        attempts.append(attempt(number, begun_s, None if lasted_s is None else begun_s + lasted_s, state))
        slices[LEASE, number] = [one for one in own if one.at_s + 600 > begun_s]
    fewer = without(week, attempts, slices)
    left = {one for one in units_of(attempts, slices, PLAN) if int(one.at_h // 168) != week}
    assert {one for one in units_of(*fewer, PLAN) if int(one.at_h // 168) != week} == left
    moved = counted(attempts, slices) - counted(*fewer)
    assert np.abs(moved).sum() <= norms(Subject.GOODPUT, 1)[0] == 1


def test_the_bound_is_reached_by_any_unit_with_steps() -> None:
    slices = {(LEASE, 1): seen(0, 2 * WEEK_S)}
    attempts = [attempt(1, 0.0, 2.0 * WEEK_S, AttemptState.SUCCEEDED)]
    moved = counted(attempts, slices) - counted(*without(1, attempts, slices))
    assert moved.tolist() == [[0, 0, 0, 0, 1]]


def test_the_usual_step_of_another_week_and_its_checkpoints_play_no_part() -> None:
    """A lease that is half as fast in its second week, and fails there, without a checkpoint in that week."""
    slices = {(LEASE, 1): [*seen(0, WEEK_S, saved=9), *seen(WEEK_S, WEEK_S + 36_000, step_s=2.0)]}
    attempts = [attempt(1, 0.0, WEEK_S + 36_000.0, AttemptState.FAILED)]
    assert shares(attempts, slices) == [1.0, 1.0]


def test_steps_since_the_last_checkpoint_of_a_failed_attempt_are_lost_and_so_is_the_time_between_attempts() -> None:
    saved = [replace(one, saved=600) for one in seen(0, 600)] + [replace(one, saved=600) for one in seen(600, 3000)]
    slices = {(LEASE, 1): saved, (LEASE, 2): seen(6000, 9000)}
    attempts = [
        attempt(1, 0.0, 3000.0, AttemptState.FAILED),
        attempt(2, 6000.0, 9000.0, AttemptState.SUCCEEDED),
    ]
    assert shares(attempts, slices) == [round(3600 / 9000, 3)]


def test_an_attempt_that_nobody_saw_end_has_lost_what_no_checkpoint_had() -> None:
    slices = {(LEASE, 1): [replace(one, saved=600) for one in seen(0, 6000)]}
    assert shares([attempt(1, 0.0, None, AttemptState.INTERRUPTED)], slices) == [0.1]
    assert shares([attempt(1, 0.0, None, AttemptState.RUNNING)], slices) == [0.1]  # it was not seen to run on
    whole = {(LEASE, 1): [replace(one, saved=600) for one in seen(0, WEEK_S)]}
    assert shares([attempt(1, 0.0, None, AttemptState.INTERRUPTED)], whole) == [1.0]  # it still ran at the week's end


def test_less_than_an_hour_or_no_timed_step_is_not_counted() -> None:
    brief = {(LEASE, 1): seen(0, 3000)}
    assert not shares([attempt(1, 0.0, 3000.0, AttemptState.SUCCEEDED)], brief)
    assert not shares([attempt(1, 0.0, 9000.0, AttemptState.SUCCEEDED)], {(LEASE, 1): [Slice(0, 600.0, 5)]})


def test_a_lease_without_a_context_is_not_counted() -> None:
    assert not goodputs([GoodputUnit("unknown", 0.0, 0.9)], {LEASE: CONTEXT})
