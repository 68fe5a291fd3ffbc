"""The hook in jobs that close, replace and use up descriptors: every file and socket holds exactly what they wrote."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenant_client.doctor.run.hook.answers import STACK
from tenant_client.doctor.run.hook.progress import file_name, read
from tenant_client.doctor.run.syndromes.ranks import Ranks
from tests import needs
from tests.jobs.wrapped import JOBS, ROOT, run

needs.installed("torch")

ALL = (
    "closes_what_is_open",
    "replaces_by_a_file",
    "closes_a_range",
    "replaces_by_a_socket",
    "forks",
    "spawns",
    "uses_all",
)
AT_ONCE = {f"PHAROAH_SAMPLE_{name}": "inf" for name in ("BUDGET", "LOAD", "JITTER")}
LEAVES_US_NOTHING = """
import os, shutil, sys
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
os.write(2, b"a checkpoint")
shutil.rmtree(os.environ["PHAROAH_RUN_DIR"])
from tenant_client.doctor.run.hook import hook
hook.current_hook()._next_report_s = 0.0
optimizer.step()
assert hook.current_hook().closed
"""
DAEMON = """
import os, time, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
os.closerange(3, 65536)
with open("checkpoint", "wb", buffering=0) as checkpoint:
    checkpoint.write(b"x" * 200)
    for _ in range(4):
        time.sleep(0.3)
        optimizer.step()
print("saved")
"""


def environment(run_dir: Path) -> dict[str, str]:
    """That of a job behind `pharoah-tenant run`, sampled at once."""
    path = os.pathsep.join((str(ROOT / "tenant_client/doctor/run/hook/autoload"), str(ROOT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PHAROAH_", "RANK"))}
    return kept | AT_ONCE | {"PYTHONPATH": path, "PHAROAH_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1"}


def play(run_dir: Path, *games: str, samples: int) -> None:
    """Plays before an observer that asks all the time, which must disturb nobody."""
    ranks, answered = Ranks(run_dir), set[int]()
    command = (sys.executable, str(JOBS / "descriptor_games.py"), *games)
    told = environment(run_dir) | {"PHAROAH_SAMPLE_SAMPLES": str(samples)}
    try:
        with subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
            while job.poll() is None:
                answered |= set(ranks.ask(STACK, ranks.states(), 0.5))
                time.sleep(0.1)
            assert job.stdout is not None
            assert (job.stdout.read().decode(), job.returncode) == ("", 0)
    finally:
        ranks.close()
    assert answered
    assert all(read(run_dir / file_name(rank)) is not None for rank in range(len(games)))


def test_every_file_and_socket_of_the_job_holds_what_the_job_wrote(tmp_path: Path) -> None:
    play(tmp_path, "at_random:1:300", samples=0)


@pytest.mark.nightly
def test_so_it_does_in_every_game_while_steps_are_sampled(tmp_path: Path) -> None:
    play(tmp_path, *ALL, samples=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_so_it_does_after_ten_thousand_moves_at_random(tmp_path: Path, seed: int) -> None:
    play(tmp_path, f"at_random:{seed}:10000", samples=4)


@pytest.mark.nightly
def test_a_warning_is_not_written_into_what_the_job_opened_as_standard_error(tmp_path: Path) -> None:
    (run_dir := tmp_path / "run").mkdir()
    command = (sys.executable, "-c", LEAVES_US_NOTHING, str(tmp_path / "checkpoint"))
    subprocess.run(command, env=environment(run_dir), check=True)
    assert (tmp_path / "checkpoint").read_bytes() == b"a checkpoint"


@pytest.mark.nightly
def test_a_job_that_closes_all_descriptors_keeps_its_checkpoint_and_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path / "home", [sys.executable, "-c", DAEMON], ["--quiet"])
    assert (done.code, done.stdout, done.stderr) == (0, b"saved\n", "")
    assert (tmp_path / "checkpoint").read_bytes() == b"x" * 200
    (written,) = (read(path) for path in (tmp_path / "home" / "runs").glob("*/progress-0"))
    assert written is not None
    assert (written.step, written.phase) == (5, "end")
