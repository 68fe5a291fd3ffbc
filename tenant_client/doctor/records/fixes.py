"""Causes that the owner corrected, kept beside what the program had said.

- A fix changes what a round will count; once a week was counted it is refused, since what was answered stays answered.
- The program's own reason is kept, through any number of fixes.
"""

from dataclasses import dataclass

from crypto.errors import PharoahError
from federation.base.clock import SECONDS_PER_HOUR, dates
from federation.base.sqlite import Connection, transaction
from tenant_client.doctor.records.attempts import Attempt, Attempts, AttemptState
from tenant_client.doctor.records.first_causes import FirstCauses, NamedBy
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN, counted_as, somebody_ended

_CAN_BE_FIXED = (AttemptState.FAILED, AttemptState.STOPPED, AttemptState.INTERRUPTED)


class CannotFix(PharoahError):
    """There is no such attempt that ended without success, or no such reason."""

    default_hint = "list jobs with `pharoah-tenant jobs`, and reasons with `pharoah-tenant patterns reasons`"


class AlreadyCounted(PharoahError):
    """The week of the attempt was counted in a round."""

    default_hint = "no action: an answer that was sent cannot be changed; `pharoah-tenant privacy sent` shows it"


@dataclass(frozen=True)
class Fixed:
    """A fix: the owner's reason, what the program had said, and what a round will count, "" for nothing."""

    lease: str
    attempt: int
    reason: str
    said: str
    counted: str


def fix(connection: Connection, unit: str, number: int | None, reason: str, at_s: float) -> Fixed:
    """Gives an attempt of a unit, by default the newest that did not succeed, the owner's reason."""
    if reason != UNKNOWN and reason not in REASONS:
        raise CannotFix(f"unknown reason {reason!r}")
    with transaction(connection):
        attempt = _attempt(connection, unit, number)
        _refuse_counted(connection, attempt)
        said = attempt.said or attempt.cause.reason
        if reason != UNKNOWN:
            FirstCauses(connection).name(unit, attempt.attempt, at_s, NamedBy.OWNER)
        fixed = unit, attempt.attempt, at_s, reason, said
        connection.execute("INSERT OR REPLACE INTO fixes VALUES (?, ?, ?, ?, ?)", fixed)
        renamed = reason, unit, attempt.attempt
        connection.execute("UPDATE attempts SET reason = ? WHERE unit = ? AND attempt = ?", renamed)
        connection.execute("DELETE FROM own_words WHERE unit = ? AND attempt = ?", renamed[1:])
        return Fixed(unit, attempt.attempt, reason, said, _recount(connection, attempt, reason))


def _attempt(connection: Connection, unit: str, number: int | None) -> Attempt:
    ended = [one for one in Attempts(connection).list(unit) if one.state in _CAN_BE_FIXED and one.ended_at_s]
    found = [one for one in ended if number in (None, one.attempt)]
    if not found:
        which = "no attempt" if number is None else f"no attempt {number}"
        raise CannotFix(f"{which} of {unit} ended without success")
    return found[-1]


def is_counted(connection: Connection, attempt: Attempt) -> bool:
    """Whether the week of the attempt's end was counted in a round."""
    return _counted_hours(connection, attempt) is not None


def uncount(connection: Connection, attempt: Attempt) -> None:
    """Takes an attempt out of the failures to be counted."""
    window = attempt.unit, *_hours(attempt)
    connection.execute("DELETE FROM failures WHERE unit = ? AND at_h >= ? AND at_h <= ?", window)


def _counted_hours(connection: Connection, attempt: Attempt) -> tuple[int, int] | None:
    ended_h = _hours(attempt)[1]
    row: tuple[int, int] | None = connection.execute(
        "SELECT start_h, end_h FROM charges WHERE start_h <= ? AND ? < end_h", (ended_h, ended_h)
    ).fetchone()
    return row


def _refuse_counted(connection: Connection, attempt: Attempt) -> None:
    row = _counted_hours(connection, attempt)
    if row is not None:
        raise AlreadyCounted(
            f"attempt {attempt.attempt} of {attempt.unit} was counted already: {dates(row[0], row[1])} was answered"
        )


def _recount(connection: Connection, attempt: Attempt, reason: str) -> str:
    uncount(connection, attempt)
    if somebody_ended(reason):
        return ""
    ended_h = _hours(attempt)[1]
    (start_h,) = connection.execute("SELECT start_h FROM units WHERE unit = ?", (attempt.unit,)).fetchone()
    counted = counted_as(reason)
    row = attempt.unit, ended_h, max(0.0, ended_h - start_h), counted
    connection.execute("INSERT INTO failures VALUES (?, ?, ?, ?)", row)
    return counted


def _hours(attempt: Attempt) -> tuple[float, float]:
    return attempt.started_at_s / SECONDS_PER_HOUR, (attempt.ended_at_s or 0.0) / SECONDS_PER_HOUR
