"""`pharoah-provider leases slurm`: follows the leases of Slurm's jobs."""

import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from federation.base.console import AsJson, InputFile
from federation.base.key_files import read_key
from federation.base.screen import say
from federation.base.visible import counted_as
from pharoah_slurm.follow import Followed, ask_sacct, follow, read_file
from provider_server.program.verbs.console import Database, Home, print_rows, required, say_error
from provider_server.rounds import home as homes
from provider_server.rounds.intake.recorder import LeaseRecorder

SINCE_H = 24.0


class SlurmRow(TypedDict):
    """A lease that changed, the start of a job that it is for, and its hours; `end_before_h` is null for a new one."""

    change: str
    lease: str
    tenant: str
    job: int
    restarts: int
    state: str
    node_names: list[str]
    start_h: float
    end_h: float
    end_before_h: float | None


def slurm(
    file: Annotated[
        Path | None,
        typer.Argument(
            click_type=InputFile(),
            help="What `sacct --json --duplicates` or slurmrestd said; by default sacct is asked.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    database: Database = None,
    since_h: Annotated[
        float, typer.Option("--since-h", min=0.1, help="Ask for jobs that ran in this many last hours.")
    ] = SINCE_H,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--every-s", min=0.1, help="Ask again after this many seconds, until stopped.", show_default=False
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Record leases of Slurm's jobs as they begin, and follow their ends: early ends, requeues, moved limits.

    slurm_accounts, in the section leases of provider.toml, says which account is which tenant. Repeating it is
    harmless.
    """
    if file and every_s:
        raise typer.BadParameter("a file is read once", param_hint="--every-s")
    place = required(home)
    known: set[str] = set()  # what was left out at the last look is not told again at this one

    def look() -> None:
        unread: Counter[str] = Counter()
        starts = read_file(file, unread) if file else ask_sacct(since_h, unread)
        settings = homes.settings_of(place)
        with closing(homes.open_leases(place, database, settings)) as book:
            recorder = LeaseRecorder(book, place, settings.leases.contexts)
            secret, tenants = read_key(place / "context.key"), settings.leases.tenants()
            seen = follow(book, recorder, secret, tenants, starts, time.time())
        left_out = unread + seen.left_out
        if seen.changes or not every_s:
            print_rows([_row(one) for one in seen.changes], _line, as_json=as_json)
        if not seen.changes and not every_s:
            before = counted_as(len(starts) - seen.left_out.total(), "start")
            say(f"nothing recorded: {before} known and unchanged, {counted_as(left_out.total(), 'record')} left out")
        new = sorted(left_out.keys() - known)
        say(*(f"left out: {counted_as(left_out[why], 'record')}: {why}" for why in new))
        known.clear()
        known.update(left_out)

    while every_s:
        try:
            look()
        except PharoahError as error:  # what is wrong now may be right at the next look
            say_error(error.what, error.hint)
        time.sleep(every_s)
    look()


def _row(one: Followed) -> SlurmRow:
    return {
        "change": one.turn.value,
        "lease": str(one.lease.lease),
        "tenant": str(one.lease.tenant),
        "job": one.start.job,
        "restarts": one.start.restarts,
        "state": one.start.state,
        "node_names": list(one.start.nodes),
        "start_h": one.lease.start_h,
        "end_h": one.lease.end_h,
        "end_before_h": one.end_before_h,
    }


def _line(row: SlurmRow) -> str:
    again = f", restart {row['restarts']}" if row["restarts"] else ""
    nodes = counted_as(len(row["node_names"]), "node")
    moved = "" if row["end_before_h"] is None else f", {row['end_h'] - row['end_before_h']:+.2f} h"
    return f"{row['change']}: lease {row['lease']}, job {row['job']}{again}, {nodes}{moved}"
