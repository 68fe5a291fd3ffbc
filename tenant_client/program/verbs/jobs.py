"""The verb that lists jobs: `jobs`."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.screen import say, show, show_json
from federation.base.sqlite import reporting
from tenant_client.doctor.advice.after_failure import next_command
from tenant_client.doctor.records.attempts import AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.program.verbs.console import Home, journalled
from tenant_client.rounds.disclosure import overview
from tenant_client.rounds.disclosure.overview import LeaseRow

_FAILED = (AttemptState.FAILED, AttemptState.STOPPED, AttemptState.INTERRUPTED)


def jobs(
    home: Home,
    beginning: Annotated[str, typer.Argument(metavar="[JOB]", help="Only jobs whose name starts with this.")] = "",
    since: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="Only jobs that began then or later, in local time."),
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.", show_default="all")] = None,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only jobs whose last attempt failed, was stopped or was interrupted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest last: name, when, state, cause.

    Then the workload, where it is described. A job has the name of its lease; every verb accepts the start of a name if
    it is unique. Exit code 3: no such job.
    """
    with reporting(), closing(open_database(journalled(home))) as connection:
        rows = [row for row in overview.leases(connection) if row.lease.startswith(beginning)]
    rows = [row for row in rows if not failed or row.state in _FAILED]
    rows = [row for row in rows if since is None or row.since_s >= since.timestamp()][-(last or 0) :]
    if as_json:
        show_json(overview.Leases(1, tuple(rows)))
    else:
        _show(rows)
    if not rows:
        raise typer.Exit(3)


def _show(rows: Sequence[LeaseRow]) -> None:
    show(*map(_row, rows))
    of_failures = [next_command(row.lease) for row in rows if row.state in _FAILED]
    say(*of_failures[-1:])


def _row(row: LeaseRow) -> str:
    began = datetime.fromtimestamp(row.since_s, UTC).astimezone()
    state = f"{row.state} {row.reason}".strip() or "no attempt seen"
    if row.found and row.state in (AttemptState.SUCCEEDED, AttemptState.RUNNING):
        state += f", but {row.found}"
    elif row.hung:
        state = f"{row.state}: {row.hung}; {row.reason} followed"
    state += f" ({row.code})" if row.code else ""
    if row.days_to_cause is not None and row.days_to_cause >= 1.0:
        state += f", cause named after {row.days_to_cause:.0f} days"
    what = "; ".join(filter(None, (row.job, row.workload)))
    return (
        f"{row.lease}  {began:%Y-%m-%d %H:%M}  {state}{f', attempt {row.attempts}' if row.attempts > 1 else ''}  {what}"
    )
