"""Joining late: a foreign process, and what torchrun left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenant_client.doctor.records.attempts import AttemptState
from tenant_client.doctor.run.attach import exit_status
from tenant_client.program.cli import app
from tests.jobs.wrapped import LEASE, PROGRAM, attempts, environment, failures, start
from tests.support import schemas
from tests.support.waiting import PATIENCE_S, until


def attached(home: Path, target: object) -> "subprocess.Popen[str]":
    words = [*PROGRAM, "attach", str(target), "--home", str(home), "--lease", LEASE, "--poll-s", "0.1"]
    return subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)


def error_file(folder: Path, message: str, at_s: int) -> None:
    folder.mkdir(parents=True)
    record = {"message": {"message": message, "extraInfo": {"py_callstack": message, "timestamp": str(at_s)}}}
    (folder / "error.json").write_text(json.dumps(record))


def test_a_process_that_its_parent_has_not_reaped_says_how_it_ended(tmp_path: Path) -> None:
    job = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(7)"], stdin=subprocess.PIPE)
    client = attached(tmp_path / "home", job.pid)
    until(lambda: attempts(tmp_path / "home"), "it is watched")
    assert job.stdin is not None
    job.stdin.write(b"\n")
    job.stdin.close()
    assert client.wait(timeout=PATIENCE_S) == 0
    client.communicate()
    assert job.wait() == 7
    (attempt,) = attempts(tmp_path / "home")
    assert (attempt.state, attempt.exit_code, attempt.cause.reason) == (AttemptState.FAILED, 7, "exit_code")


def test_a_process_that_was_reaped_ended_in_an_unknown_way(tmp_path: Path) -> None:
    script = "sleep 600 & echo $!; read go; kill $!; wait; read go_on"
    shell = subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert shell.stdout is not None
    assert shell.stdin is not None
    job = int(shell.stdout.readline())
    client = attached(tmp_path / "home", job)
    until(lambda: attempts(tmp_path / "home"), "it is watched")
    os.kill(client.pid, 19)
    shell.stdin.write(b"go\n")
    shell.stdin.flush()
    until(lambda: not Path(f"/proc/{job}").exists(), "the shell has reaped its job")
    os.kill(client.pid, 18)
    assert client.wait(timeout=PATIENCE_S) == 0
    client.communicate()
    shell.communicate()
    (attempt,) = attempts(tmp_path / "home")
    assert (attempt.state, attempt.exit_code, attempt.cause.reason) == (AttemptState.INTERRUPTED, None, "unknown")
    assert "did not start cannot be read" in attempt.cause.sentence
    assert failures(tmp_path / "home") == []


def test_a_running_process_has_no_exit_status_and_a_zombie_has() -> None:
    assert exit_status(os.getpid()) is None
    child = subprocess.Popen([sys.executable, "-c", "import os; os._exit(5)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    status = exit_status(child.pid)
    assert status is not None
    assert os.WEXITSTATUS(status) == child.wait() == 5
    assert exit_status(child.pid) is None


def test_a_job_that_is_watched_already_is_left_alone(tmp_path: Path) -> None:
    process = start(tmp_path / "home", ["sh", "-c", "echo $$; exec sleep 600"])
    assert process.stdout is not None
    job = int(process.stdout.readline())
    until(lambda: attempts(tmp_path / "home"), "it is watched")
    client = attached(tmp_path / "home", job)
    _, said = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 2
    assert "is watched already" in said
    os.kill(job, 15)
    process.communicate()
    assert len(attempts(tmp_path / "home")) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_directory_tells_its_attempts(tmp_path: Path, *, whole: bool) -> None:
    run = tmp_path / "logs" / "none_x1"
    error_file(run / "attempt_0" / "1", "ValueError: first", 100)
    error_file(run / "attempt_1" / "0", "KeyError: 'second'", 300)
    (run / "attempt_2" / "0").mkdir(parents=True)
    if whole:
        error_file(run / "attempt_2" / "3", "IndexError: third", 500)
    client = attached(tmp_path / "home", tmp_path / "logs")
    assert client.communicate() is not None
    assert client.returncode == 0
    rows = attempts(tmp_path / "home")
    known = [AttemptState.FAILED, AttemptState.FAILED, AttemptState.FAILED if whole else AttemptState.INTERRUPTED]
    assert [row.state for row in rows] == known
    assert [row.attempt for row in rows] == [1, 2, 3]
    assert [row.cause.reason for row in rows] == ["value_error", "key_error", "index_error" if whole else "unknown"]
    assert [row.cause.rank for row in rows[:2]] == [1, 0]
    assert all(row.exit_code is None for row in rows)
    assert not list(run.glob("cause-*"))


@pytest.mark.parametrize("target", ["999999999", "no-such-folder"])
def test_nothing_to_attach_to(tmp_path: Path, target: str) -> None:
    result = CliRunner().invoke(app, ["attach", target, "--home", str(tmp_path / "home")])
    assert result.exit_code == 2
    assert "hint: pass the id of a running process" in result.stderr


def test_diagnose_names_a_reason_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyError: 'x'\n")
    result = CliRunner().invoke(app, ["diagnose", str(log), "--json"])
    assert (result.exit_code, schemas.held("pharoah-tenant diagnose", result.stdout)["reason"]) == (0, "key_error")
    log.write_text("all is well\n")
    result = CliRunner().invoke(app, ["diagnose", str(log)])
    assert (result.exit_code, result.stdout.split(":")[0]) == (3, "cause unknown")
    assert CliRunner().invoke(app, ["diagnose", str(tmp_path / "none")]).exit_code == 2
