"""Fleets with persistent, gray and transient faults, whose truth is known.

400 nodes for a year; six workloads take turns on every node, in jobs of hours to weeks; three causes, 6.5 failures per
1,000 node-days in all, workloads differing up to threefold. Of each cause, 8 nodes are persistent and 8 gray (one to
three of the six workloads), at a ratio to usual.
"""

import numpy as np
import polars as pl
from numpy.random import Generator

from provider_server.fleet.analysis.fault_classes import classify, exposure
from provider_server.fleet.analysis.recurrent import spells

NODES, HOURS, CAUSES, WORKLOADS, FAULTY = 400, 365 * 24, 3, 6, 8
RATE_PER_HOUR = 6.5 / 1000 / 24
CLASSES = ("persistent", "gray", "transient")


def one_fleet(seed: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Of every pair with a failure, the truth and what it is called, as places in `CLASSES`."""
    rng = np.random.default_rng(seed)
    jobs = pl.concat([_jobs(rng, f"n{node}") for node in range(NODES)])
    usual = RATE_PER_HOUR / CAUSES * rng.uniform(0.5, 1.5, (CAUSES, WORKLOADS))
    truth = np.full((CAUSES, NODES), 2)
    outages = []
    for cause in range(CAUSES):
        hit = np.ones((NODES, WORKLOADS))
        faulty = rng.choice(NODES, 2 * FAULTY, replace=False)
        truth[cause, faulty[:FAULTY]], truth[cause, faulty[FAULTY:]] = 0, 1
        hit[faulty[:FAULTY]] = ratio
        for node in faulty[FAULTY:]:
            hit[node, rng.choice(WORKLOADS, rng.integers(1, 4), replace=False)] = ratio
        for name, start, end, workload in jobs.iter_rows():
            node, which = int(name[1:]), int(workload[1:])
            many = rng.poisson((end - start) * usual[cause, which] * hit[node, which])
            outages += [(name, at, at + 0.2, f"cause {cause}") for at in rng.uniform(start, end, many)]
    schema = {"node": pl.String, "start_h": pl.Float64, "end_h": pl.Float64, "kind": pl.String}
    found = spells(pl.DataFrame(outages, schema, orient="row"), [f"n{node}" for node in range(NODES)], 0.0, HOURS)
    called = {each.cause: each for each in classify(exposure(found, jobs))}
    pairs = []
    for cause in range(CAUSES):
        each = called[f"cause {cause}"]
        for place, node in enumerate(each.nodes):
            if each.failures[place].any():
                pairs.append((truth[cause, int(node[1:])], int(each.probability[place].argmax())))
    return np.array(pairs)[:, 0], np.array(pairs)[:, 1]


def _jobs(rng: Generator, node: str) -> pl.DataFrame:
    lengths = rng.lognormal(3.5, 1.0, 400).clip(2.0, 24.0 * 30)
    ends = np.minimum(np.cumsum(lengths), HOURS)
    starts = np.concatenate([[0.0], ends[:-1]])
    many = int((starts < HOURS).sum())
    workload = [f"w{each}" for each in rng.integers(0, WORKLOADS, many)]
    return pl.DataFrame({"node": node, "start_h": starts[:many], "end_h": ends[:many], "workload": workload})
