"""Which week is due: pure, so that a clock that jumps or a provider that slept for a month is a line of a test.

Weeks are windows of 168 hours since 1970. A week is due when it has ended and has settled: failures are noticed late.
Weeks that were missed are held one after the other, oldest first, until none is due.

    >>> due(last_end_hour=336, first_hour=0, now_hour=600.0, settle_hours=24)
    (336, 504)
    >>> due(last_end_hour=504, first_hour=0, now_hour=600.0, settle_hours=24) is None
    True
"""

from crypto.plan import HOURS_PER_WEEK

Window = tuple[int, int]


def due(last_end_hour: int | None, first_hour: float, now_hour: float, settle_hours: int) -> Window | None:
    """The oldest week that no round was held for yet and that has settled; None if there is none.

    `last_end_hour` is where the last round's window ended, None before the first; `first_hour` is when the federation
    began: its first week is the first that lies within it whole.
    """
    start = last_end_hour if last_end_hour is not None else _next_monday(first_hour)
    window = start, start + HOURS_PER_WEEK
    return window if window[1] + settle_hours <= now_hour else None


def last_whole_week(now_hour: float) -> Window:
    """The week that ended last, settled or not: what a round by hand is for."""
    end = int(now_hour // HOURS_PER_WEEK) * HOURS_PER_WEEK
    return end - HOURS_PER_WEEK, end


def _next_monday(hour: float) -> int:
    return -int(-hour // HOURS_PER_WEEK) * HOURS_PER_WEEK
