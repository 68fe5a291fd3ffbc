"""Options, output and exit codes that the verbs of `pharoah-provider` share.

Exit codes: 0 ok, 2 failed or refused, 3 no data yet.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from federation.base.console import Console, HomeFolder, InputFile
from federation.base.homes import Role
from federation.base.logs import Format
from federation.base.screen import show, show_json

_console = Console("pharoah-provider")
say_error, failing = _console.say_error, _console.failing

Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        click_type=HomeFolder(Role.PROVIDER),
        envvar="PHAROAH_PROVIDER_HOME",
    ),
]
Row = TypeVar("Row", bound=Mapping[str, object])
Database = Annotated[
    str | None,
    typer.Option("--database", envvar="PHAROAH_DATABASE"),
]
Reports = Annotated[
    Path | None,
    typer.Option(
        "--file", click_type=InputFile(), help="A copy of nodes.json, instead of the home's.", show_default=False
    ),
]
LogFormat = Annotated[Format, typer.Option(help="Format of log lines: json, or text for people.")]


def print_rows(rows: Sequence[Row], lines: Callable[[Row], str | list[str]], *, as_json: bool) -> None:
    """Prints a JSON list, or the line or lines of each row."""
    if as_json:
        show_json(rows)
        return
    texts = map(lines, rows)
    show(*(line for text in texts for line in ([text] if isinstance(text, str) else text)))


def nothing_yet(what: str) -> typer.Exit:
    """The exit to raise where there is no data to show."""
    say_error(what)
    return typer.Exit(3)


def required(home: Path | None) -> Path:
    """The home, for a verb that needs one."""
    if home is None:
        raise typer.BadParameter("pass the provider's home with --home, or set PHAROAH_PROVIDER_HOME")
    return home
