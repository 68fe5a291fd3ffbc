"""The gate before a job: what it says and when it refuses; and that whatever is wrong with it lets the job start."""

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crypto.ids import LeaseId, Token
from federation.base.pinned_directory import pin
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit, UnknownUnit
from tenant_client.program import service
from tenant_client.program.cli import app
from tenant_client.program.verbs.gate import REFUSED
from tests.support.factories import keys, labels, lease_id

PROLOG = Path(__file__).resolve().parents[3] / "ops/slurm/prolog.sh"
BEFORE, NOW = lease_id(0, 1), lease_id(0, 2)
BAD, GOOD = labels(0, 0), labels(0, 1)


def entry(of: dict[str, str], judgement: PairJudgement) -> MismatchEntry:
    workload, context = (Token(bytes.fromhex(of[name])) for name in ("subarchetype", "context"))
    worse = judgement is PairJudgement.WORSE
    figures = (0.99, 8.0, 4.0, 16.0, 9.0) if worse else (0.01, 1.0, 0.9, 1.1, 9.0)
    return MismatchEntry(workload, context, *figures, judgement, ())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose job `train` ran before, and a bundle that says that it fails on one context and not on the other."""
    pairs = entry(BAD, PairJudgement.WORSE), entry(GOOD, PairJudgement.NOT_WORSE)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        pin(connection, [keys().founding])
        Journal(connection).add([Unit(str(BEFORE), 1.0, GOOD)], [])
        Attempts(connection).name(str(BEFORE), "train")
        BundleLog(connection).keep(0, keys().provider.sign(Bundle(0, 0, 0, (), pairs, (), None)))
    return tmp_path


@pytest.fixture(autouse=True)
def grants(monkeypatch: pytest.MonkeyPatch) -> dict[LeaseId, dict[str, str]]:
    """What the provider has recorded, by lease."""
    recorded: dict[LeaseId, dict[str, str]] = {}

    def granted(_home: Path, lease: LeaseId, _wait_s: float) -> dict[str, str]:
        if lease not in recorded:
            raise UnknownUnit("the provider has not recorded it")
        return {name: recorded[lease][name] for name in ("context", "context_level")}

    monkeypatch.setattr(service, "granted_labels", granted)
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    return recorded


def gated(home: Path, *words: str) -> tuple[int, str]:
    """Exit code and output."""
    done = CliRunner().invoke(app, ["check", "gate", "--home", str(home), "--lease", str(NOW), *words])
    return done.exit_code, done.stdout


@pytest.mark.parametrize(("mode", "code"), [("warn", 0), ("refuse", REFUSED)])
def test_a_mismatch_is_told_and_refused_only_if_asked(
    home: Path, grants: dict[LeaseId, dict[str, str]], mode: str, code: int
) -> None:
    grants[NOW] = BAD
    exit_code, said = gated(home, "--mode", mode)
    assert exit_code == code
    assert said.startswith("pharoah-tenant: mismatch: fails 8.0 times as often")


def test_a_context_that_fits_is_not_refused(home: Path, grants: dict[LeaseId, dict[str, str]]) -> None:
    grants[NOW] = GOOD
    code, said = gated(home, "--mode", "refuse")
    assert (code, said.partition(":")[0]) == (0, "pharoah-tenant")
    assert said.startswith("pharoah-tenant: ok")


def test_it_goes_by_the_workload_of_the_job_of_that_name(
    home: Path,
    grants: dict[LeaseId, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    grants[NOW] = BAD
    monkeypatch.setenv("SLURM_JOB_NAME", "another")
    assert gated(home, "--mode", "refuse") == (0, "")
    assert "not checked: no lease with this job's workload" in capfd.readouterr().err
    assert gated(home, "--mode", "refuse", "--like", str(BEFORE))[0] == REFUSED


def test_own_outcomes_do_not_count(home: Path, grants: dict[LeaseId, dict[str, str]]) -> None:
    """A hundred failures of the tenant's own on the good context change nothing that the provider sees."""
    grants[NOW] = GOOD
    before = gated(home)
    with closing(open_database(home / "tenant.db")) as connection:
        from tenant_client.doctor.records.journal import Failure

        Journal(connection).add([], [Failure(str(BEFORE), 1.5 + n, 0.5 + n, "nvlink_error") for n in range(100)])
    assert gated(home) == before


@pytest.mark.parametrize("broken", ["no grant", "no database", "damaged database", "no home", "bad lease"])
def test_whatever_is_wrong_lets_the_job_start(
    home: Path, grants: dict[LeaseId, dict[str, str]], capfd: pytest.CaptureFixture[str], broken: str
) -> None:
    if broken != "no grant":
        grants[NOW] = BAD
    if broken == "no database":
        (home / "tenant.db").unlink()
    if broken == "damaged database":
        (home / "tenant.db").write_bytes(b"SQLite format 3\0" + bytes(4096))
    words = ["--lease", "none"] if broken == "bad lease" else []
    code, _ = gated(home / "none" if broken == "no home" else home, "--mode", "refuse", *words)
    assert code == 0
    assert "not checked" in capfd.readouterr().err


def test_one_switch_turns_it_off(
    home: Path, grants: dict[LeaseId, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    grants[NOW] = BAD
    monkeypatch.setenv("PHAROAH_GATE", "off")
    assert gated(home) == (0, "")


# ---- the script ------------------------------------------------------------------------------------------------------


def prolog(tmp_path: Path, program: str, **environment: str) -> tuple[int, str]:
    """Exit code and output of the script, with a program in place of `pharoah-tenant`."""
    file = tmp_path / "program"
    file.write_text(f"#!/bin/sh\n{program}\n")
    file.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PHAROAH_TENANT": str(file), **environment}
    done = subprocess.run(["/bin/sh", PROLOG], env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("program", "code"), [("exit 4", 1), ("exit 0", 0), ("exit 1", 0), ("exit 2", 0), ("exit 3", 0), ("kill -9 $$", 0)]
)
def test_the_script_refuses_by_one_code_alone(tmp_path: Path, program: str, code: int) -> None:
    assert prolog(tmp_path, f"echo $1 $2; {program}") == (code, "check gate\n")


def test_the_script_does_not_wait_for_a_program_that_hangs(tmp_path: Path) -> None:
    assert prolog(tmp_path, "sleep 50", PHAROAH_GATE_S="1") == (0, "")


def test_the_script_lets_jobs_start_without_the_program(tmp_path: Path) -> None:
    code, _ = prolog(tmp_path, "", PHAROAH_TENANT=str(tmp_path / "none"))
    assert code == 0


def test_the_script_says_nothing_to_those_who_have_not_set_it_up(tmp_path: Path) -> None:
    """As `TaskProlog` it is run for every job of a cluster."""
    environment = {"PHAROAH_TENANT": "", "PATH": "/usr/bin:/bin"}
    assert prolog(tmp_path, "", **environment, SLURM_STEP_ID="0") == (0, "")


@pytest.mark.parametrize("environment", [{"PHAROAH_GATE": "off"}, {"SLURM_PROCID": "1"}])
def test_the_script_says_nothing_where_it_is_off_or_another_task_speaks(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assert prolog(tmp_path, "echo said; exit 4", **environment) == (0, "")


def test_what_a_task_prolog_says_is_printed_by_slurm(tmp_path: Path) -> None:
    assert prolog(tmp_path, "echo one; echo two", SLURM_STEP_ID="0") == (0, "print one\nprint two\n")
