"""Placement by hazard: long jobs on healthy nodes, short trials and evaluations on risky ones. Nothing is moved.

A failure interrupts the job that it meets. Where jobs are alike but for their hours, the expected interruptions of long
jobs are least if the longest has the lowest hazard: hazard × remaining hours, summed, is least when one rises as the
other falls (the rearrangement inequality). Capacity stays what it was, since every node is used as much as before.

Guarantees. `choose` never leaves a free node unused that is asked for. Pure; equal input gives an equal answer.

Not promised: fewer failures in all. Short jobs meet those that long ones are spared, and lose less by each.

Source: Hu and others, NSDI 2024 (Acme: evaluation decoupled from training); Hardy, Littlewood and Pólya, 1934, 10.2.
"""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

Places = NDArray[np.int64]


def choose(rates: Floats, count: int, *, is_long: bool) -> Places:
    """Which `count` of the free nodes, whose rates (N,) these are, a job takes: the healthiest, or the riskiest."""
    order = np.argsort(rates if is_long else -rates, kind="stable")
    return order[:count].astype(np.int64)
