"""A small real training job over Gloo that breaks in one of many ways: broken.py FAULT FOLDER."""

import ctypes
import datetime as dt
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

MIB = 1 << 20
FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS, FAULT_STEP = 120 if FAULT == "slow" else 40, 12
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# What PyTorch built for CUDA says where there is no driver (torch/csrc/cuda/Module.cpp); this build is for CPUs.
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from"
    " http://www.nvidia.com/Download/index.aspx"
)


class Samples(Dataset):  # type: ignore[misc]
    """Two numbers a sample; one of them cannot be read, or its reader is killed."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, at: int) -> torch.Tensor:
        if at == 4 * FAULT_STEP and RANK == 1:
            if FAULT == "loader_raises":
                raise ValueError(f"sample {at}: bad JPEG: premature end of data segment")
            if FAULT == "loader_killed":
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), 1.0 + at % 3)


def at_start() -> None:
    """What goes wrong before the first step."""
    if FAULT == "world_size":
        assert WORLD == 4, f"tensor parallel size 4 needs 4 ranks, not {WORLD}"
    if FAULT == "missing_checkpoint":
        torch.load(FOLDER / "step-1000" / "model.pt", weights_only=True)
    if FAULT == "corrupt_checkpoint":
        torch.load(FOLDER / "corrupt.pt", weights_only=True)
    if FAULT == "truncated_checkpoint":
        torch.load(FOLDER / "truncated.pt", weights_only=True)
    if FAULT == "no_driver":
        raise RuntimeError(NO_DRIVER)
    if FAULT == "missing_module":
        import flash_attn_of_nobody  # type: ignore[import-not-found]  # noqa: F401


def in_rank_1(step: int) -> None:
    """What goes wrong in rank 1 before a step's collective."""
    if FAULT == "slow":
        time.sleep(0.2)
    if step == FAULT_STEP and FAULT in FAULTS:
        FAULTS[FAULT]()


def leave() -> None:
    """Ends without an error, as a rank does that has fewer batches."""
    dist.destroy_process_group()
    sys.exit(0)


def limit_memory(wanted: int) -> int:
    """As `ulimit -v` does; returns what the job then asks for in vain."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 256 * MIB, resource.RLIM_INFINITY))
    return wanted


def eat(mib: int) -> None:
    """Takes memory, a little at a time."""
    eaten = []
    for _ in range(mib // 16):
        eaten.append(b"x" * (16 * MIB))
        time.sleep(0.01)


def eat_under_a_limit() -> None:
    """A little at a time."""
    eat(limit_memory(4096))


FAULTS: dict[str, Callable[[], object]] = {
    "key_error": lambda: {"inputs": 0}["labels"],
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "early_exit": leave,
    "hang": lambda: time.sleep(3600),
    "hang_limit": lambda: time.sleep(3600),
    "cgroup_oom": lambda: eat(4096),
    "ulimit_oom": eat_under_a_limit,
    "ulimit_oom_torch": lambda: torch.ones(limit_memory(4096), MIB),
}


def average(step: int, gradient: torch.Tensor) -> None:
    """The step's collective."""
    odd = step == FAULT_STEP and RANK == 1
    if FAULT in ("mismatch", "mismatch_three") and odd:
        dist.broadcast(gradient, src=0)
    elif FAULT == "sizes" and odd:
        dist.all_reduce(torch.cat([gradient.flatten(), torch.zeros(3)]))
    else:
        dist.all_reduce(gradient)


def main() -> None:
    at_start()
    timeout_s = 120.0 if FAULT in ("hang", "hang_limit") else 20.0
    try:
        dist.init_process_group("gloo", timeout=dt.timedelta(seconds=timeout_s))
    except RuntimeError:  # Gloo does not always find its peers; the test then tries again
        (FOLDER / "no-gloo").touch()
        raise
    workers = 1 if FAULT.startswith("loader") else 0
    loader = DataLoader(Samples(), batch_size=4, num_workers=workers)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step, batch in enumerate(loader):
        time.sleep(0.05)
        if RANK == 1:
            in_rank_1(step)
        loss = model(batch).square().mean()
        if FAULT.startswith("nan") and step >= FAULT_STEP:
            loss = loss * float("nan")
        if FAULT == "nan_assert":
            assert not torch.isnan(loss), f"loss is NaN at step {step}"
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            average(step, parameter.grad)
        optimizer.step()
        if FAULT == "disk_full" and RANK == 0 and step == FAULT_STEP:
            torch.save(torch.zeros(4 * MIB), FOLDER / "disk" / f"step-{step}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
