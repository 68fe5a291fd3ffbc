"""Verbs that show the state of a home, and what causes there are: `status` and `patterns reasons`."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import typer

from federation.base.clock import dated, dates, now_hour
from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.base.visible import counted_as, short
from federation.protocol.warnings import line_of
from tenant_client.program.verbs.console import Home
from tenant_client.rounds.disclosure import overview
from tenant_client.rounds.disclosure.overview import LeaseRow, TenantStatus

UNKNOWN = "no known error pattern in the logs"


def status(home: Home, *, as_json: AsJson = False) -> None:
    """Show the state of this home, and what is due.

    That is: federation, running jobs, open hints, last round, budget left.

    Exit code 0: ok. 1: an open hint, the last attempt failed, or the last plan was refused. 2: the home is unreadable.
    3: the home is empty.
    """
    state = overview.status(home, now_hour())
    if as_json:
        show_json(state)
    else:
        show(*_lines(state))
    raise typer.Exit(state.exit_code)


def _lines(state: TenantStatus) -> Iterator[str]:
    yield f"home        {short(Path(state.home))}{'' if state.exists else ' (missing)'}"
    if state.federation:
        members, trustees = (
            counted_as(state.federation.members, "tenant"),
            counted_as(state.federation.trustees, "trustee"),
        )
        yield f"federation  joined: {members}, {trustees}, head {state.federation.head}"
    else:
        yield "federation  none: `pharoah-tenant join`; run, jobs, show and diagnose work without"
    yield f"jobs        {counted_as(state.leases, 'lease')}, {len(state.running)} running"
    for row in state.running:
        yield f"  running   {_named(row)}"
        yield from _workload(row)
    if state.last_attempt and state.last_attempt not in state.running:
        last = state.last_attempt
        yield f"  last      {_named(last)}: {last.state} {last.reason}".rstrip()
        yield from _workload(last)
    if state.days_to_cause.failures:
        yield f"failures    {state.days_to_cause.words}"
    if state.federation:
        yield f"hints       {counted_as(state.hints_standing, 'open hint')}"
        answered = state.last_round
        yield f"last round  {dates(answered.start_hour, answered.end_hour) if answered else 'none answered yet'}"
        if refused := state.refused_plan:
            yield f"last plan   refused ({dates(refused.start_hour, refused.end_hour)}): {dated(refused.why)}"
        if state.pilot:
            yield "pilot       policy.toml lets plans of a pilot through: remove its lower minimums once it is over"
        if state.warnings or state.records_owed:
            yield f"warnings    {_warnings(state)}"
        left = answered.epsilon_left if answered else state.epsilon_limit
        of = f"{state.epsilon_limit:g} left per job in this window"
        yield f"budget      epsilon {left:.3f} of {of}, at delta {state.delta:g}"
    yield f"next action {state.due or 'none'}"


def _warnings(state: TenantStatus) -> str:
    said = line_of(state.warnings) if state.warnings else "nothing is proven of the provider's"
    owed = counted_as(state.records_owed, "round")
    return f"{said}; the provider has shown no record of {owed}" if state.records_owed else said


def _named(row: LeaseRow) -> str:
    return f"{row.lease} ({row.job})" if row.job else row.lease


def _workload(row: LeaseRow) -> Iterator[str]:
    if row.workload:
        yield f"            workload described: {row.workload}"
    elif row.undescribed:
        yield f"            workload not described: {row.undescribed}"


def reasons(*, as_json: AsJson = False) -> None:
    """List the reasons for failures: the domain of each, how frequent and costly it is, and what to do about it.

    A round counts failures by the 29 reasons of the first lists, or as unknown. The finer ones stay at home: a round
    counts what they belong to, and nothing where another failure may be behind. A stopped job is no failure.
    """
    taxonomy = overview.reasons()
    if as_json:
        show_json(taxonomy)
        return
    acme = [row for row in taxonomy.reasons if row.observed is not None]
    for domain, rows in groupby(acme, key=lambda row: row.domain):
        show(f"{domain}: {_DOMAINS[domain or '']}")
        for row in rows:
            figures = f"{row.observed:>4} failures, {row.share_of_lost_gpu_time:5.2f}% of lost GPU time"
            show(f"  {row.slug:<22} {row.title:<22} {figures}", f"    {row.advice}")
    show("finer reasons, and what a round counts for them")
    for row in taxonomy.reasons[len(acme) :]:
        show(f"  {row.slug:<22} {row.title:<26} {row.parent if row.counted else 'unknown'}", f"    {row.advice}")
    show(f"unknown: {UNKNOWN}", "Figures: six months of two LLM clusters (Hu et al., NSDI 2024, Table 3).")


_DOMAINS = {
    "infrastructure": "the provider's hardware, network or storage",
    "framework": "the software stack, or the data and memory that it manages",
    "script": "the job's code, files or options",
}
