"""Persistent, gray or transient: what the failures of one node and cause are, by how often and under which workloads.

    spells + failures + jobs ─ exposure ─▶ hours and failures by node and workload ─ classify ─▶ FaultClasses

| class | the node's hazard of that cause | what to do |
|---|---|---|
| persistent | some ratio above usual under every workload | quarantine |
| gray | that ratio under some workloads, usual under the others | avoid for these |
| transient | usual | run again |

Usual is the fleet's rate of that cause under that workload. The ratio is unknown, log-uniform over `RATIOS`; which
workloads are affected is unknown as well, all subsets alike. Both are summed out, so that a class is not punished for
what it leaves open. How common each class is, and what is usual, is learnt from all nodes together (expectation
maximisation), also from those without a failure; nodes that are likely persistent or gray are no evidence of what is
usual.

Guarantees. Probabilities are of the three classes and add up to 1, for every node and cause. Where a node ran one
workload only, or none is told, gray cannot be told from persistent, and is not claimed.

A failure within a day after another of the same node and cause counts as the same one: a burst is no evidence.

Not promised: that failures of a node are independent given its class, but for such bursts. That a workload is what a
tenant would call one: it is the label that the provider itself has of a job (queue, image, customer). Nothing that a
tenant sent is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.recurrent import Spells

JOBS = {"node": pl.String, "start_h": pl.Float64, "end_h": pl.Float64, "workload": pl.String}
IDLE = ""  # the workload of hours under no job
RATIOS = np.geomspace(4.0, 1000.0, 24)
PSEUDO = 2.0  # failures at the cause's rate that each workload's rate begins with
BEGIN = (0.02, 0.02, 0.96)  # shares of the classes, before anything is learnt
ROUNDS = 25
BURST_H = 24.0


class FaultClass(StrEnum):
    """What the failures of a node and cause are."""

    PERSISTENT = "persistent"
    GRAY = "gray"
    TRANSIENT = "transient"


ACTIONS: Mapping[FaultClass, str] = MappingProxyType(
    {
        FaultClass.PERSISTENT: "quarantine",
        FaultClass.GRAY: "avoid for these workloads",
        FaultClass.TRANSIENT: "run again",
    }
)


@dataclass(frozen=True, eq=False)
class FaultClasses:
    """One cause: probabilities, shape (nodes, classes in the order of `FaultClass`), and of being affected.

    `failures` and `expected` (nodes, workloads) are what they rest on; `affected` holds if the node is gray.
    """

    cause: str
    nodes: tuple[str, ...]
    workloads: tuple[str, ...]
    probability: Floats
    affected: Floats
    failures: Floats
    expected: Floats


# ---- hours and failures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Exposure:
    """Node-hours at risk, shape (nodes, workloads), and failures by cause, of the same shape."""

    nodes: tuple[str, ...]
    workloads: tuple[str, ...]
    hours: Floats
    failures: Mapping[str, Floats]


def exposure(found: Spells, jobs: pl.DataFrame | None = None) -> Exposure:
    """What each node was at risk under, and failed under. `jobs`: node, start_h, end_h, workload; none overlap."""
    nodes = tuple(found.spells["node"].unique().sort())
    rows = found.spells.select("node", "start_h", "stop_h").sort("start_h")
    length = pl.col("stop_h") - pl.col("start_h")
    rows = rows.with_columns(before=length.cum_sum().over("node") - length)
    total = rows.group_by("node").agg(hours=length.sum())
    failures = found.spells.filter("failed").select("node", "kind", at_h="stop_h").sort("at_h")
    again = (pl.col("at_h").diff().over("node", "kind") <= BURST_H).fill_null(value=False)
    failures = failures.filter(~again)
    jobs = pl.DataFrame(schema=JOBS) if jobs is None else jobs
    jobs = jobs.filter(pl.col("node").is_in(nodes)).sort("start_h")
    ran = jobs.select("node", "workload", hours=_at_risk_by(rows, jobs, "end_h") - _at_risk_by(rows, jobs, "start_h"))
    busy = ran.group_by("node").agg(busy=pl.col("hours").sum())
    idle = total.join(busy, on="node", how="left").select(
        "node", workload=pl.lit(IDLE), hours=(pl.col("hours") - pl.col("busy").fill_null(0.0)).clip(0.0)
    )
    cells = pl.concat([ran, idle]).group_by("node", "workload").agg(pl.col("hours").sum())
    under = failures.join_asof(jobs, left_on="at_h", right_on="start_h", by="node", check_sortedness=False)
    inside = (pl.col("at_h") <= pl.col("end_h")).fill_null(value=False)
    under = under.with_columns(workload=pl.when(inside).then("workload").otherwise(pl.lit(IDLE)))
    workloads = tuple(sorted(set(cells.filter(pl.col("hours") > 0)["workload"]) | set(under["workload"])))
    place, column = ({name: number for number, name in enumerate(names)} for names in (nodes, workloads))

    def spread(table: pl.DataFrame, value: str) -> Floats:
        grid = np.zeros((len(nodes), len(workloads)))
        table = table.filter(pl.col("workload").is_in(workloads))
        index = [place[node] for node in table["node"]], [column[name] for name in table["workload"]]
        np.add.at(grid, index, table[value].to_numpy().astype(np.float64))
        return grid

    causes = under.with_columns(one=pl.lit(1.0)).partition_by("kind", as_dict=True)
    by_cause = {str(kind): spread(table, "one") for (kind,), table in sorted(causes.items())}
    return Exposure(nodes, workloads, spread(cells, "hours"), by_cause)


def _at_risk_by(rows: pl.DataFrame, jobs: pl.DataFrame, column: str) -> pl.Series:
    """Hours that each job's node was at risk before that time; in the order of jobs."""
    asked = jobs.select("node", at=pl.col(column)).with_row_index("row").sort("at")
    joined = asked.join_asof(rows, left_on="at", right_on="start_h", by="node", check_sortedness=False).sort("row")
    within = pl.min_horizontal("at", "stop_h") - pl.col("start_h")
    return joined.select(hours=(pl.col("before") + within).fill_null(0.0)).to_series()


# ---- classes ---------------------------------------------------------------------------------------------------------


def classify(seen: Exposure, ratios: Floats = RATIOS) -> list[FaultClasses]:
    """Of each cause that anything failed of, all nodes; a fault has one of these `ratios`, all alike."""
    return [_of_cause(cause, failures, seen, ratios) for cause, failures in seen.failures.items()]


def _of_cause(cause: str, failures: Floats, seen: Exposure, ratios: Floats) -> FaultClasses:
    begin, ran = np.array(BEGIN), seen.hours > 0
    shares, usual = begin, np.ones(len(seen.nodes))
    expected, affected = seen.hours, failures
    probability = np.tile(begin, (len(seen.nodes), 1))
    for _ in range(ROUNDS):
        expected = seen.hours * _rates(failures, seen.hours, usual)
        evidence, affected = _evidence(failures, expected, ran, ratios)
        joint = shares * np.exp(evidence - evidence.max(axis=1, keepdims=True))
        probability = joint / joint.sum(axis=1, keepdims=True)
        usual = probability[:, -1]
        shares = (probability.sum(axis=0) + begin) / (len(usual) + 1.0)
    return FaultClasses(cause, seen.nodes, seen.workloads, probability, affected, failures, expected)


def _rates(failures: Floats, hours: Floats, usual: Floats) -> Floats:
    """Usual failures per node-hour by workload, shape (workloads,), of nodes weighted by how likely they are usual."""
    counted, at_risk = usual @ failures, usual @ hours
    # at least a failure's worth: a cause that only unusual nodes have is rare elsewhere, not impossible
    overall = max(counted.sum(), 1.0) / max(at_risk.sum(), 1.0)
    return np.asarray((counted + PSEUDO) / (at_risk + PSEUDO / overall), np.float64)


def _evidence(failures: Floats, expected: Floats, ran: NDArray[np.bool_], ratios: Floats) -> tuple[Floats, Floats]:
    """Log likelihoods over that of transient, (nodes, 3), and how likely each workload is affected if the node is gray.

    Under a ratio r, a workload with n failures where e were expected weighs r^n exp(−(r − 1) e). Gray is the mean over
    all subsets but none and all: a product over workloads of half their weight and a half, less these two.

    What is summed over, ratios and classes, is the outer axis in memory: sums are then of long rows.
    """
    log_likelihood = np.zeros((3, len(failures))).T
    log_likelihood[:, 0] = _log_mean(_weight(failures.sum(axis=1), expected.sum(axis=1), ratios))
    log_likelihood[:, 1], affected = -np.inf, np.zeros(failures.shape)
    several = ran.sum(axis=1) > 1
    if several.any():
        weight = _weight(failures[several], expected[several], ratios)
        log_likelihood[several, 1], affected[several] = _gray(weight, ran[several])
    return log_likelihood, affected


def _weight(failures: Floats, expected: Floats, ratios: Floats) -> Floats:
    """The logarithm of r^n exp(−(r − 1) e) under each ratio, which come first; 0 where nothing ran."""
    weight, failed = np.multiply.outer(1.0 - ratios, expected), failures > 0
    weight[:, failed] += np.multiply.outer(np.log(ratios), failures[failed])
    return np.asarray(weight, np.float64)


def _gray(weight: Floats, ran: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Of nodes with several workloads: log likelihoods (nodes,), and how likely each workload is affected.

    `weight` has shape (ratios, nodes, workloads).
    """
    every, halves = weight.sum(axis=2), ran.sum(axis=1) * np.log(0.5)
    either = np.logaddexp(0.0, weight) - np.log(2.0)
    either_all = np.where(ran, either, 0.0).sum(axis=2)
    two = _less(_less(either_all, every + halves), np.broadcast_to(halves, every.shape))
    gray = _log_mean(two - np.log1p(-2.0 * np.exp(halves)))
    with_it = either_all[:, :, None] - either + weight - np.log(2.0)
    with_it = _less(with_it, np.broadcast_to((every + halves)[:, :, None], with_it.shape))
    total = _log_mean(two)[:, None]
    known = np.isfinite(total)
    affected = np.where(known, np.exp(_log_mean(with_it) - np.where(known, total, 0.0)), 0.0)
    return gray, np.clip(affected, 0.0, 1.0)


def _log_mean(logs: Floats) -> Floats:
    """The logarithm of the mean over the first axis."""
    most = np.maximum(logs.max(axis=0), -1e300)
    with np.errstate(divide="ignore"):
        return np.asarray(most + np.log(np.exp(logs - most).mean(axis=0)), np.float64)


def _less(one: Floats, other: Floats) -> Floats:
    """log(exp(one) − exp(other)), −inf where nothing is left."""
    gap = np.minimum(other - one, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(one + np.log(-np.expm1(gap)), np.float64)
