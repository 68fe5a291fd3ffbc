"""`pharoah-provider leases events`: leases as they begin, change and end, from lines of JSON."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson
from provider_server.program.verbs.console import Database, Home, print_rows, required, say_error
from provider_server.rounds import home as homes
from provider_server.rounds.intake.lines import RefusedLine, take_each, total
from provider_server.rounds.intake.recorder import LeaseRecorder, Recorded


class EventsRow(TypedDict):
    """A file, how many events were recorded, by kind, and how many lines were refused; `known` were recorded before."""

    file: str
    begun: int
    changed: int
    ended: int
    requeued: int
    known: int
    refused: int


def events(
    file: Annotated[
        Path,
        typer.Argument(help="JSON lines, or - for standard input; see docs/operate.md.", show_default=False),
    ],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Record leases as they begin, change and end, from lines of JSON that may go on for ever.

    A bad line is named on stderr and the others are recorded; then the exit code is 2. Lines may come again.
    """
    place = required(home)
    with closing(homes.open_leases(place, database, settings := homes.settings_of(place))) as book:
        recorder = LeaseRecorder(book, place, settings.leases.contexts)
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as lines:
            row = _taken(str(file), lines, recorder)
    print_rows([row], _events_line, as_json=as_json)
    if row["refused"]:
        raise typer.Exit(2)


def _taken(file: str, lines: Iterable[bytes], recorder: LeaseRecorder) -> EventsRow:
    """Records line by line; a refused one is told at once."""

    def told() -> Iterator[Recorded | RefusedLine | None]:
        for outcome in take_each(lines, recorder):
            if isinstance(outcome, dict):
                say_error(f"{file}, line {outcome['line']}: {outcome['error']}")
            yield outcome

    taken = total(told())
    return {
        "file": file,
        "begun": taken["begun"],
        "changed": taken["changed"],
        "ended": taken["ended"],
        "requeued": taken["requeued"],
        "known": taken["known"],
        "refused": len(taken["refused"]),
    }


def _events_line(row: EventsRow) -> str:
    kinds = ", ".join(f"{row[kind]} {kind}" for kind in ("begun", "changed", "ended", "requeued", "known", "refused"))
    return f"{row['file']}: {kinds}"
