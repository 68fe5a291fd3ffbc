"""The loop around every job: train.py JOB SIZE PRECISION SECONDS, alone or under torchrun.

Seeds depend on job, step and rank alone. After `CHECKED` steps the loss has to be in its band, and at every save
weights have to be equal on all ranks: else results are wrong though nothing failed, and the job fails saying so. It
saves by step to `checkpoint-0.pt`, or each rank to its own where weights are its own, and goes on from there.
`pace.json` says how long a step takes, how much that varies, and at the end which operators it is made of.
"""

import importlib
import json
import math
import os
import resource
import statistics
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pharoah

if "pharoah_benchmarks" not in sys.modules:  # run by its path, in an environment that need not have the plug-in
    _folder = Path(__file__).resolve().parents[1]
    _spec = spec_from_file_location(
        "pharoah_benchmarks", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    assert _spec is not None  # noqa: S101 - for mypy
    sys.modules["pharoah_benchmarks"] = module_from_spec(_spec)
from pharoah_benchmarks.catalogue import CHECKED, JOBS, Precision, SizeName
from pharoah_benchmarks.jobs.parallel import local, shared

SEED = 2026
LEARNING_RATE = 3e-3
PROFILED, BLOCKS = 3, 5  # steps that are profiled at a time, and how often
OF_A_JOB = ("aten::", "c10d::", "nccl:", "gloo:", "Optimizer.step")


class SilentCorruption(RuntimeError):
    """Nothing failed, and what was computed is wrong."""

    def __init__(self, what: str) -> None:
        super().__init__(f"silent data corruption detected: {what}")


class Training:
    """A job on this rank."""

    def __init__(self, job: str, size: SizeName, precision: Precision) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        on_gpu = size is not SizeName.CPU
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("nccl" if on_gpu else "gloo")
        self.job, self.band = JOBS[job], JOBS[job].band if size is SizeName.CPU else (0.0, 1.0)
        self.autocast = precision is Precision.BF16
        torch.manual_seed(SEED)
        self.task = importlib.import_module(f"pharoah_benchmarks.jobs.{self.job.module}").make(self.job.sizes[size])
        self.model = self.task.model.to(self.device)
        self.share = shared(self.task, self.job.parallel, self.device)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)
        self.chance, self.steps, self.first = torch.Generator(), 0, math.nan
        self.file = Path(f"checkpoint-{self.rank if self.share.own else 0}.pt")

    def step(self) -> float:
        """One step; the mean of the ranks' losses where it is looked at, before and at the check, else nan."""
        self.chance.manual_seed(SEED + 1_000_003 * self.steps + self.share.replica)
        batch = [tensor.to(self.device) for tensor in self.task.batch(self.chance)]
        self.optimiser.zero_grad()
        loss = self.share.backward(torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast), *batch)
        self.optimiser.step()
        self.steps += 1
        pharoah.step(loss=loss)
        return self._mean(loss) if self.steps in (1, CHECKED) else math.nan

    def check(self, loss: float) -> None:
        """SilentCorruption for a loss out of its band, of which nobody heard otherwise."""
        if self.steps == 1:
            self.first = loss
        elif self.steps == CHECKED:
            share, (low, high) = loss / self.first, self.band
            if not low <= share <= high:
                raise SilentCorruption(
                    f"the loss after {CHECKED} steps is {share:.3g} of the first, not {low} to {high}"
                )

    def save(self) -> None:
        """Writes a checkpoint; weights that all ranks have are equal on all of them."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)  # of weights that all have, and of own ones
        for name, one in self.model.named_parameters():
            total[int(name.startswith(self.share.own or ("-",)))] += local(one.detach()).double().sum()
        common = float(total[0])
        if not math.isfinite(total.sum()):
            raise SilentCorruption("a weight is no finite number")
        if abs(self._mean(total[0]) - common) > 1e-9 * max(1.0, abs(common)):
            raise SilentCorruption("weights differ across ranks")
        if self.rank and not self.share.own:
            return
        with pharoah.phase("checkpoint"):
            state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "steps": self.steps}
            torch.save({**state, "first": self.first}, self.file.with_suffix(".new"))
            self.file.with_suffix(".new").replace(self.file)

    def resume(self) -> None:
        """Goes on from the checkpoint, if there is one."""
        if self.file.exists():
            state = torch.load(self.file, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.steps, self.first = state["steps"], state["first"]

    def agreed(self, number: int) -> int:
        """The first rank's number, on all."""
        if not dist.is_initialized():
            return number
        told = torch.tensor([number], device=self.device)
        dist.broadcast(told, 0)
        return int(told)

    def _mean(self, value: Any) -> float:
        if not dist.is_initialized():
            return float(value)
        total = value.clone()
        dist.all_reduce(total)
        ranks: int = dist.get_world_size()
        return float(total) / ranks


def train(training: Training, seconds: float) -> None:
    """Steps until the seconds are over: half of what is left at a time, so that ranks agree how many without asking."""
    began = time.monotonic()
    more, fastest = CHECKED, math.inf  # the first steps are slower: they are those that describe the job
    took: list[float] = []
    while more:
        times = [time.monotonic()]
        for _ in range(more):
            training.check(training.step())
            times.append(time.monotonic())
        pace, left = (times[-1] - times[0]) / more, seconds - (times[-1] - began)
        more, fastest = training.agreed(max(0, int(left / pace / 2))), min(pace, fastest)
        took = max([later - one for one, later in pairwise(times)], took, key=len)
        training.save()
        tell(training, {"seconds_per_step": fastest, "spread": spread(took)})
    memory_bytes, operators = most_memory(training.device), profiled(training)
    said = {"seconds_per_step": fastest, "spread": spread(took), "memory_bytes": memory_bytes}
    tell(training, {**said, "operators": operators})


def tell(training: Training, pace: dict[str, Any]) -> None:
    """Leaves it for whoever runs the job, whole or not at all."""
    if training.rank == 0:
        Path("pace.new").write_text(json.dumps(pace), encoding="utf-8")
        Path("pace.new").replace("pace.json")


def spread(took: list[float]) -> float:
    """How far the middle eighty percent of steps lie apart, over the median step."""
    tenths = statistics.quantiles(took, n=10)
    return (tenths[-1] - tenths[0]) / statistics.median(took)


def most_memory(device: torch.device) -> int:
    """Bytes that were in use at most, of the GPU if there is one."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def profiled(training: Training) -> dict[str, tuple[float, float]]:
    """Calls of each operator in a step, and its own microseconds when it was fastest."""
    on_gpu = training.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    found: dict[str, tuple[float, float]] = {}
    for _ in range(BLOCKS):
        with torch.profiler.profile(activities=kinds) as seen:
            for _ in range(PROFILED):
                training.check(training.step())
        for one in seen.key_averages():
            if one.key.startswith(OF_A_JOB):
                took_us = (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / PROFILED
                found[one.key] = (one.count / PROFILED, min(took_us, found.get(one.key, (0, math.inf))[1]))
    return found


def main() -> None:
    """As the module says."""
    job, size, precision, seconds = sys.argv[1:]
    training = Training(job, SizeName(size), Precision(precision))
    training.resume()
    train(training, float(seconds))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
