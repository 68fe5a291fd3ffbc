"""Which round is due. Pure: the current hour is an argument.

Weeks are windows of 168 hours since 1970. A round is due `settle_hours` after the end of the week in which its series
is opened, since failures are noticed late; tenants count the weeks before it with it. Missed rounds are held one after
the other, oldest first.

    >>> due(last_end_hour=336, first_hour=0, now_hour=600.0, settle_hours=24)
    (336, 504)
    >>> due(last_end_hour=504, first_hour=0, now_hour=600.0, settle_hours=24) is None
    True
    >>> due(last_end_hour=168, first_hour=0, now_hour=700.0, settle_hours=24, opens_hour=lambda since: since + 3 * 168)
    (504, 672)
"""

from collections.abc import Callable

from crypto.errors import Refusal
from federation.protocol.plan import HOURS_PER_WEEK

Window = tuple[int, int]


class BadWindow(Refusal):
    """No round can be held over the requested hours."""

    default_hint = "choose whole weeks, in hours since 1970, that have ended and lie within one epoch"


def _every_week(uncounted_since: int) -> int:
    return uncounted_since + HOURS_PER_WEEK


def due(
    last_end_hour: int | None,
    first_hour: float,
    now_hour: float,
    settle_hours: int,
    opens_hour: Callable[[int], int] = _every_week,
) -> Window | None:
    """The oldest settled week in which a round is due and none was held; None if there is none.

    `last_end_hour` is the end of the last round's window, None before the first; `first_hour` is when the federation
    began: its first week is the first whole one after that. `opens_hour` gives the end of the next round's week by the
    hour from which no round has counted.
    """
    end = opens_hour(last_end_hour if last_end_hour is not None else _next_week(first_hour))
    return (end - HOURS_PER_WEEK, end) if end + settle_hours <= now_hour else None


def last_whole_week(now_hour: float) -> Window:
    """The week that ended last, settled or not: the default of a round held by hand."""
    end = int(now_hour // HOURS_PER_WEEK) * HOURS_PER_WEEK
    return end - HOURS_PER_WEEK, end


def check_window(window: Window, now_hour: float, weeks_per_epoch: int) -> None:
    """BadWindow unless `window` is made of whole weeks of one epoch, all of which have ended."""
    start, end = window
    epoch_hours = weeks_per_epoch * HOURS_PER_WEEK
    if start < 0 or start >= end or start % HOURS_PER_WEEK or end % HOURS_PER_WEEK:
        raise BadWindow(f"hours {start}–{end} are not whole weeks")
    if end > now_hour:
        raise BadWindow(f"hours {start}–{end} have not ended yet")
    if start // epoch_hours != (end - 1) // epoch_hours:
        raise BadWindow(f"hours {start}–{end} span several epochs")


def _next_week(hour: float) -> int:
    return -int(-hour // HOURS_PER_WEEK) * HOURS_PER_WEEK
