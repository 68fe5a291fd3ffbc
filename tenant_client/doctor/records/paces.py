"""How each attempt went, in slices of ten minutes: time, steps, hangs, checkpoints, lost time. Nothing of it leaves.

The observer writes them while a job runs (`run.pace`); `advice.expectations` reads them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum

from federation.base.sqlite import Rows

SLICE_S = 600


class Badput(StrEnum):
    """What time went to that trained nothing which was kept; `goodput.GOOGLE` has Google's word for each."""

    START = "start"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    METRICS = "metrics"
    STALL = "stall"
    LOST = "lost_work"
    RESTART = "restart"
    SLOW = "slow_steps"
    OTHER = "other"


Lost = Mapping[tuple[int, Badput], float]  # seconds by slice and reason, of one attempt


@dataclass(frozen=True)
class Slice:
    """What was seen of an attempt within `SLICE_S` seconds from `at_s` on (since 1970).

    `steps` were done by every rank. `timed` of them took `stepping_s` in all, and `squares` is the sum of the squares
    of their times (s²): those between training steps, without pauses for checkpoints and evaluations. `first_s` is when
    the first step was done. `saved` steps of the attempt were in a checkpoint by the end; None if none was seen.
    """

    at_s: int
    observed_s: float = 0.0
    steps: int = 0
    timed: int = 0
    stepping_s: float = 0.0
    squares: float = 0.0
    hang_s: float = 0.0
    first_s: float | None = None
    saved: int | None = None


def by_slice(begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """The slices that a span touches, and its seconds in each."""
    at_s = int(begin_s // SLICE_S * SLICE_S)
    while at_s < end_s:
        yield at_s, min(end_s, at_s + SLICE_S) - max(begin_s, at_s)
        at_s += SLICE_S


class Paces(Rows):
    """Reads and writes the slices in a tenant's database."""

    def keep(self, unit: str, attempt: int, slices: Iterable[Slice]) -> None:
        """Stores slices of an attempt, in place of what they were before."""
        rows = [(unit, attempt, *astuple(one)) for one in slices]
        self._connection.executemany("INSERT OR REPLACE INTO paces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def all(self) -> Mapping[tuple[str, int], Sequence[Slice]]:
        """The slices of all attempts, by lease and number, in order of time."""
        found: defaultdict[tuple[str, int], list[Slice]] = defaultdict(list)
        for unit, attempt, *values in self._connection.execute("SELECT * FROM paces ORDER BY unit, attempt, at_s"):
            found[unit, attempt].append(Slice(*values))
        return found

    def lose(self, unit: str, attempt: int, lost: Lost) -> None:
        """Adds seconds to what an attempt lost."""
        self._connection.executemany(
            "INSERT INTO lost_time VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds",
            [(unit, attempt, at_s, reason, seconds) for (at_s, reason), seconds in lost.items()],
        )

    def lost(self) -> Mapping[tuple[str, int], Lost]:
        """What all attempts lost, by lease and number."""
        found: defaultdict[tuple[str, int], dict[tuple[int, Badput], float]] = defaultdict(dict)
        for unit, attempt, at_s, reason, seconds in self._connection.execute("SELECT * FROM lost_time"):
            found[unit, attempt][at_s, Badput(reason)] = seconds
        return found
