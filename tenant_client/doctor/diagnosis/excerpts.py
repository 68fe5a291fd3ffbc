"""The lines of the logs that tell a failure, as they stand there: for the owner, on the owner's machine.

- The traceback of the cause and what the diagnosis names; without either, lines that look like errors, else the last.
- In the order of the log; of several logs that of the cause comes first.
- `at` is the innermost frame of the traceback that is none of a library: where in the owner's code it failed.

They stay in the home. What is compared between failures has its numbers masked: see `precedents`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set as AbstractSet
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

from tenant_client.doctor.diagnosis.filter_rules import keeps
from tenant_client.doctor.sources import exit_status
from tenant_client.doctor.sources.evidence import Evidence, Form
from tenant_client.doctor.sources.scanning import Line

if TYPE_CHECKING:  # what reads dumps loads numpy, and a plan for a running job has no time for it
    from tenant_client.doctor.diagnosis.diagnose import Diagnosis, Gathered

_MOST_LINES, _MOST_LETTERS, _LAST, _ABOVE = 64, 400, 5, 200
_HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)')
_NUMBER = re.compile(r"[\d.]+(?:e[+-]?\d+)?", re.ASCII)
_CLOCK = re.compile(r"\d:\d\d", re.ASCII)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|/pytorch/torch/|^<|/bin/torchrun$")


class ToldLine(msgspec.Struct, frozen=True):
    """A line of a log; `line` counts from 1, 0 where lines mean nothing."""

    file: str
    line: int
    text: str


class Excerpt(msgspec.Struct, frozen=True):
    """What tells a failure. `at` is the file and line of the owner's code, "" where no traceback tells."""

    at: str = ""
    lines: tuple[ToldLine, ...] = ()

    def near(self, place: str, most: int) -> tuple[str, ...]:
        """Few lines up to the one at `place` ("FILE, line NUMBER"), with that of the owner's code; else the first."""
        texts = [one.text for one in self.lines]
        end = next((at for at, one in enumerate(self.lines, 1) if f"{one.file}, line {one.line}" == place), 0)
        path, _, number = self.at.rpartition(":")
        frame = f'File "{path}", line {number}'
        own = next((at for at in reversed(range(end)) if re.search(rf"{re.escape(frame)}\b", texts[at])), end)
        if own + most >= end:
            return tuple(texts[max(0, end - most) : end] or texts[:most])
        return (*texts[own : own + 2], texts[end - 1])  # below it, only a library's frames

    @property
    def where(self) -> str:
        """`at` with the name of the file alone."""
        return PurePath(self.at).name


def excerpt_of(
    diagnosis: "Diagnosis", gathered: "Gathered", dropped: AbstractSet[str], but: AbstractSet[str] = frozenset()
) -> Excerpt:
    """What tells the failure; `dropped` are lines of healthy attempts, `but` are sources that are told otherwise."""
    seen = [one for one in (diagnosis.root, diagnosis.symptom, *diagnosis.cascade) if one is not None]
    named = [one for one in seen if one.source not in but | {exit_status.SOURCE}]
    raised = next((one for one in named if one.form is Form.TRACEBACK and one.reason == diagnosis.reason), None)
    traceback = _traceback(raised) if raised else []
    told = [ToldLine(one.file, one.line, one.text) for one in named]
    lines = {(one.file, one.line, one.text if not one.line else ""): one for one in (*told, *traceback)}
    if not lines:
        lines = {(one.file, one.line, ""): one for one in _unexplained(gathered, dropped)}
    files = list(dict.fromkeys(one.file for one in lines.values()))
    ordered = sorted(lines.values(), key=lambda one: (files.index(one.file), one.line))
    return Excerpt(_own_frame(traceback), tuple(_short(one) for one in ordered[:_MOST_LINES]))


def _traceback(raised: Evidence) -> list[ToldLine]:
    """From the header to the exception, without what other ranks printed in between; nothing where no file has it."""
    if not raised.line or not Path(raised.file).is_file():
        return []
    first = max(1, raised.line - _ABOVE)
    with Path(raised.file).open(encoding="utf-8", errors="replace") as file:
        numbered = list(enumerate(islice(file, first - 1, raised.line), first))
    header = next((number for number, text in reversed(numbered) if _HEADER in text), None)
    if header is None:
        return []
    texts = {number: text.rstrip("\n") for number, text in numbered if number >= header}
    before = texts[header].partition(_HEADER)[0]
    own = {
        number: text
        for number, text in texts.items()
        if number in (header, raised.line)
        or (_CLOCK.search(before) and _FRAME.search(text))  # each line has its own time before it
        or (text.startswith(before) and text[len(before) :].startswith(" "))
    }
    return [
        ToldLine(raised.file, number, text)
        for number, text in own.items()
        if any(map(str.isalpha, text[len(before) :]))
    ]


def _own_frame(traceback: Sequence[ToldLine]) -> str:
    frames = [found for one in traceback if (found := _FRAME.search(one.text))]
    return next((f"{one['path']}:{one['line']}" for one in reversed(frames) if not _LIBRARY.search(one["path"])), "")


def _unexplained(gathered: "Gathered", dropped: AbstractSet[str]) -> Iterator[ToldLine]:
    suspicious = any(left.suspicious for left in gathered.leftovers.values())
    for file, left in gathered.leftovers.items():
        lines = left.suspicious if suspicious else _unlike(left.tail)[-_LAST:]
        yield from (ToldLine(file, one.number, one.text) for one in lines if keeps(one.text, dropped))


def _unlike(lines: Sequence[Line]) -> Sequence[Line]:
    """Without those that differ from others by numbers alone, as steps do; all where no other is left."""
    kinds = Counter(_NUMBER.sub("", one.text) for one in lines)
    return [one for one in lines if kinds[_NUMBER.sub("", one.text)] == 1] or lines


def _short(one: ToldLine) -> ToldLine:
    return ToldLine(one.file, one.line, one.text[:_MOST_LETTERS].rstrip())
