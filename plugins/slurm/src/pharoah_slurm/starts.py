"""Starts of jobs as Slurm accounts for them: from `sacct --json --duplicates`, or slurmrestd's answer for `/jobs`.

Read are the schemas of Slurm's OpenAPI plugin dbv0.0.38 (Slurm 22.05), where an unknown number is null, and of the
data parser v0.0.40 (23.11) and later, where it is an object with `set`, `infinite` and `number`, and a state is a list.

Guarantees. A start is a run of a job until it ends or is requeued: each has a record of its own, and the nth of a job's
records is its start after n - 1 restarts, as SLURM_RESTART_COUNT counts. What follows a record of a job that was over
(completed, failed, cancelled) is another job: job ids began anew. Records before a resize are part of the start that
goes on. Tasks of arrays and components of heterogeneous jobs have job ids of their own. A job that is over without an
end (a node failure) ended once it had run for what Slurm says has elapsed. Jobs that were never given nodes are left
out, and so is one that cannot be read; the others are read. Names of users, commands and working directories are not.

Not promised: the right number of restarts where records are missing, as without `--duplicates`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated

import msgspec

from crypto.errors import PharoahError
from federation.base.foreign import LATEST_S, MALFORMED
from federation.base.hostlist import hostlist

REQUEUED = frozenset({"REQUEUED", "REQUEUE", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED"})
_RESIZED = "RESIZING"
# After these a job is over; after a node failure or a preemption it may go on. Slurm rewrites the state of a job that
# is requeued after its end.
_OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "REVOKED"})
_ENDED = _OVER | {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}
_LIMIT_S = 60
_LONGEST_MIN = 60 * 24 * 36525  # a limit of a century is none


class UnusableSlurm(PharoahError):
    """What Slurm said cannot be read."""

    default_hint = "pass the output of `sacct --json --duplicates`, or set PATH and SLURM_CONF so that sacct answers"


@dataclass(frozen=True)
class JobStart:
    """One start of a job; times in seconds since 1970. `end_s` None: it runs. `limit_s` None: it has no time limit."""

    cluster: str
    job: int
    restarts: int
    account: str
    nodes: tuple[str, ...]
    start_s: int
    end_s: int | None
    limit_s: int | None
    suspended_s: int
    state: str
    is_requeued: bool
    """Whether it ended since the job was put back into the queue."""

    @property
    def planned_end_s(self) -> int | None:
        """When its time limit ends it, which does not run while it is suspended; None without a limit."""
        return None if self.limit_s is None else self.start_s + self.limit_s + self.suspended_s


class _Number(msgspec.Struct, frozen=True):
    set: bool = False
    infinite: bool = False
    number: int = 0


_Maybe = int | _Number | None


class _Time(msgspec.Struct, frozen=True):
    start: _Maybe = None
    end: _Maybe = None
    limit: _Maybe = None
    suspended: _Maybe = None
    elapsed: _Maybe = None


class _State(msgspec.Struct, frozen=True):
    current: str | list[str] = ""


class _Job(msgspec.Struct, frozen=True):
    job_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    cluster: str
    state: _State
    time: _Time
    nodes: str | None = None
    account: str | None = None


class _Named(msgspec.Struct, frozen=True):
    job_id: object = "?"


class _Answer(msgspec.Struct, frozen=True):
    jobs: list[msgspec.Raw]
    errors: list[msgspec.Raw] = []


class _LeftOut(Exception):
    """Why a record is no start of a job."""


def read_starts(answer: bytes, left_out: Counter[str] | None = None) -> list[JobStart]:
    """The starts of jobs in an answer, in order of start; UnusableSlurm where it is none, or reports errors.

    Records that are no starts are counted in `left_out` by their reason, which names a job that cannot be read.
    """
    try:
        read = msgspec.json.decode(answer, type=_Answer)
    except MALFORMED as error:
        raise UnusableSlurm(f"not an answer of Slurm: {error}") from error
    if read.errors:
        raise UnusableSlurm(f"Slurm reports {bytes(read.errors[0]).decode(errors='replace')[:200]}")
    why: Counter[str] = Counter()
    records = sorted(_records(read.jobs, why), key=lambda one: (one.cluster, one.job, one.start_s))
    if sum(count for reason, count in why.items() if reason.startswith("job ")) == len(read.jobs) > 0:
        is_queue = b'"job_state"' in bytes(read.jobs[0])
        form = "what `scontrol` or `squeue` prints" if is_queue else "not an answer of sacct"
        raise UnusableSlurm(f"{form}: {next(iter(why))}")
    if left_out is not None:
        left_out.update(why)
    starts: list[JobStart] = []
    for _job, group in groupby(records, key=lambda one: (one.cluster, one.job)):
        starts += _numbered(list(group))
    return sorted(starts, key=lambda one: (one.start_s, one.job))


def _numbered(records: Sequence[JobStart]) -> Iterator[JobStart]:
    """The starts of one job from its records in order of start."""
    restarts, begun_s = 0, None
    for record, later in zip(records, [*records[1:], None], strict=True):
        start_s = record.start_s if begun_s is None else begun_s
        if record.state == _RESIZED and later:
            begun_s = start_s
            continue
        goes_on = later is not None and record.state not in _OVER
        yield replace(record, restarts=restarts, start_s=start_s, is_requeued=record.is_requeued or goes_on)
        restarts, begun_s = restarts + 1 if goes_on else 0, None


def _records(jobs: Sequence[msgspec.Raw], left_out: Counter[str]) -> Iterator[JobStart]:
    for raw in jobs:
        try:
            yield _record(msgspec.json.decode(raw, type=_Job))
        except _LeftOut as error:
            left_out[str(error)] += 1
        except MALFORMED as error:
            left_out[f"job {_name(raw)}: {error}"] += 1


def _name(raw: msgspec.Raw) -> str:
    try:
        return str(msgspec.json.decode(raw, type=_Named).job_id)[:20]
    except (*MALFORMED, ValueError):  # a number of more digits than Python writes
        return "?"


def _record(job: _Job) -> JobStart:
    """_LeftOut for a job that has not begun, was never given nodes, or whose times are none."""
    start_s, end_s, nodes = _number(job.time.start), _number(job.time.end), job.nodes or ""
    suspended_s, elapsed_s = _number(job.time.suspended) or 0, _number(job.time.elapsed)
    if not start_s:
        raise _LeftOut("it has not begun")
    if nodes in ("", "None assigned"):
        raise _LeftOut("it was never given nodes")
    names = tuple(hostlist(nodes))
    if not names or nodes.count("[") != nodes.count("]"):
        raise _LeftOut(f"job {job.job_id}: its list of nodes {nodes[:60]!r} is none")
    limit_min = _number(job.time.limit)
    told = job.state.current
    state = told if isinstance(told, str) else _telling(told)
    if not end_s and state in _ENDED:
        if elapsed_s is None:
            raise _LeftOut(f"job {job.job_id}: {state}, and neither its end nor what elapsed is told")
        end_s = start_s + elapsed_s + suspended_s
    if not all(0 <= time_s < LATEST_S for time_s in (start_s, end_s or 0, suspended_s)):
        raise _LeftOut(f"job {job.job_id}: its times are not between 1970 and 2200")
    return JobStart(
        cluster=job.cluster,
        job=job.job_id,
        restarts=0,
        account=job.account or "",
        nodes=names,
        start_s=start_s,
        end_s=end_s or None,
        limit_s=None if limit_min is None or not 0 <= limit_min <= _LONGEST_MIN else _LIMIT_S * limit_min,
        suspended_s=suspended_s,
        state=state,
        is_requeued=state in REQUEUED,
    )


def _telling(states: Sequence[str]) -> str:
    """Of the states that newer versions list, the one that says that a job was requeued, else the first."""
    return next((state for state in states if state in REQUEUED), states[0] if states else "")


def _number(value: _Maybe) -> int | None:
    if isinstance(value, _Number):
        return value.number if value.set and not value.infinite else None
    return value
