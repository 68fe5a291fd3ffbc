"""How many spares a pool of nodes needs so that, for 99% of the time, no more nodes are down than there are spares.

Each node is up and down by itself, with its own mean time to failure and mean time to repair; every failed node is
repaired at once, and a spare may fail like the others. In the steady state node i is down with probability

    q_i = rate_i × repair_i / (1 + rate_i × repair_i),

whatever the distributions of times up and down (renewal reward), so the number down is Poisson binomial, and for equal
nodes binomial: the machine-repairman model with as many repairers as machines. The least number of spares is exact.

Not promised: repairs that wait for hands, or failures that come together (a switch, a bad batch): `peak_spares` of what
was observed shows how far these go. Pure.

>>> spares_needed(np.full(100, 0.01), 0.01)
4
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
AVAILABILITY = 0.99
MOST_SPARES = 10_000


def down_share(failures_per_hour: Floats, repair_hours: Floats) -> Floats:
    """The share of time that each node is down; shapes (nodes,)."""
    load = failures_per_hour * repair_hours
    return np.asarray(load / (1 + load), dtype=np.float64)


def spares_needed(down: Floats, spare_down: float, availability: float = AVAILABILITY) -> int:
    """The least spares such that at most as many of all nodes are down with probability `availability`.

    `down` (nodes,) has the share of time that each is down, `spare_down` that of a spare. ValueError for shares outside
    [0, 1), or where `MOST_SPARES` are not enough.
    """
    if not (np.all((down >= 0) & (down < 1)) and 0 <= spare_down < 1 and 0 < availability < 1):
        raise ValueError("shares of time must lie in [0, 1), and the availability in (0, 1)")
    chances = np.ones(1)
    for share in down:
        chances = _with(chances, float(share))
    for spares in range(MOST_SPARES):
        if chances[: spares + 1].sum() >= availability:
            return spares
        chances = _with(chances, spare_down)
    raise ValueError(f"{MOST_SPARES} spares are not enough")


def peak_spares(outages: Sequence[tuple[float, float]], start_h: float, end_h: float, availability: float) -> int:
    """The least number that is down at once for a share `availability` of the hours, as observed.

    `outages` has the hours at which each began and ended, of which those within the window count.
    """
    edges = [(max(start_h, begin), 1) for begin, end in outages if begin < end_h and end > start_h]
    edges += [(min(end_h, end), -1) for begin, end in outages if begin < end_h and end > start_h]
    hours: dict[int, float] = {}
    down, since_h = 0, start_h
    for at_h, change in [*sorted(edges), (end_h, 0)]:
        hours[down] = hours.get(down, 0.0) + at_h - since_h
        down, since_h = down + change, at_h
    seen = 0.0
    for number in sorted(hours):
        seen += hours[number]
        if seen >= availability * (end_h - start_h) * (1 - 1e-12):
            return number
    return max(hours)


def _with(chances: Floats, share: float) -> Floats:
    """The chances of each number down, with one node more."""
    return np.append(chances, 0.0) * (1 - share) + np.insert(chances, 0, 0.0) * share
