"""Events of leases line by line. A bad line is refused with its number and its reason, and the others are recorded."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypedDict

from provider_server.rounds.intake.lease_events import FAULTS, BadLeases, decoded, why
from provider_server.rounds.intake.recorder import LeaseRecorder, Recorded

LONGEST_LINE = 1 << 20


class RefusedLine(TypedDict):
    """A line that was not recorded, counted from 1, and why."""

    line: int
    error: str


class Taken(TypedDict):
    """How many events were of each kind, `known` if recorded before; and the lines that were refused."""

    begun: int
    changed: int
    ended: int
    requeued: int
    known: int
    refused: list[RefusedLine]


def take_each(lines: Iterable[bytes], recorder: LeaseRecorder) -> Iterator[Recorded | RefusedLine | None]:
    """What became of each line, as it comes; None for an empty one."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield None
            continue
        try:
            if len(line) > LONGEST_LINE:
                raise BadLeases(f"longer than {LONGEST_LINE} bytes")
            yield recorder.take(decoded(line))
        except FAULTS as error:
            yield {"line": number, "error": why(error)}


def total(outcomes: Iterable[Recorded | RefusedLine | None]) -> Taken:
    """The sum of what became of lines."""
    counts: Counter[Recorded] = Counter()
    refused: list[RefusedLine] = []
    for outcome in outcomes:
        if isinstance(outcome, Recorded):
            counts[outcome] += 1
        elif outcome is not None:
            refused.append(outcome)
    return {
        "begun": counts[Recorded.BEGUN],
        "changed": counts[Recorded.CHANGED],
        "ended": counts[Recorded.ENDED],
        "requeued": counts[Recorded.REQUEUED],
        "known": counts[Recorded.KNOWN],
        "refused": refused,
    }
