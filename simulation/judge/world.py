"""Faults of nodes in figures that do not depend on how many there are: gaps, recency after a repair, shares by class.

    outages (node, start_h, end_h, kind) ─ analysis.recurrent.spells ─▶ FaultFigures, Gaps ─ beside ─▶ KS distances

Gaps of the fleet lie between faults in a row, wherever they are; gaps of a node between its return and its next fault.
Both are divided by their mean where distributions are compared, so that a fleet that fails twice as often is not
another world. Weibull shapes below 1 say that faults come in clusters, 1 is an exponential fleet; of a node, gaps that
the window's end cut are censored. *Recency* is the share of faults within so many days after a node was back, the share
of node-days there, and the first over the second.

Not promised: that recency does not depend on rates at all. Where nodes fail often, more node-days lie after a repair.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.recurrent import Spells

SHORTEST_H = 0.01  # a gap of nothing has no logarithm
WEEK_D, MONTH_D = 7, 30
DAY_H = 24.0


@dataclass(frozen=True)
class FaultFigures:
    """Of one fleet. `cv` are coefficients of variation; `worst_tenth` of the nodes had that share of all faults."""

    faults: int
    per_1000_node_days: float
    fleet_gap_cv: float
    fleet_gap_shape: float
    node_gap_shape: float
    faults_within_7_days: float
    node_days_within_7_days: float
    ratio_7_days: float
    faults_within_30_days: float
    node_days_within_30_days: float
    ratio_30_days: float
    worst_tenth: float


@dataclass(frozen=True, eq=False)
class Gaps:
    """Hours between faults over their mean, sorted: of the fleet, and of nodes from their return to the next fault."""

    fleet: Floats
    node: Floats


def figures(found: Spells) -> FaultFigures:
    """ValueError where fewer than three faults, or none of a node that was back, leave nothing to tell."""
    gaps = _fleet_gaps(found)
    again = found.spells.filter(pl.col("back_h").is_not_null())
    since = (again["stop_h"] - again["back_h"]).to_numpy()
    failed = again["failed"].to_numpy()
    if len(gaps) < 2 or not failed.any():
        raise ValueError("too few faults for gaps and recency")
    faults_7, days_7 = recency(found, WEEK_D)
    faults_30, days_30 = recency(found, MONTH_D)
    counts = found.spells.group_by("node").agg(pl.col("failed").sum())["failed"]
    by_node = np.sort(counts.to_numpy().astype(np.float64))[::-1]
    return FaultFigures(
        faults=int(by_node.sum()),
        per_1000_node_days=float(by_node.sum() / found.at_risk_h * DAY_H * 1000.0),
        fleet_gap_cv=float(gaps.std() / gaps.mean()),
        fleet_gap_shape=weibull_shape(gaps, np.ones(len(gaps), bool)),
        node_gap_shape=weibull_shape(since, failed),
        faults_within_7_days=faults_7,
        node_days_within_7_days=days_7,
        ratio_7_days=faults_7 / days_7,
        faults_within_30_days=faults_30,
        node_days_within_30_days=days_30,
        ratio_30_days=faults_30 / days_30,
        worst_tenth=float(by_node[: len(by_node) // 10].sum() / by_node.sum()),
    )


def gaps(found: Spells) -> Gaps:
    """Both kinds, over their means; those of nodes are of faults alone, of nodes that were back."""
    again = found.spells.filter(pl.col("failed") & pl.col("back_h").is_not_null())
    fleet, node = _fleet_gaps(found), np.sort((again["stop_h"] - again["back_h"]).to_numpy())
    return Gaps(np.sort(fleet / fleet.mean()), node / node.mean())


def _fleet_gaps(found: Spells) -> Floats:
    return np.diff(np.sort(found.spells.filter(pl.col("failed"))["stop_h"].to_numpy()))


def recency(found: Spells, days: int) -> tuple[float, float]:
    """The share of faults, and of node-days at risk, within so many days after a node was back."""
    until = pl.col("back_h") + days * DAY_H
    near = found.spells.filter(pl.col("back_h").is_not_null()).select(
        hours=(pl.min_horizontal("stop_h", until) - pl.col("start_h")).clip(0.0),
        failed=pl.col("failed") & (pl.col("stop_h") <= until),
    )
    failed, hours = (float(near[name].to_numpy().sum()) for name in ("failed", "hours"))
    return failed / float(found.spells["failed"].to_numpy().sum()), hours / found.at_risk_h


def weibull_shape(hours: Floats, failed: NDArray[np.bool_]) -> float:
    """The shape of largest likelihood; hours that did not end in a fault are censored.

    >>> rng = np.random.default_rng(1)
    >>> round(weibull_shape(rng.weibull(0.5, 20_000), np.ones(20_000, bool)), 1)
    0.5
    """
    logs = np.log(np.maximum(hours, SHORTEST_H))
    mean = logs[failed].mean()

    def score(shape: float) -> float:
        powers = np.exp(shape * (logs - logs.max()))
        return float((powers * logs).sum() / powers.sum() - 1.0 / shape - mean)

    return float(brentq(score, 0.01, 50.0))


def ks_distance(one: Floats, other: Floats) -> float:
    """The largest difference of two distributions, each given by its values.

    >>> ks_distance(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    0.5
    """
    both = np.concatenate([one, other])
    of = [np.searchsorted(np.sort(each), both, side="right") / len(each) for each in (one, other)]
    return float(np.abs(of[0] - of[1]).max())


def share_distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Half of the sum of differences of shares by class: what would have to change its class.

    >>> share_distance({"gpu": 3, "fan": 1}, {"gpu": 1, "fan": 1})
    0.25
    """
    totals = sum(one.values()), sum(other.values())
    return sum(abs(one.get(key, 0) / totals[0] - other.get(key, 0) / totals[1]) for key in {*one, *other}) / 2.0
