"""A small real training job of two ranks over Gloo, with one fault to come: two_ranks.py FAULT FOLDER [STEPS]."""

import datetime as dt
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

STEP_S = 0.05
FAULT_STEP = 5


def fault(name: str, step: int, folder: Path) -> None:
    """What goes wrong in rank 1."""
    if name == "exception" and step == FAULT_STEP:
        raise KeyError("learning_rate")
    if name == "kill" and step == FAULT_STEP:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "memory" and step == FAULT_STEP:
        resource.setrlimit(resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
        bytearray(1 << 30)
    if name == "oom_killer" and step == FAULT_STEP:
        line = f"[12345.678901] Out of memory: Killed process {os.getpid()} (python) total-vm:1kB, anon-rss:1kB\n"
        (folder / "dmesg.log").write_text(line)
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hang" and step == FAULT_STEP + 15:
        time.sleep(3600)
    if name == "slow":
        time.sleep(6 * STEP_S)


def main() -> None:
    name, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if name == "restart" and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("a bad first try")
    timeout_s = float(os.environ.get("GLOO_TIMEOUT_S", "15"))  # Gloo waits five times that for a peer to connect
    try:
        dist.init_process_group("gloo", timeout=dt.timedelta(seconds=timeout_s))
    except RuntimeError:  # Gloo does not always find its peers, wrapped or not; the test then tries again
        (folder / "no-gloo").touch()
        raise
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        time.sleep(STEP_S)
        if rank == 1:
            fault(name, step, folder)
        loss = model(torch.ones(8, 4)).square().mean()
        if name == "nan" and step >= FAULT_STEP and rank == 1:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        if name != "slow" or step % 8 == 7:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        with (folder / f"output-{rank}").open("a") as file:
            file.write(f"{step}\n")
    dist.destroy_process_group()
    (folder / f"marker-{rank}").write_text("done")


if __name__ == "__main__":
    record(main)()
