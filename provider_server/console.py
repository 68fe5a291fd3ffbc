"""What the verbs of `pharoah-provider` share: options, output and exit codes.

Results go to stdout (`--json` with stable keys), everything else to stderr. Exit codes: 0 ok, 2 failed or refused, 3
nothing there yet. Heavy libraries load inside the verbs, so that `--help` is instant.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from provider_server.store import Store

Home = Annotated[
    Path | None,
    typer.Option("--home", envvar="PHAROAH_PROVIDER_HOME", help="The provider's home directory.", show_default=False),
]
Database = Annotated[
    str | None,
    typer.Option(
        envvar="PHAROAH_DATABASE",
        help="URL of the database, in place of provider.db in the home; a password is safer in the environment.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with stable keys.")]


def print_rows(rows: Sequence[dict[str, Any]], line: Callable[[dict[str, Any]], str], *, as_json: bool) -> None:
    """A JSON list, or one line for each row."""
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for row in rows:
        sys.stdout.write(line(row) + "\n")


def nothing_yet(what: str) -> typer.Exit:
    """To be raised where there is nothing to show."""
    typer.echo(f"pharoah-provider: error: {what}", err=True)
    return typer.Exit(3)


@contextmanager
def opened(home: Path | None, database: str | None, *, create: bool = False) -> "Iterator[Store]":
    """The provider's store, closed afterwards."""
    from provider_server.store import Store

    where = _where(home, database)
    if create and isinstance(where, Path):
        where.parent.mkdir(parents=True, exist_ok=True)
    with failing(), closing(Store(where, create=create)) as store:
        yield store


def required(home: Path | None) -> Path:
    """The home, where a verb cannot do without."""
    if home is None:
        raise typer.BadParameter("name the provider's home by --home or PHAROAH_PROVIDER_HOME")
    return home


def _where(home: Path | None, database: str | None) -> Path | str:
    """A database that is named stands in place of the one in the home."""
    if database:
        return database
    if home is None:
        raise typer.BadParameter("name the store by --home or --database")
    return home / "provider.db"


@contextmanager
def failing() -> Iterator[None]:
    """A fault or refusal becomes its text and exit code 2."""
    from crypto.errors import PharoahError

    try:
        yield
    except PharoahError as error:
        typer.echo(f"pharoah-provider: error: {error.diagnostics()}", err=True)
        raise typer.Exit(2) from error
