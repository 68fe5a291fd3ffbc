"""Follows leases as Slurm gives them: each start of an enrolled tenant's job is a lease, recorded and kept up to date.

    sacct ─ read_starts ─▶ starts ─ events_of ─▶ begin, change, end, requeue ─▶ LeaseRecorder

`[leases] slurm_accounts` says which tenant an account is. Lease ids come from the tenant's lease key, so that its jobs
find them (`federation.protocol.job_leases`). While a job runs, its lease ends with its time limit; hours in which a job
was suspended are taken off the end of its lease.

Guarantees. Repeating it changes nothing. A lease's start, nodes and tokens stay as they were first recorded.
"""

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from crypto.ids import LeaseId, TenantId
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.reading import ReadLimits, of_form, open_inputs
from federation.protocol.job_leases import lease_key, lease_of_job
from pharoah_slurm.starts import JobStart, UnusableSlurm, read_starts
from provider_server.fleet.leases import Lease
from provider_server.rounds.intake.lease_events import FAULTS, Begin, Change, End, LeaseEvent, Requeue, why
from provider_server.rounds.intake.recorder import SAME_H, LeaseRecorder
from provider_server.rounds.lease_book import LeaseBook

DAY_S = 86_400
TICK_S = 1  # Slurm's times are whole seconds: a job that began and ended in one still ran
SACCT = ("sacct", "--json", "--duplicates", "--allusers", "--allocations")
PATIENCE_S = 120.0
JOBS_AT_ONCE = 1000
LIMITS = ReadLimits(total_bytes=1 << 30, archive_members=64)


class Turn(StrEnum):
    """What became of a lease since the last look."""

    BEGAN = "began"
    MOVED = "end moved"
    ENDED = "ended"
    EARLY = "ended early"
    REQUEUED = "requeued"


@dataclass(frozen=True)
class Followed:
    """A lease that changed, the start that it is for, and its end before, if it was recorded."""

    turn: Turn
    lease: Lease
    start: JobStart
    end_before_h: float | None


class Look(NamedTuple):
    """What one look at Slurm showed: changed leases, and starts that were left out, by reason."""

    changes: list[Followed]
    left_out: Counter[str]


def ask_sacct(since_h: float, left_out: Counter[str]) -> list[JobStart]:
    """All starts of the jobs that Slurm ran in the last hours; UnusableSlurm if it cannot be asked.

    What is left out is counted by its reason.
    """
    recent = read_starts(_said(*SACCT, f"--starttime=now-{int(since_h * 60)}minutes"), left_out)
    jobs = sorted({start.job for start in recent})
    found: list[JobStart] = []
    for at in range(0, len(jobs), JOBS_AT_ONCE):
        # Without a window: a start is numbered by those before it.
        found += read_starts(_said(*SACCT, f"--jobs={','.join(map(str, jobs[at : at + JOBS_AT_ONCE]))}"))
    return found


def _said(*command: str) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S).stdout
    except subprocess.CalledProcessError as error:
        raise UnusableSlurm(f"sacct failed: {error.stderr.decode(errors='replace').strip()[:200]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnusableSlurm(f"sacct cannot be asked: {error}") from error


def read_file(path: Path, left_out: Counter[str]) -> list[JobStart]:
    """The starts in a saved answer, however it is packed; SourceError where none is in it."""
    starts: list[JobStart] = []
    with open_inputs(path, LIMITS) as inputs:
        for reader in of_form(inputs, _is_json, "what `sacct --json` prints", hint=UnusableSlurm.default_hint):
            starts += read_starts(reader.read(), left_out)
    return starts


def _is_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{"


def follow(
    book: LeaseBook,
    recorder: LeaseRecorder,
    secret: bytes,
    tenants: Mapping[str, TenantId],
    starts: Sequence[JobStart],
    now_s: float,
) -> Look:
    """Records what became of the starts of these accounts' jobs; lease keys are derived from `secret`."""
    changes: list[Followed] = []
    left_out: Counter[str] = Counter()
    keys = {tenant: lease_key(secret, tenant) for tenant in tenants.values()}
    for start in starts:
        tenant = tenants.get(start.account.lower())  # Slurm keeps accounts in lower case, exports of it not always
        if tenant is None:
            left_out[f"account {start.account!r} is not in [leases] slurm_accounts{_named(tenants)}"] += 1
            continue
        try:
            name = lease_of_job(keys[tenant], start.cluster, start.job, start.restarts)
            changes += _take(book, recorder, name, events_of(start, name, tenant, now_s), start)
        except FAULTS as error:  # whatever is wrong with one job, the others are recorded
            left_out[f"job {start.job}: {why(error)}"] += 1
    return Look(changes, left_out)


def _named(tenants: Mapping[str, TenantId]) -> str:
    return "" if tenants else ", which names none: give there whose each account is"


def events_of(start: JobStart, name: LeaseId, tenant: TenantId, now_s: float) -> Iterator[LeaseEvent]:
    """What has happened to the lease of a start, in order."""
    until_s = start.planned_end_s if start.planned_end_s is not None else (now_s // DAY_S + 2) * DAY_S
    until, lease = _time(max(until_s, start.start_s + TICK_S)), str(name)
    yield Begin(lease, str(tenant), _time(start.start_s), until, start.nodes)
    if start.end_s is None:
        yield Change(lease, until)
    else:
        end_s = max(start.end_s - start.suspended_s, start.start_s + TICK_S)
        yield (Requeue if start.is_requeued else End)(lease, _time(end_s))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _take(
    book: LeaseBook, recorder: LeaseRecorder, name: LeaseId, events: Iterator[LeaseEvent], start: JobStart
) -> Iterator[Followed]:
    before = book.store.lease(name)
    if start.is_requeued and book.store.ends.came(name):
        return  # Slurm rewrites the end of a job that is requeued after it was over
    for event in events:
        suspended_h = start.suspended_s / SECONDS_PER_HOUR if isinstance(event, End) else 0.0
        recorder.take(event, limited=start.planned_end_s is not None, suspended_h=suspended_h)
    lease = book.store.lease(name)
    if lease is not None and (before is None or abs(lease.end_h - before.end_h) > SAME_H):
        yield Followed(_turn(lease, before, start), lease, start, None if before is None else before.end_h)


def _turn(lease: Lease, before: Lease | None, start: JobStart) -> Turn:
    if start.end_s is None:
        return Turn.BEGAN if before is None else Turn.MOVED
    if start.is_requeued:
        return Turn.REQUEUED
    planned_h = None if start.planned_end_s is None else start.planned_end_s / SECONDS_PER_HOUR
    return Turn.EARLY if planned_h is None or lease.end_h < planned_h - SAME_H else Turn.ENDED
