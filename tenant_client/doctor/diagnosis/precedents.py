"""Which earlier incidents of the same reason a new one resembles by the words of the lines that tell it.

- An incident is told by at most 16 lines with their numbers masked: those that the diagnosis names, then the lines that
  look like errors or stand last, without those that the workload's healthy attempts print.
- Nearness is the share of the words, rare words counting most, that two incidents have in common, and half a point more
  where the reason is known. A whole line counts as a word.
- Below `LEAST` nothing is a precedent: it is where both had the same cause often enough (docs/measured.md).
- Precedents are for the owner. They name no cause and are never counted.

    >>> words = words_of(("OSError: [Errno <*>] No space left on device",))
    >>> weights = weights_of({word: 1 for word in words}, 9)
    >>> rank("disk_full", weights, [Known(1, len(words), "disk_full"), Known(2, 8, "key_error")], {1: words})
    [(1, 1.5)]
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenant_client.doctor.diagnosis.filter_rules import keeps, pattern_of
from tenant_client.doctor.diagnosis.wording import without_folder
from tenant_client.doctor.sources import exit_status
from tenant_client.doctor.sources.reasons import UNKNOWN

if TYPE_CHECKING:  # it loads numpy for dumps
    from tenant_client.doctor.diagnosis.diagnose import Diagnosis, Gathered

MOST = 3
_MOST_LINES, _MOST_LETTERS, _MOST_WORDS = 16, 400, 48
_KNOWN_REASON, LEAST = 0.5, 0.85
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}", re.ASCII)


@dataclass(frozen=True)
class Precedent:
    """An earlier incident, how near it is, what its owner says helped, and the state of the lease's next attempt.

    `helped` and `then` are "" where nobody knows.
    """

    lease: str
    attempt: int
    at_s: float
    reason: str
    sentence: str
    similarity: float
    helped: str
    then: str

    @property
    def words(self) -> str:
        """One line for a person."""
        after = [f"helped: {self.helped}" if self.helped else "", f"next attempt {self.then}" if self.then else ""]
        what = without_folder(self.sentence) or self.reason
        return "; ".join([f"like {self.lease} attempt {self.attempt}: {what}", *filter(None, after)])


@dataclass(frozen=True)
class Known:
    """An incident that is kept: its number, how many words it has, its reason."""

    number: int
    words: int
    reason: str


def like(precedents: Sequence[Precedent]) -> tuple[str, ...]:
    """One line about the nearest of which somebody said what helped, else about the nearest; none without one."""
    best = next((one for one in precedents if one.helped), precedents[0] if precedents else None)
    return () if best is None else (best.words,)


def telling_lines(diagnosis: "Diagnosis", gathered: "Gathered", dropped: AbstractSet[str]) -> tuple[str, ...]:
    """The lines that tell an incident, masked; `dropped` are those of the workload's healthy attempts."""
    seen = [one for one in (diagnosis.root, diagnosis.symptom, *diagnosis.cascade) if one is not None]
    named = [one.text for one in seen if one.source != exit_status.SOURCE]
    left = (line for line in unexplained_lines(gathered) if keeps(line, dropped))
    lines = [*named, *left] or [one.text for one in seen]  # an exit status tells little where there is a log
    patterns = dict.fromkeys(pattern_of(line[:_MOST_LETTERS]) for line in lines)
    return tuple(pattern for pattern in patterns if pattern)[:_MOST_LINES]


def unexplained_lines(gathered: "Gathered") -> Iterator[str]:
    """Of each file the lines that look like errors and that no cue explains, then its last lines, from the end on."""
    for left in gathered.leftovers.values():
        yield from (line.text for line in left.suspicious)
        yield from (line.text for line in reversed(left.tail))


def words_of(lines: Iterable[str]) -> AbstractSet[str]:
    """What an incident is found by."""
    lines = tuple(lines)
    return {word.lower() for line in lines for word in _WORD.findall(line)} | {f"line {line}" for line in lines}


def weights_of(holders: Mapping[str, int], incidents: int) -> Mapping[str, float]:
    """The weights of the rarest words that any of so many incidents has, by how many have each."""
    rarest = sorted((word for word in holders if holders[word]), key=lambda word: (holders[word], word))[:_MOST_WORDS]
    return {word: math.log((incidents + 1) / (holders[word] - 0.5)) for word in rarest}


def rank(
    reason: str,
    weights: Mapping[str, float],
    known: Sequence[Known],
    shared: Mapping[int, AbstractSet[str]],
    least: float = LEAST,
) -> list[tuple[int, float]]:
    """The nearest incidents of the same reason with their nearness, of equals the newest first.

    `shared` has the words that each has in common with the new one, by its number.
    """
    usual = math.sqrt(len(weights)) * (sum(weights.values()) / len(weights)) if weights else 1.0
    more = _KNOWN_REASON if cause(reason) else 0.0
    alike = [one for one in known if cause(one.reason) == cause(reason)]
    scores = {one.number: more + _sum(weights, shared.get(one.number, ())) / usual / _root(one.words) for one in alike}
    return [(number, round(scores[number], 3)) for number in _best(scores, MOST) if scores[number] >= least]


def cause(reason: str) -> str:
    """The reason; "" where it names no cause, as an exit code does not."""
    return "" if reason in (UNKNOWN, exit_status.EXIT_CODE) else reason


def _best(scores: Mapping[int, float], most: int) -> list[int]:
    return sorted(scores, key=lambda number: (-scores[number], -number))[:most]


def _sum(weights: Mapping[str, float], words: Iterable[str]) -> float:
    return sum(weights[word] for word in words)


def _root(words: int) -> float:
    return math.sqrt(min(max(1, words), _MOST_WORDS))
