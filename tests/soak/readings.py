"""What the processes of a soak hold: memory and handles, week by week, and whether they grow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from scipy import stats

WARM_WEEKS = 4  # caches fill, and are no leak
LEAST_POINTS = 5


@dataclass(frozen=True)
class Reading:
    """One process at the end of one week: resident memory in MB, open file descriptors, threads."""

    week: int
    name: str
    pid: int
    memory: float
    handles: int
    threads: int

    @property
    def role(self) -> str:
        """Provider, trustee or tenant."""
        return self.name.partition("-")[0]


def read(week: int, name: str, pid: int) -> Reading:
    """What /proc says of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    handles = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Reading(week, name, pid, int(status["VmRSS"].split()[0]) / 1024, handles, int(status["Threads"]))


@dataclass(frozen=True)
class Slope:
    """Growth per hundred weeks, with the ends of its 95% interval, over the lives of `lives` processes."""

    value: float
    low: float
    high: float
    lives: int

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def slope(readings: Iterable[Reading], of: str) -> Slope | None:
    """How fast something grows in a process of one role: least squares, each life of a process with a level of its own.

    A life's first weeks are left out. None where no life was long enough. The interval is by lives, not by points,
    since the points of one life hang together; with one life it is by points.
    """
    weeks, values, slopes = list[np.ndarray](), list[np.ndarray](), list[float]()
    for _, life in groupby(sorted(readings, key=lambda one: (one.pid, one.week)), key=lambda one: one.pid):
        points = list(life)[WARM_WEEKS:]
        if len(points) >= LEAST_POINTS:
            at, seen = np.array([one.week for one in points], float), np.array([getattr(one, of) for one in points])
            weeks.append(at - at.mean())
            values.append(seen - seen.mean())
            slopes.append(float(weeks[-1] @ values[-1] / (weeks[-1] @ weeks[-1])))
    if not weeks:
        return None
    x, y = np.concatenate(weeks), np.concatenate(values)
    value = float(x @ y / (x @ x))
    if len(slopes) > 1:
        share = np.array([float(one @ one) for one in weeks]) / float(x @ x)
        free = len(slopes) - 1
        spread = np.sum((share * (np.array(slopes) - value)) ** 2) * len(slopes) / free
        wide = float(np.sqrt(spread) * stats.t.ppf(0.975, free))
    else:
        left = y - value * x
        wide = float(np.sqrt(left @ left / (len(x) - 2) / (x @ x)) * stats.t.ppf(0.975, len(x) - 2))
    return Slope(100 * value, 100 * (value - wide), 100 * (value + wide), len(slopes))


def by_role(readings: Sequence[Reading]) -> Mapping[str, list[Reading]]:
    """The readings of all processes of each role."""
    return {role: [one for one in readings if one.role == role] for role in ("provider", "trustee", "tenant")}
