"""The provider's nodes by hazard, for its scheduler: which are for long jobs, and which for trials and evaluations.

    nodes.json, repairs ─ placed ─▶ nodes, the riskiest first, the first share of them for short jobs

A node's hazard is the failure rate of its context, times what its build-up level or its last repair stands for,
whichever is more: levels 1, 2 and 3 count 2, 4 and 8 times (`learning.on_probation.LEVEL_RATIOS`), repairs as the
fleet's outages or a public trace say. A node that sends nothing is taken for the riskiest. It names no tenant.

Not promised: that the rate of a context without a known one, or without a failure so far, is the mean of the others';
it is taken for it.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np

from provider_server.fleet.analysis.placement import choose
from provider_server.fleet.hints.node_reports import NodeReport, NodeStanding
from provider_server.fleet.learning.on_probation import LEVEL_RATIOS, OnProbation

SHARE = 0.2  # of nodes for short jobs, where nobody says another
USUAL_RATE = 1.0  # where no context has a rate: only ratios tell nodes apart then


class PlacedNode(TypedDict):
    """A node, the jobs that it is for, its hazard (null: it sends nothing), and how many times the usual that is."""

    node: str
    jobs: Literal["long", "short"]
    failures_per_1000_node_hours: float | None
    times_usual: float | None
    reason: str


def placed(reports: Sequence[NodeReport], probation: OnProbation, at_h: float, share: float) -> list[PlacedNode]:
    """All nodes, the riskiest first; `share` of them, rounded down, are for short jobs."""
    rates = [one.failures_per_1000_node_hours for one in reports if one.failures_per_1000_node_hours is not None]
    usual = float(np.mean(rates)) if any(rates) else USUAL_RATE
    rows = [_row(one, probation, at_h, usual) for one in reports]
    hazards = np.array([_hazard(row, usual) for row in rows])
    short = set(choose(hazards, int(share * len(rows)), is_long=False).tolist())
    for number in short:
        rows[number]["jobs"] = "short"
    return [rows[number] for number in choose(hazards, len(rows), is_long=False).tolist()]


def _hazard(row: PlacedNode, usual: float) -> float:
    rate, times = row["failures_per_1000_node_hours"], row["times_usual"]
    return np.inf if rate is None or times is None else rate or times * usual


def _row(one: NodeReport, probation: OnProbation, at_h: float, usual: float) -> PlacedNode:
    row = PlacedNode(
        node=one.node, jobs="long", failures_per_1000_node_hours=None, times_usual=None, reason="sends no telemetry"
    )
    if one.standing(1) is NodeStanding.UNKNOWN:
        return row
    back_h = max((hour for hour in probation.back_h.get(one.node, ()) if hour <= at_h), default=None)
    repaired = 1.0 if back_h is None else probation.model.ratio(at_h - back_h)
    drifted = LEVEL_RATIOS[one.level - 1] if one.level else 1.0
    rate, times = one.failures_per_1000_node_hours, max(repaired, drifted)
    row["times_usual"], row["failures_per_1000_node_hours"] = times, times * (usual if rate is None else rate)
    context = one.description or "no context"
    if drifted > 1.0 and drifted >= repaired:
        suspected = f", suspected: {one.suspicion}" if one.suspicion else ""
        row["reason"] = f"wear level {one.level}{suspected} ({context})"
    elif back_h is not None and repaired > 1.0:
        row["reason"] = f"repaired {(at_h - back_h) / 24.0:.0f} days ago ({context})"
    else:
        row["reason"] = context
    return row
