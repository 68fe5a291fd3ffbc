"""Two ranks over Gloo whose losses spike: spiking.py FAULT DATA BEGIN STEPS FAULT_STEP.

FAULT: `batch` (batches of both ranks, or of rank 1 alone where each has its own), `bit` (one bit of one parameter of
rank 1), or `none`. DATA: `same` for both ranks, or `own`. Batches depend on the step alone, so a run that begins at a
later step sees the same ones; it begins with what a checkpoint of that step would hold.
"""

import datetime as dt
import sys
import time

import torch
import torch.distributed as dist

import pharoah

STEP_S = 0.15  # so that ten steps, after which a loss is read, take more than a second


def main() -> None:
    fault, data = sys.argv[1:3]
    begin, steps, fault_step = map(int, sys.argv[3:6])
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(1, steps + 1):
        draw = torch.Generator().manual_seed(1000 * step + (rank if data == "own" else 0))
        batch = torch.randn(64, 16, generator=draw)
        if fault == "batch" and step > fault_step and (data == "same" or rank == 1):
            batch *= 30.0
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        if step > begin:
            time.sleep(STEP_S)
            loss.backward()
        else:
            torch.autograd.backward(loss)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step > begin:
            optimizer.step()
        else:  # quickly, and unseen
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 1e-4 * parameter.grad
        if step == 20 and begin < 20 and rank == 0:
            with pharoah.phase("checkpoint"):
                time.sleep(0.1)
        if fault == "bit" and step == fault_step and rank == 1:
            with torch.no_grad():
                model.weight.view(torch.int32)[0, 3] ^= 1 << 30  # the highest of the exponent
    dist.destroy_process_group()


main()
