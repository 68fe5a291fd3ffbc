"""Which window is due: whatever the clock does, windows come one after the other, none twice, none left out."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.rounds.schedule import BadWindow, Window, Windows, check_window, due, last_whole_window

WEEKLY = Windows((1, 2, 3, 4), weeks_per_epoch=4).at
UNEQUAL = Windows((1, 3, 4), weeks_per_epoch=4)
MANY_WEEKS = 60 * HOURS_PER_WEEK
divisions = st.integers(1, 9).flatmap(
    lambda weeks: st.sets(st.integers(1, weeks)).map(lambda ends: Windows((*sorted(ends - {weeks}), weeks), weeks))
)


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
def test_a_window_is_due_when_it_has_ended_and_settled(
    now_hour: float, settle_hours: int, expected: Window | None
) -> None:
    assert due(None, 0.0, now_hour, settle_hours, WEEKLY) == expected


@pytest.mark.parametrize(
    ("first_hour", "window"),
    [(0.0, (0, 168)), (167.9, (0, 168)), (168.0, (168, 504)), (400.0, (168, 504)), (700.0, (672, 840))],
)
def test_the_first_window_is_the_one_in_which_the_federation_began(first_hour: float, window: Window) -> None:
    assert due(None, first_hour, float(window[1]), 0, UNEQUAL.at) == window
    assert due(None, first_hour, window[1] - 0.1, 0, UNEQUAL.at) is None


def test_a_clock_that_jumps_back_makes_nothing_due() -> None:
    assert due(1680, 0.0, 500.0, 24, WEEKLY) is None
    assert due(1680, 5000.0, 1900.0, 24, WEEKLY) == (1680, 1848)  # what was held counts, not when the program began


@given(
    divisions,
    st.lists(st.floats(0, MANY_WEEKS), min_size=1, max_size=80),
    st.floats(0, 10 * HOURS_PER_WEEK),
    st.integers(0, 400),
)
def test_no_window_is_skipped_or_held_twice(
    windows: Windows, clock: list[float], first_hour: float, settle_hours: int
) -> None:
    held: list[Window] = []
    for now_hour in clock:  # in any order: it may run backwards, and leap
        while window := due(held[-1][1] if held else None, first_hour, now_hour, settle_hours, windows.at):
            assert window[1] + settle_hours <= now_hour
            held.append(window)
    assert all(window in pairwise(windows.edges(windows.epoch(window[0]))) for window in held)
    assert all(before[1] == after[0] for before, after in pairwise(held))
    assert not held or held[0][0] <= first_hour < held[0][1]
    next_end = windows.at(held[-1][1] if held else first_hour)[1]
    assert next_end + settle_hours > max(clock)


@pytest.mark.parametrize(("now_hour", "window"), [(168.0, (0, 168)), (503.9, (0, 168)), (504.0, (168, 504))])
def test_the_last_whole_window(now_hour: float, window: Window) -> None:
    assert last_whole_window(now_hour, UNEQUAL.at) == window


@pytest.mark.parametrize(
    "window", [(0, 0), (168, 0), (1, 169), (0, 100), (-168, 0), (168, 336), (0, 504), (504, 840), (504, 672)]
)
def test_a_window_that_no_round_can_have_is_refused(window: Window) -> None:
    with pytest.raises(BadWindow):
        check_window(window, 671.9, UNEQUAL.at)


def test_windows_of_an_epoch_are_taken_once_they_have_ended() -> None:
    for window in ((0, 168), (168, 504), (504, 672)):
        check_window(window, float(window[1]), UNEQUAL.at)


@pytest.mark.parametrize("ends", [(), (2, 1, 4), (1, 1, 4), (0, 4), (1, 5), (1, 3)])
def test_windows_that_do_not_divide_the_epoch_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="windows"):
        Windows(ends, weeks_per_epoch=4)
