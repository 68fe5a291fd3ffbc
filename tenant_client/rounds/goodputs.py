"""The goodput of units, each by what was seen in its own window: for the histogram of expectations by context.

A lease as a whole is measured against its own usual step and its checkpoints of other windows. Were units, a lease in a
window, one could change the bands of others, and noise of this plan hides one change of one cell. So attempts are cut
to the window first: slices, starts and ends within it, and nothing else. An attempt that was watched to the end of the
window still runs then; one whose slices end before is lost from its last checkpoint on. Steps are kept up to the slice
in which the newest checkpoint of the window appeared: up to ten minutes too many. docs/fabric.md has the proof.
Pure.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.plan import Plan
from federation.protocol.subjects import GOODPUT_BANDS, GOODPUT_EDGES, Subject
from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tenant_client.doctor.records.goodput import Slices, ledger, span, usual_s
from tenant_client.doctor.records.paces import SLICE_S, Slice
from tenant_client.rounds.counts import Observation

_Window = tuple[int, int]  # hours
LEAST_S = 3600.0  # of a lease within a window: what is shorter says nothing


@dataclass(frozen=True)
class GoodputUnit:
    """A unit with steps: its lease, first hour seen, and the share of its time that training kept."""

    unit: str
    at_h: float
    share: float


def units_of(attempts: Iterable[Attempt], slices: Slices, plan: Plan) -> list[GoodputUnit]:
    """The units up to the plan's end of at least an hour in which steps were timed."""
    windows = [window for window in pairwise(plan.windows) if window[1] <= plan.end_hour]
    by_unit: defaultdict[tuple[str, _Window], list[tuple[Attempt, Sequence[Slice]]]] = defaultdict(list)
    for attempt in attempts:
        seen = slices.get((attempt.unit, attempt.attempt), ())
        for window in windows:
            own = [one for one in seen if _is_in(window, one.at_s)]
            if own or _is_in(window, attempt.started_at_s):
                by_unit[attempt.unit, window].append((_cut(attempt, own, window), _saved_within(own)))
    found = (_goodput(cut) for cut in by_unit.values())
    return [one for one in found if one is not None]


def goodputs(units: Iterable[GoodputUnit], contexts: Mapping[str, str]) -> list[Observation]:
    """What units of leases with a context show: the band of their goodput."""
    return [
        Observation(Subject.GOODPUT, one.unit, one.at_h, ((contexts[one.unit], band(one.share)),))
        for one in units
        if one.unit in contexts
    ]


def band(share: float) -> str:
    """The name of the band of a goodput.

    >>> band(0.0), band(0.79), band(0.9), band(1.0)
    ('0', '0.5', '0.9', '0.95')
    """
    return GOODPUT_BANDS[bisect_right(GOODPUT_EDGES, share) - 1]


def _is_in(window: _Window, at_s: float) -> bool:
    return window[0] <= at_s / SECONDS_PER_HOUR < window[1]


def _cut(attempt: Attempt, own: Sequence[Slice], window: _Window) -> Attempt:
    """The attempt as its window saw it."""
    seen_s = [float(one.at_s) for one in own]
    started_s = attempt.started_at_s if _is_in(window, attempt.started_at_s) else min(seen_s)
    if attempt.ended_at_s is not None and _is_in(window, attempt.ended_at_s):
        return replace(attempt, started_at_s=started_s)
    until_s = max((at_s + SLICE_S for at_s in seen_s), default=started_s)
    state = AttemptState.RUNNING if until_s >= window[1] * SECONDS_PER_HOUR else AttemptState.INTERRUPTED
    return replace(attempt, state=state, started_at_s=started_s, ended_at_s=until_s)


def _saved_within(own: Sequence[Slice]) -> list[Slice]:
    """The slices with the steps of this window alone that a checkpoint has: those up to where one appeared."""
    found: list[Slice] = []
    done, before, saved = 0, None, None
    for one in own:
        done += one.steps
        if one.saved is not None and one.saved != before:
            before, saved = one.saved, done
        found.append(replace(one, saved=saved))
    return found


def _goodput(cut: Sequence[tuple[Attempt, Sequence[Slice]]]) -> GoodputUnit | None:
    attempts = [attempt for attempt, _ in cut]
    slices = {(attempt.unit, attempt.attempt): own for attempt, own in cut}
    begin_s, end_s = span(attempts, slices, now_s=0.0)
    if end_s - begin_s < LEAST_S or usual_s(one for _, own in cut for one in own) is None:
        return None
    booked = ledger(attempts, slices, {}, now_s=0.0)
    share = sum(one.good_s for one in booked) / sum(one.all_s for one in booked)
    return GoodputUnit(attempts[0].unit, begin_s / SECONDS_PER_HOUR, share)
