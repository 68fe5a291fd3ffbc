"""Telemetry of a window, as the verbs on nodes open it: from files or from Prometheus."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from crypto.errors import PharoahError
from federation.base.clock import now_hour
from federation.base.console import InputFile
from federation.base.screen import say
from provider_server.fleet.telemetry.files import FileSource, Layout
from provider_server.fleet.telemetry.inventory import Inventory, load
from provider_server.fleet.telemetry.prometheus import PrometheusSettings, PrometheusSource
from provider_server.fleet.telemetry.quality import Quality
from provider_server.fleet.telemetry.recipe import load as load_recipe
from provider_server.fleet.telemetry.samples import HOUR_S, Source, Window
from provider_server.rounds import home as homes
from provider_server.rounds.settings import Telemetry

Files = Annotated[
    list[Path] | None,
    typer.Option("--file", click_type=InputFile(), help="Telemetry in Parquet or CSV, instead of Prometheus."),
]
Sorted = Annotated[
    bool, typer.Option("--sorted", help="Files are in order of time, to an hour: read in little memory.")
]
Stock = Annotated[
    Path | None,
    typer.Option("--inventory", click_type=InputFile(), help="Inventory file, instead of the one in provider.toml."),
]
Start = Annotated[int | None, typer.Option(help="First hour, in hours since 1970; default: a week ago.")]
End = Annotated[int | None, typer.Option(help="End, exclusive, in hours since 1970; default: the current hour.")]
HOURS = 168


@dataclass(frozen=True)
class Feed:
    """Telemetry of a window, and the inventory beside it. `metrics` are those that are asked for; None: all."""

    source: Source
    window: Window
    inventory: Inventory
    metrics: frozenset[str] | None = None


def open_feed(
    home: Path,
    files: Sequence[Path],
    inventory: Path | None,
    start: int | None,
    end: int | None,
    *,
    in_order: bool,
    whole: bool = False,
) -> Feed:
    """From files or else from the Prometheus of the settings; by default over the last week.

    Prometheus is asked for the metrics of the recipe in the settings, or all of them if `whole`; files have all.
    """
    settings = homes.settings_of(home).telemetry
    listed = inventory or (Path(settings.inventory) if settings.inventory else None)
    known, window = load(listed) if listed else Inventory(), Window(*hours_asked(start, end), time.time())
    only = load_recipe(Path(settings.recipe)).names if settings.recipe and not whole and not files else None
    return Feed(_source(files, settings, only, in_order=in_order), window, known, only)


def hours_asked(start: int | None, end: int | None) -> tuple[int, int]:
    """The hours of a window, by default the last week."""
    last = int(now_hour()) if end is None else end
    first = last - HOURS if start is None else start
    if not 0 <= first < last:
        raise typer.BadParameter(f"--start {first} must be before --end {last}, and not negative")
    return first, last


def _source(files: Sequence[Path], settings: Telemetry, only: frozenset[str] | None, *, in_order: bool) -> Source:
    if files:
        return FileSource(files, Layout(lag_s=float(HOUR_S) if in_order else None))
    return prometheus_of(settings, only)


def prometheus_of(settings: Telemetry, only: frozenset[str] | None = None) -> PrometheusSource:
    """The Prometheus of the settings; PharoahError without one."""
    if not settings.prometheus_url:
        raise PharoahError(
            "no telemetry source", hint="pass --file, or set [telemetry] prometheus_url in provider.toml"
        )
    token = Path(settings.token_file) if settings.token_file else None
    return PrometheusSource(PrometheusSettings(settings.prometheus_url, bearer_token_file=token, only=only))


def say_quality(quality: Quality, doubts: Mapping[str, int]) -> None:
    """Tells what of the telemetry could not be used."""
    say(*quality.lines(), *(f"  doubt    {doubt}: {count}" for doubt, count in sorted(doubts.items())))
