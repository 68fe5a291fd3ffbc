"""Verbs on the provider's own telemetry: contexts, hazard, repaired."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from federation.base.clock import now_hour
from federation.base.console import InputFile
from federation.base.screen import say
from federation.base.visible import counted_as
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.fleet_events import READ_FROM, fit_levels, gather, hardware_failures
from provider_server.fleet.learning import hardware, on_probation
from provider_server.fleet.learning.hardware import Followed, Kept, Observed, Repair
from provider_server.fleet.telemetry.files import FileSource, Layout
from provider_server.fleet.telemetry.inventory import Inventory, load
from provider_server.fleet.telemetry.prometheus import PrometheusSettings, PrometheusSource
from provider_server.fleet.telemetry.quality import Quality, Reason
from provider_server.fleet.telemetry.recipe import load as load_recipe
from provider_server.fleet.telemetry.samples import HOUR_S, Source, Window
from provider_server.program.reporting.hazard_text import HazardRow, TelemetryRow, hazard_lines, hazard_row, numbers
from provider_server.program.verbs import outages
from provider_server.program.verbs.console import AsRows, Home, failing, nothing_yet, print_rows, required
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
NONE_SEEN = 3.69  # a Poisson count of this mean is 0 in one of forty draws


# ---- input -----------------------------------------------------------------------------------------------------------


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
    if not settings.prometheus_url:
        raise PharoahError(
            "no telemetry source", hint="pass --file, or set [telemetry] prometheus_url in provider.toml"
        )
    token = Path(settings.token_file) if settings.token_file else None
    return PrometheusSource(PrometheusSettings(settings.prometheus_url, bearer_token_file=token, only=only))


def say_quality(quality: Quality, doubts: Mapping[str, int]) -> None:
    """Tells what of the telemetry could not be used."""
    say(*quality.lines(), *(f"  doubt    {doubt}: {count}" for doubt, count in sorted(doubts.items())))


# ---- contexts --------------------------------------------------------------------------------------------------------


class ContextRow(TypedDict):
    """A context and its failure rate with a 95% interval; `nodes_by_level` from level 0 on."""

    context: int
    description: str
    nodes: int
    failures_per_1000_node_hours: float
    low: float
    high: float
    nodes_by_level: list[int]


def contexts(
    home: Home = None,
    file: Files = None,
    inventory: Stock = None,
    start: Start = None,
    end: End = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Split contexts by this feature, whatever the evidence.")
    ] = None,
    *,
    in_order: Sorted = False,
    as_json: AsRows = False,
) -> None:
    """Group nodes into contexts by the features that predict failures, and find build-up levels, from telemetry."""
    place = required(home)
    with failing():
        feed = open_feed(place, file or (), inventory, start, end, in_order=in_order)
        repairs = hardware.load_repairs(place)
        before = hardware.load(place)
        found = hardware.observe(feed.source, feed.window, feed.inventory, before, feature or (), repairs, feed.metrics)
        hardware.keep(place, found.kept)
    say_quality(found.quality, found.doubts)
    say(_selection_line(found))
    print_rows(
        [_context_row(found, number) for number in range(len(found.kept.contexts.contexts))],
        _context_line,
        as_json=as_json,
    )


def _selection_line(found: Observed) -> str:
    if not found.selected:
        return f"no feature predicts the {found.failures:.0f} failures: all nodes form one context; see --feature"
    names = ", ".join(feature.name for feature in found.selected)
    return f"{found.failures:.0f} failures; contexts differ in {names}"


def _context_row(found: Observed, place: int) -> ContextRow:
    one = found.kept.contexts.contexts[place]
    levels = [found.kept.levels.get(node, 0) for node in one.nodes]
    return {
        "context": one.number,
        "description": one.description,
        "nodes": len(one.nodes),
        "failures_per_1000_node_hours": one.failures_per_1000_node_hours,
        "low": one.low,
        "high": one.high,
        "nodes_by_level": [levels.count(level) for level in range(4)],
    }


def _context_line(row: ContextRow) -> str:
    levels = "/".join(map(str, row["nodes_by_level"]))
    return (
        f"context {row['context']}: {row['description']}; {row['failures_per_1000_node_hours']:.2f} failures per 1,000"
        f" node-hours ({row['low']:.2f}–{row['high']:.2f}); nodes at build-up level 0/1/2/3: {levels}"
    )


# ---- hazard ----------------------------------------------------------------------------------------------------------


def hazard(
    home: Home = None,
    file: Files = None,
    inventory: Stock = None,
    start: Start = None,
    end: End = None,
    events: Annotated[
        Path | None,
        typer.Option(
            click_type=InputFile(), help="Outages (node, start, end, kind), instead of telemetry.", show_default=False
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes in all; with --events.", show_default=False)] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Kind of outage that is a failure; with --events; default: all.")
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(
            click_type=InputFile(), help="Jobs (node, start, end, workload); with --events.", show_default=False
        ),
    ] = None,
    *,
    in_order: Sorted = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="With --events: hold nodes to what these outages say of them and of repairs from now on."
        ),
    ] = False,
    as_json: AsRows = False,
) -> None:
    """Show how often nodes fail at each build-up level and in each context, from the provider's own telemetry."""
    if events:
        asked = outages.Asked(start, end, inventory, nodes, kind or (), jobs)
        outages.show(events, asked, required(home) if keep else None, as_json=as_json)
        return
    place = required(home)
    with failing():
        feed, kept = open_feed(place, file or (), inventory, start, end, in_order=in_order), hardware.load(place)
        seen = with_levels(feed, kept, hardware.load_repairs(place))
    say_quality(seen.quality, seen.doubts)
    known, first = kept.contexts if kept else None, feed.window.start_hour
    gathered = gather(seen.at_risk(first), numbers(seen.hours.nodes, known))
    if not gathered.failures:
        raise nothing_yet(_without_failure(gathered.node_hours, seen))
    quality: TelemetryRow = {"quality": seen.quality.row(), "doubts": dict(seen.doubts)}
    row: HazardRow = {**hazard_row(gathered, fit_levels(gathered.table), seen.hours.since(first), known), **quality}
    row["left_out"] += [told] if (told := _unseen(seen)) else []
    if not as_json:
        say(*(f"left out: {text}" for text in row["left_out"]))
    print_rows([row], hazard_lines, as_json=as_json)


def with_levels(feed: Feed, kept: Kept | None, repairs: Sequence[Repair]) -> Followed:
    """Events and levels of the window; contexts as stored, levels computed anew."""
    return hardware.follow_warm(feed.source, feed.window, feed.inventory, kept, repairs)


def _without_failure(node_hours: int, seen: Followed) -> str:
    failures = hardware_failures(seen.events).unique(maintain_order=True)
    if seen.quality.of(Reason.UNKNOWN_METRIC) == seen.quality.read > 0:
        return "no failure could be seen: no metric of this telemetry is known (docs/nodes.md)"
    if not node_hours and not failures.is_empty():
        told = ", ".join(f"{kind} on {node}" for node, _hour, kind in failures.iter_rows())
        count = counted_as(failures.height, "failure")
        return f"no rate, since no node is seen in two consecutive hours, but {count}: {told}"
    if not node_hours:
        return "no node-hours at risk: telemetry shows no node in two consecutive hours"
    if told := _unseen(seen):
        return told
    most = PER_NODE_HOURS * NONE_SEEN / node_hours
    return f"no failure in {node_hours:,} node-hours at risk: at most {most:.2g} per 1,000 (95% bound)"


def _unseen(seen: Followed) -> str:
    """What is said where telemetry has no metric of failures, so that only nodes that fall silent are seen."""
    if set(READ_FROM) & set(seen.totals["metric"]):
        return ""
    return (
        "no failure could be seen but a lost node: nothing here shows Xid codes, failed row remappings or the health"
        f" of GPUs (telemetry has none of {', '.join(READ_FROM)})"
    )


# ---- repaired --------------------------------------------------------------------------------------------------------


class RepairedRow(TypedDict):
    """A node, from when its build-up level counts anew, and its level before; null if it is not known.

    It is on probation at `level` from then on, and at level 0 by `probation_until_hour`.
    """

    node: str
    from_hour: int
    level_before: int | None
    level: int
    probation_until_hour: int


def repaired(
    node: Annotated[list[str], typer.Argument(help="Names of the nodes, as in telemetry.")],
    home: Home = None,
    *,
    as_json: AsRows = False,
) -> None:
    """Record that hardware of nodes was replaced: their build-up begins anew, and they are on probation for a while."""
    place = required(home)
    with failing():
        kept = hardware.load(place)
        if kept is None:
            raise nothing_yet("no nodes known yet: run `pharoah-provider nodes contexts`")
        from_hour = int(now_hour()) + 1
        new = hardware.record_repairs(place, node, from_hour, kept)
        probation = on_probation.load(place)
    rows: list[RepairedRow] = [
        {
            "node": one.node,
            "from_hour": one.from_hour,
            "level_before": kept.levels.get(one.node),
            "level": probation.level(one.node, one.from_hour),
            "probation_until_hour": one.from_hour + probation.lasts_h(),
        }
        for one in new
    ]
    print_rows(rows, _repaired_line, as_json=as_json)


def _repaired_line(row: RepairedRow) -> str:
    before = "" if row["level_before"] is None else f", after level {row['level_before']}"
    return (
        f"{row['node']}: on probation at level {row['level']}{before}, until hour {row['probation_until_hour']};"
        f" its history before hour {row['from_hour']} no longer counts"
    )
