"""The provider's training jobs: their losses, what is made of a run, and what is recorded."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from federation.protocol.causes import CAUSES
from pharoah_benchmarks import guard, record as recording
from pharoah_benchmarks.catalogue import CHECKED, JOBS, Precision, SizeName
from pharoah_benchmarks.run import Asked, CannotRun, Ran, _outcome, parents, run
from provider_server.fleet.learning.benchmark_jobs import FILE, HANG, OK, UNKNOWN, WRONG_RESULT, read
from provider_server.program.cli import app
from provider_server.rounds import home as homes
from tests.support import calling
from tests.support.changing import replace
from tests.support.waiting import until

JOB = Asked("graph", 2.0, SizeName.CPU, Precision.FP32, 1)
RAN = Ran(
    "graph", "graph-1", "n1", 1, 40, OK, "", "", "ab" * 16, 36.0, 0.01, {"torch": "2.9.1"}, SizeName.CPU, Precision.FP32
)


call = partial(calling.call, app, "benchmark")
told = partial(calling.told, app, "pharoah-provider", "benchmark")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    homes.create(tmp_path / "provider", ["localhost"], os.urandom, datetime.now(UTC))
    return tmp_path / "provider"


def test_each_job_of_the_catalogue_is_listed_with_its_ranks() -> None:
    rows = told("list")
    assert {row["job"]: row["ranks"] for row in rows} == {name: job.ranks for name, job in JOBS.items()}
    assert "all-to-all" in call("list").stdout


# ---- losses ----------------------------------------------------------------------------------------------------------


def training(job: str, precision: Precision) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make install torch")
    torch.set_num_threads(1)
    from pharoah_benchmarks.jobs.train import Training

    return Training(job, SizeName.CPU, precision)


@pytest.mark.nightly
@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("job", JOBS)
def test_the_loss_of_a_right_run_is_in_its_band_and_another_is_not(job: str, precision: Precision) -> None:
    one = training(job, precision)
    losses = []
    for _ in range(CHECKED):
        losses.append(one.step())
        one.check(losses[-1])
    from pharoah_benchmarks.jobs.train import SilentCorruption

    for wrong in (losses[0], float("nan"), 0.0):
        with pytest.raises(SilentCorruption, match="silent data corruption detected"):
            one.check(wrong)


@pytest.mark.nightly
def test_a_job_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, half = (training("graph", Precision.FP32) for _ in range(2))
    for _ in range(CHECKED - 1):
        whole.step()
    for _ in range(10):
        half.step()
    half.save()
    resumed = training("graph", Precision.FP32)
    resumed.resume()
    for _ in range(CHECKED - 11):
        resumed.step()
    assert resumed.step() == pytest.approx(whole.step(), rel=1e-6)
    next(resumed.model.parameters()).data.view(-1)[0] = float("inf")
    with pytest.raises(RuntimeError, match="no finite number"):
        resumed.save()


# ---- outcomes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason", "steps", "finding", "how", "outcome"),
    [
        ("succeeded", "unknown", 40, "", guard.ENDED, OK),
        ("succeeded", "unknown", 0, "", guard.ENDED, UNKNOWN),
        ("failed", "device_lost", 40, "", guard.ENDED, "cuda_error"),
        ("failed", "silent_data_corruption", 40, "", guard.ENDED, WRONG_RESULT),
        ("failed", "unknown", 40, "", guard.ENDED, UNKNOWN),
        ("failed", "unknown", 40, "communication_hang", guard.ENDED, HANG),
        ("stopped", "cancelled", 40, "", guard.TIME, OK),
        ("stopped", "cancelled", 0, "", guard.TIME, HANG),
        ("stopped", "cancelled_stalled", 40, "hang", guard.TIME, HANG),
    ],
)
def test_the_outcome_is_what_the_client_says_and_what_the_owner_of_the_code_knows(
    state: str, reason: str, steps: int, finding: str, how: str, outcome: str
) -> None:
    show = {
        "state": state,
        "steps": steps,
        "cause": {"reason": reason},
        "evidence": {"findings": [{"kind": finding}] if finding else []},
    }
    assert _outcome(show, {"device_lost": "cuda_error", "odd": "odd"}, how) == outcome


def test_reasons_are_counted_as_a_round_counts_them() -> None:
    known = parents()
    assert (known["nvlink_error"], known["device_lost"]) == ("nvlink_error", "cuda_error")
    assert set(known.values()) <= CAUSES.keys()


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_job_is_run_as_a_tenants_described_and_recorded(home: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make install torch")
    words = ("run", "graph", "--local", "--home", home, "--seconds", 2, "--context", "hall 3", "--size", "cpu")
    first, second = told(*words), told(*words, "--stands-for", "cd" * 16)
    assert first["outcome"] == "ok"
    assert first["steps"] >= CHECKED
    assert 0 < first["seconds_per_step"] < 1
    assert len(bytes.fromhex(first["archetype"])) == 16
    assert second["archetype"] == first["archetype"]
    one, other = read(home / FILE)
    assert (one.archetype, other.archetype) == (first["archetype"], "cd" * 16)
    assert (one.job, one.context, one.outcome, one.nodes) == (first["run"], "hall 3", "ok", 1)
    assert one.hours == pytest.approx(first["seconds"] / 3600)
    assert one.versions["torch"]
    assert not list((home / "benchmarks").glob("run-*"))


def within(home: Path) -> set[int]:
    """Processes that work in a folder of this home."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            is_below = link.readlink().is_relative_to(home)
        except OSError:
            continue
        if is_below:
            found.add(int(link.parent.name))
    return found


@pytest.mark.nightly
def test_a_runner_that_is_killed_leaves_no_rank_no_line_and_no_lock(home: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make install torch")
    words = ["run", "experts", "--local", "--home", str(home), "--context", "hall 3", "--size", "cpu"]
    runner = subprocess.Popen([sys.executable, "-m", "provider_server", "benchmark", *words])
    until(lambda: list((home / "benchmarks").glob("run-*/job/checkpoint-1.pt")))  # both ranks train
    assert len(within(home)) >= 4
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    until(lambda: not within(home))
    assert not (home / FILE).exists()
    with recording.running(home) as folder:
        assert not list(folder.glob("run-*"))


@pytest.mark.nightly
@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if job.ranks > 1])
def test_a_job_over_ranks_learns_and_goes_on_from_its_checkpoint(
    job: str, precision: Precision, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make install torch")
    command = list(replace(JOB, job=job, seconds=1.0, ranks=2, precision=precision).command)
    for steps in (CHECKED, 2 * CHECKED):
        subprocess.run(command, cwd=tmp_path, check=True)
        assert saved_after(tmp_path / "checkpoint-1.pt") >= steps


def saved_after(checkpoint: Path) -> int:
    import torch
    import torch.distributed.tensor

    steps: int = torch.load(checkpoint, weights_only=True)["steps"]
    return steps


CORRUPT = """
import pharoah, time
for _ in range(3):
    pharoah.step(loss=1.0)
from pathlib import Path
print("\\0\\xff{garbage")
Path("pace.json").write_bytes(b"\\xff\\0")
raise RuntimeError("silent data corruption detected: weights differ across ranks")
"""


@pytest.mark.nightly
def test_wrong_results_are_an_outcome_and_garbage_is_none() -> None:
    found = run(JOB, None, "n1", [sys.executable, "-c", CORRUPT])
    assert (found.outcome, found.reason, found.seconds_per_step) == (WRONG_RESULT, "silent_data_corruption", None)
    assert (found.node, found.archetype) == ("n1", "")


@pytest.mark.nightly
def test_a_job_that_makes_no_step_until_its_time_is_over_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pharoah_benchmarks.run.START_S", 4.0)
    assert run(JOB, None, "n1", [sys.executable, "-c", "import time\ntime.sleep(300)"]).outcome == HANG


@pytest.mark.nightly
def test_too_much_output_is_no_result() -> None:
    fills = "open('large', 'wb').write(bytes(8 << 20))\nimport time\ntime.sleep(300)"
    with pytest.raises(CannotRun, match="wrote more than 4 MiB, and was stopped"):
        run(JOB, None, "n1", [sys.executable, "-c", fills], most_bytes=4 << 20)


# ---- what cannot be run ----------------------------------------------------------------------------------------------


def test_a_python_without_pytorch_is_told_what_to_install(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    result = call("run", "graph", "--local", "--python", tmp_path / "bare" / "bin" / "python")
    assert result.exit_code == 2
    assert "has no PyTorch with pharoah: ModuleNotFoundError: No module named 'torch'" in " ".join(
        result.stderr.split()
    )
    assert "pip install 'pharoah[torch]'" in result.stderr
    assert "cannot be run" in call("run", "graph", "--local", "--python", "/nowhere/python").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "gemm", "--local"), "no job 'gemm'"),
        (("run", "graph"), "--local"),
        (("run", "graph", "--local", "--seconds", 0), "--seconds"),
    ],
)
def test_wrong_words_are_refused(words: tuple[object, ...], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.stderr


HOLDS = """
import sys, time
from pathlib import Path
from pharoah_benchmarks.record import running
with running(Path(sys.argv[1])):
    Path(sys.argv[1], "held").touch()
    time.sleep(300)
"""


def test_a_second_runner_is_refused_until_the_first_is_gone(home: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLDS, str(home)])
    until((home / "held").exists)
    with pytest.raises(CannotRun, match="another benchmark runs for this home"), recording.running(home):
        pass
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with recording.running(home) as folder:
        assert folder.is_dir()


# ---- records ---------------------------------------------------------------------------------------------------------


def test_a_run_is_a_line_in_the_home(home: Path) -> None:
    hours_ago = time.time() - 5 * 3600
    os.utime(home / "signing.key", (hours_ago, hours_ago))
    for number in range(2):
        ran = RAN if number == 0 else replace(RAN, run="graph-2", outcome="nvlink_error", archetype="")
        recording.record(home, recording.told_by(home, ran, 3, ""))
    one, other = read(home / FILE)
    assert (one.job, one.context, one.archetype, one.node_hours) == ("graph-1", 3, "ab" * 16, 0.01)
    assert one.start_h == pytest.approx(5.0 - 0.01, abs=0.01)
    assert one.settings == {"node": "n1", "ranks": 1.0, "size": "cpu", "precision": "fp32"}
    assert (other.outcome, other.archetype) == ("nvlink_error", recording.UNDESCRIBED)


def test_a_full_disk_leaves_no_half_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording.record(home, recording.told_by(home, RAN, 3, ""))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        recording.record(home, recording.told_by(home, RAN, 3, ""))
    assert len(read(home / FILE)) == 1


def test_a_node_without_a_context_is_not_guessed(home: Path) -> None:
    with pytest.raises(CannotRun, match="no telemetry says which context n1 is of"):
        recording.context_of(home, "n1")
