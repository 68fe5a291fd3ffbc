"""The cue table: the log patterns that are evidence for a reason.

- The table is `cues.toml`. Only it, `xid.toml` and the owner's lessons name reasons.
- A cue is tried only if a line has one of its literals; the first match in table order wins.
- Every cue has an example, which the loader checks against it.
- Readers pass at most a few kilobytes of a line, so that no regex runs over a huge one.

    >>> cue = match_exception("KeyError: 'input_ids'", ())
    >>> cue.reason, cue.role.value
    ('key_error', 'root')
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from federation.protocol.causes import Domain
from federation.protocol.toml_tables import BadTable, convert, loads, shipped
from tenant_client.doctor.sources.evidence import Role
from tenant_client.doctor.sources.reasons import REASONS, SENTENCE, UNKNOWN
from tenant_client.doctor.sources.scanning import DIGITS, Gate, alternation, gate_of

SECTIONS = ("warning", "device", "kernel", "nccl", "job", "end", "exception")
_OF_DEVICES = ("job", "end", "exception")  # sections that begin with the rows of `device`


class Level(IntEnum):
    """Where a cue speaks from; among failures seen together the lower level is the nearer to the cause."""

    HARDWARE = 0
    DEVICE = 1
    WORKER = 2
    MEMORY = 3
    NETWORK = 4
    COLLECTIVE = 5
    PROGRAM = 6


@dataclass(frozen=True)
class Cue:
    """One row: what to look for and what it says, and its place in its section.

    `frames` must match a frame of the traceback where it is given. `domain` and `advice` go before those of the reason,
    None and "" where these hold. A cue that `explains` others is a root only where a later one has such words.
    """

    reason: str
    role: Role
    level: Level
    literals: tuple[str, ...]
    pattern: re.Pattern[str]
    frames: re.Pattern[str] | None
    example: str
    order: int
    domain: Domain | None = None
    advice: str = ""
    explains: re.Pattern[str] | None = None

    def matches(self, text: str) -> bool:
        """Whether this line, or this last line of a traceback, says it."""
        return any(literal in text for literal in self.literals) and self.pattern.search(text) is not None


@dataclass(frozen=True)
class Cues:
    """The table: words that gate a whole log, cues by section, and the newest version looked at of each program."""

    words: tuple[str, ...]
    sections: Mapping[str, tuple[Cue, ...]]
    looked_at: Mapping[str, str]

    @cached_property
    def literals(self) -> "Mapping[str, _Literals]":
        """The literals of each section."""
        return {name: _Literals(cues) for name, cues in self.sections.items()}


class _Literals:
    """A section's literals with their cues, in the order of the table, found by what they are without digits."""

    def __init__(self, cues: Iterable[Cue]) -> None:
        self._rows = tuple((literal, cue) for cue in cues for literal in cue.literals)
        bare = [_bare(literal) for literal, _ in self._rows]
        self._anywhere = {row for row, one in enumerate(bare) if not one}  # digits alone
        self._by_letter: dict[int, list[tuple[bytes, int]]] = {}
        for row, one in enumerate(bare):
            if one:
                self._by_letter.setdefault(one[0], []).append((one, row))
        self._any = re.compile(alternation(one.decode() for one in bare if one).encode())

    def within(self, bare: bytes) -> tuple[tuple[str, Cue], ...]:
        """Those that a line may hold which is this without its digits: one search where, as mostly, it holds none."""
        rows = set(self._anywhere)
        found = self._any.search(bare)
        while found:
            at = found.start()
            rows.update(row for one, row in self._by_letter[bare[at]] if bare.startswith(one, at))
            found = self._any.search(bare, at + 1)
        return tuple(self._rows[row] for row in sorted(rows))


_LINES_KEPT = 2048  # kinds of lines: most differ from others in numbers alone


def says_something(text: str) -> bool:
    """Whether a line may hold a word of the gate: without one no cue of `kernel`, `nccl` and `job` matches."""
    return _says_something(_bare(text))


@lru_cache(1)  # a line is asked about several times in turn
def _bare(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").translate(None, DIGITS)


@lru_cache(_LINES_KEPT)
def _says_something(bare: bytes) -> bool:
    return _gate().bare.search(bare) is not None


@lru_cache(_LINES_KEPT)
def _candidates(section: str, bare: bytes) -> tuple[tuple[str, Cue], ...]:
    return table().literals[section].within(bare)


def match_line(text: str, sections: Iterable[str]) -> Cue | None:
    """The first cue of these sections that the line matches, unless it counts none: `0 uncorrectable ECC errors`."""
    bare = _bare(text)
    for section in sections:
        for literal, cue in _candidates(section, bare):
            if literal in text and (found := cue.pattern.search(text)) and not _counts_none(text, found):
                return cue
    return None


_NONE_BEFORE = re.compile(  # but not the number of a rank or a worker
    r"(?i)(?<![\w.:=-])(?<!rank )(?<!task )(?<!node )(?<!gpu )(?<!worker )(?<!device )(?<!process )0 (?:\w+ )?$"
)
_NONE_AFTER = re.compile(r"\w*(?: count)?\s*[:=]\s*0\b(?!\.)")


def _counts_none(text: str, found: re.Match[str]) -> bool:
    return bool(_NONE_BEFORE.search(text[: found.start()]) or _NONE_AFTER.match(text, found.end()))


def match_exception(text: str, frames: Sequence[str]) -> Cue | None:
    """The first cue for `type: message`; `frames` are "path:function" of its traceback.

    What runs while a module is imported is none of its functions.
    """
    frames = [frame for frame in frames if not frame.endswith(":<module>")]
    for literal, cue in _candidates("exception", _bare(text)):
        found = literal in text and cue.pattern.search(text)
        if found and (cue.frames is None or any(cue.frames.search(frame) for frame in frames)):
            return cue
    return None


def level_of(reason: str) -> Level:
    """The level of a reason: of its roots, the highest where they differ; of its symptoms where it has no roots."""
    return _levels().get(reason, Level.PROGRAM)


@cache
def _gate() -> Gate:
    return gate_of(table().words)


@cache
def _levels() -> Mapping[str, Level]:
    cues = [cue for section in table().sections.values() for cue in section if cue.reason != UNKNOWN]
    roots = {cue.reason for cue in cues if cue.role is Role.ROOT}
    levels: dict[str, Level] = {}
    for cue in cues:
        if cue.role is Role.ROOT or cue.reason not in roots:
            levels[cue.reason] = max(cue.level, levels.get(cue.reason, cue.level))
    return MappingProxyType(levels)


@cache
def table() -> Cues:
    """The table of this package, read on first use."""
    return parse(shipped("tenant_client.doctor.sources", "cues.toml"))


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str
    role: Role
    level: Literal["hardware", "device", "worker", "memory", "network", "collective", "program"]
    literals: tuple[str, ...]
    regex: str
    example: str
    frames: str | None = None
    domain: Domain | None = None
    advice: Annotated[str, Meta(pattern=SENTENCE)] = ""
    explains: str | None = None

    def cue(self, order: int) -> Cue:
        if self.reason != UNKNOWN and self.reason not in REASONS:
            raise BadTable(f"{self.reason!r} is not a reason of causes.toml or reasons.toml")
        frames, explains = (None if one is None else re.compile(one) for one in (self.frames, self.explains))
        level, pattern = Level[self.level.upper()], re.compile(self.regex)
        told = self.example, order, self.domain, self.advice, explains
        cue = Cue(self.reason, self.role, level, self.literals, pattern, frames, *told)
        if not cue.matches(cue.example):
            raise BadTable(f"the cue for {cue.reason} does not match its own example {cue.example!r}")
        return cue


class _OwnTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cue: tuple[_Row, ...]


def own_cues(text: str, where: str) -> tuple[Cue, ...]:
    """The cues of a format that brings its own table: rows `[[cue]]`, with the keys of this table's rows."""
    return tuple(row.cue(order) for order, row in enumerate(convert(loads(text, where), _OwnTable, where).cue))


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    words: tuple[str, ...]
    looked_at: dict[str, str]
    warning: tuple[_Row, ...]
    device: tuple[_Row, ...]
    kernel: tuple[_Row, ...]
    nccl: tuple[_Row, ...]
    job: tuple[_Row, ...]
    end: tuple[_Row, ...]
    exception: tuple[_Row, ...]


def parse(text: str) -> Cues:
    """Read a table; BadTable for unknown slugs, roles, levels or keys, and for a cue that misses its own example."""
    table = convert(loads(text, "cues.toml"), _Table, "cues.toml")
    sections: dict[str, tuple[Cue, ...]] = {}
    for name in SECTIONS:
        rows = (*(table.device if name in _OF_DEVICES else ()), *getattr(table, name))
        sections[name] = tuple(row.cue(order) for order, row in enumerate(rows))
    for section in ("warning", "kernel", "nccl", "job"):
        for cue in sections[section][len(table.device) * (section in _OF_DEVICES) :]:
            _check_gated(cue, table.words)
    return Cues(table.words, MappingProxyType(sections), table.looked_at)


def _check_gated(cue: Cue, words: Sequence[str]) -> None:
    for literal in cue.literals:
        if not any(word in literal for word in words):
            raise BadTable(f"the literal {literal!r} of a cue for {cue.reason} holds no gate word")
    if not any(word in cue.example for word in words):
        raise BadTable(f"no gate word finds the example {cue.example!r}")
