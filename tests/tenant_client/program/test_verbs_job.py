"""The verbs after a job: why it failed, what its owner teaches, what the journal shows."""

import json
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.cli import app
from tests.support import calling, schemas
from tests.support.factories import a_descriptor

RUNS = Path(__file__).resolve().parents[4] / "shared" / "data" / "flight_recorder"
ODD_LINE = "fabricd: lease 12 of plane b was revoked, aborting"


call = partial(calling.call, app)


@pytest.fixture
def odd_log(tmp_path: Path) -> Path:
    log = tmp_path / "odd.log"
    log.write_text("".join(f"step {step} loss {1 / step:.4f}\n" for step in range(1, 50)) + ODD_LINE + "\n")
    return log


def test_an_unknown_failure_comes_with_hints_and_no_reason(odd_log: Path, tmp_path: Path) -> None:
    told = call("diagnose", odd_log, "--home", tmp_path, "--json")
    found = schemas.held("pharoah-tenant diagnose", told.stdout)
    assert (told.exit_code, found["reason"], found["domain"]) == (3, "unknown", None)
    assert any("revoked" in hint["example"] for hint in found["hints"])
    assert "revoked" in call("diagnose", odd_log, "--home", tmp_path).stdout


def test_a_taught_line_names_the_reason_whatever_its_numbers(odd_log: Path, tmp_path: Path) -> None:
    assert (
        call("patterns", "teach", "network_error", ODD_LINE.replace("12", "7"), "--home", tmp_path / "home").exit_code
        == 0
    )
    told = call("diagnose", odd_log, "--home", tmp_path / "home", "--json")
    assert (told.exit_code, json.loads(told.stdout)["reason"]) == (0, "network_error")
    assert call("diagnose", odd_log, "--home", tmp_path / "other").exit_code == 3


def test_a_lesson_never_overrules_a_cue(odd_log: Path, tmp_path: Path) -> None:
    call("patterns", "teach", "network_error", ODD_LINE, "--home", tmp_path)
    odd_log.write_text(odd_log.read_text() + "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, Double Bit ECC Error\n")
    assert json.loads(call("diagnose", odd_log, "--home", tmp_path, "--json").stdout)["reason"] == "ecc_error"


def test_what_is_taught_shows_what_it_matches_is_listed_and_forgotten(odd_log: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    told = call("patterns", "teach", "network_error", "revoked", odd_log, "--home", home)
    assert (told.exit_code, "revoked" in told.stdout) == (0, True)
    assert "it matches 1 line in 1 of 1 log" in told.stderr
    kept = home / "runs" / "lease-1-1"
    kept.mkdir(parents=True)
    (kept / "stderr.log").write_text("valve 3 open\nvalve 4 open\n")
    told = call("patterns", "teach", "os_error", "valve [0-9] open", "--regex", "--home", home)
    assert "stderr.log: valve 3 open" in told.stdout
    assert "it matches 2 lines in 1 of 1 log" in told.stderr
    listed = call("patterns", "teach", "--list", "--home", home).stdout.split()
    assert listed == ["network_error", "revoked", "os_error", "--regex", "valve", "[0-9]", "open"]
    assert call("patterns", "teach", "--forget", "revoked", "--home", home).exit_code == 0
    assert call("patterns", "teach", "--forget", "revoked", "--home", home).exit_code == 2
    assert "revoked" not in call("patterns", "teach", "--list", "--home", home).stdout
    assert call("patterns", "teach", "os_error", "--home", home).exit_code == 2


def test_only_reasons_of_the_taxonomy_can_be_taught(tmp_path: Path) -> None:
    told = call("patterns", "teach", "bad_weather", ODD_LINE, "--home", tmp_path)
    assert told.exit_code == 2
    assert "bad_weather" in told.stderr
    assert "hint" in told.stderr
    assert not (tmp_path / "lessons.json").exists()


@pytest.mark.parametrize(("run", "injected"), [("gpu_error_1st", {12, 14}), ("lock_gil_1st", {9, 14})])
def test_dumps_among_other_files_speak_for_their_ranks(run: str, injected: set[int], tmp_path: Path) -> None:
    if not (RUNS / run).is_dir():
        pytest.skip(f"{RUNS / run} is absent")
    folder = tmp_path / "left"
    shutil.copytree(RUNS / run, folder)
    (folder / "fault_injection.log").unlink()
    (folder / "reference_output.txt").unlink()
    (folder / "weights.pkl").write_bytes(b"\x80\x04K\x01.")  # some other pickle is passed over
    gathered = gather([folder])
    assert gathered.faults == []
    assert {seen.rank for seen in gathered.evidence if seen.rank is not None} == injected
    assert diagnose(gathered.evidence).rank in injected


def test_a_broken_dump_is_a_fault_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(b"\x80\x02}(X\x07\x00\x00\x00versionX\x09\x00\x00\x00pg_config")
    (tmp_path / "job.log").write_text("NVRM: Xid (PCI:0000:3b:00): 48, pid=1, Double Bit ECC Error\n")
    gathered = gather([tmp_path])
    assert [fault.file for fault in gathered.faults] == [str(tmp_path / "_dump_0")]
    assert diagnose(gathered.evidence).reason == "ecc_error"


# ---- the journal ---------------------------------------------------------------------------------------------------


def test_the_journal_of_an_untouched_home_is_unknown(tmp_path: Path) -> None:
    told = call("show", "--only", "journal", "--home", tmp_path)
    assert told.exit_code == 3
    assert "the journal is empty" in told.stderr
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind


@pytest.mark.parametrize(
    ("state", "code"), [(AttemptState.SUCCEEDED, 0), (AttemptState.STOPPED, 0), (AttemptState.FAILED, 1)]
)
def test_the_journal_shows_what_happened_and_status_how_the_last_attempt_ended(
    tmp_path: Path, state: AttemptState, code: int
) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        attempts.begin("lease-1", 1e9)
        attempts.end("lease-1", 1, state, 1e9 + 60, exit_code=0 if code == 0 else 1, steps=7)
        attempts.explain(
            "lease-1", 1, AttemptCause("ecc_error", 3, "node-1", "0000:3b:00", "dmesg, line 4", "a sentence")
        )
        Journal(connection).describe("lease-1", 1e9, a_descriptor())
        if code:
            attempts.count("lease-1", 1)
    told = call("show", "--only", "journal", "--home", tmp_path)
    assert told.exit_code == 0
    assert call("status", "--home", tmp_path).exit_code == code
    assert "7 steps" in told.stdout
    assert ("a sentence" in told.stdout) is (state is not AttemptState.SUCCEEDED)
    assert "bf16, tp8" in told.stdout
    shown = json.loads(call("show", "--only", "journal", "--home", tmp_path, "--json").stdout)
    assert shown["attempts"][0]["cause"]["reason"] == "ecc_error"
    assert [row["lease"] for row in shown["workloads"]] == ["lease-1"]
    assert len(shown["failures"]) == code
