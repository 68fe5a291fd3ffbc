"""Classifies the state of a job when it was cancelled: stalled, diverging, healthy, over its limit.

- Decided from how the job stood at the signal (`Standing`), since it may stand differently when it has ended at last.
- What a scheduler says of a time limit or of preemption goes before what the job looked like, unless the job hung.
- Such an attempt is no failure. One exception: a job that stalled, and a log of the kernel or of NCCL that names the
  device or link behind it (`names_hardware`).

Source: Hu et al., NSDI 2024: 63% of GPU time ends cancelled, and nobody knows why.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from signal import SIGHUP, SIGINT, SIGTERM, Signals

from federation.base.visible import counted_as
from federation.protocol.causes import CAUSES, Domain
from tenant_client.doctor.records.attempts import AttemptCause
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Standing
from tenant_client.doctor.sources.reasons import UNKNOWN, counted_as as counted_as_reason, somebody_ended

TIME_LIMIT = "time_limit"
GRACE_S = 1800.0  # a job that goes on for longer after a signal did not end because of it
_TIMEOUT = "timeout"  # of coreutils
_TIMED_OUT = 124
_STALLED = "cancelled_stalled"
_NODE_FAILURE = "node_failure"
_BEFORE_LIMIT_S = 180.0  # schedulers ask a job to end some time before they end it
_BY_SCHEDULER = (TIME_LIMIT, "preempted", "evicted")
_ENDING = frozenset((SIGHUP, SIGINT, SIGTERM))
SUPERSEDED_S = 3600.0
MAY_BE_SUPERSEDED = ("cancelled", "cancelled_healthy")
_NUMBER = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_HARDWARE_SOURCES = ("kernel_log", "nccl_log")


@dataclass(frozen=True)
class Asked:
    """A signal that asked the job to end, the program that sent it ("" unknown), and how the job stood then."""

    at_s: float
    signal: int | None = None
    sender: str = ""
    standing: Standing = field(default_factory=Standing)


def ran_out(how: Ending, program: str) -> bool:
    """Whether the job's own `timeout` ended it: `run -- timeout 3600 python train.py`."""
    return program == _TIMEOUT and how.exit_code == _TIMED_OUT


def by_somebody(how: Ending, said: AttemptCause, *, asked: bool) -> bool:
    """Whether somebody ended a job that had not failed. A scheduler that ends it because a node failed does not.

    One that `run` was not asked to end: its log says so, or the signal does, and nothing else. Programs end by SIGTERM,
    SIGINT or SIGHUP when somebody sent it; a launcher's status may be that of a lost peer.
    """
    if asked or somebody_ended(said.reason):
        return said.reason != _NODE_FAILURE
    number = how.signal if how.exit_code is None else how.exit_code - 128
    return said.reason == UNKNOWN and not said.place and number in _ENDING


def names_hardware(cause: AttemptCause, source: str) -> bool:
    """Whether a diagnosis names a device or a link: by the kernel or NCCL, and of a kind that rounds count."""
    counted = CAUSES.get(counted_as_reason(cause.reason, cause.domain))
    return source in _HARDWARE_SOURCES and counted is not None and counted.domain is Domain.INFRASTRUCTURE


def while_what(asked: Asked, said: str, ends_at_s: float | None) -> AttemptCause:
    """The reason and a sentence. `said` is the reason in the logs, `ends_at_s` the limit that the scheduler set."""
    reason, state = _reason(asked, said, ends_at_s)
    who = _signal(asked.signal) + (f" from {asked.sender}" if asked.sender else "")
    if reason == _STALLED:
        by = f"ended by {who}" if asked.signal else who
        return AttemptCause(reason, asked.standing.rank, sentence=f"{reason}: {state}; {by}")
    return AttemptCause(reason, sentence=f"{reason}: {who}, {state}")


def superseded(before: AttemptCause, unit: str, after_s: float, *, requeued: bool) -> AttemptCause:
    """The cause of a cancelled attempt whose workload began again on `unit`, perhaps by the scheduler itself."""
    reason = "preempted" if requeued else "cancelled_superseded"
    how = "was requeued by the scheduler" if requeued else f"began again {after_s / 60:.0f} min later on {unit}"
    what = before.sentence.partition(": ")[2] or before.sentence
    return replace(before, reason=reason, sentence=f"{reason}: {what}; {how}")


def same_job(one: str, other: str) -> bool:
    """Whether two jobs have the same name or command, whatever its numbers; one may have more options than the other.

    >>> same_job("torchrun train.py --lr 3e-4", "torchrun train.py --lr 0.001 --resume")
    True
    >>> same_job("torchrun train.py --model bert", "torchrun train.py --model llama")
    False
    """
    words, others = (set(_NUMBER.sub("<n>", job).split()) for job in (one, other))
    return bool(words) and (words == others or (len(words & others) > 1 and (words <= others or others <= words)))


def _reason(asked: Asked, said: str, ends_at_s: float | None) -> tuple[str, str]:
    at = asked.standing
    if at.hangs and at.stalled:
        return _STALLED, at.stalled
    if said in _BY_SCHEDULER:
        return said, _steps(at)
    if asked.sender == _TIMEOUT or (ends_at_s is not None and asked.at_s >= ends_at_s - _BEFORE_LIMIT_S):
        return TIME_LIMIT, _steps(at)
    if at.stalled:
        return _STALLED, at.stalled
    if at.diverging:
        return "cancelled_diverging", at.diverging
    if at.evaluations:
        return "cancelled_healthy", f"{_steps(at)}, after {counted_as(at.evaluations, 'evaluation')}"
    return "cancelled", _steps(at)


def _steps(at: Standing) -> str:
    return f"after {counted_as(at.steps, 'step')}" if at.steps else "before any step was seen"


def _signal(number: int | None) -> str:
    try:
        return Signals(number or 0).name
    except ValueError:
        return "ended from outside"


def within_grace(signals: Sequence[Asked], at_s: float) -> Asked | None:
    """The first of the signals because of which a job can have ended at `at_s`."""
    return next((one for one in signals if at_s - one.at_s <= GRACE_S), None)
