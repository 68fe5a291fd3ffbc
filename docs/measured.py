"""The figures that the documents quote: measures the quick ones anew, and writes docs/measured.md from all of them.

    python docs/measured.py [--runs 3] [NAME…]    the quick ones, or the named ones, quick or not
    python docs/measured.py --page                nothing is measured: the page only

docs/measured.json holds each figure with the command that gives it, least and most over runs, the machine in words and
the commit. A test compares the page with what this makes of the file, so that it cannot say anything else. A figure
whose `key` is null is read off by a person; keys are paths into the JSON that the command prints, parts divided by "/".
A study that has been taken down since runs in a checkout of the commit that its command names.
"""

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
FIGURES, PAGE = ROOT / "docs/measured.json", ROOT / "docs/measured.md"
TAKEN_DOWN = "git checkout 95c29a50 && "  # before the command of a study that is no more
HEAD = """\
# Measured

Written by `make measured` from `docs/measured.json`; do not edit. Each table names the command that gives its figures,
the machine and the commit. A value is the mean over runs, or the median where `make measured` took it; least and most
are over runs, or a 95% interval where the command gives one. "As quoted at" a commit means that the figure was carried
over from the documents of that commit; what is not known of its runs is left out. A study that has been taken down
since runs in a checkout of the commit that its command names. Times are of one machine: compare them with what stands
beside them, not with those of another. Real data are not part of the repository
([replays](simulation.md#replays-of-real-data)).
"""


class Figure(msgspec.Struct):
    """`unit` "share" is shown in percent; `value` is null until it is measured; `beside` says what the peer needs."""

    what: str
    key: str | None
    unit: str
    value: float | None
    low: float | None
    high: float | None
    beside: str | None


class Entry(msgspec.Struct):
    """The figures of one command. `measured` and `runs` are null where nobody kept them."""

    name: str
    section: str
    command: str
    quick: bool
    machine: str
    commit: str
    measured: str | None
    runs: int | None
    figures: list[Figure]


def main() -> None:
    """Measures, and writes both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    entries = load()
    unknown = set(options.names) - {entry.name for entry in entries}
    if unknown:
        parser.error(f"no figures {sorted(unknown)}; there are {', '.join(entry.name for entry in entries)}")
    if gone := [one.name for one in entries if one.name in options.names and one.command.startswith(TAKEN_DOWN)]:
        parser.error(f"{gone[0]} is measured in a checkout of the commit that its command names")
    for entry in entries if not options.page else ():
        if entry.name in options.names or (entry.quick and not options.names):
            sys.stderr.write(f"{entry.command} …\n")
            measure(entry, options.runs)
    FIGURES.write_text(file_of(entries), encoding="utf-8")
    PAGE.write_text(page(entries), encoding="utf-8")


def file_of(entries: Sequence[Entry]) -> str:
    """docs/measured.json: an entry on a line, and under it a figure on each."""
    text = msgspec.json.encode(list(entries)).decode()
    return re.sub(r'(?<=[\[,])(?=\{"(name|what)":)', lambda one: "\n" if one[1] == "name" else "\n ", text) + "\n"


def load() -> list[Entry]:
    """All figures, as they were last measured."""
    return msgspec.json.decode(FIGURES.read_bytes(), type=list[Entry])


def measure(entry: Entry, runs: int) -> None:
    """Runs the command so many times; the figures without a key stay as they are."""
    program, *arguments = shlex.split(entry.command)
    command = [sys.executable if program == "python" else str(Path(sys.executable).with_name(program)), *arguments]
    load_before = os.getloadavg()[0]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = [subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True).stdout for _ in range(runs)]
    for figure in entry.figures:
        if figure.key is not None:
            values = [float(found(json.loads(said), figure.key)) for said in done]
            figure.value = statistics.median(values)
            figure.low, figure.high = (min(values), max(values)) if runs > 1 else (None, None)
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    entry.commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    entry.measured = datetime.now(UTC).date().isoformat()
    entry.machine = f"{platform.machine()}, {os.cpu_count()} cores, load {load_before:.1f} when it began"
    entry.runs = runs


def found(said: Any, key: str) -> Any:
    """What stands at a path; numbers are places in a list."""
    for part in key.split("/"):
        said = said[int(part)] if isinstance(said, list) else said[part]
    return said


# ---- the page ------------------------------------------------------------------------------------------------------


def page(entries: Sequence[Entry]) -> str:
    """docs/measured.md."""
    return "\n".join(
        [HEAD, *(line for entry in groupby(entries, lambda one: one.section) for line in _section(*entry))]
    )


def _section(section: str, entries: Iterator[Entry]) -> Iterator[str]:
    yield f"## {section}\n"
    for entry in entries:
        runs = f"{entry.runs} run{'s' if entry.runs > 1 else ''} on " if entry.runs else ""
        when = f"measured at {entry.commit}, {entry.measured}" if entry.measured else f"as quoted at {entry.commit}"
        yield f"`{entry.command}`: {runs}{entry.machine}; {when}\n"
        yield "| figure | value | least – most | beside it |"
        yield "|---|---|---|---|"
        for figure in entry.figures:
            extent = " – ".join(shown(end, figure.unit) for end in (figure.low, figure.high) if end is not None)
            missing = "" if extent else "not measured yet"
            value = missing if figure.value is None else shown(figure.value, figure.unit)
            yield f"| {figure.what} | {value} | {extent} | {figure.beside or ''} |"
        yield ""


def shown(value: float, unit: str) -> str:
    """A value for people.

    >>> shown(0.0036, "share"), shown(387000.0, "GPU-hours"), shown(0.981, "")
    ('0.36%', '387,000 GPU-hours', '0.981')
    """
    if unit == "share":
        return f"{100 * value:.3g}%"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} {unit}".strip()


if __name__ == "__main__":
    main()
