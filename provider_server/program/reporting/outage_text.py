"""Hazards from outages, as a JSON row with stable keys and as text lines.

Rates are failures per 1,000 node-hours at risk, with 95% intervals that take nodes as the independent units.
"""

from collections.abc import Iterator, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import TypedDict

import numpy as np
import polars as pl

from federation.base.visible import counted_as
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.fault_classes import ACTIONS, FaultClass, FaultClasses
from provider_server.fleet.analysis.probation import Probation, by_band, standing
from provider_server.fleet.analysis.recurrent import Spells, rate
from provider_server.fleet.outage_files import Outages

PROBATION_RATIO = 3.0  # hazard over that of a node never down, from which a node is on probation
IDLE_NAME = "(no job)"
SHOWN = 10  # nodes in the text


class BandRow(TypedDict):
    """Hours since a node came back (`to_hours` null: no end), and its ratio to nodes without a repair."""

    from_hours: float
    to_hours: float | None
    failures: int
    node_hours: float
    ratio: float
    ratio_low: float
    ratio_high: float


class AfterRepairRow(TypedDict):
    """Hazards after a node came back; nodes differ by `frailty_variance`, and `memory_hours` is how long that lasts."""

    failures_per_1000_node_hours_never_down: float
    frailty_variance: float
    memory_hours: float
    bands: list[BandRow]


class NodeOnProbationRow(TypedDict):
    """A node that is up and fails at least `PROBATION_RATIO` times as often as one never down: why, and how often."""

    node: str
    hours_since_back: float
    ratio_of_repair: float
    ratio_of_node: float
    failures_per_1000_node_hours: float


class FaultRow(TypedDict):
    """The failures of one cause on one node: persistent, gray or transient, how likely each is, and what to do.

    `failures` counts bursts of a day once, `expected` is how many are usual; `workloads` are those that a gray fault
    affects, each more likely than not.
    """

    node: str
    kind: str
    fault_class: FaultClass
    action: str
    probability_persistent: float
    probability_gray: float
    probability_transient: float
    failures: int
    expected: float
    workloads: list[str]
    evidence: str


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
    after_repair: AfterRepairRow
    on_probation: list[NodeOnProbationRow]
    faults: list[FaultRow]
    left_out: list[str]


def outages_row(
    read: Outages,
    found: Spells,
    model: Probation,
    classes: Sequence[FaultClasses],
    *,
    nodes: int,
    nodes_known: bool,
) -> OutagesRow:
    """Everything in one row; at least one failure at risk. `nodes_known`: the fleet was named, or its size."""
    outages = read.rows
    kinds = found.failures.group_by("kind").len().sort("len", "kind", descending=[True, False])
    at_risk = rate(found)
    low, high = at_risk.interval()
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
        "after_repair": _after_repair(model, found),
        "on_probation": _on_probation(model, found),
        "faults": _faults(classes),
        "left_out": [*read.left_out, *_left_out(outages, found, nodes_known=nodes_known)],
    }


def _after_repair(model: Probation, found: Spells) -> AfterRepairRow:
    totals = by_band(found, model.edges_h).group_by("band").agg(pl.col("failed", "hours").sum())
    seen = {band: (failures, hours) for band, failures, hours in totals.iter_rows()}
    low, high = model.estimate().interval()
    bands: list[BandRow] = []
    for band, (begin, end) in enumerate(pairwise((0.0, *model.edges_h, None))):
        failures, hours = seen.get(band + 1, (0, 0.0))
        bands.append(
            {
                "from_hours": begin or 0.0,
                "to_hours": end,
                "failures": failures,
                "node_hours": hours,
                "ratio": model.ratios[band],
                "ratio_low": float(low[band]),
                "ratio_high": float(high[band]),
            }
        )
    return {
        "failures_per_1000_node_hours_never_down": PER_NODE_HOURS * model.rate_per_node_hour,
        "frailty_variance": model.frailty_variance,
        "memory_hours": model.memory_h,
        "bands": bands,
    }


def _on_probation(model: Probation, found: Spells) -> list[NodeOnProbationRow]:
    """The worst first."""
    now = standing(model, found, found.end_h).filter(pl.col("since_h").is_not_null())
    worse = now.filter(pl.col("rate") >= PROBATION_RATIO * model.rate_per_node_hour)
    return [
        {
            "node": row["node"],
            "hours_since_back": row["since_h"],
            "ratio_of_repair": row["ratio"],
            "ratio_of_node": row["frailty"],
            "failures_per_1000_node_hours": PER_NODE_HOURS * row["rate"],
        }
        for row in worse.sort("rate", "node", descending=[True, False]).iter_rows(named=True)
    ]


def _faults(classes: Sequence[FaultClasses]) -> list[FaultRow]:
    """Of every node and cause with a failure, what is not transient first, and of that the likeliest."""
    rows = [row for each in classes for row in _faults_of(each)]
    return sorted(rows, key=lambda row: (row["probability_transient"], row["kind"], row["node"]))


def _faults_of(of: FaultClasses) -> Iterator[FaultRow]:
    places = np.flatnonzero(of.failures.any(axis=1))
    columns = (each[places].tolist() for each in (of.probability, of.affected, of.failures, of.expected))
    for place, probability, affected, failures, expected in zip(places.tolist(), *columns, strict=True):
        found = max(zip(FaultClass, probability, strict=True), key=itemgetter(1))[0]
        many, usual = int(sum(failures)), sum(expected)
        ran, under = sum(each > 0 for each in expected), sum(each > 0 for each in failures)
        where = f", under {under} of {counted_as(ran, 'workload')}" if ran > 1 else ""
        hit = [share > 0.5 and found is FaultClass.GRAY for share in affected]
        yield {
            "node": of.nodes[place],
            "kind": of.cause,
            "fault_class": found,
            "action": ACTIONS[found],
            "probability_persistent": probability[0],
            "probability_gray": probability[1],
            "probability_transient": probability[2],
            "failures": many,
            "expected": usual,
            "workloads": [name or IDLE_NAME for name in compress(of.workloads, hit)],
            "evidence": f"{counted_as(many, 'failure')} where {usual:.2g} are usual{where}",
        }


def _left_out(outages: pl.DataFrame, found: Spells, *, nodes_known: bool) -> list[str]:
    outside = outages.filter((pl.col("start_h") < found.start_h) | (pl.col("start_h") >= found.end_h)).height
    others = outages.height - outside - found.failures.height
    told = (
        (outside, "outside the window: time down only"),
        (others, "planned, or of other kinds than --kind asks for: time down only"),
        (int(found.failures["while_down"].sum()), "of a node that was down already: no time at risk"),
    )
    texts = [f"{counted_as(count, 'outage')} {text}" for count, text in told if count]
    if not nodes_known:
        texts.append("nodes that never had an outage: name them with --inventory or --nodes, or rates are too high")
    return texts


def outage_lines(row: OutagesRow) -> list[str]:
    """The row as text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in row["failures_by_kind"].items())
    low, high = row["failures_per_1000_node_hours_low"], row["failures_per_1000_node_hours_high"]
    return [
        f"{counted_as(row['failures'], 'failure')} of {counted_as(row['nodes'], 'node')}: {kinds}",
        f"{row['failures_per_1000_node_hours']:.2g} ({low:.2g}–{high:.2g}) per 1,000 node-hours at risk, of which there"
        f" were {row['node_hours']:,.0f}; {row['node_hours_down']:,.0f} node-hours down",
        *(_band_line(band) for band in row["after_repair"]["bands"]),
        *(_node_line(node) for node in row["on_probation"][:SHOWN]),
        *(_fault_line(fault) for fault in row["faults"][:SHOWN] if fault["fault_class"] != FaultClass.TRANSIENT),
    ]


def _band_line(band: BandRow) -> str:
    until = "on" if band["to_hours"] is None else f"to {band['to_hours']:g} h"
    ratio = f"{band['ratio']:.2g} ({band['ratio_low']:.2g}–{band['ratio_high']:.2g})"
    return (
        f"{band['from_hours']:g} h {until} after a node came back: {ratio} times the failures of one without a repair;"
        f" {band['failures']} in {band['node_hours']:,.0f} node-hours"
    )


def _fault_line(fault: FaultRow) -> str:
    sure = max(fault["probability_persistent"], fault["probability_gray"])
    affected = f" ({', '.join(fault['workloads'])})" if fault["workloads"] else ""
    return (
        f"{fault['node']}: {fault['kind']}: {fault['fault_class']}{affected}, {min(99.0, 100 * sure):.0f}% sure:"
        f" {fault['action']}; {fault['evidence']}"
    )


def _node_line(node: NodeOnProbationRow) -> str:
    return (
        f"on probation: {node['node']}, back for {node['hours_since_back']:.0f} h,"
        f" {node['failures_per_1000_node_hours']:.2g} failures per 1,000 node-hours:"
        f" {node['ratio_of_repair']:.2g} times for the repair, {node['ratio_of_node']:.2g} for the node"
    )
