"""Windows of an epoch, and which round is due. Pure: the current hour is an argument.

Epochs are whole weeks of 168 hours since 1970, and windows divide an epoch. A round is due `settle_hours` after the end
of its window, since failures are noticed late. Missed rounds are held one after the other, oldest first.

    >>> weekly = Windows((1, 2, 3, 4), weeks_per_epoch=4)
    >>> due(last_end_hour=336, first_hour=0, now_hour=600.0, settle_hours=24, window_at=weekly.at)
    (336, 504)
    >>> due(last_end_hour=504, first_hour=0, now_hour=600.0, settle_hours=24, window_at=weekly.at) is None
    True
    >>> Windows((13, 26, 39, 52), weeks_per_epoch=52).edges(epoch=1)
    (8736, 10920, 13104, 15288, 17472)
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from crypto.errors import Refusal
from federation.base.clock import date, dates
from federation.protocol.plan import HOURS_PER_WEEK

Window = tuple[int, int]


class BadWindow(Refusal):
    """No round can be held over the requested hours."""

    default_hint = "choose a window of the epoch that has ended: `windows` in provider.toml gives their last weeks"


@dataclass(frozen=True)
class Windows:
    """How an epoch is divided: the week at whose end each window ends; ValueError if the last does not end the epoch.

    >>> Windows((13, 26), weeks_per_epoch=52)
    Traceback (most recent call last):
    ValueError: windows must end with week 52, the last of the epoch (weeks_per_epoch), not with week 26
    """

    ends: tuple[int, ...]
    weeks_per_epoch: int

    def __post_init__(self) -> None:
        if not self.ends or not all(earlier < later for earlier, later in pairwise((0, *self.ends))):
            raise ValueError("windows are the last weeks of an epoch's windows, from 1 on, in order")
        if self.ends[-1] != self.weeks_per_epoch:
            wanted, given = self.weeks_per_epoch, self.ends[-1]
            raise ValueError(
                f"windows must end with week {wanted}, the last of the epoch (weeks_per_epoch), not with week {given}"
            )

    def edges(self, epoch: int) -> tuple[int, ...]:
        """The hours between which the windows of an epoch lie, in order; one more than there are windows."""
        start = epoch * self.weeks_per_epoch
        return tuple(HOURS_PER_WEEK * (start + week) for week in (0, *self.ends))

    def epoch(self, hour: float) -> int:
        """The epoch of an hour."""
        return int(hour // (HOURS_PER_WEEK * self.weeks_per_epoch))

    def at(self, hour: float) -> Window:
        """The window that holds an hour."""
        return window_of(self.edges(self.epoch(hour)), hour)


def window_of(edges: tuple[int, ...], hour: float) -> Window:
    """The window between two of these edges that holds an hour; BadWindow if none does."""
    for start, end in pairwise(edges):
        if start <= hour < end:
            return start, end
    raise BadWindow(f"{date(hour)} lies in no window of {dates(edges[0], edges[-1])}")


def due(
    last_end_hour: int | None,
    first_hour: float,
    now_hour: float,
    settle_hours: int,
    window_at: Callable[[float], Window],
) -> Window | None:
    """The oldest settled window in which no round was held; None if there is none.

    `last_end_hour` is the end of the last round's window, None before the first; `first_hour` is when the federation
    began: its first window is the one that holds it. `window_at` gives the window of an hour.
    """
    window = window_at(first_hour if last_end_hour is None else last_end_hour)
    return window if window[1] + settle_hours <= now_hour else None


def last_whole_window(now_hour: float, window_at: Callable[[float], Window]) -> Window:
    """The window that ended last, settled or not: the default of a round held by hand."""
    return window_at(window_at(now_hour)[0] - 1)


def check_window(window: Window, now_hour: float, window_at: Callable[[float], Window]) -> None:
    """BadWindow unless `window` is one of its epoch, and has ended."""
    start, end = window
    if start < 0 or start >= end:
        raise BadWindow(f"hours {start}–{end} are not a window")
    if window_at(start) != window:
        raise BadWindow(f"{dates(*window)} is not a window of the epoch; {dates(*window_at(start))} is")
    if end > now_hour:
        raise BadWindow(f"{dates(start, end)} has not ended yet")
