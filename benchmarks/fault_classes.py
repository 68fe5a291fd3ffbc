"""How often a faulty node is called what it is: persistent, gray or transient, in fleets whose truth is known.

    python -m benchmarks.fault_classes [named FIGURE]

400 nodes for a year; six workloads take turns on every node, in jobs of hours to weeks; three causes, 6.5 failures per
1,000 node-days in all, workloads differing up to threefold. Of each cause, 8 nodes are persistent and 8 gray (one to
three of the six workloads), at a ratio to usual of 10, 30 or 100; one figure has nodes that differ by gamma frailty as
well, and `…_known` is how well anybody could do who knew that ratio. Counted are node and cause pairs with a failure,
each called by its most probable class: `right` is their share, `persistent`, `gray` and `transient` the share of each
kind that is called so.
"""

import numpy as np
import polars as pl
from numpy.random import Generator

from benchmarks.figures import Figure, main
from provider_server.analysis.fault_classes import RATIOS, classify, exposure
from provider_server.analysis.recurrent import spells

NODES, HOURS, CAUSES, WORKLOADS, FAULTY = 400, 365 * 24, 3, 6, 8
RATE_PER_HOUR = 6.5 / 1000 / 24
CLASSES = ("persistent", "gray", "transient")


def one_fleet(seed: int, ratio: float, frailty: float = 0.0, *, known: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Of every pair with a failure, the truth and what it is called, as places in `CLASSES`."""
    rng = np.random.default_rng(seed)
    jobs = pl.concat([_jobs(rng, f"n{node}") for node in range(NODES)])
    usual = RATE_PER_HOUR / CAUSES * rng.uniform(0.5, 1.5, (CAUSES, WORKLOADS))
    own = rng.gamma(1 / frailty, frailty, NODES) if frailty else np.ones(NODES)
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
            many = rng.poisson((end - start) * usual[cause, which] * own[node] * hit[node, which])
            outages += [(name, at, at + 0.2, f"cause {cause}") for at in rng.uniform(start, end, many)]
    schema = {"node": pl.String, "start_h": pl.Float64, "end_h": pl.Float64, "kind": pl.String}
    found = spells(pl.DataFrame(outages, schema, orient="row"), [f"n{node}" for node in range(NODES)], 0.0, HOURS)
    called = {each.cause: each for each in classify(exposure(found, jobs), np.array([ratio]) if known else RATIOS)}
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


def _scored(ratio: float, frailty: float = 0.0, *, known: bool = False, seeds: int = 5) -> Figure:
    truth, called = (
        np.concatenate(each)
        for each in zip(*(one_fleet(seed, ratio, frailty, known=known) for seed in range(seeds)), strict=True)
    )
    by_class = {name: float((called == place)[truth == place].mean()) for place, name in enumerate(CLASSES)}
    return {"ratio": ratio, "pairs": len(truth), "right": float((truth == called).mean()), **by_class}


def times_10() -> Figure:
    """Ten times as often as usual."""
    return _scored(10.0)


def times_30() -> Figure:
    """Thirty times."""
    return _scored(30.0)


def times_100() -> Figure:
    """A hundred times."""
    return _scored(100.0)


def frailty() -> Figure:
    """Thirty times, and nodes that differ by a gamma frailty of variance 1 besides."""
    return _scored(30.0, 1.0)


def times_10_known() -> Figure:
    """Ten times, and the ratio is known."""
    return _scored(10.0, known=True)


def times_30_known() -> Figure:
    """Thirty times, and the ratio is known."""
    return _scored(30.0, known=True)


if __name__ == "__main__":
    main(times_10, times_30, times_100, frailty, times_10_known, times_30_known)
