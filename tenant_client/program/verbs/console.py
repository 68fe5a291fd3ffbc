"""Options, output and exit codes that the verbs of `pharoah-tenant` share.

- Exit codes: 0 ok, 1 warning, 2 refused, failed or mismatch, 3 unknown.
- A verb's module is imported when the verb is called (`tenant_client.program.cli`). Inside functions is imported what
  belongs to an extra that the verb can do without, or what a running job would wait for.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import Console, HomeFolder
from federation.base.homes import Role
from federation.base.pinned_directory import NOT_JOINED, NotEnrolled, is_pinned
from federation.base.sqlite import Connection, reporting
from federation.base.visible import short
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import the_one
from tenant_client.doctor.run.run_directory import newest_runs

_console = Console("pharoah-tenant")
MOST_THAT_MAY = 3  # known incompatibilities that are shown
say_error, failing, warn = _console.say_error, _console.failing, _console.warn

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        click_type=HomeFolder(Role.TENANT),
        envvar="PHAROAH_HOME",
        default_factory=lambda: _default_home(),
    ),
]

Lease = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        envvar="PHAROAH_LEASE",
        help="The job, or the start of its name (see `jobs`); by default the newest.",
        show_default=False,
    ),
]

Latest = Annotated[bool, typer.Option("--latest", help="In place of a job: use the newest one.")]


@contextmanager
def joined(home: Path, *, failed: int = 2, needed: bool = True) -> Iterator[Connection]:
    """The database of a home that has joined a federation, closed afterwards. Needs no key.

    If that is not `needed`, the database of any home will do.
    """
    with failing(failed), reporting():
        if not (home / "tenant.db").exists():
            raise NotEnrolled(NOT_JOINED)
        with closing(open_database(home / "tenant.db")) as connection:
            if needed and not is_pinned(connection):
                raise NotEnrolled(NOT_JOINED)
            yield connection


def journalled(home: Path) -> Path:
    """The database of a home; ends with exit code 3 if there is none yet."""
    path = home / "tenant.db"
    if not path.exists():
        say_error(f"the journal is empty: {short(home)}", "run a job with `pharoah-tenant run`, or pass --home")
        raise typer.Exit(3)
    return path


def job_of(home: Path, given: Path) -> str:
    """The job of this name, or whose name starts so; "" where it is a file's, or no such job has left files."""
    runs = [] if given.exists() or len(given.parts) > 1 else [*newest_runs(home)]
    return the_one(runs, str(given)) if any(run.startswith(str(given)) for run in runs) else ""


def _default_home() -> Path:
    """The data folder of the XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "pharoah"


def require(lease: str, *, latest: bool) -> None:
    """BadParameter where a lease is named and the latest is asked for, too; without either it is the latest."""
    if lease and latest:
        raise typer.BadParameter("pass either a job (or the start of its name) or --latest", param_hint="JOB")
