"""The provider's pages: the filters by which numbers become words, and what every template knows."""

from collections.abc import Callable
from math import log2, log10

from federation.base.clock import date, dated
from federation.base.web.html import NOTHING, renderer as web_renderer
from provider_server.program.pages.fabric import STANDINGS
from provider_server.program.pages.findings import SIGNS, days
from provider_server.program.pages.fleet import HAZARDS
from provider_server.program.pages.hazards import KNOWN_WITHIN, UNKNOWN
from provider_server.program.pages.snapshot import SHORT

PAGES = (
    ("/", "Overview"),
    ("/fleet", "Fleet"),
    ("/fabric", "Fabric"),
    ("/plans", "Plans"),
    ("/mismatches", "Mismatches"),
    ("/hazards", "Hazards"),
    ("/findings", "Findings"),
)


def renderer() -> Callable[..., str]:
    """A function that renders a template by its name, with what it is given."""
    names = {
        "pages": PAGES,
        "steps": HAZARDS,
        "standings": STANDINGS,
        "signs": SIGNS,
        "unknown": UNKNOWN,
        "known_within": f"{KNOWN_WITHIN:g}",
    }
    return web_renderer(
        "provider_server.program.pages", date, dated, short, number, whole, percent, place, decade, days, names=names
    )


def short(token: str) -> str:
    """The first digits of a token or an id."""
    return token[:SHORT]


def number(value: float | None) -> str:
    """Three digits, or more before the point; a dash where there is none.

    >>> number(0.123456), number(12345.6), number(None)
    ('0.123', '12,346', '–')
    """
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def whole(value: float) -> str:
    """Without digits behind the point.

    >>> whole(41.7), whole(-12.2)
    ('42', '−12')
    """
    return f"{round(value):,}".replace("-", "−")


def percent(value: float) -> str:
    """A probability; one that is nearly certain is not rounded to certainty.

    >>> percent(0.5), percent(0.9999), percent(0.0001)
    ('50%', 'over 99%', 'under 1%')
    """
    if 0.995 <= value < 1.0:
        return "over 99%"
    return "under 1%" if 0.0 < value < 0.005 else f"{value:.0%}"


def place(ratio: float) -> str:
    """Where a ratio stands on the axis of `forest`, from 1/16 at 10 to 64 at 210, which it does not leave.

    >>> place(1.0), place(4.0), place(0.0)
    ('90.0', '130.0', '10.0')
    """
    return f"{90.0 + 20.0 * min(6.0, max(-4.0, log2(ratio) if ratio > 0 else -4.0)):.1f}"


def decade(probability: float) -> str:
    """Where a probability stands on a logarithmic axis from 1/10,000 at 10 to 1 at 210, which it does not leave.

    >>> decade(0.01), decade(1.0), decade(0.0)
    ('110.0', '210.0', '10.0')
    """
    return f"{210.0 + 50.0 * max(-4.0, log10(probability) if probability > 0 else -4.0):.1f}"
