"""Templates of log lines without a matching cue, and the reasons that the owner assigned to them.

- `Templates` is Drain (He et al., ICWS 2017) with a cache: one regex masks a line; a masked line seen before is a dict
  lookup; only a new one walks the tree (by length, then by its first two tokens).
- `Lessons` maps templates to reasons. They are tried after all cues and stay in the owner's file.

    >>> known = Templates()
    >>> first = known.learn("worker 3 lost its lease after 20 s")
    >>> first == known.learn("worker 7 lost its lease after 31 s")
    True
    >>> known.text(first), known.count(first)
    ('worker <*> lost its lease after <*> s', 2)
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from crypto.errors import PharoahError
from federation.runtime.visible import json_text
from tenant_client.sources.reasons import REASONS

ANY = "<*>"
_SIMILAR = 0.4
_LEADING = 2
_MOST_TOKENS = 256
_MOST_LINE = 4096
_MOST_MASKED = 100_000
_MOST_TEMPLATES = 10_000
_MOST_IN_LEAF = 100
_MOST_LESSONS = 10_000
# Whatever begins with a digit: numbers, dates, addresses, most ids. The tree catches ids that begin with a letter.
_MASKED = re.compile(r"\d[0-9a-fA-Fx.,:/-]*", re.ASCII)


class LessonsError(PharoahError):
    """A file of lessons is invalid."""

    default_hint = 'write {"version": 1, "lessons": {"template with <*>": "reason"}}, or remove the file'


def mask(line: str) -> str:
    """The line with numbers, addresses and ids masked and blanks made single."""
    return " ".join(_MASKED.sub(ANY, line[:_MOST_LINE]).split()[:_MOST_TOKENS])


class Templates:
    """Learns templates; ids count from 0 in the order of discovery. Beyond its caps all lines share one template."""

    def __init__(self) -> None:
        self._tokens: list[list[str]] = []
        self._counts: list[int] = []
        self._masked: dict[str, int] = {}
        self._leaves: dict[tuple[object, ...], list[int]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def learn(self, line: str) -> int:
        """Count a line under its template, a new one if none is similar; the template's id."""
        masked = mask(line)
        found = self._masked.get(masked)
        if found is None:
            found = self._place(masked.split())
            if len(self._masked) < _MOST_MASKED:
                self._masked[masked] = found
        self._counts[found] += 1
        return found

    def of(self, line: str) -> int | None:
        """The id of the template that a line matches, or None. Learns nothing."""
        masked = mask(line)
        found = self._masked.get(masked)
        return self._search(masked.split()) if found is None else found

    def text(self, template: int) -> str:
        """The template, with `<*>` for what varies."""
        return " ".join(self._tokens[template])

    def count(self, template: int) -> int:
        """The number of lines learnt under a template."""
        return self._counts[template]

    def rarest(self, most: int) -> list[int]:
        """Templates by number of lines, the fewest first, among equals the latest first."""
        return sorted(range(len(self)), key=lambda template: (self._counts[template], -template))[:most]

    def _place(self, tokens: list[str]) -> int:
        found = self._search(tokens)
        if found is None:
            return self._new(tokens)
        kept = self._tokens[found]
        for at, token in enumerate(tokens[: len(kept)]):
            if kept[at] != token:
                kept[at] = ANY
        return found

    def _new(self, tokens: list[str]) -> int:
        leaf = self._leaves.setdefault(_leaf(tokens), [])
        if len(leaf) >= _MOST_IN_LEAF:
            return leaf[-1]
        if len(self) >= _MOST_TEMPLATES:
            return len(self) - 1
        leaf.append(len(self))
        self._tokens.append(list(tokens))
        self._counts.append(0)
        return len(self) - 1

    def _search(self, tokens: list[str]) -> int | None:
        """The most similar template of the leaf, among equals the one with more that varies."""
        best, best_score = None, (_SIMILAR, -1)
        for template in self._leaves.get(_leaf(tokens), ()):
            kept = self._tokens[template]
            same = sum(1 for ours, theirs in zip(kept, tokens, strict=True) if ours == theirs != ANY)
            score = (same / max(1, len(tokens)), kept.count(ANY))
            if kept == tokens or score >= best_score:
                best, best_score = template, score
        return best


def _leaf(tokens: list[str]) -> tuple[object, ...]:
    return (len(tokens), *(ANY if ANY in token else token for token in tokens[:_LEADING]))


@dataclass(frozen=True)
class Lessons:
    """The owner's lessons: reason by template."""

    reasons: Mapping[str, str]

    def teach(self, line: str, reason: str) -> "Lessons":
        """A copy with one more lesson: lines like this one have this reason."""
        return Lessons(_checked({**self.reasons, mask(line): reason}, "a lesson"))

    def reason_of(self, line: str) -> str | None:
        """The reason taught for a line, or None."""
        tokens = mask(line).split()
        exact = self.reasons.get(" ".join(tokens))
        if exact:
            return exact
        return next((reason for template, reason in self.reasons.items() if _covers(template.split(), tokens)), None)


def load_lessons(path: Path) -> Lessons:
    """The lessons at `path`, none if the file is missing; LessonsError if it is invalid."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Lessons(MappingProxyType({}))
    except (OSError, ValueError, RecursionError) as error:
        raise LessonsError(f"{path}: {error}") from error
    if not isinstance(record, dict) or record.get("version") != 1 or not isinstance(record.get("lessons"), dict):
        raise LessonsError(f"not a file of lessons, version 1: {path}")
    return Lessons(_checked(record["lessons"], str(path)))


def save_lessons(lessons: Lessons, path: Path) -> None:
    """Writes the lessons atomically."""
    text = json_text({"version": 1, "lessons": dict(lessons.reasons)}, indent=2)
    draft = path.with_name(path.name + ".new")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)


def _checked(reasons: Mapping[str, object], where: str) -> Mapping[str, str]:
    if len(reasons) > _MOST_LESSONS:
        raise LessonsError(f"{where}: more than {_MOST_LESSONS} lessons")
    checked: dict[str, str] = {}
    for template, reason in reasons.items():
        if not isinstance(reason, str) or reason not in REASONS:
            raise LessonsError(
                f"{where}: unknown reason {reason!r}", hint="list the reasons with `pharoah-tenant reasons`"
            )
        if not template.isascii() and any("\ud800" <= character <= "\udfff" for character in template):
            raise LessonsError(f"{where}: the template {template!r} has a lone surrogate")
        if not any(token != ANY for token in template.split()):
            raise LessonsError(f"{where}: the template {template!r} matches every line of its length")
        checked[template] = reason
    return MappingProxyType(checked)


def _covers(template: Iterable[str], tokens: list[str]) -> bool:
    kept = list(template)
    return len(kept) == len(tokens) and all(
        ANY in ours or ours == theirs for ours, theirs in zip(kept, tokens, strict=True)
    )
