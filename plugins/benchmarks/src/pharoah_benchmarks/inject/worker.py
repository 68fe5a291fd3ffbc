"""A rank that trains until it is killed: worker.py JOB FOLDER, after a line on its stdin says that its wire is there.

A step takes `PACE_S` at least, most of which it waits, as a host does whose GPUs compute. Each reads a block of its
data through the page cache, and every `SAVE` steps it writes one past it. How far it is stands in `progress`: steps
(u64) and the newest loss (f64). SIGUSR1 flips a bit of a weight.
"""

import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

if "pharoah_benchmarks" not in sys.modules:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pharoah_benchmarks.catalogue import Precision, SizeName
from pharoah_benchmarks.inject.pair import SAVE
from pharoah_benchmarks.inject.telemetry import PROGRESS
from pharoah_benchmarks.jobs.train import Training

BLOCK, BLOCKS = 1 << 18, 256
PACE_S = 0.1
BITS = range(20, 31)  # of a float: the upper ones of its fraction, and those of its exponent


def flip(parameters: list[torch.Tensor], chance: random.Random) -> None:
    """Flips one bit of one weight."""
    with torch.no_grad():
        words = chance.choice(parameters).view(-1).view(torch.int32)
        words[chance.randrange(len(words))] ^= 1 << chance.choice(BITS)


def main() -> None:
    """As the module says."""
    job, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    data, save = folder / "data", folder / "save"
    data.write_bytes(os.urandom(BLOCK) * BLOCKS)
    sys.stdin.readline()
    training, chance = Training(job, SizeName.CPU, Precision.FP32), random.Random(0)  # noqa: S311 - no secret
    parameters = list(training.model.parameters())
    signal.signal(signal.SIGUSR1, lambda *_: flip(parameters, chance))
    direct = mmap.mmap(-1, BLOCK)  # aligned, as O_DIRECT asks
    reading, progress = os.open(data, os.O_RDONLY), os.open(folder / "progress", os.O_RDWR | os.O_CREAT)
    writing = os.open(save, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_DSYNC)
    while True:
        due_s = time.monotonic() + PACE_S
        loss = training.step()
        os.pread(reading, BLOCK, BLOCK * chance.randrange(BLOCKS))
        if training.steps % SAVE == 0:
            os.pwrite(writing, direct, 0)
        os.pwrite(progress, PROGRESS.pack(training.steps, loss), 0)
        time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main()
