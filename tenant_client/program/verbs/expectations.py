"""The verb that holds leases against what is expected of them: `show --only expectations`."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.base.visible import counted_as
from tenant_client.doctor.advice.error_budget import Budget
from tenant_client.doctor.advice.expectations import LeaseExpectations, Report
from tenant_client.doctor.records.first_causes import DaysToCause
from tenant_client.doctor.records.goodput import GOOGLE
from tenant_client.program.verbs.console import Home, journalled
from tenant_client.rounds.disclosure.expected import expected


def expectations(
    home: Home,
    lease: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job: its name, or the start of it.")] = "",
    *,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Print metrics for Prometheus, for node_exporter's textfile collector."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show goodput, badput by reason, step-time variance, hang-free hours and time to restart, with error budgets.

    Targets are those of tenant.toml, under `expectations`. Computed from the journal; nothing is sent.
    Exit code 0: no error budget is exceeded. 1: one is. 3: nothing is known yet.
    """
    seen = expected(journalled(home), home, time.time(), lease)
    if metrics:
        show(*_metrics(seen))
    elif as_json:
        show_json(seen)
    else:
        show(*_lines(seen))
    raise typer.Exit(3 if seen.is_met is None else int(not seen.is_met))


def _lines(seen: Report) -> Iterator[str]:
    for one in seen.leases:
        yield f"{one.lease} ({one.job}): {one.hours:.1f} h" if one.job else f"{one.lease}: {one.hours:.1f} h"
        yield from (*_of_lease(one), *_badput(one))
    if seen.days_to_cause.failures:
        yield f"failures: {seen.days_to_cause.words}"
    leases, days = counted_as(len(seen.leases), "lease"), counted_as(seen.window_days, "day")
    yield f"error budgets of {leases} over {days}; burn rate 1 uses the budget up in that time"
    yield from map(_of_budget, seen.budgets)


def _of_lease(one: LeaseExpectations) -> Iterator[str]:
    details = {
        "goodput": f"{counted_as(one.lost_steps, 'step')} lost" if one.lost_steps else "",
        "steady": ""
        if one.step_s is None
        else f"usual step {one.step_s:.3g} s, variation {one.step_variation or 0:.0%}",
        "hang_free": "" if one.hang_free_hours is None else f"{one.hang_free_hours:.1f} h without a hang",
        "restarts": "" if one.restart_s is None else f"{one.restart_s:.0f} s to the first step, median",
    }
    for indicator in one.indicators:
        name = f"  {indicator.objective.value.replace('_', '-'):<10}"
        if indicator.share is None:
            yield f"{name} unknown: {indicator.why}"
            continue
        met = "" if indicator.met else ", missed"
        known = indicator.why or details[indicator.objective]
        more = f"; {known}" if known else ""
        yield f"{name} {indicator.share:6.1%} (target {indicator.target:.1%}{met}){more}"


def _badput(one: LeaseExpectations) -> Iterator[str]:
    if one.all_s > 0.0:
        parts = (f"{why.replace('_', ' ')} {seconds / one.all_s:.1%}" for why, seconds in one.bad_s.items())
        yield f"  badput     {sum(one.bad_s.values()) / one.all_s:6.1%}: {', '.join(parts)}"


def _metrics(seen: Report) -> Iterator[str]:
    """Prometheus' text format: seconds of each lease by reason, beside Google's word for it; days to the cause."""
    yield "# HELP pharoah_job_seconds Time of a job by what it went to; google: its type in Google's badput breakdown."
    yield "# TYPE pharoah_job_seconds gauge"
    for one in seen.leases:
        good_s = sum(week.good_s for week in one.weeks)
        for why, google, seconds in [("goodput", "", good_s), *((why, GOOGLE[why], s) for why, s in one.bad_s.items())]:
            yield f'pharoah_job_seconds{{{_labels(one)},reason="{why}",google="{google}"}} {seconds:.3f}'
    yield "# HELP pharoah_job_days_to_cause Days from failure to named cause, median; +Inf while most causes wait."
    yield "# TYPE pharoah_job_days_to_cause gauge"
    for one in seen.leases:
        if one.days_to_cause.failures:
            yield f"pharoah_job_days_to_cause{{{_labels(one)}}} {_days(one.days_to_cause)}"
    yield "# HELP pharoah_days_to_cause Days from failure to named cause, median of all failures."
    yield "# TYPE pharoah_days_to_cause gauge"
    if seen.days_to_cause.failures:
        yield f"pharoah_days_to_cause {_days(seen.days_to_cause)}"


def _labels(one: LeaseExpectations) -> str:
    job = one.job.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'lease="{one.lease}",job="{job}"'


def _days(waited: DaysToCause) -> str:
    return "+Inf" if waited.median_days is None else f"{waited.median_days:.6f}"


def _of_budget(one: Budget) -> str:
    name = f"  {one.objective.value.replace('_', '-'):<10}"
    if one.used is None:
        return f"{name} unknown"
    burns = ", ".join(f"{burn.window} {'–' if burn.rate is None else f'{burn.rate:.1f}'}" for burn in one.burns)
    alert = f"; alert: {one.alert}" if one.alert else ""
    return f"{name} {one.share:6.1%} of {one.target:.1%}; {one.used:.0%} of the budget used; burn rate {burns}{alert}"
