"""The verbs that say where things stand: status, leases, reasons."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.runtime.console import AsJson
from federation.runtime.screen import show, show_json
from federation.runtime.visible import counted_as, short
from tenant_client.verbs.console import Home, journalled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenant_client.disclosure.overview import LeaseRow, TenantStatus

UNKNOWN = "the logs that were read show no error pattern that is known"


def status(home: Home, *, as_json: AsJson = False) -> None:
    """Say where this home stands: has it joined, what runs, what waits for you, the last round, the budget left.

    Exit code 0: nothing waits. 1: a hint stands, or the last attempt failed. 2: it cannot be read. 3: nothing yet.
    """
    from federation.runtime.clock import now_hour
    from tenant_client.disclosure import overview

    found = overview.status(home, now_hour())
    if as_json:
        show_json(found)
    else:
        show(*_lines(found))
    raise typer.Exit(found.exit_code)


def _lines(found: "TenantStatus") -> "Iterator[str]":
    yield f"home        {short(Path(found.home))}{'' if found.exists else ' (not there yet)'}"
    if found.federation:
        members, trustees = (
            counted_as(found.federation.members, "tenant"),
            counted_as(found.federation.trustees, "trustee"),
        )
        yield f"federation  joined: {members}, {trustees}, head {found.federation.head}"
    else:
        yield "federation  none: `pharoah-tenant enrol`; run, journal and diagnose work without"
    yield f"jobs        {counted_as(found.leases, 'lease')}, {len(found.running)} running"
    yield from (f"  running   {_named(row)}" for row in found.running)
    if found.last_attempt and found.last_attempt not in found.running:
        last = found.last_attempt
        yield f"  last      {_named(last)}: {last.state} {last.reason}".rstrip()
    if found.federation:
        yield f"hints       {counted_as(found.hints_standing, 'hint')} standing"
        held = found.last_round
        yield f"last round  {f'hours {held.start_hour}–{held.end_hour}' if held else 'none answered yet'}"
        left = held.epsilon_left if held else found.epsilon_limit
        yield f"budget      epsilon {left:.3f} of {found.epsilon_limit:g} left per job-week, at delta {found.delta:g}"
    yield f"due         {found.due or 'nothing'}"


def _named(row: "LeaseRow") -> str:
    return f"{row.lease} ({row.job})" if row.job else row.lease


def leases(
    home: Home,
    beginning: Annotated[str, typer.Argument(metavar="LEASE", help="Only those that begin so.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """List leases, the newest last: name, job, workload, and how the last attempt stands.

    Wherever a verb takes a lease, its first letters do if no other begins so. Exit code 3: there is none.
    """
    from contextlib import closing

    from federation.runtime.sqlite import reporting
    from tenant_client.disclosure import overview
    from tenant_client.records.database import open_database

    with reporting(), closing(open_database(journalled(home))) as connection:
        rows = [row for row in overview.leases(connection) if row.lease.startswith(beginning)]
    if as_json:
        show_json(overview.Leases(1, tuple(rows)))
    else:
        show(*map(_row, rows))
    if not rows:
        raise typer.Exit(3)


def _row(row: "LeaseRow") -> str:
    began = datetime.fromtimestamp(row.since_s, UTC).astimezone()
    state = f"{row.state} {row.reason}".strip() or "not seen running"
    what = "; ".join(filter(None, (row.job, row.workload)))
    return (
        f"{row.lease}  {began:%Y-%m-%d %H:%M}  {state}{f', attempt {row.attempts}' if row.attempts > 1 else ''}  {what}"
    )


def reasons(*, as_json: AsJson = False) -> None:
    """List the reasons that a failure can have: where each lies, how common and costly it is, what to do about it.

    Every failure is counted in the next round under its reason, `unknown` too; a job that was stopped is no failure.
    """
    from itertools import groupby

    from tenant_client.disclosure import overview

    found = overview.reasons()
    if as_json:
        show_json(found)
        return
    for domain, rows in groupby(found.reasons, key=lambda row: row.domain):
        show(f"{domain}: {_DOMAINS[domain]}")
        for row in rows:
            figures = f"{row.observed:>4} failures, {row.share_of_lost_gpu_time:5.2f}% of lost GPU time"
            show(f"  {row.slug:<22} {row.title:<22} {figures}", f"    {row.advice}")
    show(f"unknown: {UNKNOWN}", "Figures: six months of two LLM clusters (Hu et al., NSDI 2024, Table 3).")


_DOMAINS = {
    "infrastructure": "hardware, network or storage of the provider",
    "framework": "the software stack, or data and memory that it manages",
    "script": "the job's own code, files or options",
}
