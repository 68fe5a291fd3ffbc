"""Lines that few healthy attempts of a workload have printed yet: they become filter rules when enough have."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from federation.base.sqlite import Rows

ENOUGH = 3
_ATTEMPTS_KEPT = 8


class HealthyLines(Rows):
    """Reads and writes the candidates in a tenant's database."""

    def add(self, workload: str, seen_in: str, at_s: float, lines: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Keeps the lines of one more healthy attempt; those that enough have printed now, with these attempts.

        Call it within a transaction: what it returns is forgotten here.
        """
        rows = [(workload, line, seen_in, at_s) for line in lines]
        self._connection.executemany("INSERT OR IGNORE INTO healthy_lines VALUES (?, ?, ?, ?)", rows)
        self._forget_old(workload)
        ready = (
            "SELECT line, seen_in FROM healthy_lines WHERE workload = ?1 AND line IN (SELECT line FROM healthy_lines"
            " WHERE workload = ?1 GROUP BY line HAVING COUNT(*) >= ?2) ORDER BY line, at_s"
        )
        seen: defaultdict[str, list[str]] = defaultdict(list)
        for line, attempt in self._connection.execute(ready, (workload, ENOUGH)):
            seen[line].append(attempt)
        done = [(workload, line) for line in seen]
        self._connection.executemany("DELETE FROM healthy_lines WHERE workload = ? AND line = ?", done)
        return {line: tuple(attempts) for line, attempts in seen.items()}

    def _forget_old(self, workload: str) -> None:
        """Keeps the newest attempts only: most of what one attempt alone printed is never printed again."""
        self._connection.execute(
            "DELETE FROM healthy_lines WHERE workload = ?1 AND seen_in NOT IN (SELECT seen_in FROM healthy_lines"
            " WHERE workload = ?1 GROUP BY seen_in ORDER BY MAX(at_s) DESC LIMIT ?2)",
            (workload, _ATTEMPTS_KEPT),
        )
