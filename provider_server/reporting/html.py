"""The page of findings: one HTML file with charts and their numbers, which loads nothing and runs no script.

Whatever comes from outside (names, descriptions, warnings) is escaped; a policy in the page forbids every request.
Equal pages give equal bytes. Every picture has a description, and a table of its numbers below it; colours follow the
reader's light or dark scheme, and paper is light.

Not promised: privacy of what the caller puts in. Findings are private because releases are; names are the provider's.

    >>> "Nothing is wrong &amp; nobody is late" in render(Page("A week", ("Nothing is wrong & nobody is late",)))
    True
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from matplotlib.figure import Figure

from federation.runtime.web.html import renderer
from provider_server.reporting.figures.drawing import ROLES, inline, plain

Cell = str | int | float | None
MISSING = "not available"


@dataclass(frozen=True, eq=False)
class Section:
    """A question, what its picture shows, and the numbers: a head for each column, and rows as long as the head."""

    heading: str
    explanation: str
    figure: Figure
    head: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, eq=False)
class Page:
    """`summary`: the releases behind the findings and their privacy budget. `warnings`: what needs attention."""

    title: str
    summary: Sequence[str]
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()


def render(page: Page) -> str:
    """The page as text. ValueError where a row has not as many cells as its head."""
    show = renderer("provider_server.reporting", cells, drawn, names={"roles": ROLES})
    summary = " ".join(page.summary)
    return show("findings", title=page.title, summary=summary, warnings=page.warnings, sections=page.sections)


def drawn(section: Section, key: str) -> str:
    """The picture of a section as SVG; Matplotlib escapes the texts within."""
    return inline(section.figure, key)


def cells(section: Section) -> Iterator[list[str]]:
    """The numbers of a section as they are written for people."""
    for row in section.rows:
        if len(row) != len(section.head):
            raise ValueError(f"a row of {section.heading!r} must have {len(section.head)} cells, as its head")
        yield [_shown(cell) for cell in row]


def _shown(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not isfinite(cell)):
        return MISSING
    return cell if isinstance(cell, str) else f"{cell:,}" if isinstance(cell, int) else plain(cell, digits=3)
