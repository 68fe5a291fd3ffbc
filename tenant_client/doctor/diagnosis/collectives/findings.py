"""What the analysis says: a verdict, the ranks it rests on, and every group that does not advance.

Frozen, comparable and in an order of their own, so that the same dumps give equal `CollectiveFindings`, and the same
text for a person, however they were handed in. `evidence` is the same for the diagnosis of a job.

>>> CollectiveFindings(CollectiveVerdict.CLEAN, (), (), ()).sentence
'nothing found'
>>> listed([3, 1])
'ranks 1, 3'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.flight_recorder import Group
from tenant_client.doctor.sources.flight_recorder_file import SOURCE

SHOWN = 10  # ranks, culprits and deviating calls in a text
NO_MAJORITY = "no majority"
_TIMED_OUT, MISMATCHED = "nccl_timeout_error", "mismatched_collective"


class CollectiveVerdict(StrEnum):
    """What is wrong, the most telling first."""

    MISMATCH = "mismatch"
    STOPPED = "stopped"
    MISSING = "missing"
    UNDECIDED = "undecided"
    NETWORK = "network"
    CLEAN = "nothing found"

    @property
    def order(self) -> int:
        """0 for the most telling."""
        return list(CollectiveVerdict).index(self)


class CollectiveCause(StrEnum):
    """Where to look on an accused rank, one for each verdict that accuses."""

    PROGRAM = "the program: it calls something else than its group"
    DEVICE = "the GPU, or the thread that watches it: work stands still that its peers finished or began"
    HOST = "the host: the process stopped calling (data loader, lock, checkpoint, crash)"


CAUSES = {
    CollectiveVerdict.MISMATCH: CollectiveCause.PROGRAM,
    CollectiveVerdict.STOPPED: CollectiveCause.DEVICE,
    CollectiveVerdict.MISSING: CollectiveCause.HOST,
}


@dataclass(frozen=True)
class Call:
    """A collective as a person knows it; `place` is the source line, "" where not recorded."""

    operation: str
    group: Group
    seq: int
    state: str
    place: str
    at_s: float

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive, whose sequence number is that of the collective before."""
        return self.operation.startswith(("send", "recv"))

    @property
    def where(self) -> str:
        """Its number and its group, and the source line where it was recorded."""
        group = f"seq {self.seq}, group {self.group.description or self.group.name}"
        return f"{group}, {self.place}" if self.place else group

    def __str__(self) -> str:
        group = f"group {self.group.description or 'without description'} ({self.group.name})"
        return f"{self.operation}, seq {self.seq}, {group}, {self.place or 'source line not recorded'}"


@dataclass(frozen=True)
class GroupFinding:
    """One group that does not advance: where, by whose doing as far as this group shows, and who waits there."""

    verdict: CollectiveVerdict
    call: Call
    file: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    reason: str
    excusable: bool = False  # a rank that waits elsewhere may have no part in it


@dataclass(frozen=True)
class Culprit:
    """A rank where the trouble begins; `last` is its last record and `age_s` how much older than the newest of all."""

    rank: int
    file: str
    cause: CollectiveCause
    call: Call
    reason: str
    last: Call | None
    age_s: float | None

    def __str__(self) -> str:
        last = "its dump holds no record" if self.last is None else f"last record {self.last.state}: {self.last}"
        age = "" if self.age_s is None else f", {self.age_s:.3f} s before the newest of all ranks"
        return f"rank {self.rank}: {self.call}\n  {self.reason}\n  look at {self.cause}\n  {last}{age}"


@dataclass(frozen=True)
class CollectiveFindings:
    """The verdict, the ranks it rests on, and every group that does not advance: the culprits' first, then by time."""

    verdict: CollectiveVerdict
    accused: tuple[Culprit, ...]
    groups: tuple[GroupFinding, ...]
    no_dump: tuple[int, ...]

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks where the trouble begins."""
        return tuple(sorted(culprit.rank for culprit in self.accused))

    @property
    def sentence(self) -> str:
        """For a person; the first line is rank, operation, sequence number, group, source line."""
        lines = [str(culprit) for culprit in self.accused[:SHOWN]]
        if not lines:
            lines = [f"no rank can be named: {found.call}\n  {found.reason}" for found in self.groups[:1]]
        if len(self.accused) > 1:
            lines.append(f"culprits: {listed(self.culprits)}")
        if self.no_dump:
            lines.append(f"without a dump, cannot decide: {listed(self.no_dump)}")
        return "\n".join(lines) or CollectiveVerdict.CLEAN.value


def evidence(findings: CollectiveFindings) -> list[Evidence]:
    """A root per culprit, and per group that has no majority; the groups that merely wait are symptoms."""
    named = set(findings.culprits)
    waiting = [found for found in findings.groups if named.isdisjoint(found.ranks)]
    return [_root(culprit) for culprit in findings.accused] + [_of_group(found) for found in waiting]


def _root(one: Culprit) -> Evidence:
    text = f"{one.call}: {one.reason}; {one.cause}"
    reason = MISMATCHED if one.cause is CollectiveCause.PROGRAM else _TIMED_OUT
    return Evidence(reason, Role.ROOT, SOURCE, one.file, 0, text, one.call.at_s, one.rank)


def _of_group(one: GroupFinding) -> Evidence:
    text, at_s = f"{one.call}: {one.reason}", one.call.at_s
    if one.verdict is CollectiveVerdict.MISMATCH:
        return Evidence(MISMATCHED, Role.ROOT, SOURCE, one.file, 0, text, at_s)
    return Evidence(_TIMED_OUT, Role.SYMPTOM, SOURCE, one.file, 0, text, at_s)


def listed(ranks: Sequence[int]) -> str:
    """The ranks in their order, the first of them where there are many."""
    shown = ", ".join(map(str, sorted(ranks)[:SHOWN]))
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
