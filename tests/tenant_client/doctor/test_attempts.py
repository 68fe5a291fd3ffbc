"""The journal of attempts: numbers, interruptions, what is counted and what is not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from federation.base.sqlite import Connection
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit

HOUR_S = 3600.0


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with closing(open_database(tmp_path / "tenant.db")) as opened:
        yield opened


def reasons(connection: Connection) -> list[tuple[float, float, str]]:
    return [(f.failure.at_h, f.failure.age_h, f.failure.reason) for f in Journal(connection).failures(0, 1e9)]


def test_restarts_of_one_lease_are_numbered_and_explained(connection: Connection) -> None:
    attempts = Attempts(connection)
    assert attempts.begin("a", 10 * HOUR_S) == 1
    attempts.end("a", 1, AttemptState.FAILED, 12 * HOUR_S, signal=9, steps=7, findings=[{"kind": "hang"}])
    cause = AttemptCause("ecc_error", 3, "node-1", "0000:3b:00", "dmesg, line 4", "ecc_error: …")
    attempts.explain("a", 1, cause)
    attempts.count("a", 1)
    assert attempts.begin("a", 13 * HOUR_S) == 2
    assert attempts.begin("b", 13 * HOUR_S) == 1
    first, second = attempts.list("a")
    assert (first.state, first.signal, first.exit_code, first.cause) == (AttemptState.FAILED, 9, None, cause)
    assert (first.steps, first.findings) == (7, ({"kind": "hang"},))
    assert (second.state, second.ended_at_s, second.cause.reason) == (AttemptState.RUNNING, None, "unknown")
    assert [(row.unit, row.attempt) for row in attempts.list()] == [("a", 1), ("a", 2), ("b", 1)]
    assert reasons(connection) == [(12.0, 2.0, "ecc_error")]


@pytest.mark.parametrize(
    ("domain", "counted"), [("", "connection_error"), ("infrastructure", "connection_error"), ("script", "unknown")]
)
def test_a_failure_of_ones_own_is_not_counted_against_the_infrastructure(
    connection: Connection, domain: str, counted: str
) -> None:
    attempts = Attempts(connection)
    attempts.begin("a", 10 * HOUR_S)
    attempts.end("a", 1, AttemptState.FAILED, 12 * HOUR_S, exit_code=1)
    attempts.explain("a", 1, AttemptCause("connection_error", domain=domain, advice="Look at your server."))
    attempts.count("a", 1)
    assert reasons(connection) == [(12.0, 2.0, counted)]
    assert (attempts.list("a")[0].cause.domain, attempts.list("a")[0].cause.advice) == (domain, "Look at your server.")


def test_an_attempt_of_an_older_home_has_no_words_of_its_evidence(connection: Connection) -> None:
    attempts = Attempts(connection)
    attempts.begin("a", 10 * HOUR_S)
    attempts.end("a", 1, AttemptState.FAILED, 12 * HOUR_S, exit_code=1)
    attempts.explain("a", 1, AttemptCause("connection_error", domain="script"))
    connection.execute("DELETE FROM own_words")
    attempts.count("a", 1)
    assert attempts.list("a")[0].cause == AttemptCause("connection_error")
    assert reasons(connection) == [(12.0, 2.0, "connection_error")]


def test_the_age_counts_from_the_leases_start_not_the_attempts(connection: Connection) -> None:
    Journal(connection).add([Unit("a", 5.0, {"context": "token"})], [])
    attempts = Attempts(connection)
    attempts.begin("a", 10 * HOUR_S)
    attempts.end("a", 1, AttemptState.FAILED, 12 * HOUR_S, exit_code=1)
    attempts.count("a", 1)
    assert reasons(connection) == [(12.0, 7.0, "unknown")]
    assert Journal(connection).labels("a") == {"context": "token"}


def test_an_attempt_that_nobody_ended_is_interrupted_at_the_next_start(connection: Connection) -> None:
    attempts = Attempts(connection)
    attempts.begin("a", 0.0)
    attempts.begin("other", 0.0)
    attempts.begin("a", 60.0)
    first, second = attempts.list("a")
    assert (first.state, first.cause.reason, first.ended_at_s) == (AttemptState.INTERRUPTED, "unknown", None)
    assert first.cause.sentence.startswith("interrupted")
    assert second.state is AttemptState.RUNNING
    assert attempts.list("other")[0].state is AttemptState.RUNNING
    assert reasons(connection) == []


def test_an_attempt_whose_observer_lives_is_not_interrupted(connection: Connection) -> None:
    attempts = Attempts(connection)
    attempts.begin("a", 0.0)
    attempts.begin("a", 60.0, lives=lambda number: number == 1)
    assert [row.state for row in attempts.list("a")] == [AttemptState.RUNNING, AttemptState.RUNNING]


def test_a_number_is_taken_once(connection: Connection) -> None:
    attempts = Attempts(connection)
    assert [attempts.begin("a", 0.0, number=number) for number in (4, 4, 1, 9)] == [4, 5, 6, 9]


def test_wrappers_of_one_allocation_count_one_failure(connection: Connection) -> None:
    attempts = Attempts(connection)
    for _ in range(2):
        attempts.begin("a", 0.0, lives=lambda _: True)
    for number in (1, 2):
        attempts.end("a", number, AttemptState.FAILED, 10.0 + number, exit_code=1)
        attempts.count("a", number)
    assert len(reasons(connection)) == 1
    attempts.begin("a", 20.0)
    attempts.end("a", 3, AttemptState.FAILED, 30.0, exit_code=1)
    attempts.count("a", 3)
    assert len(reasons(connection)) == 2
