"""What was dropped or doubted on the way from samples to summaries, counted by reason and metric, and shown.

Every sample that is read is either used or dropped for one reason: `read == used + dropped`. Doubts are counted beside
that, for samples and hours that were used or never came. Names of unknown metrics come from outside: they are made
visible and cut, and after `MOST_NAMES` of them the rest is counted as one.

    >>> tally = Tally()
    >>> tally.read(3)
    >>> tally.count(Reason.BLANK, "power", 2)
    >>> tally.quality().lines()
    ['3 samples read, 1 used, 2 dropped', '  dropped  blank             power                           2']
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from federation.base.visible import visible

MOST_NAMES = 1000
LONGEST_NAME = 80
OTHERS = "(others)"


class Reason(StrEnum):
    """Why a sample does not count, or why its summary is to be doubted."""

    BLANK = "blank"
    NOT_A_NUMBER = "not_a_number"
    IMPLAUSIBLE = "implausible"
    OUT_OF_ORDER = "out_of_order"
    REPEATED = "repeated"
    FUTURE = "future"
    OUTSIDE = "outside"
    LATE = "late"
    DUPLICATE = "duplicate"
    UNKNOWN_METRIC = "unknown_metric"
    NO_NODE = "no_node"
    NO_DEVICE = "no_device"
    BAD_ROW = "bad_row"

    RESET = "reset"
    SEAM = "seam"
    STANDING = "standing"
    MISSING = "missing"
    GAP = "gap"
    PARTIAL_ANSWER = "partial_answer"

    @property
    def dropped(self) -> bool:
        """Whether it takes samples away; else it is a doubt."""
        return self not in DOUBTS


# reset: counters that began anew. seam: a counter went back where one exporter took over from another. standing: a code
# that was there when reading began, so that nobody knows when it came. missing, gap: series-hours. partial_answer:
# queries.
DOUBTS = frozenset({Reason.RESET, Reason.SEAM, Reason.STANDING, Reason.MISSING, Reason.GAP, Reason.PARTIAL_ANSWER})


@dataclass(frozen=True, order=True)
class Count:
    """How many samples (or hours, or queries) of a metric met a reason."""

    reason: Reason
    metric: str
    count: int


@dataclass(frozen=True)
class Quality:
    """What a reading came to: the counts sorted by reason and metric."""

    read: int
    counts: tuple[Count, ...]

    @property
    def dropped(self) -> int:
        """Samples that do not count."""
        return sum(one.count for one in self.counts if one.reason.dropped)

    @property
    def used(self) -> int:
        """Samples that do."""
        return self.read - self.dropped

    def of(self, reason: Reason, metric: str | None = None) -> int:
        """The count of a reason, of one metric or of all."""
        return sum(one.count for one in self.counts if one.reason is reason and metric in (None, one.metric))

    def lines(self) -> list[str]:
        """For a person: one line for all, one for each count."""
        head = f"{self.read} samples read, {self.used} used, {self.dropped} dropped"
        rows = [
            f"  {'dropped' if one.reason.dropped else 'doubt':8} {one.reason:17} {one.metric:24} {one.count:>8}"
            for one in self.counts
        ]
        return [head, *rows]

    def row(self) -> "QualityRow":
        """For a machine."""
        return {"read": self.read, "used": self.used, "dropped": self.dropped, "counts": self.counts}


class QualityRow(TypedDict):
    """A `Quality` in JSON."""

    read: int
    used: int
    dropped: int
    counts: tuple[Count, ...]


class Tally:
    """Counts while samples are read."""

    def __init__(self) -> None:
        self._read = 0
        self._counts: Counter[tuple[Reason, str]] = Counter()
        self._names: set[str] = set()

    def read(self, samples: int) -> None:
        """So many samples came in."""
        self._read += samples

    def count(self, reason: Reason, metric: str, count: int) -> None:
        """So many of them (or hours, queries) met a reason."""
        if count:
            self._counts[reason, self._known(metric)] += int(count)

    def quality(self) -> Quality:
        """What it came to so far."""
        counts = sorted(Count(reason, metric, count) for (reason, metric), count in self._counts.items())
        return Quality(self._read, tuple(counts))

    def _known(self, metric: str) -> str:
        name = visible(metric)[:LONGEST_NAME]
        if name not in self._names and len(self._names) >= MOST_NAMES:
            return OTHERS
        self._names.add(name)
        return name
