"""Step traces of a pipeline that runs all forward computations, then all backward ones (GPipe), as CSV."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
FORWARD_S, BACKWARD_S = 1.0, 2.0
ENDS = {"gc": 0.0, "layernorm-grads-all-reduce": 0.01, "grads-reduce-scatter": 0.5, "optimizer-clip-main-grad": 0.1}
OPTIMISER_S = 0.2

Row = tuple[object, ...]


def write(path: Path, factors: NDArray[np.float64], lengths: NDArray[np.float64]) -> Path:
    """A trace; `factors` slow computation by (rank, stage), `lengths` by (rank, step, micro-batch)."""
    rows = [row for step in range(lengths.shape[1]) for row in _step(step, factors, lengths[:, step])]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def _step(step: int, factors: NDArray[np.float64], lengths: NDArray[np.float64]) -> Iterator[Row]:
    stages = factors.shape[1]
    free = np.zeros(factors.shape)  # when each worker has done its computation so far
    for rank in range(len(factors)):
        for row in _computations(factors[rank], lengths[rank], free[rank]):
            yield rank, row[1], rank * stages + int(str(row[1])), step, row[0], *row[2:]
    for kind, seconds in [*ENDS.items(), ("optimizer", OPTIMISER_S)]:
        meets = kind in ("grads-reduce-scatter", "optimizer-clip-main-grad")
        begin = free.copy()
        if meets:  # gradients meet over the ranks of a stage, clipping over all
            free[:] = free.max() if kind.startswith("optimizer") else free.max(axis=0)
        free += seconds
        for (rank, stage), start in np.ndenumerate(begin):
            yield rank, stage, rank * stages + stage, step, kind, start, free[rank, stage] - start, 0, 0, -1, -1


def _computations(
    factors: NDArray[np.float64], lengths: NDArray[np.float64], free: NDArray[np.float64]
) -> Iterator[Row]:
    """Rows from `kind, stage, start` on, of one rank's pipeline; `free` is moved on."""
    stages = len(factors)
    for kind, seconds, order in (("forward", FORWARD_S, range(stages)), ("backward", BACKWARD_S, range(stages)[::-1])):
        for batch, length in enumerate(lengths):
            arrived = None
            for stage in order:
                if arrived is not None:
                    met = max(arrived, free[stage])
                    sender = stage - 1 if kind == "forward" else stage + 1
                    yield f"{kind}-send", sender, arrived, met - arrived, batch, 0, -1, -1
                    yield f"{kind}-recv", stage, free[stage], met - free[stage], batch, 0, -1, -1
                    free[stage] = met
                took = seconds * factors[stage] * length
                yield f"{kind}-compute", stage, free[stage], took, batch, 0, batch, stage
                free[stage] = arrived = free[stage] + took
