"""Fleets whose nodes fail alike and of which some hardware is slow, and runs of benchmark jobs on them."""

from dataclasses import dataclass, replace

import numpy as np
from sklearn.metrics import adjusted_rand_score

from provider_server.fleet.analysis.contexts import ContextMap, find_contexts
from provider_server.fleet.analysis.selection import Ints, NodeTable
from provider_server.fleet.learning.benchmark_jobs import BenchmarkJob, Pace
from provider_server.fleet.learning.performance import measures
from tests.support.planted_contexts import plant

TASKS = {"decoder": 0.21, "encoder": 0.034, "graph": 0.0042, "diffusion": 1.3}  # seconds per step
OWN_SD = 0.01  # of the log of a node's own pace
DISTURBED, LONGER = 0.03, 1.6  # of all runs, and by what factor
KINDS = ("driver", "driver and model", "temperature", "rack")


@dataclass(frozen=True)
class Condition:
    """A fleet: its nodes, runs of each, the noise of a run, how much slower the slow are, and what they have."""

    nodes: int
    runs: int
    noise: float
    slower: float
    kind: str


def fleet(condition: Condition, seed: int) -> tuple[NodeTable, Ints]:
    """Nodes and which of them are slow (N,): of one driver, of one on one model, of a mode of temperature, or a rack.

    Among irrelevant features as of `plant`; failures are of one rate.
    """
    rng = np.random.default_rng([seed, 7])
    planted = plant(seed, nodes=condition.nodes)
    table, nodes = planted.table, condition.nodes
    racks = np.array([f"r{at // max(8, nodes // 12):02}" for at in rng.permutation(nodes)])
    table = replace(
        table,
        categories={**table.categories, "rack": tuple(racks.tolist())},
        failures=rng.poisson(0.001 * table.node_hours).astype(np.float64),
    )
    model, driver = (np.array(table.categories[name]) for name in ("model", "driver"))
    slow = {
        "driver": driver == _one_of(driver, rng),
        "driver and model": (driver == _one_of(driver, rng)) & (model == _one_of(model, rng)),
        "temperature": table.numbers["temperature"] > 68.0,
        "rack": racks == _one_of(racks, rng),
    }[condition.kind]
    # a driver that hardly differs from a model, or a handful of nodes, is another kind
    return (table, slow.astype(np.intp)) if 8 <= slow.sum() <= 0.6 * nodes else fleet(condition, seed + 1000)


def _one_of(values: np.ndarray, rng: np.random.Generator) -> str:
    return str(rng.choice(np.unique(values)))


def jobs_on(table: NodeTable, slow: Ints, condition: Condition, seed: int) -> list[BenchmarkJob]:
    """Runs of each node, some of them disturbed; tasks by chance."""
    rng = np.random.default_rng([seed, 8])
    own = rng.normal(0.0, OWN_SD, len(slow)) + np.log1p(condition.slower) * slow
    found = []
    for at, node in enumerate(table.nodes):
        for run in range(condition.runs):
            task = str(rng.choice(list(TASKS)))
            longer = LONGER if rng.random() < DISTURBED else 1.0
            noise, spread = rng.normal(0.0, condition.noise), 0.05 * float(np.exp(rng.normal(0.0, 0.4)))
            seconds = TASKS[task] * longer * float(np.exp(own[at] + noise))
            pace = Pace(task, seconds, spread)
            settings: dict[str, str | float | bool] = {"node": node, "size": "gpu"}
            found.append(BenchmarkJob(f"{node} {run}", 1, 1, 0.0, 0.2, "ok", task, {"torch": "2.9"}, settings, pace))
    return found


def groups_of(condition: Condition, seed: int) -> tuple[ContextMap, NodeTable, Ints]:
    """The contexts that such a fleet gets; no feature is selected by failures, which are alike."""
    table, slow = fleet(condition, seed)
    table = replace(table, measures=measures(jobs_on(table, slow, condition, seed), table.nodes))
    return find_contexts(table, (), None, np.random.default_rng(0)), table, slow


def agreement(condition: Condition, seed: int) -> tuple[float, int]:
    """Adjusted Rand index with slow and usual nodes, and the number of contexts."""
    found, table, slow = groups_of(condition, seed)
    truth = slow if condition.slower else np.zeros_like(slow)
    return float(adjusted_rand_score(truth, [found.of(node) for node in table.nodes])), len(found.contexts)
