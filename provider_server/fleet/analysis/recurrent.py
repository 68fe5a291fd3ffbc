"""Failures that come again: time at risk of each node between its outages, to the minute and not to the hour.

    outages (fleet.outage_files) ─ spells ─▶ stretches at risk ─┬─▶ rates, mean number of failures
                                                                └─▶ probation (what a repair does to the hazard)

A spell is a stretch in which a node was up, from when it came back (or the window began) to when it went down (or the
window ended). It ends in a failure where the outage is one: all are, but those planned (`PLANNED`), and those of other
kinds than asked for. Down time is the union of a node's outages.

Guarantees. Every failure in the window is counted once: at the end of a spell, or as one of a node that was down
already (`while_down`), which has no time at risk. A minute of outage costs no hour at risk. A node's failures depend on
each other, and intervals of rates allow for it: they take nodes as the independent units.

Not promised: the end of an outage that was never told. It lasts until the next of that node, or the window's end.

Source: Andersen and Gill, Annals of Statistics 10, 1982; Lawless and Nadeau, Technometrics 37, 1995 (robust variance).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from provider_server.fleet.analysis.hazard import Estimate

PLANNED = ("repair", "maintenance", "planned", "configuration")  # no node has failed by them


@dataclass(frozen=True, eq=False)
class Spells:
    """Stretches at risk between outages.

    `spells`: node, start_h, stop_h, failed, kind of the outage that ends it (null at the window's end), back_h (when
    the node came back last; null for none before) and `before`, its outages so far. `failures`: node, start_h, kind and
    while_down of all that count. `down_h` is the node-hours of outages within the window.
    """

    spells: pl.DataFrame
    failures: pl.DataFrame
    down_h: float
    start_h: float
    end_h: float

    @property
    def at_risk_h(self) -> float:
        """Node-hours at risk."""
        return float((self.spells["stop_h"] - self.spells["start_h"]).sum())


def spells(
    outages: pl.DataFrame, nodes: Sequence[str], start_h: float, end_h: float, kinds: Sequence[str] = ()
) -> Spells:
    """The spells of these nodes in a window. `outages`: node, start_h, end_h (null: not back), kind, of known nodes.

    `kinds` are the classes of outage that count as failures, with all below them in the path; all by default.
    """
    told = outages.filter(pl.col("start_h") < end_h).sort("node", "start_h", "end_h", "kind", nulls_last=True)
    following = pl.col("start_h").shift(-1).over("node")
    told = told.with_columns(end_h=pl.coalesce("end_h", following, math.inf), fails=are_failures(kinds))
    reached = pl.col("end_h").cum_max().shift(1).over("node")
    told = told.with_columns(while_down=(pl.col("start_h") <= reached).fill_null(value=False))
    inside = told.filter(pl.col("fails") & (pl.col("start_h") >= start_h))
    down = _unions(told)
    hours = (pl.col("back_h").clip(start_h, end_h) - pl.col("start_h").clip(start_h, end_h)).sum()
    failures = inside.select("node", "start_h", "kind", "while_down")
    return Spells(_between(down, nodes, start_h, end_h), failures, float(down.select(hours).item()), start_h, end_h)


def are_failures(kinds: Sequence[str]) -> pl.Expr:
    """Whether an outage is a failure of the kinds asked for; all but planned ones by default."""
    planned = pl.col("kind").str.to_lowercase().str.split("/").list.first().is_in(PLANNED)
    asked = [(pl.col("kind") == kind) | pl.col("kind").str.starts_with(f"{kind}/") for kind in kinds]
    return ~planned & (pl.any_horizontal(asked) if asked else pl.lit(value=True))


def _unions(told: pl.DataFrame) -> pl.DataFrame:
    """Node, start_h, back_h of each stretch down, with kind and `fails` of the outage that began it."""
    number = (~pl.col("while_down")).cum_sum().over("node")
    return (
        told.with_columns(number=number)
        .group_by("node", "number", maintain_order=True)
        .agg(
            pl.col("start_h").first(),
            pl.col("kind", "fails").first(),
            back_h=pl.col("end_h").max(),
        )
        .with_columns(before=pl.col("number").cast(pl.Int64) - 1)
        .drop("number")
    )


def _between(down: pl.DataFrame, nodes: Sequence[str], start_h: float, end_h: float) -> pl.DataFrame:
    """What lies before each stretch down, and after a node's last."""
    ending = down.with_columns(back_h=pl.col("back_h").shift(1).over("node"), stop_h=pl.col("start_h")).drop("start_h")
    last = down.group_by("node").agg(pl.col("back_h").last(), before=pl.col("before").last() + 1)
    base = pl.DataFrame({"node": list(nodes)}, schema={"node": pl.String}).join(last, on="node", how="left")
    open_ = base.with_columns(
        pl.col("before").fill_null(0), stop_h=pl.lit(end_h, pl.Float64), fails=pl.lit(value=False)
    )
    both = pl.concat([ending, open_], how="diagonal")
    both = both.with_columns(start_h=pl.max_horizontal(pl.col("back_h"), pl.lit(start_h, pl.Float64)))
    both = both.filter(pl.col("stop_h") > pl.col("start_h"))
    columns = ("node", "start_h", "stop_h", pl.col("fails").alias("failed"), "kind", "back_h", "before")
    return both.select(*columns).sort("node", "start_h")


def rate(found: Spells) -> Estimate:
    """Failures at risk per node-hour, shape (1,), with the standard error of its logarithm by nodes; 0 has inf."""
    by_node = found.spells.group_by("node").agg(
        hours=(pl.col("stop_h") - pl.col("start_h")).sum(), failures=pl.col("failed").sum()
    )
    hours, failures = by_node["hours"].to_numpy(), by_node["failures"].to_numpy().astype(float)
    value = failures.sum() / hours.sum()
    spread = math.sqrt(float(((failures - value * hours) ** 2).sum()))
    log_sd = spread / failures.sum() if failures.any() else math.inf
    return Estimate(np.array([value]), np.array([log_sd]))
