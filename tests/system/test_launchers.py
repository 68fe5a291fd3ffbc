"""What real launchers say under `pharoah-tenant run`: restarts become attempts, other world sizes and quorums findings.

torchrun and torchft run with Gloo. NVRx's lines come from its own profiler; its launcher needs more than is here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from simulation.run.processes import free_ports
from tests import needs
from tests.support.waiting import until

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--event-log-handler", "console"]
# Rank 1 fails in the first start; the second one lasts.
RESTARTS = """
import os
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""
# Every rank waits for the others; in the smaller world they are done.
WORLD = """
import os, sys
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
(Path(sys.argv[1]) / f"{os.getppid()}.{os.getpid()}").touch()
while dist.get_world_size() == 2:
    dist.barrier()
"""
# Two replica groups of one rank; b dies at step 5, and a goes on without it.
TORCHFT = """
import os, sys, time
from datetime import timedelta
sys.path.insert(0, {examples!r})
from torchft_events import after_step, show_events
import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
show_events()
model = torch.nn.Linear(4, 1)
manager = Manager(
    ProcessGroupGloo(timedelta(seconds=5)), lambda state: model.load_state_dict(state), lambda: model.state_dict(),
    min_replica_size=1, use_async_quorum=False, timeout=timedelta(seconds=10), replica_id=os.environ["REPLICA"],
    quorum_timeout=timedelta(seconds=120),
)
wrapped = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), 0.01))
while manager.current_step() < 12:
    optimizer.zero_grad()
    wrapped(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    after_step(lambda: torch.save(model.state_dict(), "hinted.pt"))
    if os.environ["REPLICA"] == "b" and manager.current_step() >= 5:
        os._exit(9)
    time.sleep(0.2)
os._exit(0)
"""
LIGHTHOUSE = """
import os, subprocess, sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=90000, quorum_tick_ms=100, heartbeat_timeout_ms=2000
)
own = dict(os.environ, TORCHFT_LIGHTHOUSE=server.address(), OMP_NUM_THREADS="1")
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", sys.argv[1]]
groups = [subprocess.Popen(command, env=dict(own, REPLICA=name)) for name in "ab"]
codes = [group.wait() for group in groups]
sys.exit(codes[0])
"""
NVRX = """
import logging, sys
from nvidia_resiliency_ext.shared_utils.profiling import ProfilingEvent as Event, record_profiling_event as record
logging.basicConfig(level=logging.INFO)
for event in (Event.WORKER_START_COMPLETED, Event.FAILURE_DETECTED, Event.WORKER_START_COMPLETED):
    record(event, node_id="gpu-7_4711_0", rank=0)
"""


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def ours(home: Path, *command: str) -> list[str]:
    """The command line of `pharoah-tenant run`."""
    options = ["--home", str(home), "--lease", "81", "--no-sample", "--no-watch", "--poll-s", "0.2"]
    return [sys.executable, "-m", "tenant_client", "run", *options, "--", *command]


def run(home: Path, *command: str) -> str:
    """Runs a job under `pharoah-tenant run`; its output."""
    done = subprocess.run(
        ours(home, *command), env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def attempts(home: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tenant_client", "show", "--only", "journal", "--json", "--home", str(home)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["attempts"]
    return found


def texts(attempt: dict[str, Any]) -> list[str]:
    return [finding["text"] for finding in attempt["findings"]]


def test_a_restart_of_torchrun_is_an_attempt_even_behind_another_program(tmp_path: Path) -> None:
    needs.installed("torch")
    (tmp_path / "job.py").write_text(RESTARTS)
    more = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", str(tmp_path / "job.py")]
    run(tmp_path / "home", "env", *TORCHRUN, *more)  # as `srun torchrun`, whose directories are elsewhere
    first, second = attempts(tmp_path / "home")
    assert (first["state"], first["cause"]["reason"]) == ("failed", "ecc_error")
    assert second["state"] == "succeeded"


def test_a_smaller_world_is_a_finding(tmp_path: Path) -> None:
    """Two agents of one rank each; one dies with its rank, and the other goes on alone."""
    needs.installed("torch")
    job, ready = tmp_path / "job.py", tmp_path / "ready"
    job.write_text(WORLD)
    ready.mkdir()
    script = tmp_path / "agents.sh"
    elastic = "--nnodes=1:2 --nproc-per-node=1 --max-restarts=2 --monitor-interval=1 --rdzv-id=81 --rdzv-backend=c10d"
    conf = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    with free_ports("127.0.0.1", 1) as (port,):
        agent = f"{' '.join(TORCHRUN)} {elastic} --rdzv-endpoint=127.0.0.1:{port} --rdzv-conf={conf}"
    hosts, joins = (f"{agent},is_host={here} {job} {ready} &" for here in (1, 0))  # else who comes first has the store
    script.write_text(f"{hosts}\nfirst=$!\n{joins}\nwait $first\n")
    command = ours(tmp_path / "home", "sh", str(script))
    with subprocess.Popen(command, env=environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True) as job_run:
        until(lambda: len(list(ready.iterdir())) == 2, "both ranks are there")
        # The first agent has the store: the other one dies.
        parents = sorted((int(path.name.partition(".")[0]), int(path.suffix[1:])) for path in ready.iterdir())
        for process in parents[1]:
            os.kill(process, signal.SIGKILL)
        _, said = job_run.communicate(timeout=TIMEOUT_S)
    assert job_run.returncode == 0, said
    assert "world size changed from 2 to 1" in [text for one in attempts(tmp_path / "home") for text in texts(one)]


def test_torchft_tells_of_another_quorum_and_the_job_goes_on(tmp_path: Path) -> None:
    needs.installed("torch")
    needs.package("torchft")
    (tmp_path / "job.py").write_text(TORCHFT.format(examples=str(ROOT / "examples/launchers")))
    (tmp_path / "both.py").write_text(LIGHTHOUSE)
    run(tmp_path / "home", sys.executable, str(tmp_path / "both.py"), str(tmp_path / "job.py"))
    (attempt,) = attempts(tmp_path / "home")
    formed = [text for text in texts(attempt) if text.startswith("torchft formed quorum")]
    assert len(formed) >= 2, texts(attempt)
    assert attempt["state"] == "succeeded"


def test_cycles_of_nvrx_are_attempts(tmp_path: Path) -> None:
    needs.package("nvidia_resiliency_ext")
    needs.package("nvidia_resiliency_ext.shared_utils.profiling")
    (tmp_path / "job.py").write_text(NVRX)
    run(tmp_path / "home", sys.executable, str(tmp_path / "job.py"))
    first, second = attempts(tmp_path / "home")
    assert texts(first) == ["NVRx detected a failure on gpu-7_4711_0"]
    assert (first["state"], second["state"]) == ("failed", "succeeded")
    assert second["started_at_s"] == pytest.approx(time.time(), abs=TIMEOUT_S)
