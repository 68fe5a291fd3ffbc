"""Real faults in a real job of two ranks: its end stays its own, the cause is found, the journal stays whole."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tests import needs
from tests.jobs.wrapped import JOBS, Outcome, attempts, failures, run, start
from tests.support.gloo import tried_again_without_gloo
from tests.support.waiting import until

needs.installed("torch")

pytestmark = pytest.mark.xdist_group("torchrun")
STEPS = 24

# Else torchrun's store outlives a try, and with it the address of a rank that is gone (pytorch/pytorch issue 135712).
# The next try's ranks read it where they are early: then one is refused, or both wait for the other one to connect.
A_STORE_FOR_EACH_TRY = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun(fault: str, folder: Path, *options: str, steps: int = STEPS) -> list[object]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    return [*launch, JOBS / "two_ranks.py", fault, folder, steps]


def watched(
    tmp_path: Path, fault: str, *options: object, env: dict[str, str] | None = None, steps: int = STEPS
) -> tuple[Outcome, Attempt]:
    done = run(tmp_path / "home", torchrun(fault, tmp_path, steps=steps), ["--poll-s", 0.1, *options], env=env)
    return done, attempts(tmp_path / "home")[-1]


def kinds(attempt: Attempt) -> set[str]:
    return {str(finding["kind"]) for finding in attempt.findings}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


# ---- the job's own faults ------------------------------------------------------------------------------------------


@pytest.mark.nightly
@tried_again_without_gloo
def test_no_fault(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "none")
    assert done.code == 0, done.stderr
    assert (attempt.state, attempt.exit_code) == (AttemptState.SUCCEEDED, 0)
    assert (attempt.findings, failures(tmp_path / "home")) == ((), [])
    assert attempt.steps == STEPS
    *others, end = (line for line in done.stderr.splitlines() if line.startswith("pharoah-tenant"))
    assert " succeeded after " in end
    assert all("will profile" in line for line in others)  # what it says once on a busy host
    assert not list((tmp_path / "home/runs").glob("*/trace-*"))


@tried_again_without_gloo
def test_an_exception_in_one_rank(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "exception")
    assert done.code == 1
    assert (attempt.exit_code, attempt.cause.reason, attempt.cause.rank) == (1, "key_error", 1)
    assert attempt.cause.place
    assert "key_error" in done.stderr
    assert failures(tmp_path / "home") == ["key_error"]


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_killed_rank(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "kill")
    assert (done.code, attempt.exit_code) == (1, 1)
    assert (attempt.cause.reason, attempt.cause.rank) == ("killed", 1)
    assert failures(tmp_path / "home") == ["unknown"]


@pytest.mark.nightly
@tried_again_without_gloo
def test_memory_runs_out(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "memory")
    assert (done.code, attempt.cause.reason, attempt.cause.rank) == (1, "host_out_of_memory", 1)


@pytest.mark.nightly
@tried_again_without_gloo
def test_the_kernel_kills_for_memory(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "oom_killer", "--log", tmp_path / "dmesg.log")
    assert (done.code, attempt.cause.reason) == (1, "host_out_of_memory")
    assert "dmesg.log" in attempt.cause.place


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_hang_in_a_collective(tmp_path: Path) -> None:
    options = ("--hang-floor-s", 1.0, "--hang-factor", 5.0)
    done, attempt = watched(tmp_path, "hang", *options, env={"GLOO_TIMEOUT_S": "12"})
    assert done.code == 1
    assert set() < kinds(attempt) <= {"hang", "non_communication_hang"}  # the second, where stacks were there at once
    assert "hang: " in done.stderr
    assert attempt.cause.reason in ("unknown", "collective_timeout")


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_rank_that_its_peer_waits_for_is_named_with_its_stack(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "hang", env={"GLOO_TIMEOUT_S": "14"})
    assert done.code == 1
    (finding,) = attempt.findings
    assert (finding["kind"], finding["ranks"]) == ("non_communication_hang", [1])
    assert "two_ranks.py" in str(finding["text"])


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_hang_that_its_owner_ends(tmp_path: Path) -> None:
    options = ["--poll-s", 0.1, "--hang-floor-s", 1.0, "--hang-factor", 5.0]
    process = start(tmp_path / "home", torchrun("hang", tmp_path), options)
    assert process.stderr is not None
    for line in process.stderr:
        if b"hang: " in line:  # the other kind of hang, where stacks were there at once
            process.send_signal(signal.SIGTERM)
    process.communicate()
    (attempt,) = attempts(tmp_path / "home")
    assert attempt.state == AttemptState.STOPPED
    assert set() < kinds(attempt) <= {"hang", "non_communication_hang"}
    assert attempt.exit_code == process.returncode != 0
    assert (attempt.cause.reason, failures(tmp_path / "home")) == ("cancelled_stalled", [])


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "slow")
    assert done.code == 0, done.stderr
    assert (attempt.state, failures(tmp_path / "home")) == (AttemptState.SUCCEEDED, [])
    assert ("slow_rank", [1]) in [(finding["kind"], finding["ranks"]) for finding in attempt.findings]
    assert all(finding["ranks"] == [1] for finding in attempt.findings)


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    done, attempt = watched(tmp_path, "nan", steps=45)
    assert done.code == 0, done.stderr
    assert attempt.state is AttemptState.SUCCEEDED
    assert kinds(attempt) == {"nan_loss"}
    assert "nan_loss: loss of rank" in done.stderr


@pytest.mark.nightly
@tried_again_without_gloo
def test_a_restart_by_torchrun_is_an_attempt(tmp_path: Path) -> None:
    job = torchrun("restart", tmp_path, "--max-restarts=1")
    done = run(tmp_path / "home", job, ["--poll-s", 0.1], env=A_STORE_FOR_EACH_TRY)
    assert done.code == 0, done.stderr
    first, second = attempts(tmp_path / "home")
    assert (first.state, first.cause.reason, first.cause.rank) == (AttemptState.FAILED, "value_error", 1)
    assert (second.attempt, second.state) == (2, AttemptState.SUCCEEDED)
    assert failures(tmp_path / "home") == ["value_error"]


# ---- ours ----------------------------------------------------------------------------------------------------------


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Something mounted at `folder`; the test is skipped where that is not permitted."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("mount and umount make it run")
    if subprocess.run([mount, *options, str(folder)], capture_output=True, check=False).returncode != 0:
        pytest.skip("a user who may mount runs it")
    try:
        yield
    finally:
        subprocess.run([umount, "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB; skipped where mounting is not permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "-t", "tmpfs", "-o", "size=16m", "tmpfs"):
        yield disk


def fill(disk: Path, *, left_bytes: int) -> None:
    """Writes until nothing fits any more, then gives `left_bytes` back."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    ballast_bytes = (disk / "ballast").stat().st_size
    os.truncate(disk / "ballast", ballast_bytes - left_bytes)


@pytest.mark.nightly
@tried_again_without_gloo
def test_the_disk_is_full_from_the_start(tmp_path: Path, small_disk: Path) -> None:
    fill(small_disk, left_bytes=4096)
    env = {"TMPDIR": str(tmp_path)}
    done = run(small_disk / tmp_path.name, torchrun("exception", tmp_path), ["--poll-s", 0.1], env=env)
    assert done.code == 1
    assert "cannot write the journal" in done.stderr
    assert "key_error" in done.stderr


@pytest.mark.nightly
@tried_again_without_gloo
def test_the_disk_fills_while_the_job_runs(tmp_path: Path, small_disk: Path) -> None:
    process = start(small_disk / tmp_path.name, torchrun("none", tmp_path), ["--poll-s", 0.1, "--spool-mib", 1])
    until(lambda: lines(tmp_path / "output-0") > 2)
    fill(small_disk, left_bytes=0)
    _, said = process.communicate()
    assert process.returncode == 0
    assert lines(tmp_path / "output-0") == lines(tmp_path / "output-1") == STEPS
    (small_disk / "ballast").unlink()
    (attempt,) = attempts(small_disk / tmp_path.name)
    assert attempt.state is AttemptState.SUCCEEDED or b"cannot write the journal" in said
    assert run(small_disk / tmp_path.name, ["true"]).code == 0
    assert attempts(small_disk / tmp_path.name)[0].state in (AttemptState.SUCCEEDED, AttemptState.INTERRUPTED)


@pytest.mark.nightly
@tried_again_without_gloo
def test_the_journal_is_read_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(home, ["true"]).code == 0
    before = (home / "tenant.db").read_bytes()
    with mounted(home, "--bind", "-o", "ro", str(home)):
        done = run(home, torchrun("exception", tmp_path), ["--poll-s", 0.1], env={"TMPDIR": str(tmp_path)})
    assert done.code == 1
    assert "cannot write the journal" in done.stderr
    assert "key_error" in done.stderr
    assert (home / "tenant.db").read_bytes() == before
    assert len(attempts(home)) == 1


@tried_again_without_gloo
def test_the_client_is_killed_and_the_job_finishes(tmp_path: Path) -> None:
    process = start(tmp_path / "home", torchrun("none", tmp_path), ["--poll-s", 0.1])
    until(lambda: lines(tmp_path / "output-1") > 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: (tmp_path / "marker-0").exists() and (tmp_path / "marker-1").exists())
    assert lines(tmp_path / "output-0") == lines(tmp_path / "output-1") == STEPS
    until(lambda: attempts(tmp_path / "home")[0].state is AttemptState.INTERRUPTED)
    (attempt,) = attempts(tmp_path / "home")
    assert (attempt.cause.reason, attempt.exit_code, failures(tmp_path / "home")) == ("unknown", None, [])
    assert run(tmp_path / "home", ["true"]).code == 0
    assert [each.state for each in attempts(tmp_path / "home")] == [AttemptState.INTERRUPTED, AttemptState.SUCCEEDED]
