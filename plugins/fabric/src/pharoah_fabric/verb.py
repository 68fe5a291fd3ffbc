"""The verb that follows the fabric from one node to another: `nodes path`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, Force, InputFile, check_new
from federation.base.route import HopHealth
from federation.base.route_options import UNKNOWN, Picture, show_routes
from federation.base.screen import say
from pharoah_fabric.routes import FabricHealth, routes
from provider_server.fleet.fabric import CableEnd
from provider_server.fleet.fabric_files import load_fabric
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_reports import NodeReport, NodeStanding
from provider_server.fleet.telemetry.inventory import Inventory, load
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.samples import SeriesBook
from provider_server.fleet.telemetry.summaries import HourSummary, summarise
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


# ---- the health of hops ----------------------------------------------------------------------------------------------
#
# Counters of errors are held against `LIMITS`, events per hour over the window; both are chosen, not learnt. Marks of
# congestion (ECN, CNP, PFC) are told where they are many, and are no fault of the port that counts them. A port whose
# counters were read and stayed below all limits is clear. Pure.


LIMITS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "ib_link_downed": (0.0, "link went down"),
        "ib_link_recoveries": (0.0, "link recovered from errors"),
        "ib_symbol_errors": (120.0, "symbol errors"),
        "ib_receive_errors": (10.0, "receive errors"),
        "ib_transmit_discards": (100.0, "transmit discards"),
        "roce_out_of_sequence": (1_000.0, "packets out of sequence"),
        "roce_sequence_errors": (1_000.0, "sequence errors told by the peer"),
        "roce_ack_timeouts": (10.0, "acknowledgements timed out"),
        "roce_icrc_errors": (0.0, "corrupted RoCE packets"),
        "roce_ecn_marked": (1e7, "packets marked for congestion (ECN)"),
        "roce_cnp_handled": (1e6, "congestion notifications handled (CNP)"),
        "pfc_pauses_received": (1e6, "pause frames received (PFC)"),
    }
)


def health_of(reports: Sequence[NodeReport], hours: Iterable[HourSummary] = (), least_level: int = 1) -> FabricHealth:
    """What reports of nodes and hours of telemetry say."""
    total: dict[tuple[str, str, str], float] = defaultdict(float)
    looked_at = 0
    for hour in hours:
        looked_at += 1
        rows = hour.rows.select("node", "device", "metric", "increase").iter_rows()
        for node, device, metric, increase in rows:
            if metric in LIMITS and increase is not None:
                total[node, device, metric] += increase
    ports: dict[CableEnd, list[str]] = defaultdict(list)
    for (node, device, metric), increase in sorted(total.items()):
        limit, words = LIMITS[metric]
        noted = ports[CableEnd(node, device)]
        if increase > limit * looked_at:
            noted.append(f"{words}: {increase:,.0f} in {looked_at} h")
    return FabricHealth({report.node: _of_node(report, least_level) for report in reports}, ports)


def _of_node(report: NodeReport, least_level: int) -> tuple[HopHealth, str]:
    states = {
        NodeStanding.OK: HopHealth.CLEAR,
        NodeStanding.RAISED: HopHealth.DOUBT,
        NodeStanding.UNKNOWN: HopHealth.UNKNOWN,
    }
    return states[report.standing(least_level)], report.line(least_level).partition(": ")[2]
