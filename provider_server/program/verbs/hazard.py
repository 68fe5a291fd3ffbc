"""`pharoah-provider nodes hazard`: from telemetry, or from a file of outages."""

from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson, InputFile
from provider_server.program.verbs.console import Home, required
from provider_server.program.verbs.feed import End, Files, Sorted, Start, Stock, open_feed


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
    as_json: AsJson = False,
) -> None:
    """Show how often nodes fail at each build-up level and in each context, from the provider's own telemetry."""
    # Each of the two loads much that the other has no use for, as scikit-learn.
    if events:
        from provider_server.program.verbs import outages

        asked = outages.Asked(start, end, inventory, nodes, kind or (), jobs)
        outages.show(events, asked, required(home) if keep else None, as_json=as_json)
    else:
        from provider_server.program.verbs import level_hazard

        place = required(home)
        feed = open_feed(place, file or (), inventory, start, end, in_order=in_order)
        level_hazard.show(place, feed, as_json=as_json)
