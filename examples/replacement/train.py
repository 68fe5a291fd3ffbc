"""A data-parallel job that loads and saves a checkpoint, so that it goes on wherever its ranks are started again.

Started by `nodes.py`. Each process appends what happened to `events.jsonl` in the folder that is its argument: when it
began and from which step, and every step with its loss. `HANG_NODE` and `HANG_STEP` plant the fault: there, the rank
on that node stands still before the gradients are averaged, for ever.
"""

# mypy: allow-subclassing-any
# (mypy may run where torch is not installed, and then all that is torch's is Any.)

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

IMPORTED_S = time.time()
STEP_S, SAVE_EVERY = 0.2, 10
NODE = os.environ["NODE"]


def launched_s() -> float:
    """When this process began, by the kernel."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def note(folder: Path, **event: Any) -> None:
    """Appends an event with node, rank and time of day."""
    line = json.dumps({"at_s": time.time(), "node": NODE, "rank": dist.get_rank(), **event})
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The last step of the checkpoint, which model and optimizer then hold; 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replaces the checkpoint in one move, so that whoever reads it finds a whole one."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def train(folder: Path, steps: int, joined_s: float) -> None:
    """Trains from the last checkpoint on; data depend on step and rank only."""
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, world, checkpoint = dist.get_rank(), dist.get_world_size(), folder / "checkpoint.pt"
    done = load(checkpoint, model, optimizer)
    phases = {"launched_s": launched_s(), "imported_s": IMPORTED_S, "joined_s": joined_s}
    note(folder, event="start", step=done, world=world, **phases)
    for step in range(done + 1, steps + 1):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        loss = (model(torch.randn(8, 32, generator=generator)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(STEP_S)
        if os.environ.get("HANG_NODE") == NODE and step == int(os.environ["HANG_STEP"]):
            note(folder, event="hang", step=step)
            time.sleep(1e6)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        note(folder, event="step", step=step, loss=loss.item())
        if rank == 0 and step % SAVE_EVERY == 0:
            save(checkpoint, step, model, optimizer)


def main() -> None:
    """Joins the group and trains."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    code, folder = 1, Path(sys.argv[1])
    try:
        train(folder, int(sys.argv[2]), time.time())
        dist.barrier()
        code = 0
    except RuntimeError as error:  # a peer is gone
        note(folder, event="gone")
        print(error, file=sys.stderr)
    sys.stdout.flush()
    os._exit(code)  # at once: the others of the next group wait, and Gloo's threads may hang an interpreter's end


if __name__ == "__main__":
    main()
