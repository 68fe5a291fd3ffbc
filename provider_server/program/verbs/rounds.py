"""`pharoah-provider rounds`: hold one now, and list what the former ones released and cost."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import httpx
import numpy as np
import typer

from crypto.errors import PharoahError
from crypto.signing import reopened
from federation.base.clock import date, dates
from federation.base.console import AsJson
from federation.base.screen import say
from federation.base.visible import counted_as
from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import plan_loss, spent_by_window
from federation.protocol.warnings import line_of
from provider_server.fleet.release import Release
from provider_server.program.operations.admin import GivenUp, HeldRound
from provider_server.program.verbs.console import Database, Home, nothing_yet, print_rows, required
from provider_server.program.verbs.opening import opened
from provider_server.rounds import pilot as pilots
from provider_server.rounds.home import CONTROL, founded, open_provider, settings_of
from provider_server.rounds.looking import look
from provider_server.rounds.readiness import lacking
from provider_server.rounds.store.round_store import Answer
from provider_server.rounds.store.store import Store
from provider_server.rounds.warned import record_of, verdict

RecordFile = Annotated[
    Path | None,
    typer.Option(help="Write the record that proves the sum of the round to this file.", show_default=False),
]
RoundName = Annotated[
    str, typer.Argument(help="Id of a round, or its first digits: show its cells. Default: list all.")
]


class TableSize(TypedDict):
    """Cells of a table, and the largest standard deviation of noise in one."""

    cells: int
    noise_sd: float


class ReleaseRow(TypedDict):
    """A release; `tables` by the marginal's name."""

    round_id: str
    start_hour: int
    end_hour: int
    since_hour: int
    contributors: int
    epsilon: float
    delta: float
    tables: dict[str, TableSize]


class CellRow(TypedDict):
    """A cell of a release, by the names of its dimensions: noisy failures and exposure."""

    marginal: str
    cell: dict[str, str]
    failures: float
    noise_sd: float
    exposure_node_hours: float


def releases(
    round_id: RoundName = "",
    home: Home = None,
    database: Database = None,
    record: RecordFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the releases: window, contributors, tables, noise and privacy cost per unit. With a round, its cells.

    The newest round that counts warnings has a record. Tenants are shown it, and `pharoah-trustee log` reads it.
    """
    with opened(home, database) as store:
        known = store.releases()
        if record is not None:
            _write_record(store, _the_one(known, round_id), record)
    if not round_id:
        print_rows([_summary(release) for release in known], _summary_line, as_json=as_json)
        if (found := verdict(known)) and not as_json:
            say(f"warnings: {line_of(found)}")
        return
    print_rows(_cells(_the_one(known, round_id)), _cell_line, as_json=as_json)


def _the_one(known: Sequence[Release], round_id: str) -> Release:
    matches = [release for release in known if str(release.plan.round_id).startswith(round_id.lower())]
    if len(matches) != 1:
        raise nothing_yet(f"{counted_as(len(matches), 'release')} found for round {round_id!r}, not one")
    return matches[0]


def _write_record(store: Store, release: Release, file: Path) -> None:
    data = record_of(store.rounds, release.plan.round_id)
    if data is None:
        raise nothing_yet(f"round {release.plan.round_id} has no record: the newest that counts warnings has one")
    file.write_bytes(data)


def _summary(release: Release) -> ReleaseRow:
    plan = release.plan
    return {
        "round_id": str(plan.round_id),
        "start_hour": plan.start_hour,
        "end_hour": plan.end_hour,
        "since_hour": release.first_hour,
        "contributors": release.contributors,
        "epsilon": plan_loss(plan).at(plan.delta),
        "delta": plan.delta,
        "tables": {
            marginal.name: {"cells": table.events.size, "noise_sd": float(table.noise_variance.max() ** 0.5)}
            for marginal, table in zip(plan.marginals, release.tables, strict=True)
        },
    }


def _summary_line(row: ReleaseRow) -> str:
    tables = ", ".join(
        f"{name} {table['cells']} cells ±{table['noise_sd']:.1f}" for name, table in row["tables"].items()
    )
    return (
        f"{row['round_id'][:12]} {dates(row['start_hour'], row['end_hour'])}, counted since {date(row['since_hour'])},"
        f" {counted_as(row['contributors'], 'contribution')}, epsilon {row['epsilon']:.3f}: {tables}"
    )


def _cells(release: Release) -> list[CellRow]:
    rows: list[CellRow] = []
    for marginal, table in zip(release.plan.marginals, release.tables, strict=True):
        for place in np.ndindex(table.shape):
            cell = {name: table.levels(name)[at] for name, at in zip(table.names, place, strict=True)}
            rows.append(
                {
                    "marginal": marginal.name,
                    "cell": cell,
                    "failures": float(table.events[place]),
                    "noise_sd": float(table.noise_variance[place] ** 0.5),
                    "exposure_node_hours": float(table.exposure_node_hours[place]),
                }
            )
    return rows


def _cell_line(row: CellRow) -> str:
    cell = ", ".join(f"{name} {level[:12]}" for name, level in row["cell"].items())
    return (
        f"{row['marginal']}: {cell}: {row['failures']:.1f} ± {row['noise_sd']:.1f} failures"
        f" in {row['exposure_node_hours']:.0f} node-hours"
    )


class LedgerRow(TypedDict):
    """A window, and the budget that a unit in it pays: none where its round was `given_up`, whose units count later."""

    start_hour: int
    end_hour: int
    given_up: bool
    epsilon: float
    rho: float
    delta: float


def ledger(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """List the privacy budget that a unit, a lease in a window, pays. Tenants enforce their own limits."""
    with opened(home, database) as store:
        plans = [reopened(Plan, record.signed_plan) for record in store.rounds.rounds()]
        empty = {plan.window for plan in plans if store.rounds.answers(plan.round_id, Answer.EMPTY)}
    delta = max((plan.delta for plan in plans), default=0.0)
    rows: list[LedgerRow] = [
        {
            "start_hour": start,
            "end_hour": end,
            "given_up": (start, end) in empty,
            "epsilon": 0.0 if (start, end) in empty else loss.at(delta) if delta else loss.epsilon,
            "rho": 0.0 if (start, end) in empty else loss.rho,
            "delta": delta,
        }
        for (start, end), loss in spent_by_window(plans).items()
    ]
    print_rows(rows, _ledger_line, as_json=as_json)


def _ledger_line(row: LedgerRow) -> str:
    if row["given_up"]:
        return f"{dates(row['start_hour'], row['end_hour'])}: given up, nothing was opened and nothing is charged"
    return (
        f"{dates(row['start_hour'], row['end_hour'])}: epsilon {row['epsilon']:.3f} at delta {row['delta']:.0e}"
        f" (rho {row['rho']:.4f})"
    )


def hold(
    home: Home = None,
    start: Annotated[
        int | None, typer.Option(help="First hour of the window, in hours since 1970.", show_default=False)
    ] = None,
    end: Annotated[int | None, typer.Option(help="End of the window, exclusive.", show_default=False)] = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds to wait for the outcome.")] = 7200.0,
    *,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Abandon the open round instead; its units count in the next one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Hold a round now on the running server, over the last whole window or another one of its epoch."""
    place = required(home)
    if (start is None) != (end is None):
        raise typer.BadParameter("pass both --start and --end, or neither")
    if give_up:
        abandoned = cast(GivenUp, _asked(place, "give-up", {}, timeout_s))
        print_rows([abandoned], lambda row: f"abandoned: {row['given_up'] or 'no round is open'}", as_json=as_json)
        return
    window = {"start": start, "end": end} if start is not None and end is not None else {}
    answer = cast(HeldRound, _asked(place, "round", window, timeout_s))
    print_rows([answer], _round_line, as_json=as_json)


class PilotRow(TypedDict):
    """The minimums of rounds from now on."""

    pilot: bool
    owners_minimum: int
    cohort_minimum: int


def pilot(
    home: Home = None,
    database: Database = None,
    *,
    over: Annotated[bool, typer.Option("--end", help="End the pilot: raise the minimums to the defaults.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a pilot, with rounds of 3 tenants or more every week, or end it, in provider.toml.

    Tenants refuse plans of a pilot unless they joined with --pilot. The next plan, which is signed, tells every tenant
    its minimums; `pharoah-tenant status` shows them.
    """
    place = required(home)
    founded(place)
    weeks = settings_of(place).plan.weeks_per_epoch
    (pilots.end if over else pilots.begin)(place, weeks)
    settings = settings_of(place)
    least = settings.plan.owners_minimum, settings.plan.cohort_minimum
    row: PilotRow = {"pilot": settings.plan.is_pilot, "owners_minimum": least[0], "cohort_minimum": least[1]}
    print_rows([row], _pilot_line, as_json=as_json)
    for line in () if over else pilots.LESS:
        say(f"pilot: {line}")
    with closing(open_provider(place, database, settings)) as provider:
        known = look(place, provider.store, provider.directory, settings, provider.now_h())
    for lack in lacking(known):
        if lack.urgent:
            say(f"the next round lacks {lack}")
    if over:
        say("next: restart `pharoah-provider serve`; tenants remove the lower minimums from their policy.toml")
    else:
        say("next: restart `pharoah-provider serve`; each tenant runs `pharoah-tenant join --pilot INVITATION`")


def _pilot_line(row: PilotRow) -> str:
    kind = "a pilot" if row["pilot"] else "no pilot"
    return f"{kind}: rows of {row['owners_minimum']} tenants or more, sums of {row['cohort_minimum']} or more"


class MovedRow(TypedDict):
    """Rows that the new database has, and the file that was moved away."""

    rows: int
    kept: str


def move_store(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """Move the store from provider.db to the empty database of --database, such as a PostgreSQL server's.

    All processes on the store are stopped before, and started with that database afterwards. The file stays, under
    another name: trustees open no week again that an older store has forgotten.
    """
    place = required(home)
    founded(place)
    if database is None:
        raise typer.BadParameter("name the new database with --database, or as PHAROAH_DATABASE")
    file, kept = place / "provider.db", place / "provider.db.moved"
    with closing(Store(file, create=False)) as before, closing(Store(database)) as after:
        row: MovedRow = {"rows": before.copy_to(after), "kept": str(kept)}
    file.rename(kept)
    print_rows([row], _moved_line, as_json=as_json)
    say("next: start `pharoah-provider serve` with this database, as PHAROAH_DATABASE")


def _moved_line(row: MovedRow) -> str:
    return f"{row['rows']} rows are in the new database; the file before is {row['kept']}"


def _asked(home: Path, what: str, window: dict[str, int], timeout_s: float) -> dict[str, Any]:
    """The running server's answer; its refusals are raised here."""
    at, hint = home / CONTROL, "is `pharoah-provider serve` running on this machine, under your account?"
    if not os.access(at, os.W_OK):
        raise PharoahError(f"no server accepts your commands at {at}", hint=hint)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(at)), timeout=timeout_s) as client:
            answer = client.post(f"http://provider/pharoah/{what}", params=window)
    except httpx.HTTPError as error:
        raise PharoahError(f"{error}: {at}", hint=hint) from error
    if answer.status_code not in (httpx.codes.OK, httpx.codes.CONFLICT):
        raise PharoahError(f"the server failed ({answer.status_code}): {at}", hint="see the log of `serve`")
    body: dict[str, Any] = answer.json()
    if answer.status_code != httpx.codes.OK:
        raise PharoahError(f"{body['error']}: {body['what']}", hint=body["hint"])
    return body


def _round_line(row: HeldRound) -> str:
    return (
        f"round {row['round_id'][:12]}: {dates(row['start_hour'], row['end_hour'])},"
        f" {counted_as(row['contributors'], 'contribution')}, {counted_as(row['cells'], 'cell')},"
        f" epsilon {row['epsilon']:.3f}, {row['seconds']:.1f} s"
    )
