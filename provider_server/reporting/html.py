"""The page of what was learnt: one HTML file with pictures and their numbers, which loads nothing and runs no script.

Whatever comes from outside (names, descriptions, warnings) is escaped; a policy in the page forbids every request.
Equal pages give equal bytes. Every picture has a description, and a table of its numbers below it; colours follow the
reader's light or dark scheme, and paper is light.

Not promised: privacy of what the caller puts in. Findings are private because releases are; names are the provider's.

    >>> "Nothing is wrong &amp; nobody is late" in render(Page("A week", ("Nothing is wrong & nobody is late",)))
    True
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from math import isfinite
from string import Template

from matplotlib.figure import Figure

from provider_server.reporting.figures.drawing import ROLES, inline, plain, printable

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
    """`summary`: what was learnt, of how many weeks, and what stays private. `warnings`: what to look at first."""

    title: str
    summary: Sequence[str]
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()


def render(page: Page) -> str:
    """The page as text. ValueError where a row has not as many cells as its head."""
    folder = resources.files(__package__)
    template = Template((folder / "findings_page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=_text(page.title),
        css=_colours() + (folder / "findings_page.css").read_text(encoding="utf-8"),
        summary=" ".join(_text(line) for line in page.summary),
        warnings=_warnings(page.warnings),
        contents="".join(
            f'<li><a href="#part-{number}">{_text(section.heading)}</a></li>\n'
            for number, section in enumerate(page.sections)
        ),
        sections="".join(_section(number, section) for number, section in enumerate(page.sections)),
    )


def _colours() -> str:
    """The roles of the pictures as properties of the style sheet, so that one switch turns page and pictures dark."""
    light, dark = ("".join(f" --{role}: {values[scheme]};" for role, values in ROLES.items()) for scheme in range(2))
    return f":root {{{light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n"


def _warnings(warnings: Sequence[str]) -> str:
    items = "".join(f"<li>{_text(warning)}</li>\n" for warning in warnings)
    count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return f'<div class="warnings" role="note"><h2>{count}</h2>\n<ul>\n{items}</ul></div>\n' if items else ""


def _section(number: int, section: Section) -> str:
    key, heading = f"part-{number}", _text(section.heading)
    return (
        f'<section id="{key}" aria-labelledby="{key}-heading">\n<h2 id="{key}-heading">{heading}</h2>\n'
        f"<p>{_text(section.explanation)}</p>\n<figure>{inline(section.figure, key)}</figure>\n"
        f"{_table(section)}</section>\n"
    )


def _table(section: Section) -> str:
    if any(len(row) != len(section.head) for row in section.rows):
        raise ValueError(f"a row under {section.heading!r} has not one cell for each of {section.head}")
    heading, head = _text(section.heading), "".join(f'<th scope="col">{_text(name)}</th>' for name in section.head)
    rows = "".join(_row(*map(_shown, row)) for row in section.rows) or f"<tr><td>{MISSING}</td></tr>\n"
    return (
        "<details>\n<summary>The numbers of this picture</summary>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers: {heading}"><table>\n'
        f"<caption>{heading}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n"
        "</table></div>\n</details>\n"
    )


def _row(first: str, *others: str) -> str:
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>\n'


def _shown(cell: Cell) -> str:
    """A cell as it is written for people, escaped."""
    if cell is None or (isinstance(cell, float) and not isfinite(cell)):
        return MISSING
    return _text(cell if isinstance(cell, str) else f"{cell:,}" if isinstance(cell, int) else plain(cell, digits=3))


def _text(text: str) -> str:
    return escape(printable(text))
