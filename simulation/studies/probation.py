"""Which nodes will fail after a repair: a model frozen on days 0 to 174 of a public trace, judged on days 174 to 348.

`frozen` fits the model to the first half alone, as `provider_server/analysis/probation.toml` has it. `judged` has that
file rank all nodes that are up, before each hardware failure of the second half; a failure is caught if its node was
among the 8% with the highest hazard (of nodes that rank alike, the share that finds room). So at most 8% of node-days
are flagged, at any time. The same for nodes ranked by the time since they came back, by hardware failures so far, and
the share of failures on nodes that had any outage before, which no ranking by history can exceed. Intervals: 95%, by
bootstrap over nodes, the model as it is.

The trace: 400 GPU servers, 348 days (InfiniteHBD, SIGCOMM '25), not part of the repository.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl

from federation.protocol.life_table import Floats
from provider_server.analysis.probation import Probation, fit_probation, shipped, standing
from provider_server.analysis.recurrent import Spells, spells
from provider_server.fleet.outage_files import read_outages
from simulation.studies.study import DATA, Figures, Only, Table, figures

TRACE = DATA / "infinitehbd" / "fault_trace.json.gz"
NODES, DAY_H = 400, 24.0
FIRST_H, SPLIT_H, END_H = 0.0, 174 * DAY_H, 348 * DAY_H
HARDWARE = ("Hardware Failure",)
FLAGGED = 0.08
DRAWS = 2_000


def trace_until(end_h: float) -> Spells:
    """The trace's spells up to a time, as they were known then."""
    if not TRACE.exists():
        raise FileNotFoundError(f"{TRACE} is missing")
    rows = read_outages(TRACE).rows.filter(pl.col("start_h") < end_h)
    rows = rows.with_columns(end_h=pl.when(pl.col("end_h") < end_h).then("end_h"))
    named = sorted(set(rows["node"]))
    others = [f"never down {number}" for number in range(NODES - len(named))]
    return spells(rows, named + others, FIRST_H, end_h, HARDWARE)


def first_half() -> Probation:
    """The model of days 0 to 174."""
    return fit_probation(trace_until(SPLIT_H))


def frozen() -> Figures:
    """The model of the first half, as it is shipped."""
    return msgspec.to_builtins(first_half())  # type: ignore[no-any-return]


# ---- the second half -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moments:
    """Just before each hardware failure: the score of every node, nan where it is down (failures, nodes), and whose."""

    scores: Floats
    failing: Floats

    def caught(self, weights: Floats) -> float:
        """The share of failures on the nodes with the highest scores, at most `FLAGGED` of those up, nodes weighted."""
        up = weights * ~np.isnan(self.scores)
        own = (self.failing * np.nan_to_num(self.scores)).sum(axis=1, keepdims=True)
        above = (up * (self.scores > own)).sum(axis=1)
        alike = (up * (self.scores == own)).sum(axis=1)
        room = np.floor(FLAGGED * up.sum(axis=1)) - above
        share = np.clip(room / np.maximum(alike, 1e-9), 0.0, 1.0)
        of = self.failing @ weights
        return float((of * share).sum() / of.sum())


def moments(found: Spells, score: Callable[[pl.DataFrame], pl.Series], model: Probation) -> Moments:
    """Scores from what `standing` says of the time just before each failure of the second half."""
    place = {node: number for number, node in enumerate(sorted(set(found.spells["node"])))}
    failures = found.spells.filter(pl.col("failed") & (pl.col("stop_h") >= SPLIT_H)).sort("stop_h")
    scores, failing = np.full((failures.height, len(place)), np.nan), np.zeros((failures.height, len(place)))
    for row, (node, at_h) in enumerate(failures.select("node", "stop_h").iter_rows()):
        now = standing(model, found, at_h)
        scores[row, [place[each] for each in now["node"]]] = score(now).cast(pl.Float64).to_numpy()
        failing[row, place[node]] = 1.0
    return Moments(scores, failing)


def judged() -> Figures:
    """The share of hardware failures caught, by each ranking."""
    model, found = shipped(), trace_until(END_H)
    rankings: dict[str, Callable[[pl.DataFrame], pl.Series]] = {
        "model": lambda now: now["rate"],
        "recency": lambda now: -now["since_h"].fill_null(np.inf),
        "failures_so_far": lambda now: now["failures"],
    }
    never_forgets = msgspec.structs.replace(model, memory_h=1e9)
    found_by = {
        name: moments(found, score, never_forgets if name == "failures_so_far" else model)
        for name, score in rankings.items()
    }
    second = found.spells.filter(pl.col("failed") & (pl.col("stop_h") >= SPLIT_H))
    rng = np.random.default_rng(1)
    nodes = found_by["model"].scores.shape[1]
    draws = rng.multinomial(nodes, np.full(nodes, 1.0 / nodes), DRAWS).astype(np.float64)
    return {
        "flagged": FLAGGED,
        "failures": second.height,
        "on_nodes_with_history": float(second["back_h"].is_not_null().mean()),  # type: ignore[arg-type]
        **{name: _with_interval(each, draws) for name, each in found_by.items()},
        "model_less_recency": _difference(found_by["model"], found_by["recency"], draws),
    }


def _with_interval(each: Moments, draws: Floats) -> Figures:
    low, high = np.quantile([each.caught(draw) for draw in draws], [0.025, 0.975])
    return {"caught": each.caught(np.ones(draws.shape[1])), "low": float(low), "high": float(high)}


def _difference(one: Moments, other: Moments, draws: Floats) -> Figures:
    low, high = np.quantile([one.caught(draw) - other.caught(draw) for draw in draws], [0.025, 0.975])
    ones = np.ones(draws.shape[1])
    return {"caught": one.caught(ones) - other.caught(ones), "low": float(low), "high": float(high)}


def run(only: Only = None) -> Table:
    """Hardware failures on the 8% of nodes that rank highest, by a model frozen on the trace's first half."""
    return figures(only, frozen, judged)
