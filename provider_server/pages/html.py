"""From views to HTML: Jinja2 with everything escaped, and the few filters by which numbers become words."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import log2

from jinja2 import Environment, PackageLoader, StrictUndefined

from provider_server.pages.findings import days
from provider_server.pages.fleet import HAZARDS
from provider_server.pages.hazards import KNOWN_WITHIN, UNKNOWN
from provider_server.pages.snapshot import SHORT

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def renderer() -> Callable[..., str]:
    """A function that renders a template by its name, with what it is given."""
    loader = PackageLoader("provider_server.pages")
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {one.__name__: one for one in (date, dated, short, number, ratio, percent, many, place, days)}

    jinja.globals |= {"steps": HAZARDS, "unknown": UNKNOWN, "known_within": f"{KNOWN_WITHIN:g}"}

    def page(name: str, **given: object) -> str:
        return jinja.get_template(f"{name}.html").render(given)

    return page


def date(hour: int) -> str:
    """An hour since 1970 as a day, and the hour where it is not midnight.

    >>> date(24 * 365), date(24 * 365 + 7)
    ('1971-01-01', '1971-01-01 07:00')
    """
    at = _1970 + timedelta(hours=hour)
    return f"{at:%Y-%m-%d}" if at.hour == 0 else f"{at:%Y-%m-%d %H:00}"


def dated(text: str) -> str:
    """Hours in a text as days.

    >>> dated("more failures since hour 8760, 1.3 times as many")
    'more failures since 1971-01-01, 1.3 times as many'
    """
    return re.sub(r"\bhour (\d+)\b", lambda found: date(int(found[1])), text)


def short(token: str) -> str:
    """The first digits of a token or an id."""
    return token[:SHORT]


def number(value: float | None) -> str:
    """Three digits, or more before the point; a dash where there is none.

    >>> number(0.123456), number(12345.6), number(None)
    ('0.123', '12,346', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Two digits, or all before the point.

    >>> ratio(0.971), ratio(13.3), ratio(1234.5)
    ('0.97', '13', '1,234')
    """
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def percent(value: float) -> str:
    """A probability; one that is nearly certain is not rounded to certainty.

    >>> percent(0.5), percent(0.9999), percent(0.0001)
    ('50%', 'over 99%', 'under 1%')
    """
    if 0.995 <= value < 1.0:
        return "over 99%"
    return "under 1%" if 0.0 < value < 0.005 else f"{value:.0%}"


def many(count: int, noun: str) -> str:
    """A number with its noun.

    >>> many(1, "tenant"), many(2, "tenant")
    ('1 tenant', '2 tenants')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def place(ratio: float) -> str:
    """Where a ratio stands on the axis of `forest`, from 1/16 at 10 to 64 at 210, which it does not leave.

    >>> place(1.0), place(4.0), place(0.0)
    ('90.0', '130.0', '10.0')
    """
    return f"{90.0 + 20.0 * min(6.0, max(-4.0, log2(ratio) if ratio > 0 else -4.0)):.1f}"
