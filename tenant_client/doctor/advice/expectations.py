"""What leases deliver against what is expected of them: four indicators, targets, and error budgets. Pure.

    attempts, slices of ten minutes ─▶ `ledger` ─▶ Cell: good and all seconds ─┬─ of a lease: LeaseExpectations
                                                                   └─ of all leases: Budget (`error_budget`)

| indicator | good | of all |
|---|---|---|
| goodput | kept steps × the lease's usual step time | its time, from the first attempt's start to the last one's end |
| steady | step time of slices at most `SLOW` times as slow as usual | the time of all steps that could be timed |
| hang_free | time without a reported hang | time that was watched |
| restarts | restarts within the target | restarts |

- Steps are kept if their attempt succeeded or still runs, or if a checkpoint had them. Where the hook saw no checkpoint
  of an attempt, what was lost is not known: goodput is then an upper bound, and says so.
- The usual step time is the median of slices, weighted by steps: a lease that is slow throughout is measured against
  itself.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from tenant_client.doctor.advice.error_budget import HOUR_S, Budget, Cell, Objective, Targets, budget_of, share_of
from tenant_client.doctor.records.attempts import Attempt
from tenant_client.doctor.records.first_causes import DaysToCause, days_to_cause
from tenant_client.doctor.records.goodput import KEEPS, Booked, Losses, Slices, ledger, lost, span, usual_s
from tenant_client.doctor.records.paces import Badput

SLOW = 1.2
WEEK_S, _MONDAY_S = 7 * 86_400, 4 * 86_400  # since 1970, which began on a Thursday
REQUEUED_S = 3600.0  # within it the next lease of the same job is a restart of it
NO_STEPS = "no step of a PyTorch optimiser was seen, or it ran before steps were kept"
NOT_WATCHED = "it was not watched (--no-watch), or ran before this was kept"
NO_RESTART = "nothing was restarted"
AT_MOST = "goodput at most: no checkpoint was seen, so what a failure lost is not known"


@dataclass(frozen=True)
class Indicator:
    """An objective of a lease: the share that was good, whether that meets the target, and `why` what is not known."""

    objective: Objective
    share: float | None
    target: float
    met: bool | None
    why: str


@dataclass(frozen=True)
class WeekOfTime:
    """Where a lease's time went in a week from Monday `begin_s` on (UTC): seconds, which add up to `all_s`."""

    begin_s: int
    all_s: float
    good_s: float
    bad_s: Mapping[Badput, float]


@dataclass(frozen=True)
class LeaseExpectations:
    """A lease: its hours, its four indicators, what they rest on, and where its time went by week.

    `step_s` is the usual step time; `step_variation` the coefficient of variation of step times (standard deviation
    over mean); `restart_s` the median time from an end to the first step after it. `lost_steps` None: not known.
    """

    lease: str
    job: str
    hours: float
    indicators: tuple[Indicator, ...]
    step_s: float | None
    step_variation: float | None
    hang_free_hours: float | None
    restart_s: float | None
    lost_steps: int | None
    weeks: tuple[WeekOfTime, ...]
    days_to_cause: DaysToCause

    @property
    def bad_s(self) -> Mapping[Badput, float]:
        """Seconds by reason over all weeks, the most first."""
        found = sum((Counter(week.bad_s) for week in self.weeks), Counter[Badput]())
        return dict(found.most_common())

    @property
    def all_s(self) -> float:
        """Seconds of all weeks."""
        return math.fsum(week.all_s for week in self.weeks)


@dataclass(frozen=True)
class Report:
    """Leases, the newest first, and over all of them the budgets and the days from failure to named cause."""

    version: int
    window_days: int
    restart_target_s: float
    leases: tuple[LeaseExpectations, ...]
    budgets: tuple[Budget, ...]
    days_to_cause: DaysToCause

    @property
    def is_met(self) -> bool | None:
        """Whether no budget is exceeded; None where none is known."""
        used = [one.used for one in self.budgets if one.used is not None]
        return all(one <= 1.0 for one in used) if used else None


def report(
    attempts: Sequence[Attempt],
    slices: Slices,
    losses: Losses,
    jobs: Mapping[str, str],
    targets: Targets,
    days: Mapping[str, Sequence[float]],
    now_s: float,
    lease: str = "",
) -> Report:
    """What is known of all leases, or of those whose name begins with `lease`."""
    by_lease: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_lease[attempt.unit].append(attempt)
    restarts = _restarts(attempts, slices, jobs)
    rows: list[LeaseExpectations] = []
    cells: list[Cell] = []
    for unit, own in by_lease.items():
        if unit.startswith(lease):
            booked = ledger(own, slices, losses, now_s)
            of_lease = _cells(own, slices, booked, restarts.get(unit, ()), targets)
            found = _lease(own, jobs.get(unit, ""), slices, of_lease, restarts.get(unit, ()), targets, now_s)
            rows.append(replace(found, weeks=tuple(_weeks(booked)), days_to_cause=days_to_cause(days.get(unit, ()))))
            cells += of_lease
    budgets = tuple(budget_of(objective, cells, targets, now_s) for objective in Objective)
    waited = days_to_cause(one for row in rows for one in days.get(row.lease, ()))
    return Report(1, targets.window_days, targets.restart_s, tuple(rows[::-1]), budgets, waited)


# ---- one lease -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Restart:
    at_s: float
    took_s: float


def _lease(
    own: Sequence[Attempt],
    job: str,
    slices: Slices,
    cells: Sequence[Cell],
    restarts: Sequence[_Restart],
    targets: Targets,
    now_s: float,
) -> LeaseExpectations:
    paced = [one for attempt in own for one in slices.get((attempt.unit, attempt.attempt), ())]
    timed, stepping_s = sum(one.timed for one in paced), sum(one.stepping_s for one in paced)
    mean_s = stepping_s / timed if timed else 0.0
    variance = max(0.0, sum(one.squares for one in paced) / timed - mean_s * mean_s) if timed else 0.0
    watched_s = sum(one.observed_s for one in paced)
    begin_s, end_s = span(own, slices, now_s)
    losses = [lost(one, slices) for one in own]
    known = None if None in losses else sum(one for one in losses if one is not None)
    return LeaseExpectations(
        lease=own[0].unit,
        job=job,
        hours=(end_s - begin_s) / HOUR_S,
        indicators=tuple(_indicator(one, cells, targets, AT_MOST if known is None else "") for one in Objective),
        step_s=usual_s(paced),
        step_variation=math.sqrt(variance) / mean_s if mean_s else None,
        hang_free_hours=(watched_s - sum(one.hang_s for one in paced)) / HOUR_S if watched_s else None,
        restart_s=median(one.took_s for one in restarts) if restarts else None,
        lost_steps=known,
        weeks=(),
        days_to_cause=days_to_cause(()),
    )


def _indicator(objective: Objective, cells: Iterable[Cell], targets: Targets, at_most: str) -> Indicator:
    share, target = share_of(cells, objective), targets.shares[objective]
    if share is None:
        why = {Objective.HANG_FREE: NOT_WATCHED, Objective.RESTARTS: NO_RESTART}.get(objective, NO_STEPS)
        return Indicator(objective, None, target, None, why)
    return Indicator(objective, share, target, share >= target, at_most if objective is Objective.GOODPUT else "")


def _cells(
    own: Sequence[Attempt], slices: Slices, booked: Sequence[Booked], restarts: Sequence[_Restart], targets: Targets
) -> list[Cell]:
    """All of a lease by slice; goodput has its whole time, also between attempts."""
    paced = [one for attempt in own for one in slices.get((attempt.unit, attempt.attempt), ())]
    step_s = usual_s(paced)
    cells: list[Cell] = []
    if step_s is not None:
        cells += [Cell(one.at_s, Objective.GOODPUT, one.good_s, one.all_s) for one in booked]
        cells += [
            Cell(
                one.at_s,
                Objective.STEADY,
                one.stepping_s * (one.stepping_s <= SLOW * step_s * one.timed),
                one.stepping_s,
            )
            for one in paced
        ]
    cells += [Cell(one.at_s, Objective.HANG_FREE, one.observed_s - one.hang_s, one.observed_s) for one in paced]
    cells += [Cell(one.at_s, Objective.RESTARTS, float(one.took_s <= targets.restart_s), 1.0) for one in restarts]
    return cells


def _weeks(booked: Iterable[Booked]) -> Iterator[WeekOfTime]:
    for begin_s, own in groupby(booked, key=lambda one: (one.at_s - _MONDAY_S) // WEEK_S * WEEK_S + _MONDAY_S):
        rows = list(own)
        bad_s = sum((Counter(one.bad_s) for one in rows), Counter[Badput]())
        yield WeekOfTime(begin_s, sum(one.all_s for one in rows), sum(one.good_s for one in rows), dict(bad_s))


def _restarts(attempts: Sequence[Attempt], slices: Slices, jobs: Mapping[str, str]) -> Mapping[str, Sequence[_Restart]]:
    """By lease, from the end of what did not succeed to the first step after it: of the lease, or of its job's next."""
    found: defaultdict[str, list[_Restart]] = defaultdict(list)
    last: dict[str, Attempt] = {}
    for attempt in attempts:
        before = last.get(attempt.unit) or last.get(f"job {jobs.get(attempt.unit, '')}")
        first_s = min(
            (one.first_s for one in slices.get((attempt.unit, attempt.attempt), ()) if one.first_s), default=None
        )
        if before is not None and first_s is not None and _restarts_it(attempt, before):
            found[attempt.unit].append(_Restart(first_s, first_s - (before.ended_at_s or first_s)))
        last[attempt.unit] = attempt
        if attempt.unit in jobs:
            last[f"job {jobs[attempt.unit]}"] = attempt
    return found


def _restarts_it(attempt: Attempt, before: Attempt) -> bool:
    if before.state in KEEPS or before.ended_at_s is None:
        return False
    same_lease, later_s = attempt.unit == before.unit, attempt.started_at_s - before.ended_at_s
    return same_lease or 0.0 <= later_s <= REQUEUED_S
