"""Goodput of attempts on one lease: steps that were kept × the usual step time, over the lease's time. Pure.

- Steps are kept if their attempt succeeded or still runs, or if a checkpoint had them. Where no checkpoint of an
  attempt was seen, what was lost is not known, and goodput is an upper bound.
- The usual step time is the median of the attempts' own slices, weighted by steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tenant_client.doctor.records.paces import SLICE_S, Slice

KEEPS = (AttemptState.SUCCEEDED, AttemptState.RUNNING)
Slices = Mapping[tuple[str, int], Sequence[Slice]]


def goodput(own: Sequence[Attempt], slices: Slices, now_s: float) -> list[tuple[int, float, float]]:
    """When each slice of the lease's time begins, its productive seconds and all; none where no step was timed."""
    step_s = usual_s(one for attempt in own for one in slices.get((attempt.unit, attempt.attempt), ()))
    if step_s is None:
        return []
    productive: defaultdict[int, float] = defaultdict(float)
    for attempt in own:
        for at_s, kept in _kept_by_slice(attempt, slices):
            productive[at_s] += kept * step_s
    return [(at_s, min(productive[at_s], all_s), all_s) for at_s, all_s in _time(*span(own, slices, now_s))]


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


def _time(begin_s: float, end_s: float) -> Iterable[tuple[int, float]]:
    """The slices that a span touches, and its seconds in each."""
    at_s = int(begin_s // SLICE_S * SLICE_S)
    while at_s < end_s:
        yield at_s, min(end_s, at_s + SLICE_S) - max(begin_s, at_s)
        at_s += SLICE_S
