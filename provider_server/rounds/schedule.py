"""Which week is due: pure, so that a clock that jumps or a provider that slept for a month is a line of a test.

Weeks are windows of 168 hours since 1970. A week is due when it has ended and has settled: failures are noticed late.
Weeks that were missed are held one after the other, oldest first, until none is due.

    >>> due(last_end_hour=336, first_hour=0, now_hour=600.0, settle_hours=24)
    (336, 504)
    >>> due(last_end_hour=504, first_hour=0, now_hour=600.0, settle_hours=24) is None
    True
"""

from crypto.errors import Refusal
from federation.protocol.plan import HOURS_PER_WEEK

Window = tuple[int, int]


class BadWindow(Refusal):
    """A round was asked for over hours that no round can be held over."""

    default_hint = "name whole weeks, in hours since 1970, that have ended and lie within one epoch"


def due(last_end_hour: int | None, first_hour: float, now_hour: float, settle_hours: int) -> Window | None:
    """The oldest week that no round was held for yet and that has settled; None if there is none.

    `last_end_hour` is where the last round's window ended, None before the first; `first_hour` is when the federation
    began: its first week is the first that lies within it whole.
    """
    start = last_end_hour if last_end_hour is not None else _next_week(first_hour)
    window = start, start + HOURS_PER_WEEK
    return window if window[1] + settle_hours <= now_hour else None


def last_whole_week(now_hour: float) -> Window:
    """The week that ended last, settled or not: what a round by hand is for."""
    end = int(now_hour // HOURS_PER_WEEK) * HOURS_PER_WEEK
    return end - HOURS_PER_WEEK, end


def check_window(window: Window, now_hour: float, weeks_per_epoch: int) -> None:
    """BadWindow unless `window` is made of whole weeks of one epoch, all of which have ended."""
    start, end = window
    epoch_hours = weeks_per_epoch * HOURS_PER_WEEK
    if start < 0 or start >= end or start % HOURS_PER_WEEK or end % HOURS_PER_WEEK:
        raise BadWindow(f"hours {start}–{end} are no whole weeks")
    if end > now_hour:
        raise BadWindow(f"hours {start}–{end} are not over yet")
    if start // epoch_hours != (end - 1) // epoch_hours:
        raise BadWindow(f"hours {start}–{end} lie in two epochs")


def _next_week(hour: float) -> int:
    return -int(-hour // HOURS_PER_WEEK) * HOURS_PER_WEEK
