"""The goodput of job-weeks, each by what was seen in its own week: for the histogram of expectations by context.

A lease as a whole is measured against its own usual step and its checkpoints of other weeks. Were job-weeks, one could
change the bands of others, and noise of this plan hides one change of one cell. So attempts are cut to the week first:
slices, starts and ends within it, and nothing else. An attempt that was watched to the end of the week still runs then;
one whose slices end before is lost from its last checkpoint on. Steps are kept up to the slice in which the newest
checkpoint of the week appeared: up to ten minutes too many. docs/expectations.md has the proof. Pure.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.subjects import GOODPUT_BANDS, GOODPUT_EDGES, Subject
from federation.runtime.clock import SECONDS_PER_HOUR
from tenant_client.records.attempts import Attempt, AttemptState
from tenant_client.records.goodput import Slices, goodput, span
from tenant_client.records.paces import SLICE_S, Slice
from tenant_client.rounds.counts import Observation

WEEK_S = HOURS_PER_WEEK * SECONDS_PER_HOUR
LEAST_S = 3600.0  # of a lease within a week: what is shorter says nothing


@dataclass(frozen=True)
class GoodputWeek:
    """A job-week with steps: its lease, first hour seen, and the share of its time that training kept."""

    unit: str
    at_h: float
    share: float


def weeks_of(attempts: Iterable[Attempt], slices: Slices) -> list[GoodputWeek]:
    """The job-weeks of at least an hour in which steps were timed."""
    by_week: defaultdict[tuple[str, int], list[tuple[Attempt, Sequence[Slice]]]] = defaultdict(list)
    for attempt in attempts:
        for week, own in _weeks(attempt, slices.get((attempt.unit, attempt.attempt), ())).items():
            by_week[attempt.unit, week].append((_cut(attempt, own, week), _saved_within(own)))
    found = (_week(cut) for cut in by_week.values())
    return [one for one in found if one is not None]


def goodputs(weeks: Iterable[GoodputWeek], contexts: Mapping[str, str]) -> list[Observation]:
    """What job-weeks of leases with a context show: the band of their goodput."""
    return [
        Observation(Subject.GOODPUT, one.unit, one.at_h, ((contexts[one.unit], band(one.share)),))
        for one in weeks
        if one.unit in contexts
    ]


def band(share: float) -> str:
    """The name of the band of a goodput.

    >>> band(0.0), band(0.79), band(0.9), band(1.0)
    ('0', '0.5', '0.9', '0.95')
    """
    return GOODPUT_BANDS[bisect_right(GOODPUT_EDGES, share) - 1]


def _weeks(attempt: Attempt, own: Iterable[Slice]) -> Mapping[int, list[Slice]]:
    """The slices of each week that saw any, or the start; by number of the week since 1970."""
    found: defaultdict[int, list[Slice]] = defaultdict(list)
    found[int(attempt.started_at_s // WEEK_S)] = []
    for one in own:
        found[int(one.at_s // WEEK_S)].append(one)
    return found


def _cut(attempt: Attempt, own: Sequence[Slice], week: int) -> Attempt:
    """The attempt as its week saw it."""
    begin_s, end_s = week * WEEK_S, (week + 1) * WEEK_S
    seen_s = [float(one.at_s) for one in own]
    is_begun = begin_s <= attempt.started_at_s < end_s
    started_s = attempt.started_at_s if is_begun else min(seen_s)
    if attempt.ended_at_s is not None and begin_s <= attempt.ended_at_s < end_s:
        return replace(attempt, started_at_s=started_s)
    until_s = max((at_s + SLICE_S for at_s in seen_s), default=started_s)
    state = AttemptState.RUNNING if until_s >= end_s else AttemptState.INTERRUPTED
    return replace(attempt, state=state, started_at_s=started_s, ended_at_s=until_s)


def _saved_within(own: Sequence[Slice]) -> list[Slice]:
    """The slices with the steps of this week alone that a checkpoint has: those up to where one appeared."""
    found: list[Slice] = []
    done, before, saved = 0, None, None
    for one in own:
        done += one.steps
        if one.saved is not None and one.saved != before:
            before, saved = one.saved, done
        found.append(replace(one, saved=saved))
    return found


def _week(cut: Sequence[tuple[Attempt, Sequence[Slice]]]) -> GoodputWeek | None:
    attempts = [attempt for attempt, _ in cut]
    slices = {(attempt.unit, attempt.attempt): own for attempt, own in cut}
    begin_s, end_s = span(attempts, slices, now_s=0.0)
    cells = goodput(attempts, slices, now_s=0.0) if end_s - begin_s >= LEAST_S else ()
    if not cells:
        return None
    share = sum(good for _, good, _ in cells) / sum(all_s for _, _, all_s in cells)
    return GoodputWeek(attempts[0].unit, begin_s / SECONDS_PER_HOUR, share)
