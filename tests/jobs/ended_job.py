"""A small real training job that stalls, diverges or is evaluated, for somebody to end: ended_job.py WHAT STEP_S SEED.

It prints `now` when it has come to what it does, and then goes on until it is ended, or for LAST steps. With torchrun
its ranks train together over Gloo. It needs PyTorch, and this repository only for WHAT = phase.
"""

import argparse
import os
import random
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch

WARM_S, WARM_STEPS = 6.0, 24


class Job:
    """The model, and what has become of it."""

    def __init__(self, what: str, step_s: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.what, self.step_s, self.rng = what, step_s, random.Random(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scale = 1.0
        self.hook: Any = None

    def step(self) -> None:
        """One step, with noise in its loss and in its time."""
        time.sleep(self.step_s * self.rng.uniform(0.7, 1.3))
        loss = (self.model(torch.randn(16, 8)) - 1.0).square().mean()
        loss = loss * self.scale if self.what == "nan" else loss + (self.scale - 1.0)
        if self.what == "noisy":
            loss = loss * self.rng.lognormvariate(0.0, 0.3)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(parameter.grad)
        self.optimizer.step()
        if self.hook is not None:
            self.hook.step(float(loss))

    def evaluate(self) -> None:
        """As jobs do it, or as one that calls the hook itself."""
        with self.hook.phase("eval") if self.hook is not None else nullcontext():
            if self.hook is None:
                self.model.eval()
            with torch.no_grad():
                for _ in range(5):
                    self.model(torch.randn(64, 8))
                    time.sleep(self.step_s)
            if self.hook is None:
                self.model.train()

    def turn(self) -> None:
        """What it has come to."""
        if "eval" in self.what or self.what == "phase":
            self.evaluate()
        if "stall" in self.what:
            say("now")
            time.sleep(3600)
        if self.what == "nan":
            self.scale = float("nan")


def say(word: str) -> None:
    """One line at once."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def train(job: Job, last: int) -> None:
    """Trains, comes to what it does when it has warmed up, and goes on."""
    began_s, step, turned = time.monotonic(), 0, False
    while step < last:
        job.step()
        step += 1
        if not turned and step >= WARM_STEPS and time.monotonic() - began_s >= WARM_S:
            turned = True
            job.turn()
            say("now")
        if turned and job.what == "blow_up":
            job.scale *= 1.1
        if turned:
            say(f"step {step}")


def main() -> None:
    """The program."""
    options = argparse.ArgumentParser()
    options.add_argument("what")
    options.add_argument("step_s", type=float)
    options.add_argument("seed", type=int)
    options.add_argument("--last", type=int, default=1_000_000)
    asked = options.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    job = Job(asked.what, asked.step_s, asked.seed)
    if asked.what == "phase":
        from tenant_client.doctor.run.hook.hook import pharoah_hook

        with pharoah_hook() as job.hook:
            train(job, asked.last)
    else:
        train(job, asked.last)


if __name__ == "__main__":
    main()
