"""Ranges of versions, as the rules of a bundle say them: `nccl in [2.18, 2.20)`, `driver < 535`, `torch >= 2.1`.

Versions are compared as tuples of their numbers; a component that is absent is older than every version.

    >>> parse("nccl in [2.18, 2.20)").holds("2.18.3")
    True
    >>> parse("fabric = roce") is None
    True
"""

import re
from dataclasses import dataclass

Version = tuple[int, ...]

_RANGE = re.compile(
    r"(?P<name>\S+) (?:in \[(?P<low>[\d.]+), (?P<before>[\d.]+)\)|>= (?P<least>[\d.]+)|< (?P<most>[\d.]+))"
)


def version(text: str | None) -> Version:
    """The numbers of a version up to its first other sign; none for an absent component. Closing zeros do not count."""
    found = re.match(r"\D?(\d{1,18}(?:\.\d{1,18})*)", text or "", re.ASCII)
    numbers = [int(part) for part in found[1].split(".")] if found else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def order(version: str) -> tuple[tuple[int, int | str], ...]:
    """A key by which 2.9 comes before 2.10, and text of a version after its numbers."""
    parts = re.findall(r"\d{1,18}|[A-Za-z]+", version, re.ASCII)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)


@dataclass(frozen=True)
class VersionRange:
    """low <= version < before; None where there is no bound."""

    name: str
    low: Version | None
    before: Version | None

    def holds(self, value: str | float | None) -> bool:
        """Whether a version as text (None: absent) is inside."""
        numbers = version(None if value is None else str(value))
        return (self.low is None or numbers >= self.low) and (self.before is None or numbers < self.before)

    def joined(self, other: "VersionRange") -> "VersionRange | None":
        """Both together where they touch, else None."""
        first, second = sorted((self, other), key=lambda part: part.low or ())
        if first.before is None or first.before != second.low:
            return None
        return VersionRange(self.name, first.low, second.before)

    def __str__(self) -> str:
        low, before = (".".join(map(str, bound)) if bound else "" for bound in (self.low, self.before))
        if low and before:
            return f"{self.name} in [{low}, {before})"
        return f"{self.name} >= {low}" if low else f"{self.name} < {before}"


def parse(text: str) -> VersionRange | None:
    """The range that a condition says; None for conditions on settings and numbers."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    low, before = found["low"] or found["least"], found["before"] or found["most"]
    return VersionRange(found["name"], version(low) if low else None, version(before) if before else None)
