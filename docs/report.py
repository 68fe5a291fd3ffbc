"""The report as a PDF: `make report` writes out/report.pdf from docs/report.md, in the environment of `make docs`.

    python -m docs.report OUT.pdf [--pages FOLDER]     FOLDER gets each page as a picture, to be looked at

A measured figure in the report is a link to measured.md whose title names it: the entry of docs/measured.json and the
figure's `key`, or its `what` where that is null; with ", beside" at the end it is a figure of the peer. In print a
small number stands for the link, and a list of commands for these numbers is added. Nothing is written where a quoted
figure is not the one that was measured, where one is missing in print, or where the pages are too few or too many. The
same text gives the same bytes: there is no date in it.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docs import measured

DOCS = Path(__file__).resolve().parent
REPORT, STYLE = DOCS / "report.md", DOCS / "report.typ"
QUOTED = re.compile(r'\[([^\]]+)\]\(measured\.md "([^"]+)"\)')
BESIDE = ", beside"
PAGES = range(8, 13)

Figures = dict[str, tuple[measured.Entry, measured.Figure]]


def main() -> None:
    """Writes the PDF, or says what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pages", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    import typst

    text, known = REPORT.read_text(encoding="utf-8"), figures(measured.load())
    ended(misquoted(text, known))
    source = printed(text, known)
    pdf = typst.compile(source, root=DOCS)
    ended(unprintable(pdf, text))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(pdf)
    if options.pages:
        options.pages.mkdir(parents=True, exist_ok=True)
        for number, page in enumerate(typst.compile(source, root=DOCS, format="png", ppi=80), 1):
            (options.pages / f"{number:02d}.png").write_bytes(page)


def ended(faults: Iterator[str]) -> None:
    """Ends the program where there are any."""
    if told := [*faults]:
        sys.exit("\n".join(f"docs/report.md: {fault}" for fault in told))


# ---- figures ---------------------------------------------------------------------------------------------------------


def figures(entries: Sequence[measured.Entry]) -> Figures:
    """Every figure by the title that names it."""
    return {f"{entry.name}: {one.key or one.what}": (entry, one) for entry in entries for one in entry.figures}


def misquoted(text: str, known: Figures) -> Iterator[str]:
    """What a text quotes otherwise than it was measured, or does not name."""
    for quoted, title in QUOTED.findall(text):
        name = title.removesuffix(BESIDE)
        if name not in known:
            yield f"no figure is called {name!r}"
            continue
        _, figure = known[name]
        if title.endswith(BESIDE):
            right = re.search(rf"(?<![\w.]){re.escape(quoted)}(?![\w.])", figure.beside or "") is not None
        else:
            right = is_rounded(quoted, figure)
        if not right:
            yield f"{quoted!r} is not {title!r}, which is {figure.value} {figure.unit}, beside it {figure.beside!r}"


def is_rounded(quoted: str, figure: measured.Figure) -> bool:
    """Whether a number, with its unit or without, is the figure at as many decimals as the number has.

    >>> one = measured.Figure("", None, "share", 0.9946, None, None, None)
    >>> is_rounded("99.5%", one), is_rounded("99%", one), is_rounded("99.4%", one)
    (True, True, False)
    """
    number = re.fullmatch(r"([\d,]*(?:\.(\d+))?)(%?)(?: (\S+))?", quoted)
    if number is None or figure.value is None or number[4] not in (None, figure.unit):
        return False
    value = f"{100 * figure.value if number[3] else figure.value:.{len(number[2] or '')}f}"
    return (number[3] == "%") == (figure.unit == "share") and number[1].replace(",", "") == value


# ---- print -----------------------------------------------------------------------------------------------------------


def printed(text: str, known: Figures) -> bytes:
    """The report in Typst. `text` is Markdown as GitHub reads it."""
    import pypandoc

    read = json.loads(pypandoc.convert_text(text, "json", format="gfm+alerts-emoji"))
    title, *read["blocks"] = read["blocks"]
    numbers: dict[str, int] = {}
    for block in read["blocks"]:
        if block["t"] == "Header":
            block["c"][0] -= 1
        for part in rows(block):
            mark(part, known, numbers)
    body = pypandoc.convert_text(json.dumps(read), "typst", format="json", extra_args=["--wrap=none"])
    return "\n".join([STYLE.read_text(encoding="utf-8"), heading(title), body, *commands(numbers, known)]).encode()


def heading(title: Any) -> str:
    """The head of the first page."""
    words = "".join(word.get("c", " ") for word in title["c"][2])
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return (
        f'#align(center)[#set par(justify: false)\n#text(size: 16pt, weight: "bold", hyphenate: false)[{words}]\n\n'
        f"The Pharoah developers #h(1em) version {project['version']}]\n"
    )


def rows(block: Any) -> list[Any]:
    """The parts of a block within which one number is enough for several figures of one command."""
    if block["t"] != "Table":
        return [block]
    return [row for body in block["c"][4] for row in body[3]]


def links(part: Any) -> Iterator[Any]:
    """Links below a node of pandoc's tree, in order."""
    if isinstance(part, dict) and part.get("t") == "Link":
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from links(below)


def mark(part: Any, known: Figures, numbers: dict[str, int]) -> None:
    """Puts a number after the last of several figures of one command. Links to files are plain words in print."""
    within = list(links(part))
    names = [
        known[title.removesuffix(BESIDE)][0].name if target == "measured.md" and title else None
        for _, _, (target, title) in (link["c"] for link in within)
    ]
    for place, (link, name) in enumerate(zip(within, names, strict=True)):
        _, words, (target, _) = link["c"]
        if "://" in target:
            continue
        if name is not None and name not in names[place + 1 : place + 2]:
            number = numbers.setdefault(name, len(numbers) + 1)
            words = [*words, {"t": "Superscript", "c": [{"t": "Str", "c": f"({number})"}]}]
        link.update(t="Span", c=[["", [], []], words])


def commands(numbers: dict[str, int], known: Figures) -> Iterator[str]:
    """The list of commands by number."""
    entries = {entry.name: entry for entry, _ in known.values()}
    yield "#set text(size: 8pt)\n#set par(justify: false, leading: 0.45em)\n#set enum(spacing: 0.55em)\n"
    for name, number in numbers.items():
        entry = entries[name]
        when = f"measured {entry.measured}" if entry.measured else f"as quoted at {entry.commit}"
        yield f"{number}. #raw({json.dumps(entry.command)}): {when}"


def unprintable(pdf: bytes, text: str) -> Iterator[str]:
    """What a reader of the PDF would miss."""
    import io

    import pypdf

    pages = [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages]
    if len(pages) not in PAGES:
        yield f"{len(pages)} pages; {PAGES.start} to {PAGES.stop - 1} are wanted"
    seen = "".join("".join(pages).split())
    for quoted, title in QUOTED.findall(text):
        if "".join(quoted.split()) not in seen:
            yield f"{quoted!r} is not in print: {title}"


if __name__ == "__main__":
    main()
