"""Numbers and times that somebody else wrote: bounded here, before anything is computed from them.

`str.isdigit` holds for "²", of which `int` makes no number; and a number of any length may be of no use as a time.

>>> number("12"), number("²"), number("-5"), number("9" * 11)
(12, None, None, None)
>>> moment(0.0), moment(3e11)
(datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None)
"""

from datetime import UTC, datetime

import msgspec

MALFORMED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)  # what `msgspec.json.decode` raises of any bytes
LATEST_S = 7_258_118_400  # the year 2200: no job is planned for later
_MOST_DIGITS = 10


def number(text: str) -> int | None:
    """The whole number of at most ten ASCII digits that a text is; None for any other."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def moment(seconds: float) -> datetime | None:
    """The time in seconds since 1970; None for one that is before, or that no job is planned for."""
    return datetime.fromtimestamp(seconds, UTC) if 0 <= seconds < LATEST_S else None
