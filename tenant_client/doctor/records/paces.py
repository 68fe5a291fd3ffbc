"""How each attempt went, in slices of ten minutes: time, steps, hangs, checkpoints. Nothing of it leaves.

The observer writes them while a job runs (`run.pace`); `advice.expectations` reads them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from federation.base.sqlite import Rows

SLICE_S = 600


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
