"""Whether the probability that a pair is worse can be acted upon: its reliability, and decision curves.

A probability is reliable if of the pairs of which p is said about p are worse. A *decision curve* (Vickers and Elkin
2006) asks what it is worth to move a workload off all pairs of which more than t is said, where t is what a move costs
over what it saves if the pair is worse: the net benefit is

    (moved and worse − moved and not worse × t / (1 − t)) / all that are worse:

1 for who knows, 0 for who moves nothing. Below the best of "move nothing" and "move all", a probability misleads.

    >>> said, worse = np.array([0.9, 0.6, 0.1, 0.0]), np.array([True, False, False, False])
    >>> [round(one.net_benefit, 2) for one in decisions(said, worse)][5:7]  # at costs of .5 and .7
    [0.0, 1.0]
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 0.95, 1.0)
COSTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)  # of a move, over what it saves where the pair is worse


class Reliability(msgspec.Struct, frozen=True):
    """The pairs of which a probability above `low` and up to `high` is said: its mean, and the share that is worse."""

    low: float
    high: float
    pairs: int
    said: float
    worse: float


class Decision(msgspec.Struct, frozen=True):
    """The net benefit of moving at that cost: by probability, and of moving everything."""

    cost: float
    net_benefit: float
    move_all: float


def reliability(said: Floats, worse: NDArray[np.bool_]) -> Iterator[Reliability]:
    """Bin by bin, those without pairs left out; `said` and `worse` have one entry for each pair."""
    bins = np.clip(np.searchsorted(EDGES, said, side="left") - 1, 0, len(EDGES) - 2)
    for place in np.unique(bins).tolist():
        own = bins == place
        share = float(said[own].mean()), float(worse[own].mean())
        yield Reliability(EDGES[place], EDGES[place + 1], int(own.sum()), *share)


def decisions(said: Floats, worse: NDArray[np.bool_]) -> Iterator[Decision]:
    """At each of `COSTS`; nothing where no pair is worse."""
    if worse.any():
        for cost in COSTS:
            by_probability, everything = (_benefit(moved, worse, cost) for moved in (said > cost, said >= 0.0))
            yield Decision(cost, by_probability, everything)


def _benefit(moved: NDArray[np.bool_], worse: NDArray[np.bool_], cost: float) -> float:
    vain = np.count_nonzero(moved & ~worse) * cost / (1.0 - cost)
    return float((np.count_nonzero(moved & worse) - vain) / np.count_nonzero(worse))
