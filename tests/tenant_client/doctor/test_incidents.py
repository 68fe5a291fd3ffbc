"""Incidents and precedents: what is kept of a failure, what is found again, and what the owner says helped."""

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from federation.base.sqlite import Connection
from tenant_client.doctor.diagnosis.precedents import like
from tenant_client.doctor.diagnosis.sureness import Basis, Sureness
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.ended import Asked
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.supervise import Ending
from tenant_client.program.cli import app
from tests.support import calling, schemas

DISK = ("OSError: [Errno <*>] No space left on device", "saving checkpoint to shard <*>")
LINK = ("fabricd: lease <*> of plane b was revoked, aborting",)
STEPS = "".join(f"step {step}/20 loss {1 / step:.3f}\n" for step in range(1, 21))
REVOKED = "fabricd: lease 12 of plane b was revoked, aborting\n"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with closing(open_database(tmp_path / "tenant.db")) as opened:
        yield opened


def failed(connection: Connection, unit: str, at_s: float, reason: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Journals a failed attempt; the leases of its precedents."""
    attempts = Attempts(connection)
    number = attempts.begin(unit, at_s)
    attempts.end(unit, number, AttemptState.FAILED, at_s + 1, exit_code=1)
    attempts.explain(unit, number, AttemptCause(reason, sentence=f"{reason}: {lines[0]}"))
    sure = Sureness(Basis.LOG_LINE, 0.9, 0.95, 20, 19)
    return tuple(near.lease for near in Incidents(connection).keep(unit, number, lines, sure))


call = partial(calling.call, app)


# ---- finding -------------------------------------------------------------------------------------------------------


def test_a_precedent_has_the_same_reason_and_most_of_the_rare_words(connection: Connection) -> None:
    assert failed(connection, "a", 1.0, "disk_full", DISK) == ()
    assert failed(connection, "b", 2.0, "unknown", LINK) == ()
    assert failed(connection, "c", 3.0, "disk_full", ("cannot write optimizer state: No space left",)) == ("a",)
    assert failed(connection, "d", 4.0, "disk_full", ("quota of project seven exceeded",)) == ()
    assert failed(connection, "e", 5.0, "key_error", DISK) == ()
    assert failed(connection, "f", 6.0, "exit_code", LINK) == ("b",)  # neither names a cause


def test_a_long_incident_is_as_like_itself_as_a_short_one(connection: Connection) -> None:
    lines = tuple(f"shard {word} of the plane" for word in "abcdefghijklmnop")
    words = tuple(f"{line} {' '.join(f'{line[6]}{letter}{letter}' for letter in 'qrstuvw')}" for line in lines)
    failed(connection, "a", 1.0, "unknown", words)
    (near,) = Incidents(connection).nearest("unknown", words)
    assert near.similarity == pytest.approx(1.0, abs=0.01)


def test_what_an_older_program_kept_as_like_is_not_shown_where_it_is_far_or_of_another_reason(
    connection: Connection,
) -> None:
    for unit, reason in (("a", "disk_full"), ("b", "ecc_error"), ("c", "disk_full")):
        failed(connection, unit, 1.0, reason, (f"{unit} has words of its own",))
    connection.execute("UPDATE incidents SET precedents = '[[1, 0.5], [2, 0.9]]' WHERE unit = 'c'")
    assert Incidents(connection).kept()[2].precedents == ()
    connection.execute("UPDATE incidents SET precedents = '[[1, 0.9], [2, 0.9]]' WHERE unit = 'c'")
    assert [near.lease for near in Incidents(connection).kept()[2].precedents] == ["a"]


def test_one_line_is_told_the_nearest_or_the_nearest_that_helped(connection: Connection) -> None:
    for number, unit in enumerate("abc"):
        failed(connection, unit, float(number), "disk_full", DISK)
    near = Incidents(connection).nearest("disk_full", DISK)
    (line,) = like(near)
    assert (len(near), line.startswith("like c attempt 1: disk_full: ")) == (3, True)
    Incidents(connection).helped("a", "emptied scratch")
    (line,) = like(Incidents(connection).nearest("disk_full", DISK))
    assert (line.startswith("like a attempt 1: "), line.endswith("helped: emptied scratch")) == (True, True)
    assert like(()) == ()


def test_what_has_nothing_in_common_is_no_precedent(connection: Connection) -> None:
    failed(connection, "a", 1.0, "disk_full", DISK)
    assert Incidents(connection).nearest("unknown", ("wholly other words",)) == ()
    assert Incidents(connection).nearest("unknown", ()) == ()


def test_what_helped_and_how_the_next_attempt_ended_are_told_later(connection: Connection) -> None:
    failed(connection, "a", 1.0, "disk_full", DISK)
    failed(connection, "b", 2.0, "disk_full", DISK)
    assert Incidents(connection).helped("a", "emptied scratch") == 1
    attempts = Attempts(connection)
    attempts.end("a", attempts.begin("a", 3.0), AttemptState.SUCCEEDED, 4.0, exit_code=0)
    (precedent,) = Incidents(connection).kept()[1].precedents
    assert (precedent.lease, precedent.helped, precedent.then) == ("a", "emptied scratch", "succeeded")
    assert "emptied scratch" in precedent.words


def test_a_corrected_reason_is_that_of_the_precedent(connection: Connection) -> None:
    failed(connection, "a", 1.0, "unknown", LINK)
    Attempts(connection).explain("a", 1, AttemptCause("network_error"))
    assert Incidents(connection).nearest("network_error", LINK)[0].lease == "a"
    assert Incidents(connection).nearest("unknown", LINK) == ()


def test_how_sure_it_was_is_kept(connection: Connection) -> None:
    failed(connection, "a", 1.0, "disk_full", DISK)
    (incident,) = Incidents(connection).kept()
    assert (incident.basis, incident.sure, incident.sure_domain, incident.lines) == ("log_line", 0.9, 0.95, DISK)


# ---- beside a job --------------------------------------------------------------------------------------------------


def ran(home: Path, unit: str, exit_code: int, output: str) -> list[str]:
    """One attempt as the observer records it; warnings."""
    run_dir = home / "runs" / f"{unit}-1"
    run_dir.mkdir(parents=True)
    (run_dir / "output.log").write_text(output)
    ours = FailOpen(quiet=True)
    record = Record(home, unit, run_dir, (), ours)
    record.begin(1e9, 1)
    record.name("train.py")
    record.ended(Ending(exit_code), Asked(1e9 + 60), 1e9 + 60, 20, (), {})
    return ours.warnings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three healthy attempts, a failure with what helped, and one like it."""
    home = tmp_path / "home"
    for number in range(3):
        assert ran(home, f"good-{number}", 0, STEPS + "shutdown: bye\n") == []
    assert ran(home, "first", 3, STEPS + REVOKED + "shutdown: bye\n") == []
    assert call("patterns", "helped", "first", "restarted the fabric daemon", "--home", home).exit_code == 0
    assert ran(home, "second", 3, STEPS + REVOKED.replace("12", "99") + "shutdown: bye\n") == []
    return home


def test_runs_learn_rules_and_a_failure_is_told_without_what_healthy_ones_print(home: Path) -> None:
    told = json.loads(call("patterns", "rules", "--home", home, "--json").stdout)
    assert told == {"workloads": [{"workload": "train.py", "enabled": 2, "disabled": 0}]}
    with closing(open_database(home / "tenant.db")) as connection:
        lines = Incidents(connection).kept()[0].lines
    assert any("revoked" in line for line in lines)
    assert not any(line.startswith(("step", "shutdown")) for line in lines)


def test_the_journal_shows_the_precedent_and_what_helped(home: Path) -> None:
    view = schemas.held(
        "pharoah-tenant show --only journal", call("show", "--only", "journal", "--home", home, "--json").stdout
    )
    (precedent,) = view["incidents"][1]["precedents"]
    assert (precedent["lease"], precedent["helped"]) == ("first", "restarted the fabric daemon")
    assert "helped: restarted the fabric daemon" in call("show", "--only", "journal", "--home", home).stdout


def test_diagnose_shows_precedents_of_the_home_and_keeps_none(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "new.log"
    log.write_text(STEPS + REVOKED)
    told = schemas.held("pharoah-tenant diagnose", call("diagnose", log, "--home", home, "--json").stdout)
    assert [near["lease"] for near in told["precedents"]] == ["second", "first"]
    assert "restarted the fabric daemon" in call("diagnose", log, "--home", home).stdout
    own = next((home / "runs").glob("second-*")) / "output.log"
    told = json.loads(call("diagnose", own, "--home", home, "--json").stdout)
    assert [near["lease"] for near in told["precedents"]] == ["first"]  # never itself
    assert call("diagnose", log, "--home", tmp_path / "none").exit_code == 3
    assert not (tmp_path / "none").exists()


def test_rules_show_the_unusual_lines_of_a_log(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "new.log"
    log.write_text(STEPS + REVOKED)
    told = schemas.held(
        "pharoah-tenant patterns rules LOG", call("patterns", "rules", log, "--home", home, "--json").stdout
    )
    assert (told["workload"], told["lines"], told["left"]) == ("train.py", 21, [REVOKED.strip()])
    assert call("patterns", "rules", log, "--home", home).stdout == REVOKED


def test_without_rules_or_a_failure_there_is_a_hint(tmp_path: Path) -> None:
    assert call("patterns", "rules", "--home", tmp_path).exit_code == 3
    ran(tmp_path / "home", "good", 0, STEPS)
    told = call("patterns", "helped", "good", "nothing", "--home", tmp_path / "home")
    assert told.exit_code == 2
    assert "no failure" in told.stderr


def test_broken_rules_do_not_stop_a_diagnosis_beside_a_job(home: Path) -> None:
    (home / "rules.toml").write_text("[[rule]]\n")
    (warning,) = ran(home, "third", 3, STEPS + REVOKED)
    assert "filter rules" in warning
    with closing(open_database(home / "tenant.db")) as connection:
        assert Incidents(connection).kept()[-1].lease == "third"
