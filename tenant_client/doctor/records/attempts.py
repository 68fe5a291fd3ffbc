"""The journal of attempts: one row for each start of a lease's job, and its outcome.

    running → succeeded | failed | stopped | interrupted

- `stopped`: by a person or a scheduler (Ctrl-C, SIGTERM, a time limit); its reason says while what: see
  `tenant_client.doctor.run.ended`. `interrupted`: `run` was killed before the job
  ended, so the reason is unknown.
- A failed attempt is also journalled as a `Failure`, under the reason that rounds count for its own; stopped and
  interrupted ones are not, but for a stalled one whose device or link is known to be broken.
- Times are seconds since 1970. In `units` and `failures` they are hours since 1970, as in the windows of plans.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection, transaction
from tenant_client.doctor.records.journal import Failure, Journal
from tenant_client.doctor.sources.reasons import UNKNOWN, counted_as, somebody_ended

INTERRUPTED = "interrupted: `pharoah-tenant run` was killed before the job ended, so its exit status is unknown"
UNSEEN = "the exit status of a process that `pharoah-tenant run` did not start cannot be read"


class AttemptState(StrEnum):
    """The state of an attempt."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class AttemptCause:
    """Why an attempt failed, if known; `place` is the file and line of the evidence.

    `domain` and `advice` are those of the evidence where it has its own, else "": those of the reason hold.
    """

    reason: str = UNKNOWN
    rank: int | None = None
    host: str = ""
    gpu: str = ""
    place: str = ""
    sentence: str = ""
    domain: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Attempt:
    """One row. `findings` are those of `tenant_client.doctor.run.watchdog`, as JSON objects.

    `said` is the reason that the program gave, where the owner gave another one (`records.fixes`), else "".
    """

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
    said: str = ""


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
        running = "SELECT attempt, reason FROM attempts WHERE unit = ? AND state = 'running'"
        dead = [row for row in self._connection.execute(running, (unit,)) if not lives(row[0])]
        with transaction(self._connection):
            start_h = started_at_s / SECONDS_PER_HOUR
            self._connection.execute("INSERT OR IGNORE INTO units VALUES (?, ?, '{}')", (unit, start_h))
            self._connection.executemany(
                "UPDATE attempts SET state = 'interrupted', sentence = ? WHERE unit = ? AND attempt = ?",
                [(INTERRUPTED, unit, attempt) for attempt, reason in dead if not somebody_ended(reason)],
            )
            self._connection.executemany(  # asked to end, and then killed together with `run`
                "UPDATE attempts SET state = 'stopped' WHERE unit = ? AND attempt = ?",
                [(unit, attempt) for attempt, reason in dead if somebody_ended(reason)],
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
        """Journals the end at once; `explain` adds the cause later."""
        self._connection.execute(
            "UPDATE attempts SET state = ?, ended_at_s = ?, exit_code = ?, signal = ?, steps = ?, findings = ?"
            " WHERE unit = ? AND attempt = ?",
            (state, ended_at_s, exit_code, signal, steps, json.dumps(list(findings)), unit, attempt),
        )

    def keep_findings(self, unit: str, attempt: int, steps: int, findings: Sequence[Mapping[str, Any]]) -> None:
        """Journals what was found so far of an attempt that runs."""
        self._connection.execute(
            "UPDATE attempts SET steps = ?, findings = ? WHERE unit = ? AND attempt = ? AND state = 'running'",
            (steps, json.dumps(list(findings)), unit, attempt),
        )

    def name(self, unit: str, job: str) -> None:
        """Stores the name of the job on a unit, replacing the earlier one."""
        self._connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (unit, job))

    def jobs(self) -> dict[str, str]:
        """The names of the jobs, by unit."""
        return dict(self._connection.execute("SELECT unit, job FROM jobs"))

    def explain(self, unit: str, attempt: int, cause: AttemptCause) -> None:
        """Adds the cause."""
        self._connection.execute(
            "UPDATE attempts SET reason = ?, rank = ?, host = ?, gpu = ?, place = ?, sentence = ?"
            " WHERE unit = ? AND attempt = ?",
            (cause.reason, cause.rank, cause.host, cause.gpu, cause.place, cause.sentence, unit, attempt),
        )
        own = unit, attempt, cause.domain, cause.advice
        self._connection.execute("INSERT OR REPLACE INTO own_words VALUES (?, ?, ?, ?)", own)

    def count(self, unit: str, attempt: int) -> None:
        """Journals a failure to be counted, unless one of the unit was counted since this attempt began.

        Several wrappers in one allocation (srun starts one per task) see the same failure.
        """
        rows = self._connection.execute(
            "SELECT start_h, started_at_s, ended_at_s, reason, COALESCE(domain, '') FROM attempts"
            " JOIN units USING (unit) LEFT JOIN own_words USING (unit, attempt) WHERE unit = ? AND attempt = ?",
            (unit, attempt),
        )
        start_h, started_at_s, ended_at_s, reason, domain = rows.fetchone()
        began_h, ended_h = started_at_s / SECONDS_PER_HOUR, ended_at_s / SECONDS_PER_HOUR
        since = "SELECT 1 FROM failures WHERE unit = ? AND at_h >= ?"
        if self._connection.execute(since, (unit, began_h)).fetchone() is None:
            counted = counted_as(reason, domain)
            self._journal.add([], [Failure(unit, ended_h, max(0.0, ended_h - start_h), counted)])

    def stopped_before(self, unit: str, attempt: int, within_s: float) -> Sequence[Attempt]:
        """Attempts of any unit that somebody ended, at most so long before this one began."""
        began = "SELECT started_at_s FROM attempts WHERE unit = ? AND attempt = ?"
        (began_s,) = self._connection.execute(began, (unit, attempt)).fetchone()
        return [
            one
            for one in self.list()
            if one.state is AttemptState.STOPPED and one.ended_at_s and 0 <= began_s - one.ended_at_s <= within_s
        ]

    def list(self, unit: str | None = None) -> list[Attempt]:
        """All attempts, or those of one unit, in order of their start."""
        rows = self._connection.execute(
            "SELECT unit, attempt, state, started_at_s, ended_at_s, exit_code, signal, steps, findings,"
            " COALESCE(said, ''), attempts.reason, rank, host, gpu, place, sentence,"
            " COALESCE(domain, ''), COALESCE(advice, '') FROM attempts LEFT JOIN fixes USING (unit, attempt)"
            " LEFT JOIN own_words USING (unit, attempt) WHERE ? IS NULL OR unit = ?"
            " ORDER BY started_at_s, unit, attempt",
            (unit, unit),
        )
        return [_attempt(row) for row in rows]


def _attempt(row: tuple[Any, ...]) -> Attempt:
    unit, number, state, started_at_s, ended_at_s, exit_code, signal, steps, findings, said, *cause = row
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
        said,
    )
