"""What the owner taught: reasons for log lines that no built-in pattern matches. They stay in the owner's file.

- A lesson is a part of a line, in which a number stands for any number, or a regular expression.
- A line that is pasted whole may begin with a time, a rank or a level: that beginning is left out.

    >>> taught = Lessons().teach("[rank3]: licence server 10.0.0.3 refused", "connection_error")
    >>> taught.reason_of("2026-03-01 09:00:00 node-7: licence server 10.0.0.9 refused seat 4")
    'connection_error'
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from crypto.errors import PharoahError
from federation.base.visible import json_text
from tenant_client.doctor.diagnosis.log_templates import ANY, mask
from tenant_client.doctor.sources.reasons import REASONS

_MOST_LESSONS = 10_000
_MOST_LINE = 4096
_LEAST_LETTERS = 4
_BEGINNING = re.compile(
    r"^(?:(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d\S*|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|[EWI]\d{4} \S+ +\d+ [^\]\s]+\]"
    r"|\[[^\]]{1,60}\]:?|\([^()]{1,60}\)|(?:rank|default)\d+:|\d+:|[\w.-]*\d[\w.-]*:"
    r"|(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b[:-]?)(?:\s+|(?<=\]:))",
    re.ASCII,
)


class LessonsError(PharoahError):
    """A lesson, or a file of lessons, is invalid."""

    default_hint = 'write {"version": 1, "lessons": {"part of a line with <*>": "reason"}}, or remove the file'


def bare(line: str) -> str:
    """The line without the times, ranks and levels that it begins with, unless nothing else is in it."""
    rest = line.strip()
    while (found := _BEGINNING.match(rest)) and _letters(rest[found.end() :]) >= _LEAST_LETTERS:
        rest = rest[found.end() :]
    return rest


@dataclass(frozen=True)
class Lessons:
    """Reasons by part of a line, as `mask` writes it, and by regular expression."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    regexes: Mapping[str, str] = field(default_factory=dict)

    def teach(self, text: str, reason: str, *, regex: bool = False) -> "Lessons":
        """A copy with one more lesson."""
        if regex:
            return replace(self, regexes=_checked_regexes({**self.regexes, text: reason}, "a lesson"))
        return replace(self, reasons=_checked({**self.reasons, mask(bare(text)): reason}, "a lesson"))

    def forget(self, text: str) -> "Lessons":
        """A copy without the lesson that was taught by this text, or is listed so; LessonsError if there is none."""
        names = {text, mask(text), mask(bare(text))}
        left = Lessons(
            {one: reason for one, reason in self.reasons.items() if one not in names},
            {one: reason for one, reason in self.regexes.items() if one != text},
        )
        if left == Lessons(dict(self.reasons), dict(self.regexes)):
            raise LessonsError(
                f"no lesson {text!r}", hint="list the lessons with `pharoah-tenant patterns teach --list`"
            )
        return left

    def reason_of(self, line: str) -> str | None:
        """The reason taught for a line, or None."""
        masked = mask(line)
        for pattern, reason in self._parts:
            if pattern.search(masked):
                return reason
        return next((reason for pattern, reason in self._patterns if pattern.search(line[:_MOST_LINE])), None)

    @cached_property
    def _parts(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern_of(part), reason) for part, reason in self.reasons.items()]

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return [(re.compile(text), reason) for text, reason in self.regexes.items()]


def load_lessons(path: Path) -> Lessons:
    """The lessons at `path`, none if the file is missing; LessonsError if it is invalid."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Lessons()
    except (OSError, ValueError, RecursionError) as error:
        raise LessonsError(f"{path}: {error}") from error
    if not isinstance(record, dict) or record.get("version") != 1 or not isinstance(record.get("lessons"), dict):
        raise LessonsError(f"not a file of lessons, version 1: {path}")
    regexes = record.get("regexes", {})
    if not isinstance(regexes, dict):
        raise LessonsError(f"not a file of lessons, version 1: {path}")
    return Lessons(_checked(record["lessons"], str(path)), _checked_regexes(regexes, str(path)))


def save_lessons(lessons: Lessons, path: Path) -> None:
    """Writes the lessons atomically."""
    record = {"version": 1, "lessons": dict(lessons.reasons), "regexes": dict(lessons.regexes)}
    draft = path.with_name(path.name + ".new")
    draft.write_text(json_text(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def _pattern_of(part: str) -> re.Pattern[str]:
    return re.compile(r"\S*".join(map(re.escape, part.split(ANY))))


def _letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


def _checked(reasons: Mapping[str, object], where: str) -> Mapping[str, str]:
    checked = _with_reasons(reasons, where)
    for part in checked:
        if _letters(part) < _LEAST_LETTERS:
            raise LessonsError(f"{where}: {part!r} matches too many lines: give at least {_LEAST_LETTERS} letters")
    return checked


def _checked_regexes(regexes: Mapping[str, object], where: str) -> Mapping[str, str]:
    checked = _with_reasons(regexes, where)
    for text in checked:
        try:
            matches_all = re.compile(text).search("") is not None
        except (re.error, RecursionError) as error:
            raise LessonsError(f"{where}: not a regular expression: {text!r}: {error}") from error
        if matches_all:
            raise LessonsError(f"{where}: the regular expression {text!r} matches an empty line, and so every one")
    return checked


def _with_reasons(lessons: Mapping[str, object], where: str) -> Mapping[str, str]:
    if len(lessons) > _MOST_LESSONS:
        raise LessonsError(f"{where}: more than {_MOST_LESSONS} lessons")
    checked: dict[str, str] = {}
    for text, reason in lessons.items():
        if not isinstance(reason, str) or reason not in REASONS:
            raise LessonsError(
                f"{where}: unknown reason {reason!r}", hint="list the reasons with `pharoah-tenant patterns reasons`"
            )
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise LessonsError(f"{where}: the pattern {text!r} has a lone surrogate")
        checked[text] = reason
    return MappingProxyType(checked)
