"""Which week is due: whatever the clock does, weeks come one after the other, none twice, none left out."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.rounds.schedule import BadWindow, Window, check_window, due, last_whole_week

MANY_WEEKS = 60 * HOURS_PER_WEEK


@pytest.mark.parametrize(
    ("now_hour", "settle_hours", "expected"),
    [
        (167.9, 0, None),
        (168.0, 0, (0, 168)),
        (191.9, 24, None),
        (192.0, 24, (0, 168)),
        (600.0, 24, (0, 168)),
        (336.0 + 400, 400, (0, 168)),
        (0.0, 0, None),
    ],
)
def test_a_week_is_due_when_it_has_ended_and_settled(
    now_hour: float, settle_hours: int, expected: Window | None
) -> None:
    assert due(None, 0.0, now_hour, settle_hours) == expected


@pytest.mark.parametrize(("first_hour", "start"), [(0.0, 0), (0.1, 168), (167.9, 168), (168.0, 168), (168.5, 336)])
def test_the_first_week_lies_whole_within_the_federation(first_hour: float, start: int) -> None:
    assert due(None, first_hour, start + 168.0, 0) == (start, start + 168)
    assert due(None, first_hour, start + 167.9, 0) is None


def test_after_months_of_sleep_weeks_are_held_oldest_first() -> None:
    held, last = [], 168
    while window := due(last, 0.0, 10 * 168.0 + 30, 24):
        held.append(window)
        last = window[1]
    assert held == [(week * 168, (week + 1) * 168) for week in range(1, 10)]


def test_a_clock_that_jumps_back_makes_nothing_due() -> None:
    assert due(1680, 0.0, 500.0, 24) is None
    assert due(1680, 5000.0, 1900.0, 24) == (1680, 1848)  # what was held counts, not when the program began


@given(
    st.lists(st.floats(0, MANY_WEEKS), min_size=1, max_size=80),
    st.floats(0, 10 * HOURS_PER_WEEK),
    st.integers(0, 400),
)
def test_no_week_is_skipped_or_held_twice(clock: list[float], first_hour: float, settle_hours: int) -> None:
    held: list[Window] = []
    for now_hour in clock:  # in any order: it may run backwards, and leap
        while window := due(held[-1][1] if held else None, first_hour, now_hour, settle_hours):
            assert window[1] + settle_hours <= now_hour
            held.append(window)
    assert all(end - start == HOURS_PER_WEEK for start, end in held)
    assert all(before[1] == after[0] for before, after in pairwise(held))
    assert not held or first_hour <= held[0][0] <= first_hour + HOURS_PER_WEEK
    whole = max(0, int((max(clock) - settle_hours) // HOURS_PER_WEEK) - -int(-first_hour // HOURS_PER_WEEK))
    assert len(held) == whole


@pytest.mark.parametrize(("now_hour", "window"), [(168.0, (0, 168)), (335.9, (0, 168)), (336.0, (168, 336))])
def test_the_last_whole_week(now_hour: float, window: Window) -> None:
    assert last_whole_week(now_hour) == window


@pytest.mark.parametrize(
    "window", [(0, 0), (168, 0), (1, 169), (0, 100), (-168, 0), (336, 504), (168, 504), (0, 3 * 168)]
)
def test_a_window_that_no_round_can_have_is_refused(window: Window) -> None:
    with pytest.raises(BadWindow):
        check_window(window, 503.9 if window != (0, 3 * 168) else 600.0, 2)


def test_whole_weeks_of_one_epoch_are_taken() -> None:
    check_window((0, 336), 336.0, 2)
    check_window((336, 504), 504.0, 2)
