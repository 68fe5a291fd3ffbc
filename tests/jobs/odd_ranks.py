"""A small real training job of ranks over Gloo in which one rank is odd: odd_ranks.py ODDITY RANK SECONDS FOLDER.

Batches come from a data loader with one worker; the loss falls unless it is told not to.
"""

import datetime as dt
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEP_S = 0.03


class Samples(torch.utils.data.Dataset):  # type: ignore[misc, unused-ignore]
    """Batches of a plane with noise; it may be slow, or keep what it should forget."""

    def __init__(self, oddity: str) -> None:
        self.oddity = oddity
        self.kept: list[bytearray] = []

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        if self.oddity == "slow_input":
            time.sleep(4 * STEP_S)
        if self.oddity == "leak":
            self.kept.append(bytearray(os.urandom(1 << 10) * (1 << 10)))
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(index))
        return inputs, inputs.sum(1, keepdim=True) + 1.0


def collect(ballast: list[Any]) -> None:
    """Many full collections of a large heap."""
    while len(ballast) < 200_000:
        ballast.append([ballast])
    for _ in range(5):
        gc.collect()


def augment() -> None:
    """The job's own slow function."""
    time.sleep(4 * STEP_S)


def main() -> None:
    oddity, odd_rank, seconds, folder = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    try:
        dist.init_process_group("gloo", timeout=dt.timedelta(seconds=30))
    except RuntimeError:
        (folder / "no-gloo").touch()
        raise
    rank = dist.get_rank()
    mine = oddity if rank == odd_rank else ""
    torch.manual_seed(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0 if oddity == "flat" else 0.01)
    loader = torch.utils.data.DataLoader(Samples(mine), batch_size=None, num_workers=1)
    ballast: list[Any] = []
    ends_s = time.monotonic() + seconds
    for inputs, wanted in loader:
        time.sleep(STEP_S)
        if mine == "gc":
            collect(ballast)
        if mine == "slow_compute":
            augment()
        loss = (model(inputs) - wanted).square().mean()
        if mine == "spike" and time.monotonic() > ends_s - seconds / 3:
            loss = loss * 1e6
        optimizer.zero_grad()
        loss.backward()
        goes_on = torch.tensor([float(time.monotonic() < ends_s)])
        for tensor in (*(parameter.grad for parameter in model.parameters()), goes_on):
            dist.all_reduce(tensor, dist.ReduceOp.MAX if tensor is goes_on else dist.ReduceOp.SUM)
        optimizer.step()
        if not goes_on.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
