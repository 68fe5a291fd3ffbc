"""Verbs about the journal: `show --only journal`, and `patterns fix`."""

import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.pinned_directory import is_pinned
from federation.base.screen import show, show_json
from federation.base.visible import counted_as
from tenant_client.doctor.advice.after_failure import after_failure
from tenant_client.doctor.records import fixes
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.workload.compare import LACKING
from tenant_client.program.verbs.console import Home, journalled
from tenant_client.rounds.disclosure.happened import Happened, what_happened


def fix(
    lease: Annotated[str, typer.Argument(metavar="JOB", help="A job, or the start of its name.")],
    reason: Annotated[str, typer.Argument(help="The true reason: one that `patterns reasons` lists, or unknown.")],
    home: Home,
    attempt: Annotated[
        int | None,
        typer.Option(help="Which attempt; by default the newest that did not succeed.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Correct why an attempt ended, before its window is counted. What Pharoah had said is kept. Nothing is sent.

    A reason that a round does not count, such as cancelled, takes the attempt out of the failures to be counted.
    """
    with closing(open_database(journalled(home))) as connection:
        fixed = fixes.fix(connection, Journal(connection).find(lease), attempt, reason, time.time())
    if as_json:
        show_json(fixed)
        return
    counts = f"a round counts {fixed.counted}" if fixed.counted else "a round counts nothing"
    show(f"{fixed.lease} attempt {fixed.attempt}: {fixed.reason} instead of {fixed.said}; {counts}")


def journal(
    home: Home,
    lease: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job: its name, or the start of it.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Show the journal of a job, or of all: workloads, attempts and why they ended.

    Exit code 3: the journal is empty. For the outcome of the last attempt see `status`.
    """
    with closing(open_database(journalled(home))) as connection:
        view, joined = what_happened(connection), is_pinned(connection)
        if lease:
            view = view.of(Journal(connection).find(lease))
    if as_json:
        show_json(view)
    else:
        _tell(view, joined=joined)
    if not view.leases:
        raise typer.Exit(3)


def _tell(view: Happened, *, joined: bool) -> None:
    incidents = {(incident.lease, incident.attempt): incident.words for incident in view.incidents}
    explained = {(one.lease, one.attempt): (one.sentence,) for one in view.explanations if one.side in _OTHERS}
    for workload in view.workloads:
        what = ", ".join((workload.precision or "precision unknown", workload.parallelism, *workload.versions))
        show(f"{_named(view, workload.lease)}: {what}", f"    {', '.join(workload.structure)}")
        show(*(f"    archetype unknown: {LACKING[lack]}" for lack in workload.lacks))
    for lease, why in view.undescribed.items():
        show(f"{_named(view, lease)}: workload not described: {why}")
    for attempt in view.attempts:
        began = datetime.fromtimestamp(attempt.started_at_s, UTC).astimezone()
        steps = f", {counted_as(attempt.steps, 'step')}" if attempt.steps else ""
        show(
            f"{began:%Y-%m-%d %H:%M:%S}  {_named(view, attempt.unit)} attempt {attempt.attempt}: {attempt.state}{steps}"
        )
        show(*([f"    {attempt.cause.reason}, as you fixed it; Pharoah had said:"] if attempt.said else []))
        named = attempt.unit, attempt.attempt
        lines = after_failure(attempt.unit, attempt.state, attempt.cause)
        if lines:
            lines += *incidents.get(named, ()), *explained.get(named, ())
        show(*(f"    {line}" for line in lines))
        show(*(f"    {finding['kind']}: {finding['text']}" for finding in attempt.findings))
    reasons = Counter(labelled.failure.reason for labelled in view.failures)
    counted = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
    told = f"; reported to the federation, as noisy counts: {counted or 'no failure'}" if joined else ""
    show(f"{counted_as(len(view.leases), 'lease')}{told}")


_OTHERS = ("provider", "both")  # whose part the three lines do not tell


def _named(view: Happened, lease: str) -> str:
    return f"{lease} ({view.jobs[lease]})" if lease in view.jobs else lease
