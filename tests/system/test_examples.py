"""The example jobs under torchrun: watched without a change to them, and never disturbed by it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenant_client.doctor.run.hook.progress import file_name, read
from tests import needs

needs.installed("torch")
pytestmark = pytest.mark.xdist_group("torchrun")

ROOT = Path(__file__).resolve().parents[2]
UNGUARDED = {"PHAROAH_SAMPLE_LOAD": "inf", "PHAROAH_SAMPLE_JITTER": "inf"}
STEPS, RANKS = 16, 2
# What a rank writes once it has run for some seconds: examples end before or after that.
AFTER_A_WHILE = {name for rank in range(RANKS) for name in (f"pattern-{rank}.json", f"readings-{rank}")}
GLOO_FAULTS = ("connectFullMesh", "without an active exception")
# An operator and the weight among its arguments that tells the model, and what goes between the ranks.
JOBS = {
    "ddp": ("aten::linear", [512, 96], "all_reduce"),
    "fsdp": ("aten::linear", [384, 192], "all_gather"),
    "pipeline": ("aten::linear", [384, 128], "send"),
    "dataloader": ("aten::conv2d", [32, 16, 3, 3], None),
}


def run_job(
    name: str, *options: str, ranks: int = RANKS, watched: bool = True, tries: int = 4, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Runs one example as a user would, by default as `pharoah-tenant run` does; a single rank without a launcher.

    Gloo's own faults, watched or not, are not those of the test (see tests/tenant_client/doctor/test_faults.py):
    it is then run again.
    """
    autoload = str(ROOT / "tenant_client/doctor/run/hook/autoload") if watched else ""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PHAROAH_")}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    job = [str(ROOT / "examples" / f"{name}.py"), "--steps", str(STEPS), *options]
    while True:
        done = subprocess.run(
            [sys.executable, *launcher, *job],
            env=kept | UNGUARDED | {"PYTHONPATH": autoload, "OMP_NUM_THREADS": "1"} | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        tries -= 1
        if not tries or not any(fault in done.stderr for fault in GLOO_FAULTS):
            return done
        for file in Path(environment.get("PHAROAH_RUN_DIR", "nowhere")).glob("*-*"):
            file.unlink()


def events(trace: Path) -> Iterator[tuple[str, Any]]:
    """Name and shapes of what a trace says ran."""
    for event in json.loads(trace.read_bytes())["traceEvents"]:
        if event.get("cat") in ("cpu_op", "user_annotation"):
            yield event["name"], event.get("args", {}).get("Input Dims", [])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.nightly
@pytest.mark.parametrize("job", JOBS)
def test_a_job_leaves_progress_and_a_trace_of_every_rank(job: str, tmp_path: Path) -> None:
    done = run_job(job, "--seed", "2", PHAROAH_RUN_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "step 10 loss" in done.stdout
    assert "pharoah-tenant" not in done.stderr.lower()
    files = {name for rank in range(RANKS) for name in (f"progress-{rank}", f"trace-{rank}-0.json")}
    assert names(tmp_path) - AFTER_A_WHILE == files  # none of data-loader workers or the launcher
    operator, weight, collective = JOBS[job]
    for rank in range(RANKS):
        progress = read(tmp_path / file_name(rank))
        assert progress is not None
        assert (progress.rank, progress.step, progress.phase) == (rank, STEPS, "end")
        found = list(events(tmp_path / f"trace-{rank}-0.json"))
        assert any(name == operator and weight in dims for name, dims in found)
        assert collective is None or any(name.startswith("gloo:") and collective in name for name, _ in found)


@pytest.mark.nightly
def test_a_job_computes_the_same_with_and_without_the_hook(tmp_path: Path) -> None:
    watched = run_job("pipeline", PHAROAH_RUN_DIR=str(tmp_path))
    assert watched.stdout == run_job("pipeline", watched=False).stdout


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["absent", "a file", "/proc"])
def test_a_run_directory_that_cannot_be_used_does_not_disturb_the_job(place: str, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    done = run_job("dataloader", ranks=1, PHAROAH_RUN_DIR=str(tmp_path / place))
    assert done.returncode == 0, done.stderr
    assert "step 10 loss" in done.stdout
    assert done.stderr.count("the job is not affected") == 1


@pytest.mark.nightly
def test_a_full_disk_does_not_disturb_the_job(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    )
    autoload = ROOT / "tenant_client/doctor/run/hook/autoload"
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    done = run_job("ddp", PHAROAH_RUN_DIR=str(run_dir), PYTHONPATH=f"{autoload}{os.pathsep}{tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "step 10 loss" in done.stdout
    said_why = {"sampling-0", "sampling-1"}
    assert names(run_dir) - AFTER_A_WHILE == {"progress-0", "progress-1"} | said_why
