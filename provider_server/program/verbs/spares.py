"""The verb that says how many spares a pool of nodes needs: `nodes spares`."""

from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import typer

from federation.base.console import AsJson, InputFile
from federation.base.screen import say
from federation.protocol.known_rates import experience
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.spares import Floats, down_share, peak_spares, spares_needed
from provider_server.fleet.outage_files import Outages, read_outages
from provider_server.program.verbs.console import print_rows


class SparesObject(TypedDict):
    """Spares for the availability: by rates, as if nodes were alike, and what was seen; hours of the window."""

    nodes: int
    availability: float
    mean_down: float
    spares: int
    spares_if_alike: int
    peak: int | None
    start_hour: float | None
    end_hour: float | None


def spares(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that jobs need.")],
    events: Annotated[
        Path | None,
        typer.Option(click_type=InputFile(), help="Outages, as `nodes hazard --events` reads them: each node's share."),
    ] = None,
    failures: Annotated[
        float | None,
        typer.Option(min=0.0, help="Without --events: failures of 1,000 node-hours; by default those of other fleets."),
    ] = None,
    repair_hours: Annotated[float, typer.Option(min=0.0, help="Without --events: mean hours of a repair.")] = 24.0,
    availability: Annotated[
        float, typer.Option(min=0.0, max=0.999999, help="Share of time in which enough nodes are up.")
    ] = 0.99,
    start: Annotated[float | None, typer.Option(help="With --events: from this hour on.")] = None,
    end: Annotated[float | None, typer.Option(help="With --events: up to this hour.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say how many spares keep enough nodes up, from rates of failure and repair or from a file of outages.

    Nodes fail and are repaired by themselves. Where a file shows that more were down at once, that is `peak`.
    """
    outages = read_outages(events) if events else None
    if outages:
        say(*(f"left out: {text}" for text in outages.left_out), *(f"doubtful: {text}" for text in outages.doubts))
    if outages is None:
        rate = experience().rate if failures is None else failures / PER_NODE_HOURS
        rates, repairs = np.full(nodes, rate), np.full(nodes, repair_hours)
        down, peak, window = down_share(rates, repairs), None, None
    else:
        window = outages.start_h if start is None else start, outages.end_h if end is None else end
        if not window[0] < window[1]:
            raise typer.BadParameter(f"the window from hour {window[0]:g} to {window[1]:g} is empty")
        down, peak = _seen(outages, nodes, window, availability)
    mean = float(down.mean())
    row: SparesObject = {
        "nodes": nodes,
        "availability": availability,
        "mean_down": round(float(down.sum()), 3),
        "spares": spares_needed(down, mean, availability),
        "spares_if_alike": spares_needed(np.full(nodes, mean), mean, availability),
        "peak": peak,
        "start_hour": window[0] if window else None,
        "end_hour": window[1] if window else None,
    }
    print_rows([row], _lines, as_json=as_json)


def _seen(outages: Outages, nodes: int, window: tuple[float, float], availability: float) -> tuple[Floats, int]:
    """The share of the window in which each node was down, and how many were down at once."""
    start_h, end_h = window
    ended = outages.rows.with_columns(outages.rows["end_h"].fill_null(outages.end_h))
    spans = list(ended.select("node", "start_h", "end_h").iter_rows())
    hours: dict[str, float] = {}
    for node, begin, stop in spans:
        hours[node] = hours.get(node, 0.0) + max(0.0, min(end_h, stop) - max(start_h, begin))
    if nodes < len(hours):
        raise typer.BadParameter(f"--nodes {nodes}, but {len(hours)} are named")
    down = np.zeros(nodes)
    down[: len(hours)] = np.minimum(np.array(list(hours.values())) / (end_h - start_h), 0.999)
    return down, peak_spares([(begin, stop) for _, begin, stop in spans], start_h, end_h, availability)


def _lines(row: SparesObject) -> list[str]:
    kept = f"{row['spares']} spares keep {row['nodes']} nodes up for {row['availability']:.4g} of the time"
    seen = f"as seen: at most {row['peak']} were down at once for that share of the time"
    return [f"{kept}; {row['mean_down']:.3g} nodes are down on average", *([] if row["peak"] is None else [seen])]
