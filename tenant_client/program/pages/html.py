"""The tenant's pages: the filters by which numbers become words, and what every template knows."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from federation.base.web.html import NOTHING, renderer as web_renderer
from tenant_client.doctor.advice.after_failure import after_failure
from tenant_client.doctor.advice.found import in_short

PAGES = (
    ("/", "Jobs"),
    ("/attempts", "Attempts"),
    ("/expectations", "Expectations"),
    ("/paths", "Paths"),
    ("/sent", "Sent data"),
)
SHORT = 12
_ID = re.compile(r"[0-9a-f]{32}")
# "reason: rank 1, host: a.log, line 7: what was said": each of the two places may be absent.
_PLACES = re.compile(r"([\w ]+: )(?:(rank \d+[^:]*): )?(?:([^:]+, line \d+): )?(.+)", re.DOTALL)
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def renderer() -> Callable[..., str]:
    """A function that renders a template by its name, with what it is given."""
    names = {"pages": PAGES, "after_failure": after_failure, "in_short": in_short}
    return web_renderer(
        "tenant_client.program.pages", date, short, spaced, percent, place_last, lease_name, names=names
    )


def date(hour: float) -> str:
    """An hour since 1970, to the minute, in UTC.

    >>> date(24 * 365 + 7.5)
    '1971-01-01 07:30'
    """
    return f"{_1970 + timedelta(hours=hour):%Y-%m-%d %H:%M}"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash where it is unknown.

    >>> percent(0.9914), percent(1.0), percent(None)
    ('99.1%', '100.0%', '–')
    """
    return NOTHING if share is None else f"{share:.1%}"


def place_last(sentence: str) -> str:
    """The sentence of a diagnosis with what failed before where, as lines may be cut at their end.

    >>> place_last("key_error: rank 1, gpu-07: stderr.log, line 7: KeyError: 'lr'")
    "key_error: KeyError: 'lr' — stderr.log, line 7, rank 1, gpu-07"
    >>> place_last("cancelled: SIGINT")
    'cancelled: SIGINT'
    """
    found = _PLACES.fullmatch(sentence)
    if found is None:
        return sentence
    reason, rank, file, what = found.groups()
    return reason + " — ".join(filter(None, (what, ", ".join(filter(None, (file, rank))))))


def lease_name(lease: str) -> str:
    """The name that verbs take: all of it, or of an id in hexadecimal the first digits.

    >>> lease_name("pretrain-llama-1"), lease_name("0123456789abcdef" * 2)
    ('pretrain-llama-1', '0123456789ab')
    """
    return lease[:SHORT] if _ID.fullmatch(lease) else lease


def short(token: str) -> str:
    """The first digits of a token or an id."""
    return token[:SHORT]


def spaced(digits: str) -> str:
    """Hexadecimal in groups of eight bytes, so that lines can break.

    >>> spaced("00" * 9)
    '0000000000000000 00'
    """
    return " ".join(digits[at : at + 16] for at in range(0, len(digits), 16))
