"""What launchers say of their workers, as lines in a job's output: a start, a failure, another group of replicas.

| launcher | line | switched on by |
|---|---|---|
| torchrun | `torch.distributed.elastic.events.Event` as JSON (PyTorch 2.13) | `torchrun --event-log-handler console` |
| NVRx | `shared_utils.profiling` in the log of `ft_launcher` (nvidia-resiliency-ext d8686d9c7015) | nothing |
| torchft | its structured log records as JSON (torchft 0.2.0) | `examples/launchers/torchft_events.py` |

A line that is none of these, is damaged or is too long says nothing. torchrun's events have no time.

    >>> line = " - Cycle: 2 Event: failure_detected Node: gpu-7_81_0 Rank: 3 Time: 2026-08-07 22:12:30.250 UTC"
    >>> event = read_event(line.encode())
    >>> event.kind.value, event.start, event.text
    ('failed', 1, 'NVRx detected a failure on gpu-7_81_0')
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

_LONGEST = 65536
_DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_PROFILED = re.compile(
    rb"- Cycle: (\d{1,6}) Event: (\w{1,40}) Node: (.{1,200}?) Rank: (?:\w{1,10}) Time: ([\d :.-]{19,26}) UTC"
)


class EventKind(StrEnum):
    """What happened: workers started, some failed, replicas formed another group, or a step was not committed."""

    STARTED = "started"
    FAILED = "failed"
    REGROUPED = "regrouped"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class LauncherEvent:
    """One event. `start` counts the starts of all workers from 0 on, where the launcher does; `world_size` of ranks.

    Two that say the same are equal, whenever they came: each node of a job tells them.
    """

    kind: EventKind
    text: str
    start: int | None = None
    world_size: int | None = None
    at_s: float | None = field(default=None, compare=False)


def read_event(line: bytes) -> LauncherEvent | None:
    """What a line of a job's output says; None for all others."""
    if len(line) <= _LONGEST:
        for marker, read in _READERS.items():
            at = line.find(marker)
            if at >= 0:
                return read(line[at:])
    return None


def tells(output: bytes) -> bool:
    """Whether there may be an event in some output."""
    return any(marker in output for marker in _READERS)


class _Metadata(msgspec.Struct):
    state: str
    agent_restarts: int
    global_rank: int | None
    hostname: str
    metadata: str


class _Event(msgspec.Struct):
    source: str
    metadata: _Metadata


class _Worker(msgspec.Struct):
    role_world_size: tuple[int | None, ...] = ()


def _torchrun(line: bytes) -> LauncherEvent | None:
    try:
        event = msgspec.json.decode(line, type=_Event)
        worker = msgspec.json.decode(event.metadata.metadata, type=_Worker)
    except _DAMAGED:
        return None
    said = event.metadata
    if event.source != "WORKER" or said.global_rank is None:
        return None
    if said.state == "START":
        size = next(iter(worker.role_world_size), None)
        return LauncherEvent(EventKind.STARTED, "torchrun started the workers", said.agent_restarts, size)
    if said.state == "FAILED":
        text = f"rank {said.global_rank} failed on {said.hostname}, torchrun says"
        return LauncherEvent(EventKind.FAILED, text, said.agent_restarts)
    return None


def _nvrx(line: bytes) -> LauncherEvent | None:
    matched = _PROFILED.match(line)
    if not matched:
        return None
    cycle, event, node = int(matched[1]), matched[2], matched[3].decode(errors="replace")
    at_s = _time(matched[4].decode())
    if event == b"worker_start_completed":
        return LauncherEvent(EventKind.STARTED, "NVRx started the workers", cycle, at_s=at_s)
    if event == b"failure_detected":  # which belongs to the next cycle already
        return LauncherEvent(EventKind.FAILED, f"NVRx detected a failure on {node}", max(0, cycle - 1), at_s=at_s)
    return None


def _time(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


class _Record(msgspec.Struct):
    torchft: str
    at_s: float
    replica_id: str | None = None
    quorum_id: int | None = None
    step: int | None = None
    commit_result: bool | None = None
    error: str = ""


def _torchft(line: bytes) -> LauncherEvent | None:
    try:
        said = msgspec.json.decode(line, type=_Record)
    except _DAMAGED:
        return None
    if said.torchft == "torchft_quorums":
        text = f"torchft formed quorum {said.quorum_id} at step {said.step}"
        return LauncherEvent(EventKind.REGROUPED, text, at_s=said.at_s)
    if said.torchft == "torchft_commits" and said.commit_result is False:
        return LauncherEvent(EventKind.SKIPPED, f"torchft did not commit step {said.step}", at_s=said.at_s)
    if said.torchft == "torchft_errors":
        text = f"torchft has an error in replica {said.replica_id}: {said.error.partition(chr(10))[0][:200]}"
        return LauncherEvent(EventKind.FAILED, text, at_s=said.at_s)
    return None


_READERS: dict[bytes, Callable[[bytes], LauncherEvent | None]] = {
    b'{"name": "torchelastic.worker.status.': _torchrun,
    b"- Cycle: ": _nvrx,
    b'{"torchft": "': _torchft,
}
