"""A path as one side knows it: hops in order, each with its health, as lines and as a picture.

A tenant's path goes from rank to rank and ends at its network cards; a provider's goes from node to node over ports and
switches. Both have this form, and neither crosses the trust boundary: what a side does not know is a hop of its own.

Guarantees: equal routes give equal bytes. Foreign names are escaped in the picture, and health is told by a word and by
the form of its mark, never by colour alone.

>>> route = Route("rank 3 to rank 12", (Hop("rank", "rank 3", HopHealth.CLEAR), Hop("fabric", "", HopHealth.UNKNOWN)))
>>> list(lines(route))
['rank 3 to rank 12', '  rank    rank 3  clear', '  fabric  -       unknown']
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from textwrap import wrap


class HopHealth(StrEnum):
    """`FAULT`: something says that it is broken. `CLEAR`: it was looked at, and nothing speaks against it."""

    FAULT = "fault"
    DOUBT = "doubt"
    CLEAR = "clear"
    UNKNOWN = "unknown"


_ORDER = (HopHealth.UNKNOWN, HopHealth.CLEAR, HopHealth.DOUBT, HopHealth.FAULT)


@dataclass(frozen=True)
class Hop:
    """One thing on the way; `notes` say why its health is what it is. Without a name it is not known what it is."""

    kind: str
    name: str
    health: HopHealth
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """One way between two ends; `limits` say what is not known of it."""

    title: str
    hops: tuple[Hop, ...]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Routes:
    """All ways between two ends that one side knows, as JSON has them."""

    routes: tuple[Route, ...]


def worst(states: Sequence[HopHealth]) -> HopHealth:
    """The gravest of some; unknown of none."""
    return max(states, key=_ORDER.index, default=HopHealth.UNKNOWN)


def lines(route: Route) -> Iterator[str]:
    """For a terminal."""
    yield route.title
    kinds = max((len(hop.kind) for hop in route.hops), default=0)
    names = max((len(hop.name or "-") for hop in route.hops), default=0)
    for hop in route.hops:
        notes = f": {'; '.join(hop.notes)}" if hop.notes else ""
        yield f"  {hop.kind:{kinds}}  {hop.name or '-':{names}}  {hop.health}{notes}"
    yield from (f"  not known: {limit}" for limit in route.limits)


# ---- the picture -----------------------------------------------------------------------------------------------------

_WIDTH, _STEP, _LINE, _LEFT = 380, 34, 14, 26  # points: the sheet, a hop, a line of notes, and where words begin
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c2228}.soft{fill:#56616c;font-size:11px}.fault{fill:#b5400f}"
    ".title{font-weight:bold}.doubt{fill:#b26a00}.clear{fill:#1b7f5c}.unknown{fill:none;stroke:#56616c}.way{stroke:#8b949e}"
    ".gap{stroke:#8b949e;stroke-dasharray:3 4}.sheet{fill:#ffffff}"
    "@media (prefers-color-scheme:dark){text{fill:#e7eaee}.soft{fill:#a4afba}.fault{fill:#ff9d5c}.doubt{fill:#eab14a}"
    ".clear{fill:#5fcfa4}.unknown{stroke:#a4afba}.sheet{fill:#1a1f25}}"
)
_MARKS = {
    HopHealth.FAULT: '<path class="fault" d="M5 {y} l7 -12 l7 12 z"/>',
    HopHealth.DOUBT: '<path class="doubt" d="M12 {top} l6 6 l-6 6 l-6 -6 z"/>',
    HopHealth.CLEAR: '<circle class="clear" cx="12" cy="{middle}" r="6"/>',
    HopHealth.UNKNOWN: '<circle class="unknown" cx="12" cy="{middle}" r="5.5"/>',
}


def picture(routes: Sequence[Route]) -> str:
    """An SVG document with the routes below each other, as wide as a phone, light or dark as its reader is."""
    parts: list[str] = []
    down = 8
    for route in routes:
        down = _draw(route, down, parts)
    told = " ".join(line for route in routes for line in lines(route))
    title = " and ".join(route.title for route in routes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {down}" role="img">'
        f"<title>{_text(title)}</title><desc>{_text(told)}</desc><style>{_STYLE}</style>"
        f'<rect class="sheet" width="{_WIDTH}" height="{down}"/>{"".join(parts)}</svg>\n'
    )


def _draw(route: Route, down: int, parts: list[str]) -> int:
    """Adds what draws a route from `down` on, and returns where it ends."""
    for row in wrap(route.title, 52):
        down += 18
        parts.append(f'<text class="title" x="8" y="{down}">{_text(row)}</text>')
    down += 10
    before: int | None = None
    for hop in route.hops:
        middle = down + 12
        if before is not None:
            kind = "way" if hop.name else "gap"
            parts.append(f'<line class="{kind}" x1="12" x2="12" y1="{before + 7}" y2="{middle - 7}"/>')
        parts.append(_MARKS[hop.health].format(y=middle + 6, top=middle - 6, middle=middle))
        name = (
            f"{hop.kind} {hop.name}"
            if hop.name and not hop.name.casefold().startswith(hop.kind)
            else hop.name or hop.kind
        )
        parts.append(f'<text x="{_LEFT}" y="{middle + 4}">{_text(name)}: {hop.health}</text>')
        notes = wrap("; ".join(hop.notes), 62)
        for place, row in enumerate(notes, 1):
            parts.append(f'<text class="soft" x="{_LEFT}" y="{middle + 4 + _LINE * place}">{_text(row)}</text>')
        before, down = middle, down + _STEP + _LINE * len(notes)
    for row in (row for limit in route.limits for row in wrap(f"not known: {limit}", 62)):
        parts.append(f'<text class="soft" x="8" y="{down + 8}">{_text(row)}</text>')
        down += _LINE
    return down + 14


def _text(text: str) -> str:
    """Escaped, without letters that break XML or steer."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text))
