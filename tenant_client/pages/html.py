"""From views to HTML: Jinja2 with everything escaped, and the filters by which numbers become words."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from jinja2 import Environment, PackageLoader, StrictUndefined

_1970 = datetime(1970, 1, 1, tzinfo=UTC)
SHORT = 12


def renderer() -> Callable[..., str]:
    """A function that renders a template by its name, with what it is given."""
    loader = PackageLoader("tenant_client.pages")
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {one.__name__: one for one in (date, short, ratio, many, spaced)}

    def page(name: str, **given: object) -> str:
        return jinja.get_template(f"{name}.html").render(given)

    return page


def date(hour: float) -> str:
    """An hour since 1970, to the minute, in UTC.

    >>> date(24 * 365 + 7.5)
    '1971-01-01 07:30'
    """
    return f"{_1970 + timedelta(hours=hour):%Y-%m-%d %H:%M}"


def short(token: str) -> str:
    """The first digits of a token or an id."""
    return token[:SHORT]


def ratio(value: float | None) -> str:
    """Two digits, or all before the point; a dash where there is none.

    >>> ratio(0.971), ratio(13.3), ratio(None)
    ('0.97', '13', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def many(count: int, noun: str) -> str:
    """A number with its noun.

    >>> many(1, "lease"), many(2, "lease")
    ('1 lease', '2 leases')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def spaced(digits: str) -> str:
    """Hexadecimal in groups of eight bytes, so that lines can break.

    >>> spaced("00" * 9)
    '0000000000000000 00'
    """
    return " ".join(digits[at : at + 16] for at in range(0, len(digits), 16))
