"""The end of a lease, told by the provider: what it makes of an attempt, and what it leaves as it is."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from crypto.ids import LeaseId
from federation.base.sqlite import Connection
from federation.protocol.service_messages import LeaseChange, LeaseEnd
from tenant_client.doctor.advice.hints import HintLog, end_of, standing
from tenant_client.doctor.records.attempts import INTERRUPTED, Attempt, AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.fixes import fix
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.run.lease_ends import CLOCKS_S, take
from tenant_client.doctor.run.lease_hints import Hinted
from tenant_client.doctor.run.run_directory import hold
from tenant_client.program.anchors.chain import facts
from tenant_client.program.pages.views import house
from tests.jobs.wrapped import attempts as attempts_of, failures as failures_of, start
from tests.support.factories import NO_SIGNATURE
from tests.support.waiting import until
from tests.tenant_client.doctor.test_hinted import ON_LEASE, raised
from tests.tenant_client.program.test_watch_verb import LEASE, OTHER

END_H = 500_000.0
END_S = END_H * 3600
RUNNING, SUCCEEDED, FAILED, STOPPED, INTERRUPTED_ = AttemptState
UNKNOWN = AttemptCause()
NETWORK = AttemptCause("network_error", place="rank0.log:7", sentence="connection closed by a peer")
CANCELLED = AttemptCause("cancelled", sentence="cancelled: SIGTERM, after 12 steps")
REQUEUED, EARLY, MOVED = LeaseChange.REQUEUED, LeaseChange.ENDED_EARLY, LeaseChange.MOVED


def ended(change: LeaseChange = EARLY, number: int = 1, end_h: float = END_H, lease: LeaseId = LEASE) -> LeaseEnd:
    return LeaseEnd(number, END_H, lease, change, end_h, END_H + 2.0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Connection]:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        yield connection


def attempt(
    journal: Connection,
    state: AttemptState = FAILED,
    cause: AttemptCause = UNKNOWN,
    at_s: float | None = END_S + 30.0,
    *,
    exit_code: int | None = 1,
    signal: int | None = None,
) -> int:
    """An attempt on the lease that ended at this time; a failed one is counted."""
    attempts, unit = Attempts(journal), str(LEASE)
    number = attempts.begin(unit, END_S - 3600.0)
    if state is RUNNING:
        return number
    attempts.end(unit, number, state, at_s, exit_code=exit_code, signal=signal, steps=12)
    attempts.explain(unit, number, cause)
    if state is FAILED:
        attempts.count(unit, number)
    return number


def told(home: Path, journal: Connection, end: LeaseEnd) -> Attempt:
    """The newest attempt after the end was told."""
    assert take(home, HintLog(journal), end, END_S + 40.0, NO_SIGNATURE)
    return Attempts(journal).list(str(LEASE))[-1]


def counted(journal: Connection) -> int:
    return len(list(Journal(journal).failures(0.0, 1e9)))


# ---- attempts that nobody observes any more --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"), [(REQUEUED, "preempted"), (EARLY, "cancelled"), (LeaseChange.ENDED, "cancelled")]
)
@pytest.mark.parametrize("cause", [UNKNOWN, NETWORK])
def test_what_outlived_its_lease_was_ended_with_it_and_is_no_failure(
    journal: Connection, tmp_path: Path, change: LeaseChange, reason: str, cause: AttemptCause
) -> None:
    attempt(journal, cause=cause)
    assert counted(journal) == 1
    after = told(tmp_path, journal, ended(change))
    assert (after.state, after.cause.reason, counted(journal)) == (STOPPED, reason, 0)
    assert "its lease ended" in after.cause.sentence
    assert [finding["kind"] for finding in after.findings] == ["lease_end"]


@pytest.mark.parametrize("later_s", [-1800.0, -1.0, 0.0, CLOCKS_S - 1.0, 1801.0])
@pytest.mark.parametrize("change", [REQUEUED, EARLY])
def test_what_failed_by_itself_ended_its_lease_and_stays_a_failure(
    journal: Connection, tmp_path: Path, later_s: float, change: LeaseChange
) -> None:
    """As where the clocks differ, or where the job went on for long."""
    attempt(journal, at_s=END_S + later_s)
    after = told(tmp_path, journal, ended(change))
    assert (after.state, after.cause, after.findings, counted(journal)) == (FAILED, UNKNOWN, (), 1)


def test_a_node_that_failed_is_a_failure_though_the_lease_ended_before(journal: Connection, tmp_path: Path) -> None:
    attempt(journal, cause=AttemptCause("node_failure", sentence="the scheduler says that a node failed"))
    after = told(tmp_path, journal, ended(REQUEUED))
    assert (after.state, after.cause.reason, counted(journal)) == (FAILED, "node_failure", 1)
    assert "(requeued)" in after.cause.sentence


@pytest.mark.parametrize(
    ("change", "cause", "status", "state"),
    [
        (REQUEUED, UNKNOWN, 137, STOPPED),
        (REQUEUED, UNKNOWN, None, STOPPED),
        (REQUEUED, UNKNOWN, 139, FAILED),
        (REQUEUED, NETWORK, 137, FAILED),
        (EARLY, UNKNOWN, 137, FAILED),  # its own memory limit would look the same
    ],
)
def test_a_kill_without_a_cause_is_a_preemption_where_the_job_was_requeued(
    journal: Connection,
    tmp_path: Path,
    change: LeaseChange,
    cause: AttemptCause,
    status: int | None,
    state: AttemptState,
) -> None:
    attempt(journal, cause=cause, at_s=END_S - 1.0, exit_code=status, signal=9 if status is None else None)
    after = told(tmp_path, journal, ended(change))
    assert (after.state, counted(journal)) == (state, int(state is FAILED))


@pytest.mark.parametrize("reason", ["cancelled", "cancelled_healthy", "cancelled_superseded"])
def test_what_was_asked_to_end_was_preempted_if_its_job_was_requeued(
    journal: Connection, tmp_path: Path, reason: str
) -> None:
    attempt(journal, STOPPED, AttemptCause(reason, sentence=f"{reason}: SIGTERM, after 12 steps"), at_s=END_S - 20.0)
    assert told(tmp_path, journal, ended(REQUEUED)).cause.reason == "preempted"


@pytest.mark.parametrize(
    ("change", "reason"), [(REQUEUED, "time_limit"), (REQUEUED, "cancelled_stalled"), (EARLY, "cancelled")]
)
def test_what_is_known_of_a_stopped_attempt_stays(
    journal: Connection, tmp_path: Path, change: LeaseChange, reason: str
) -> None:
    attempt(journal, STOPPED, AttemptCause(reason, sentence=f"{reason}: SIGTERM"), at_s=END_S - 20.0)
    after = told(tmp_path, journal, ended(change))
    assert after.cause.reason == reason
    assert "its lease ended early at 2027-01-15 08:00 UTC" in after.cause.sentence


def test_what_was_killed_with_run_is_interrupted_when_its_lease_ended(journal: Connection, tmp_path: Path) -> None:
    attempt(journal, RUNNING)
    after = told(tmp_path, journal, ended(REQUEUED))
    assert (after.state, after.ended_at_s, after.cause.reason) == (INTERRUPTED_, END_S, "unknown")
    assert after.cause.sentence.startswith(f"{INTERRUPTED}; its lease ended early")
    attempt(journal, RUNNING)
    Attempts(journal).explain(str(LEASE), 2, CANCELLED)  # asked to end, and then killed
    assert told(tmp_path, journal, ended(REQUEUED, 2)).cause.reason == "preempted"


def test_an_attempt_that_is_observed_is_left_to_its_observer(journal: Connection, tmp_path: Path) -> None:
    attempt(journal, RUNNING)
    run_dir = tmp_path / f"runs/{LEASE}-1"
    run_dir.mkdir(parents=True)
    descriptor = hold(run_dir)
    assert told(tmp_path, journal, ended()).state is RUNNING
    os.close(descriptor)
    assert told(tmp_path, journal, ended(number=2)).state is INTERRUPTED_


def test_a_success_and_another_lease_are_left_alone(journal: Connection, tmp_path: Path) -> None:
    attempt(journal, SUCCEEDED, at_s=END_S, exit_code=0)
    assert told(tmp_path, journal, ended()).findings == ()
    attempt(journal)
    assert told(tmp_path, journal, ended(number=2, lease=OTHER)).state is FAILED
    assert told(tmp_path, journal, ended(MOVED, 3)).state is FAILED
    assert counted(journal) == 1


def test_what_was_counted_or_fixed_stays(journal: Connection, tmp_path: Path) -> None:
    attempt(journal)
    fix(journal, str(LEASE), 1, "network_error", END_S)
    assert told(tmp_path, journal, ended()).cause.reason == "network_error"
    attempt(journal)
    charge = bytes(16), bytes(32), int(END_H) - 1, int(END_H) + 1, 1.0, 0.1
    journal.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?)", charge)
    before = counted(journal)
    after = told(tmp_path, journal, ended(number=2))
    assert (after.state, counted(journal)) == (FAILED, before)
    assert [finding["kind"] for finding in after.findings] == ["lease_end"]


# ---- hints, page, packet ---------------------------------------------------------------------------------------------


def test_hints_of_a_lease_stop_with_it(journal: Connection, tmp_path: Path) -> None:
    log, hinted = HintLog(journal), Hinted(tmp_path, str(LEASE))
    take(tmp_path, log, raised(1, END_H), END_S, NO_SIGNATURE)
    hinted.read(END_S)
    assert hinted.standing(END_S)
    take(tmp_path, log, ended(MOVED, 2), END_S, NO_SIGNATURE)
    assert len(list(standing(log.hints(), END_H, log.over()))) == 1
    take(tmp_path, log, ended(number=3), END_S, NO_SIGNATURE)
    assert log.cursor() == 3
    assert not list(standing(log.hints(), END_H, log.over()))
    hinted.read(END_S, at_once=True)
    assert hinted.standing(END_S) == []


def test_the_page_and_the_facts_of_a_claim_have_the_end(journal: Connection, tmp_path: Path) -> None:
    attempt(journal)
    told(tmp_path, journal, ended(REQUEUED))
    (lease,) = house(tmp_path, END_H).leases
    assert lease.end == end_of(ended(REQUEUED))
    assert lease.end == "ended early at 2027-01-15 08:00 UTC, planned for 2027-01-15 10:00 UTC (requeued)"
    assert b'"kind":"end"' in b"".join(fact.body for fact in facts(journal))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (ended(MOVED), "now ends at 2027-01-15 08:00 UTC instead of 2027-01-15 10:00 UTC"),
        (LeaseEnd(1, END_H, LEASE, LeaseChange.ENDED, END_H, None), "ended at 2027-01-15 08:00 UTC"),
        (LeaseEnd(1, END_H, LEASE, REQUEUED, END_H, None), "ended at 2027-01-15 08:00 UTC (requeued)"),
    ],
)
def test_an_end_in_words(end: LeaseEnd, words: str) -> None:
    assert end_of(end) == words


# ---- beside a real job -----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_run_says_that_its_lease_ended_and_counts_no_failure(tmp_path: Path) -> None:
    """The job goes on for a while after its lease, and then breaks. It is told within `lease_hints.EVERY_S`."""
    home, said = tmp_path / "home", []
    home.mkdir()
    open_database(home / "tenant.db").close()
    job = ["sh", "-c", "until [ -e go ]; do sleep 0.1; done; exit 3"]
    with start(home, job, ON_LEASE, cwd=tmp_path) as process, ExitStack() as stack:
        stack.callback((tmp_path / "go").touch)  # whatever fails here, the job ends
        until(lambda: attempts_of(home), "it runs")
        with closing(open_database(home / "tenant.db")) as connection:
            end = ended(REQUEUED, end_h=time.time() / 3600)
            take(home, HintLog(connection), end, time.time(), NO_SIGNATURE)
        assert attempts_of(home)[0].state is RUNNING
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.decode())
            if f"pharoah-tenant: lease {LEASE} ended early at " in said[-1]:
                time.sleep(max(0.0, CLOCKS_S + 0.5 - (time.time() - 3600 * end.end_h)))  # what is tested takes as long
                (tmp_path / "go").touch()
        assert process.wait() == 3
    assert said[-1].startswith(f"pharoah-tenant: attempt 1 of {LEASE} stopped: preempted: its lease ended early at ")
    (one,) = attempts_of(home)
    assert (one.state, one.exit_code, failures_of(home)) == (STOPPED, 3, [])


def test_a_home_of_before_has_no_ends(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "tenant.db")) as connection:
        connection.execute("CREATE TABLE hints (number INTEGER, lease TEXT, received_at_s REAL, hint BLOB)")
    hinted = Hinted(tmp_path, str(LEASE))
    assert (hinted.read(END_S), hinted.end) == ([], None)
