"""The verb that follows the fabric from one node to another: `nodes path`."""

from pathlib import Path
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, Force, InputFile, check_new
from federation.base.route_options import UNKNOWN, Picture, show_routes
from federation.base.screen import say
from provider_server.fleet.fabric import FabricHealth, routes
from provider_server.fleet.fabric_files import load_fabric
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.path_health import health_of
from provider_server.fleet.telemetry.inventory import Inventory, load
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.samples import SeriesBook
from provider_server.fleet.telemetry.summaries import summarise
from provider_server.program.verbs.console import Home, required, say_error
from provider_server.program.verbs.feed import End, Feed, Files, Sorted, Start, Stock, open_feed
from provider_server.rounds import home as homes

HOURS = 24


def path(
    start_node: Annotated[str, typer.Argument(metavar="NODE", help="The node where the path begins.")],
    end_node: Annotated[str, typer.Argument(metavar="NODE", help="The node where it ends.")],
    home: Home = None,
    fabric: Annotated[
        list[Path] | None,
        typer.Option(
            "--fabric",
            click_type=InputFile(folders=True),
            help="lldpctl's JSON (NODE.json), ibnetdiscover's output, topology.conf, or a folder of these; repeatable.",
        ),
    ] = None,
    inventory: Stock = None,
    file: Files = None,
    start: Start = None,
    end: End = None,
    out: Picture = None,
    *,
    in_order: Sorted = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the way between two nodes: cards, ports, switches and rails, and what speaks against each.

    Levels of nodes are those of the newest hour of telemetry; errors of ports are counted over the last day, or from
    --start to --end. No lease, tenant or token is read.

    Exit code 0: nothing speaks against a hop. 1: something does. 3: no file names one of the nodes.
    """
    place = required(home)
    check_new(out, force=force)
    first = int(now_hour()) - HOURS if start is None and end is None else start
    settings = homes.settings_of(place).telemetry
    listed = inventory or (Path(settings.inventory) if settings.inventory else None)
    known = load_fabric(fabric or (), load(listed) if listed else Inventory())
    for node in (start_node, end_node):
        if node not in known.nodes:
            say_error(f"no file names the node {node}", "pass --fabric, or an inventory: see docs/fabric.md")
            raise typer.Exit(UNKNOWN)
    has_telemetry = bool(file or settings.prometheus_url)
    if not has_telemetry:
        say("pharoah-provider: no telemetry of ports: pass --file, or set prometheus_url in provider.toml")
    hours = open_feed(place, file or (), inventory, first, end, in_order=in_order) if has_telemetry else None
    code = show_routes(routes(known, start_node, end_node, _health(place, hours)), out, as_json=as_json)
    raise typer.Exit(code)


def _health(home: Path, feed: Feed | None) -> FabricHealth:
    """Of the newest reports of nodes, and of the hours of telemetry that there are."""
    reports = node_reports.load(home / node_reports.FILE)
    if feed is None:
        return health_of(reports)
    book = SeriesBook(Tally(), devices=feed.inventory.devices(), nodes=feed.inventory.addresses())
    return health_of(reports, summarise(feed.source, book, feed.window))
