"""A runner on a real Slurm of six nodes: it gives way, comes back, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pharoah_benchmarks.runner.slurm import Slurm
from plugins.benchmarks.tests.programs import founded, program
from plugins.benchmarks.tests.test_benchmarks import told
from plugins.slurm.tests.cluster import Cluster, cluster
from provider_server.fleet.learning.benchmark_jobs import FILE, UNKNOWN, read
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("slurm")

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
IDLE = """PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=idle Nodes=n[1-6] PriorityTier=1 PreemptMode=CANCEL MaxTime=60 State=UP
PartitionName=urgent Nodes=n[1-6] PriorityTier=10 PreemptMode=OFF MaxTime=60 State=UP"""
CONTEXTS = '"n[1-4]" = "hall 3", "n[5-6]" = "hall 4"'
SETTINGS = 'place = "slurm"\npartition = "idle"\nshare_of_idle = 1.0\nnode_hours_a_day = 1000.0\n'
DISPLACED_S = 30.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster(NODES, more=IDLE) as made, pytest.MonkeyPatch.context() as here:
        for name, value in made.environment.items():
            here.setenv(name, value)
        yield made


@pytest.fixture
def home(slurm: Cluster, tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    until(lambda: len(Slurm("idle", "", "").idle()) == len(NODES), "all nodes are idle")
    return founded(tmp_path, CONTEXTS, f'{SETTINGS}program = "{program(tmp_path)}"\njobs = ["encoder"]')


@contextmanager
def started(home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    words = [sys.executable, "-m", "provider_server", "benchmark", "start", "--home", str(home), "--json"]
    with (home.parent / "told").open("ab") as out, subprocess.Popen(words, stdout=out) as runner:
        try:
            yield runner
        finally:
            runner.terminate()


def jobs(slurm: Cluster) -> list[str]:
    """The jobs of the partition that have not ended."""
    return slurm.run("squeue", "--noheader", "--partition=idle", "--format=%j %T %N").splitlines()


def run_on_all(slurm: Cluster) -> None:
    until(lambda: sum(" RUNNING " in line for line in jobs(slurm)) == len(NODES), "a run on each node")


def test_a_real_job_displaces_a_run_which_is_exposure(slurm: Cluster, home: Path) -> None:
    with started(home):
        run_on_all(slurm)
        began = time.monotonic()
        job = slurm.submit("--partition=urgent", "-w", "n3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5")
        until(lambda: slurm.state(job) == "RUNNING")
        assert time.monotonic() - began < DISPLACED_S
        until(lambda: told("status", "--home", home)["last"])
        (row,) = told("status", "--home", home)["last"]
        assert (row["node"], row["outcome"]) == ("n3", "displaced")
        (one,) = read(home / FILE)
        assert (one.job, one.outcome, one.settings["node"]) == (row["run"], UNKNOWN, "n3")
        assert 0 < one.hours < 300 / 3600
        slurm.ended([job])
        run_on_all(slurm)  # its node is used again
        assert [one["node"] for one in told("plan", "--home", home)] == []
    until(lambda: not jobs(slurm))
    assert len(read(home / FILE)) == 1 + len(NODES)


def test_a_killed_runner_leaves_no_job(slurm: Cluster, home: Path) -> None:
    with started(home) as runner:
        run_on_all(slurm)
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
        began = time.monotonic()
        until(lambda: not jobs(slurm))
        assert time.monotonic() - began < DISPLACED_S
    seen = told("status", "--home", home)
    assert (seen["running"], len(seen["runs"])) == (False, len(NODES))  # what was started is known
    with started(home):
        until(lambda: len(told("status", "--home", home)["last"]) == len(NODES))
        run_on_all(slurm)
    assert {row["outcome"] for row in told("status", "--home", home)["last"]} == {"stopped"}


def test_a_run_whose_machine_was_lost_is_ended_by_name(slurm: Cluster) -> None:
    """As when srun is gone with the runner: Slurm goes on until the limit, a new runner does not wait for it."""
    slurm.submit("--partition=idle", "--job-name=pharoah-graph-1", "-o", "/dev/null", "--wrap", "sleep 300")
    until(lambda: any("RUNNING" in line for line in jobs(slurm)))
    place = Slurm("idle", "", "")
    until(lambda: place.end("pharoah-graph-1"))
    assert jobs(slurm) == []


def test_a_scheduler_that_is_away_is_waited_for(slurm: Cluster, home: Path) -> None:
    with started(home) as runner:
        run_on_all(slurm)
        with _away(slurm):
            time.sleep(5.0)
            assert runner.poll() is None
        job = slurm.submit("--partition=urgent", "-w", "n1", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        slurm.ended([job])
        until(lambda: told("status", "--home", home)["last"])
        assert told("status", "--home", home)["last"][0]["outcome"] == "displaced"


@contextmanager
def _away(slurm: Cluster) -> Iterator[None]:
    """The controller does not answer within."""
    controller = int((slurm.folder / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller, signal.SIGCONT)
