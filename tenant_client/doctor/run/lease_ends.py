"""Joins what the provider said of the end of a lease to the attempt that it ended.

    provider ─ watch ─▶ take ─▶ tenant.db ─┬─ settle: the newest attempt, if nobody observes it any more
                                           └─ the observer of a running attempt: a line now, `settle` at its end

- A lease ends with its job, too. So its end says something of an attempt only where somebody ended the attempt, nobody
  saw how it ended, or it outlived the lease (`concerns`).
- What outlived its lease was ended with it, as by a signal (`run.ended`), and is no failure. Nor is what was killed
  without a known cause as its job was requeued. All other failures stay what they are.
- What was counted in a round stays counted, and a reason that the owner gave stays.
"""

from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGKILL

from crypto.ids import SignatureBytes
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection, transaction
from federation.protocol.service_messages import LeaseChange, LeaseEnd, Notice
from tenant_client.doctor.advice.hints import HintLog, end_of
from tenant_client.doctor.records.attempts import INTERRUPTED, Attempt, AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.fixes import is_counted, uncount
from tenant_client.doctor.run.ended import GRACE_S, MAY_BE_SUPERSEDED, by_somebody, superseded
from tenant_client.doctor.run.run_directory import observed
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.sources.reasons import UNKNOWN, somebody_ended

CLOCKS_S = 5.0  # how far the clocks of a scheduler and of a node may differ; Slurm's times are whole seconds
_REQUEUED_LATER = (*MAY_BE_SUPERSEDED, "cancelled_superseded")


def take(home: Path, log: HintLog, notice: Notice, received_at_s: float, signature: SignatureBytes) -> bool:
    """Stores a hint or an end, and settles the attempt on a lease that ended; false if it is stored already."""
    is_new = log.take(notice, received_at_s, signature)
    if is_new and isinstance(notice, LeaseEnd) and not observed(home, str(notice.lease)):
        settle(log.connection, notice)
    return is_new


def settle(connection: Connection, end: LeaseEnd) -> str:
    """Journals the end with the newest attempt on the lease, if it concerns it; what became of the attempt, or ""."""
    attempts = Attempts(connection)
    own = attempts.list(str(end.lease))
    if not own or not concerns(end, own[-1]):
        return ""
    before = own[-1]
    state, cause = judged(end, before)
    is_excused = before.state is AttemptState.FAILED and state is AttemptState.STOPPED
    if before.said or (is_excused and is_counted(connection, before)):
        state, cause = before.state, before.cause
    finding = asdict(finding_of(end))
    with transaction(connection):
        if is_excused and state is not before.state:
            uncount(connection, before)
        attempts.end(
            before.unit,
            before.attempt,
            state,
            before.ended_at_s if before.ended_at_s is not None else SECONDS_PER_HOUR * end.end_h,
            exit_code=before.exit_code,
            signal=before.signal,
            steps=before.steps,
            findings=[*(one for one in before.findings if one != finding), finding],
        )
        attempts.explain(before.unit, before.attempt, cause)
    return f"attempt {before.attempt} of {before.unit} {state}: {cause.sentence or cause.reason}"


def concerns(end: LeaseEnd, attempt: Attempt) -> bool:
    """Whether the end of a lease says something of an attempt on it."""
    end_s, ended_s = SECONDS_PER_HOUR * end.end_h, attempt.ended_at_s
    if end.change is LeaseChange.MOVED or attempt.started_at_s > end_s + CLOCKS_S:
        return False
    if ended_s is None or attempt.state in (AttemptState.RUNNING, AttemptState.INTERRUPTED):
        return True
    later_s = ended_s - end_s
    if attempt.state is AttemptState.STOPPED:
        return abs(later_s) <= GRACE_S
    return CLOCKS_S <= later_s <= GRACE_S or (abs(later_s) <= GRACE_S and _was_requeued_by_kill(end, attempt))


def judged(end: LeaseEnd, attempt: Attempt) -> tuple[AttemptState, AttemptCause]:
    """State and cause of an attempt that the end concerns."""
    cause, how = attempt.cause, Ending(attempt.exit_code, attempt.signal)
    told = replace(cause, sentence=f"{cause.sentence or cause.reason}; its lease {end_of(end)}")
    is_requeued = end.change is LeaseChange.REQUEUED
    if attempt.state is AttemptState.SUCCEEDED:
        return attempt.state, cause
    if attempt.state is AttemptState.FAILED:
        if not by_somebody(how, cause, asked=True):
            return attempt.state, told
        reason = "preempted" if is_requeued else "cancelled"
        return AttemptState.STOPPED, AttemptCause(reason, sentence=f"{reason}: its lease {end_of(end)}")
    if not somebody_ended(cause.reason):
        return AttemptState.INTERRUPTED, replace(cause, sentence=f"{INTERRUPTED}; its lease {end_of(end)}")
    if is_requeued and cause.reason in _REQUEUED_LATER:
        return AttemptState.STOPPED, superseded(told, attempt.unit, 0.0, requeued=True)
    return AttemptState.STOPPED, told


def finding_of(end: LeaseEnd) -> WatchFinding:
    """The end as a finding, which is over at once."""
    at_s = SECONDS_PER_HOUR * end.end_h
    return WatchFinding(Kind.LEASE_END, at_s, 0, (), f"lease {end.lease} {end_of(end)}", at_s)


def _was_requeued_by_kill(end: LeaseEnd, attempt: Attempt) -> bool:
    is_unknown = attempt.cause.reason == UNKNOWN and not attempt.cause.place
    is_killed = Ending(attempt.exit_code, attempt.signal).code == 128 + SIGKILL
    return end.change is LeaseChange.REQUEUED and is_killed and is_unknown
