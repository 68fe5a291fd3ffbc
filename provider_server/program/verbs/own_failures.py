"""`pharoah-provider nodes own-failures`: records which leases the provider saw hardware fail on, for its operators."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from federation.base.clock import dates
from federation.base.console import AsJson, InputFile
from federation.base.screen import say
from federation.base.visible import counted_as
from provider_server.fleet.analysis.recurrent import are_failures
from provider_server.fleet.learning import hardware
from provider_server.fleet.outage_files import read_starts
from provider_server.program.verbs.console import Database, Home, print_rows, required
from provider_server.program.verbs.feed import (
    End,
    Files,
    Sorted,
    Start,
    Stock,
    hours_asked,
    open_feed,
    say_quality,
)
from provider_server.rounds import home as homes
from provider_server.rounds.own_events import OwnFailuresRow, failures_seen, first_open, record

Outages = Annotated[
    Path | None,
    typer.Option(
        click_type=InputFile(),
        help="Outages (node, start, end, kind), or health as NVSentinel or Kubernetes tells it, instead of telemetry.",
        show_default=False,
    ),
]


def own_failures(
    home: Home = None,
    database: Database = None,
    file: Files = None,
    inventory: Stock = None,
    start: Start = None,
    end: End = None,
    events: Outages = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="With --events: only outages of this kind, and below it; repeatable. By default all that were not"
            " planned.",
            show_default=False,
        ),
    ] = None,
    *,
    in_order: Sorted = False,
    as_json: AsJson = False,
) -> None:
    """Record hardware failures that the provider saw on leases, from telemetry or outages, for its operators.

    `serve` does so every day where telemetry is configured. Hours count once: those that were recorded before are left
    out. What is learnt from them is for operators: no bundle tells tenants of it.
    """
    place = required(home)
    asked, last = hours_asked(start, end)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        first = first_open(provider, asked, last)
        seen: Iterable[tuple[str, int]]
        if events:
            seen, left_out = read_starts(events, are_failures(kind or ()))
            say(*(f"left out: {text}" for text in left_out))
        else:
            seen = _telemetry(place, file or (), inventory, (first, last), in_order=in_order)
        row = record(provider, seen, first, last)
    print_rows([row], _line, as_json=as_json)


def _telemetry(
    home: Path, files: Sequence[Path], inventory: Path | None, hours: tuple[int, int], *, in_order: bool
) -> Iterator[tuple[str, int]]:
    """Nodes and hours of failures; what of the telemetry could not be used is told."""
    feed = open_feed(home, files, inventory, *hours, in_order=in_order)
    kept, repairs = hardware.load(home), hardware.load_repairs(home)
    seen = hardware.follow_warm(feed.source, feed.window, feed.inventory, kept, repairs)
    say_quality(seen.quality, seen.doubts)
    return failures_seen(seen, hours[0])


def _line(row: OwnFailuresRow) -> str:
    leases = counted_as(row["leases"], "lease")
    seen = f"{counted_as(row['failures'], 'failure')}, {row['on_leases']} of them on one of {leases}"
    return f"{dates(row['start_hour'], row['end_hour'])}: {seen}"
