"""When the cause of each failure was first named with confidence, and by whom: the days from failure to named cause.

Days are the figure of the vision paper's table 1 (T. Benson, "Rethinking Observability for AI Workloads on Multi-tenant
Public Clouds"). A diagnosis counts from `SURE_ENOUGH` on, or where nobody has measured how sure such a one is; else the
cause waits for the owner (`patterns fix`, `patterns helped`) or for a bundle with which `explain` names one. A failure
that waits counts as one that takes longer than all others: medians that leave those out are too good. Failures that an
older program journalled with a cause are left out: when it was named is not known. Nothing of it leaves.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from statistics import median

from federation.base.sqlite import Rows
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN

SURE_ENOUGH = 0.5
_DAY_S = 86_400.0


class NamedBy(StrEnum):
    """Who named a cause."""

    DIAGNOSIS = "diagnosis"
    OWNER = "owner"
    BUNDLE = "bundle"


@dataclass(frozen=True)
class DaysToCause:
    """Failures, those whose cause was named, and the median of the days that it took; None while most wait."""

    failures: int
    named: int
    median_days: float | None

    @property
    def words(self) -> str:
        """For a person; "" without a failure."""
        if not self.failures:
            return ""
        waits = f"{self.failures - self.named} of {self.failures} without a named cause"
        if self.median_days is None:
            return waits
        took = f"{self.median_days:.1f} days" if self.median_days >= 1 else f"{_DAY_S * self.median_days:.0f} s"
        return f"{took} from failure to named cause, median{f'; {waits}' if self.named < self.failures else ''}"


def days_to_cause(days: Iterable[float]) -> DaysToCause:
    """Of failures by the days that they took, infinite where the cause was not named."""
    each = list(days)
    middle = median(each) if each else inf
    return DaysToCause(len(each), sum(map(isfinite, each)), middle if isfinite(middle) else None)


class FirstCauses(Rows):
    """Reads and writes them in a tenant's database."""

    def name(self, unit: str, attempt: int, at_s: float, by: NamedBy) -> None:
        """Keeps that the cause of a failure was named, unless it was before."""
        row = unit, attempt, at_s, by
        self._connection.execute("INSERT OR IGNORE INTO first_causes VALUES (?, ?, ?, ?)", row)

    def days(self) -> Mapping[str, list[float]]:
        """By lease, of each failure; infinite where it waits."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        rows = self._connection.execute(
            "SELECT attempts.unit, ended_at_s, first_causes.at_s, attempts.reason, sure FROM attempts"
            " LEFT JOIN first_causes USING (unit, attempt) LEFT JOIN incidents USING (unit, attempt)"
            " WHERE state = 'failed' AND ended_at_s IS NOT NULL ORDER BY started_at_s"
        )
        for unit, ended_at_s, at_s, reason, sure in rows:
            if at_s is not None:
                found[unit].append(max(0.0, at_s - ended_at_s) / _DAY_S)
            elif not is_named(reason, sure):
                found[unit].append(inf)
        return found


def is_named(reason: str, sure: float | None) -> bool:
    """Whether a diagnosis names a cause with confidence; a symptom, such as a status or a time-out, is none."""
    is_cause = reason != UNKNOWN and (reason not in REASONS or REASONS[reason].domain is not None)
    return is_cause and (sure is None or sure >= SURE_ENOUGH)
