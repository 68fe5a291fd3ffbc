"""The journal of attempts: one row for each time that a lease's job was started, and how that ended.

    running → succeeded | failed | stopped | interrupted

`stopped`: somebody asked for it (Ctrl-C, a scheduler's SIGTERM). `interrupted`: nobody of ours lived to see the end, so
the reason is unknown. A failure with a cause, known or not, is also journalled as a `Failure` and so will be counted;
stops and interruptions are not.

Times are seconds since 1970. In `units` and `failures` they are hours since 1970: the wrapper runs where no federation
may be known yet, and every party agrees on that zero without a message; windows of plans are then hours since 1970 too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from federation.runtime.clock import SECONDS_PER_HOUR
from federation.runtime.sqlite import Connection, transaction
from tenant_client.records.journal import Failure, Journal

UNKNOWN = "unknown"
INTERRUPTED = "interrupted: the wrapper was killed before the job ended, so how the job ended is not known"


class AttemptState(StrEnum):
    """Where an attempt stands."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class AttemptCause:
    """Why an attempt failed, as far as it is known; `place` is the file and line that says so."""

    reason: str = UNKNOWN
    rank: int | None = None
    host: str = ""
    gpu: str = ""
    place: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Attempt:
    """One row. `findings` are those of `tenant_client.run.watchdog`, as JSON objects."""

    unit: str
    attempt: int
    state: AttemptState
    started_at_s: float
    ended_at_s: float | None
    exit_code: int | None
    signal: int | None
    cause: AttemptCause
    steps: int
    findings: tuple[Mapping[str, Any], ...]


class Attempts:
    """Reads and writes the attempts in a tenant's database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._journal = Journal(connection)

    def begin(
        self, unit: str, started_at_s: float, *, number: int = 1, lives: Callable[[int], bool] = lambda _: False
    ) -> int:
        """Journals a start and returns its number: `number`, or the next free one.

        Earlier attempts of the unit that never ended become interrupted, but for those of which `lives` is true.
        """
        running = "SELECT attempt FROM attempts WHERE unit = ? AND state = 'running'"
        dead = [row[0] for row in self._connection.execute(running, (unit,)) if not lives(row[0])]
        with transaction(self._connection):
            start_h = started_at_s / SECONDS_PER_HOUR
            self._connection.execute("INSERT OR IGNORE INTO units VALUES (?, ?, '{}')", (unit, start_h))
            self._connection.executemany(
                "UPDATE attempts SET state = 'interrupted', sentence = ? WHERE unit = ? AND attempt = ?",
                [(INTERRUPTED, unit, attempt) for attempt in dead],
            )
            latest = "SELECT COALESCE(MAX(attempt), 0) FROM attempts WHERE unit = ?"
            number = max(number, 1 + int(self._connection.execute(latest, (unit,)).fetchone()[0]))
            self._connection.execute(
                "INSERT INTO attempts (unit, attempt, state, started_at_s) VALUES (?, ?, 'running', ?)",
                (unit, number, started_at_s),
            )
        return number

    def end(
        self,
        unit: str,
        attempt: int,
        state: AttemptState,
        ended_at_s: float | None,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        steps: int = 0,
        findings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Journals an end at once; why is added by `explain`, which may take its time."""
        self._connection.execute(
            "UPDATE attempts SET state = ?, ended_at_s = ?, exit_code = ?, signal = ?, steps = ?, findings = ?"
            " WHERE unit = ? AND attempt = ?",
            (state, ended_at_s, exit_code, signal, steps, json.dumps(list(findings)), unit, attempt),
        )

    def name(self, unit: str, job: str) -> None:
        """Keeps what the job on a unit is called, in place of what it was called before."""
        self._connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (unit, job))

    def jobs(self) -> dict[str, str]:
        """What the jobs are called, by unit."""
        return dict(self._connection.execute("SELECT unit, job FROM jobs"))

    def explain(self, unit: str, attempt: int, cause: AttemptCause) -> None:
        """Adds the cause."""
        self._connection.execute(
            "UPDATE attempts SET reason = ?, rank = ?, host = ?, gpu = ?, place = ?, sentence = ?"
            " WHERE unit = ? AND attempt = ?",
            (cause.reason, cause.rank, cause.host, cause.gpu, cause.place, cause.sentence, unit, attempt),
        )

    def count(self, unit: str, attempt: int) -> None:
        """Journals a failure to be counted, unless one of the unit was counted since this attempt began.

        Several wrappers in one allocation (srun starts one per task) see the same failure.
        """
        rows = self._connection.execute(
            "SELECT start_h, started_at_s, ended_at_s, reason FROM attempts JOIN units USING (unit)"
            " WHERE unit = ? AND attempt = ?",
            (unit, attempt),
        )
        start_h, started_at_s, ended_at_s, reason = rows.fetchone()
        began_h, ended_h = started_at_s / SECONDS_PER_HOUR, ended_at_s / SECONDS_PER_HOUR
        since = "SELECT 1 FROM failures WHERE unit = ? AND at_h >= ?"
        if self._connection.execute(since, (unit, began_h)).fetchone() is None:
            self._journal.add([], [Failure(unit, ended_h, max(0.0, ended_h - start_h), reason)])

    def list(self, unit: str | None = None) -> list[Attempt]:
        """All attempts, or those of one unit, in order of their start."""
        rows = self._connection.execute(
            "SELECT unit, attempt, state, started_at_s, ended_at_s, exit_code, signal, steps, findings,"
            " reason, rank, host, gpu, place, sentence FROM attempts WHERE ? IS NULL OR unit = ?"
            " ORDER BY started_at_s, unit, attempt",
            (unit, unit),
        )
        return [_attempt(row) for row in rows]


def _attempt(row: tuple[Any, ...]) -> Attempt:
    unit, number, state, started_at_s, ended_at_s, exit_code, signal, steps, findings, *cause = row
    return Attempt(
        unit,
        number,
        AttemptState(state),
        started_at_s,
        ended_at_s,
        exit_code,
        signal,
        AttemptCause(*cause),
        steps,
        tuple(json.loads(findings)),
    )
