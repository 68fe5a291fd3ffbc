"""The time of plans, leases and hints: hours since 1970, by this machine's clock. People read dates."""

import re
import time
from datetime import UTC, datetime, timedelta

SECONDS_PER_HOUR = 3600.0
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def now_hour() -> float:
    """Hours since 1970, fractions too."""
    return time.time() / SECONDS_PER_HOUR


def date(hour: float) -> str:
    """An hour since 1970 as a day in UTC, and the hour where it is not midnight; an hour where it is beyond all dates.

    >>> date(24 * 365), date(24 * 365 + 7)
    ('1971-01-01', '1971-01-01 07:00')
    """
    try:
        at = _1970 + timedelta(hours=int(hour))
    except (OverflowError, ValueError):  # no date, as a hostile plan may have
        return f"hour {hour:g}"
    return f"{at:%Y-%m-%d}" if at.hour == 0 else f"{at:%Y-%m-%d %H:00}"


def dates(start_hour: float, end_hour: float) -> str:
    """The dates between which a window lies.

    >>> dates(0, 168)
    '1970-01-01 to 1970-01-08'
    """
    return f"{date(start_hour)} to {date(end_hour)}"


def dated(text: str) -> str:
    """Hours in a text as days.

    >>> dated("more failures since hour 8760, 1.3 times as many")
    'more failures since 1971-01-01, 1.3 times as many'
    """
    return re.sub(r"\bhour (\d+)\b", lambda found: date(int(found[1])), text)
