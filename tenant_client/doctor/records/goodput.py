"""Where the time of a lease went: goodput, steps that were kept × the usual step time, and badput by reason. Pure.

- Steps are kept if their attempt succeeded or still runs, or if a checkpoint had them. Where no checkpoint of an
  attempt was seen, what was lost is not known, and goodput is an upper bound.
- The usual step time is the median of the attempts' own slices, weighted by steps.

`ledger` splits all of the time:

| reason | what it is |
|---|---|
| start | from the start of an attempt to that of its first step |
| checkpoint, evaluation, metrics, stall | what was seen while it ran (`run.pace`) |
| lost work | steps that were done and not kept × the usual step time |
| restart | from the last step of an attempt that did not succeed to the start of the next one |
| slow steps | what the steps took beyond the usual step time |
| other | from the last step to a good end, or all of a lease in which no step was seen |
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tenant_client.doctor.records.paces import SLICE_S, Badput, Lost, Slice, by_slice

KEEPS = (AttemptState.SUCCEEDED, AttemptState.RUNNING)
Slices = Mapping[tuple[str, int], Sequence[Slice]]
Losses = Mapping[tuple[str, int], Lost]
# BadputType of Google's ml-goodput-measurement 0.2.3. What is PROGRAM_STARTUP here is TPU_INITIALIZATION, TRAINING_PREP
# and UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME too: nobody outside the job tells them apart. DATA_LOADING_* is in the steps.
GOOGLE: Mapping[Badput, str] = MappingProxyType(
    {
        Badput.START: "PROGRAM_STARTUP",
        Badput.CHECKPOINT: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
        Badput.EVALUATION: "CUSTOM_BADPUT_EVENTS",
        Badput.METRICS: "CUSTOM_BADPUT_EVENTS",
        Badput.STALL: "OTHER",
        Badput.LOST: "WASTED_PROGRESS_FROM_DISRUPTION",
        Badput.RESTART: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
        Badput.SLOW: "OTHER",
        Badput.OTHER: "OTHER",
    }
)


@dataclass(frozen=True)
class Booked:
    """A slice of a lease's time: its seconds, those that were productive, and the others by reason. They add up."""

    at_s: int
    all_s: float
    good_s: float
    bad_s: Mapping[Badput, float]


def ledger(own: Sequence[Attempt], slices: Slices, losses: Losses, now_s: float) -> list[Booked]:
    """A lease's time, from its first attempt's start to its last one's end, by slice.

    Attempts are in order of their start; what two of them share belongs to the first.
    """
    step_s = usual_s(one for attempt in own for one in slices.get((attempt.unit, attempt.attempt), ()))
    booked: defaultdict[int, defaultdict[Badput | None, float]] = defaultdict(lambda: defaultdict(float))
    until_s = own[0].started_at_s
    for attempt in own:
        begin_s, end_s = span([attempt], slices, now_s)
        for at_s, seconds in by_slice(until_s, begin_s):
            booked[at_s][Badput.RESTART] += seconds
        begin_s = max(begin_s, until_s)
        for at_s, all_s in by_slice(begin_s, end_s):
            for reason, part_s in _split(attempt, at_s, all_s, begin_s, slices, losses, step_s).items():
                booked[at_s][reason] += part_s
        until_s = max(until_s, end_s)
    return [
        Booked(at_s, sum(parts.values()), parts[None], {one: parts[one] for one in Badput if parts[one] > 0.0})
        for at_s, parts in sorted(booked.items())
    ]


def _split(
    attempt: Attempt,
    at_s: int,
    all_s: float,
    begin_s: float,
    slices: Slices,
    losses: Losses,
    step_s: float | None,
) -> Mapping[Badput | None, float]:
    """The seconds of an attempt within a slice, None: productive; they add up to `all_s`, whatever was seen."""
    key = attempt.unit, attempt.attempt
    seen = slices.get(key, ())
    first_s = min((one.first_s or one.at_s for one in seen if one.steps), default=math.inf) - (step_s or 0.0)
    start_s = max(0.0, min(first_s, at_s + SLICE_S, max(begin_s, at_s) + all_s) - max(begin_s, at_s))
    parts: dict[Badput | None, float] = {Badput.OTHER if step_s is None else Badput.START: start_s}
    for (slice_s, reason), seconds in losses.get(key, {}).items():
        if slice_s == at_s:
            why = Badput.RESTART if reason is Badput.OTHER and attempt.state not in KEEPS else reason
            parts[why] = parts.get(why, 0.0) + seconds
    booked_s = math.fsum(parts.values())
    if booked_s > all_s:
        parts = {why: seconds * all_s / booked_s for why, seconds in parts.items()}
    left_s = max(0.0, all_s - booked_s)
    kept = sum(steps for slice_s, steps in _kept_by_slice(attempt, slices) if slice_s == at_s)
    done = sum(one.steps for one in seen if one.at_s == at_s)
    parts[None] = min(left_s, kept * (step_s or 0.0))
    parts[Badput.LOST] = min(left_s - parts[None], (done - kept) * (step_s or 0.0))
    parts[Badput.SLOW] = left_s - parts[None] - parts[Badput.LOST]
    return parts


def usual_s(paced: Iterable[Slice]) -> float | None:
    """The median step time of slices, weighted by their steps; None where no step could be timed."""
    rows = sorted((one.stepping_s / one.timed, one.timed) for one in paced if one.timed)
    half, passed = sum(steps for _, steps in rows) / 2, 0
    for step_s, steps in rows:
        passed += steps
        if passed >= half:
            return step_s
    return None


def lost(attempt: Attempt, slices: Slices) -> int | None:
    """Steps that were done and not kept; None where no checkpoint was seen that tells."""
    own = slices.get((attempt.unit, attempt.attempt), ())
    done, saved = sum(one.steps for one in own), [one.saved for one in own if one.saved is not None]
    if attempt.state in KEEPS or not done:
        return 0
    return max(0, done - max(saved)) if saved else None


def span(own: Sequence[Attempt], slices: Slices, now_s: float) -> tuple[float, float]:
    """From the first attempt's start to the last one's end, or now where it runs.

    One whose end nobody saw ended with its last slice.
    """
    ends = [one.ended_at_s or min(now_s, _seen_until_s(one, slices)) for one in own]
    return min(one.started_at_s for one in own), max(ends)


def _kept_by_slice(attempt: Attempt, slices: Slices) -> Iterable[tuple[int, int]]:
    own = slices.get((attempt.unit, attempt.attempt), ())
    left = sum(one.steps for one in own) - (lost(attempt, slices) or 0)
    for one in own:
        yield one.at_s, min(left, one.steps)
        left -= min(left, one.steps)


def _seen_until_s(attempt: Attempt, slices: Slices) -> float:
    own = slices.get((attempt.unit, attempt.attempt), ())
    return max((float(one.at_s + SLICE_S) for one in own), default=attempt.started_at_s)
