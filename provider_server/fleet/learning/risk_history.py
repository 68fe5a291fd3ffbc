"""What a fleet's own outages say of its risks: the bend of probabilities, how they fared, and how long nodes were down.

    outages ─┬─ probation ─▶ model, histories of nodes
             └─ node_risk.forecasts of the last months ─▶ bend, calibration, reliability ─▶ risk.json in the home

`nodes hazard --events … --keep` writes it, so the picture is as new as the list of outages; `nodes risk --events` makes
the same and writes nothing. Incidents are failures: the hours between two of a node are counted in the buckets of
NVSentinel's `fault_quarantine_node_mtbi_seconds` (its ADR-044, commit 035b76f59a00), which runs from start to start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from federation.base import json_files
from provider_server.fleet.analysis.node_risk import (
    PAST_H,
    STRAIGHT,
    Bend,
    bend_of,
    bent,
    forecasts,
    known_at,
    model_of,
)
from provider_server.fleet.analysis.probation import Probation, histories
from provider_server.fleet.analysis.recurrent import Spells
from provider_server.fleet.analysis.risk_calibration import Calibration, Reliability, calibrations, reliability
from provider_server.fleet.learning.node_offsets import NodeOffsets, of_histories

STATE = "risk.json"
LED = 1.5  # forecasts begin so much longer ago than those that are shown, so that these have bends
MOST_CASES = 99  # quantiles of the hours that nodes were down
GAP_EDGES_S = tuple(float(edge) for edge in np.geomspace(900.0, 2_592_000.0, 14))  # ExponentialBucketsRange of ADR-044
SECONDS = 3600.0


class RiskHistory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As of an hour. `lasted_h` are outages' hours, ascending; `gaps` counts intervals up to each edge, and all."""

    until_h: float = 0.0
    bend: Bend = STRAIGHT
    calibrations: tuple[Calibration, ...] = ()
    reliability: tuple[Reliability, ...] = ()
    lasted_h: tuple[float, ...] = ()
    gaps: tuple[int, ...] = ()
    gaps_sum_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Learnt:
    """Everything that outages say of nodes; `model` has the rate of the fleet."""

    model: Probation
    offsets: NodeOffsets
    history: RiskHistory


def learn(found: Spells, outages: pl.DataFrame, nodes: Sequence[str], kinds: Sequence[str] = ()) -> Learnt:
    """Of the outages whose spells these are."""
    model, end_h = model_of(found), found.end_h
    past = forecasts(outages, nodes, (found.start_h, end_h), end_h - LED * PAST_H, kinds)
    told = bent(past).filter(pl.col("at_h") >= end_h - PAST_H)
    known = known_at(outages, end_h)
    lasted = (known["end_h"] - known["start_h"]).drop_nulls()
    cases = np.quantile(lasted, np.linspace(0, 1, min(MOST_CASES, len(lasted)))) if len(lasted) else np.zeros(0)
    gaps = found.failures.sort("start_h").select((pl.col("start_h").diff().over("node") * SECONDS).alias("s"))["s"]
    gaps = gaps.drop_nulls().filter(gaps.drop_nulls() > 0)
    history = RiskHistory(
        end_h,
        bend_of(past, end_h, model.failures),
        tuple(calibrations(told)),
        tuple(reliability(told)),
        tuple(cases.tolist()),
        (*(int((gaps <= edge).sum()) for edge in GAP_EDGES_S), len(gaps)),
        float(gaps.sum()),
    )
    own = histories(model, found, end_h).join(_newest(known), on="node", how="left")
    return Learnt(model, of_histories(own, model.frailty_variance, model.memory_h, end_h), history)


def _newest(known: pl.DataFrame) -> pl.DataFrame:
    """When each node that ever was down came back last, or since when it is down: node, back_h, down_h."""
    is_down = pl.col("end_h").is_null()
    back, down = (
        pl.col("end_h").max(),
        pl.col("start_h").filter(is_down & (pl.col("start_h") == pl.col("start_h").max())),
    )
    last = known.group_by("node").agg(back_h=back, down_h=down.last())
    return last.with_columns(back_h=pl.when(pl.col("down_h").is_null()).then("back_h"))


def keep(home: Path, history: RiskHistory) -> None:
    """Puts it into the home, whole or not at all."""
    json_files.keep(home / STATE, history)


def load(home: Path) -> RiskHistory:
    """What the home knows, perhaps nothing; DecodeError for damage."""
    return json_files.load(home / STATE, RiskHistory, RiskHistory())
