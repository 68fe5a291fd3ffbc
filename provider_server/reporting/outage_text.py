"""Hazards from outages, as a JSON row with stable keys and as text lines.

Rates are failures per 1,000 node-hours at risk, with 95% intervals that take nodes as the independent units.
"""

from typing import TypedDict

import polars as pl

from federation.protocol.life_table import PER_NODE_HOURS
from federation.runtime.visible import counted_as
from provider_server.analysis.fleet_curves import kaplan_meier, nelson_aalen
from provider_server.analysis.recurrent import Spells, rate, to_first_failure
from provider_server.reporting.hazard_text import CurvePoint, curve_points


class OutagesRow(TypedDict):
    """Failures and time at risk of a fleet from its outages; `failures` includes `failures_while_down`.

    `outages` counts rows of the file, `not_back` those without an end; `left_out` says what has no part in rates.
    """

    start_hour: float
    end_hour: float
    nodes: int
    outages: int
    not_back: int
    failures: int
    failures_by_kind: dict[str, int]
    failures_while_down: int
    node_hours: float
    node_hours_down: float
    failures_per_1000_node_hours: float
    failures_per_1000_node_hours_low: float
    failures_per_1000_node_hours_high: float
    hours_down_median: float | None
    curve: list[CurvePoint]
    left_out: list[str]


def outages_row(outages: pl.DataFrame, found: Spells, nodes: int, *, nodes_known: bool) -> OutagesRow:
    """Everything in one row; at least one failure at risk. `nodes_known`: the fleet was named, or its size."""
    kinds = found.failures.group_by("kind").len().sort("len", "kind", descending=[True, False])
    at_risk = rate(found)
    low, high = at_risk.interval()
    first = to_first_failure(found)
    down = (outages["end_h"] - outages["start_h"]).median()
    return {
        "start_hour": found.start_h,
        "end_hour": found.end_h,
        "nodes": nodes,
        "outages": outages.height,
        "not_back": outages["end_h"].null_count(),
        "failures": found.failures.height,
        "failures_by_kind": dict(kinds.iter_rows()),
        "failures_while_down": int(found.failures["while_down"].sum()),
        "node_hours": found.at_risk_h,
        "node_hours_down": found.down_h,
        "failures_per_1000_node_hours": PER_NODE_HOURS * float(at_risk.value[0]),
        "failures_per_1000_node_hours_low": PER_NODE_HOURS * float(low[0]),
        "failures_per_1000_node_hours_high": PER_NODE_HOURS * float(high[0]),
        "hours_down_median": down if isinstance(down, float) else None,
        "curve": curve_points(kaplan_meier(first), nelson_aalen(first)),
        "left_out": _left_out(outages, found, nodes_known=nodes_known),
    }


def _left_out(outages: pl.DataFrame, found: Spells, *, nodes_known: bool) -> list[str]:
    outside = outages.filter((pl.col("start_h") < found.start_h) | (pl.col("start_h") >= found.end_h)).height
    others = outages.height - outside - found.failures.height
    told = (
        (outside, "began outside the window and count as time down only"),
        (others, "are planned, or of other kinds than --kind asks for, and count as time down only"),
        (int(found.failures["while_down"].sum()), "began while the node was down already, and have no time at risk"),
    )
    texts = [f"{counted_as(count, 'outage')} {text}" for count, text in told if count]
    if not nodes_known:
        texts.append("nodes that never had an outage: name them with --inventory or --nodes, or rates are too high")
    return texts


def outage_lines(row: OutagesRow) -> list[str]:
    """The row as text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in row["failures_by_kind"].items())
    low, high = row["failures_per_1000_node_hours_low"], row["failures_per_1000_node_hours_high"]
    last = row["curve"][-1]
    return [
        f"{counted_as(row['failures'], 'failure')} of {counted_as(row['nodes'], 'node')}: {kinds}",
        f"{row['failures_per_1000_node_hours']:.2g} ({low:.2g}–{high:.2g}) per 1,000 node-hours at risk, of which there"
        f" were {row['node_hours']:,.0f}; {row['node_hours_down']:,.0f} node-hours down",
        f"no failure in {last['hours']:,.0f} h: {100 * last['survival']:.1f}% of nodes"
        f" ({100 * last['survival_low']:.1f}–{100 * last['survival_high']:.1f}%)",
    ]
