"""What a healthy attempt teaches: lines that its workload prints when nothing is wrong, which become filter rules."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from federation.base.sqlite import Connection, Rows, transaction
from tenant_client.doctor.diagnosis.filter_rules import FILE, Rule, append_rules, healthy_patterns, load_rules
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.journal import Journal

_MOST_RULES = 4096


def workload_name(connection: Connection, home: Path, unit: str) -> str:
    """What rules go by: the archetype of a described workload under this machine's key, else the name of the job."""
    descriptor = Journal(connection).descriptors().get(unit)
    if descriptor is None:
        return Attempts(connection).jobs().get(unit, "")
    from tenant_client.doctor.workload.descriptor import rungs
    from tenant_client.doctor.workload.local_tokens import local_key, local_ladder

    return f"archetype {local_ladder(rungs(descriptor, ()), local_key(home)).archetype}"


def learn(connection: Connection, home: Path, unit: str, attempt: int, at_s: float, logs: Iterable[Path]) -> int:
    """Takes the lines of a healthy attempt; the number of rules that came of them."""
    workload = workload_name(connection, home, unit)
    if not workload:
        return 0
    patterns = healthy_patterns(logs)
    with transaction(connection):  # another observer may learn at the same time
        known = load_rules(home / FILE).known(workload)
        if len(known) >= _MOST_RULES:
            return 0
        ready = HealthyLines(connection).add(workload, f"{unit} attempt {attempt}", at_s, patterns - known)
        day = datetime.fromtimestamp(at_s, UTC).date()
        if ready:
            append_rules(home / FILE, [Rule(workload, line, seen, day) for line, seen in ready.items()])
    return len(ready)


# ---- candidates ------------------------------------------------------------------------------------------------------


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
