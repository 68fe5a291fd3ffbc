"""What is known of the ranks of one host at one moment, as values; and the verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tenant_client.doctor.run.hook.cell import StepRecord


class Syndrome(StrEnum):
    """C4D's four, ranks that do not call the same, and the honest last one."""

    NON_COMMUNICATION_HANG = "non_communication_hang"
    COMMUNICATION_HANG = "communication_hang"
    NON_COMMUNICATION_SLOW = "non_communication_slow"
    COMMUNICATION_SLOW = "communication_slow"
    MISMATCHED_COLLECTIVE = "mismatched_collective"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Doing:
    """What the kernel says that a rank does: whether it is stopped, how much it computes, reads and writes.

    `cores` (used or waited for) and `bytes_per_s` are of the process and its children over the last looks;
    `in_disk_wait` of its main thread. A rank whose child is stopped is stopped.
    """

    stopped: bool = False
    in_disk_wait: bool = False
    cores: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class RankView:
    """One rank: where it is by its own marks, for how long, and what it does.

    `entries` counts its changes of place; `aside` is the place that its stack shows, "" where it shows none;
    a rank that has not `answered` when asked for it may be anywhere.
    """

    rank: int
    place: str
    since_s: float
    step: int
    entries: int
    doing: Doing = field(default_factory=Doing)
    aside: str = ""
    answered: bool = True
    records: tuple[StepRecord, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """Who waits for whom in collectives, from the ranks' flight recorders or else from their marks.

    `missing` have not entered what others wait in; `differing` call something else than their group, or all of it does
    where no call has most of the ranks; `stuck` have all entered what does not complete, or on `unfinished` ranks only.
    `call` is the collective for a person, or who of the differing called what; "" where only marks are known.
    """

    missing: frozenset[int] = frozenset()
    differing: frozenset[int] = frozenset()
    stuck: frozenset[int] = frozenset()
    unfinished: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    call: str = ""


@dataclass(frozen=True)
class Link:
    """A connection with data that does not arrive: between two ranks, or from one to an unknown end (None)."""

    rank: int
    peer: int | None


@dataclass(frozen=True)
class Verdict:
    """A syndrome, the ranks it names, and why; `link` where one connection is to blame. `ranks` may be empty."""

    syndrome: Syndrome
    ranks: tuple[int, ...]
    why: str
    link: Link | None = None


Views = Mapping[int, RankView]
