"""Placement by hazard: long jobs on healthy nodes, short trials and evaluations on risky ones. Nothing is moved.

A failure interrupts the job that it meets. Where jobs are alike but for their hours, the expected interruptions of long
jobs are least if the longest has the lowest hazard: hazard × remaining hours, summed, is least when one rises as the
other falls (the rearrangement inequality). Capacity stays what it was, since every node is used as much as before.

Guarantees. `matched` gives each place its capacity to within one job. `choose` never leaves a free node unused that is
asked for. Pure; equal input gives an equal answer.

Not promised: fewer failures in all. Short jobs meet those that long ones are spared, and lose less by each.

Source: Hu and others, NSDI 2024 (Acme: evaluation decoupled from training); Hardy, Littlewood and Pólya, 1934, 10.2.
"""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

Places = NDArray[np.int64]


def matched(hours: Floats, node_hours: Floats, rates: Floats, capacity: Floats) -> Places:
    """The place (J,) of each of J jobs that are planned together: long ones where the rate is low.

    `hours` (J,) are those that a job still runs, `node_hours` (J,) what it takes, `rates` (P,) failures per node-hour
    at each place, and `capacity` (P,) its node-hours, which are scaled to what all jobs take. ValueError for no place.
    """
    if not len(rates) or capacity.sum() <= 0:
        raise ValueError("jobs need a place with capacity")
    jobs, places = np.argsort(-hours, kind="stable"), np.argsort(rates, kind="stable")
    filled = np.cumsum(capacity[places]) / capacity.sum()
    taken = np.cumsum(node_hours[jobs])
    middle = (taken - node_hours[jobs] / 2.0) / max(float(taken[-1]), 1e-300) if len(taken) else taken
    found = np.empty(len(hours), np.int64)
    found[jobs] = places[np.minimum(np.searchsorted(filled, middle), len(places) - 1)]
    return found


def choose(rates: Floats, count: int, *, is_long: bool) -> Places:
    """Which `count` of the free nodes, whose rates (N,) these are, a job takes: the healthiest, or the riskiest."""
    order = np.argsort(rates if is_long else -rates, kind="stable")
    return order[:count].astype(np.int64)
