"""What the hook costs a training job: examples/ddp.py with and without it, in alternation.

One run of the job on two ranks. Step by step the hook is switched on and off, in pairs of random order, so that both
see the same machine within milliseconds, which a comparison of whole runs on a shared machine does not. Each round then
takes one sample, and compares its four steps with four without the hook beside them. Reported, on rank 0, as medians
with 95 % bootstrap intervals, in wall time and in CPU time of the process:

* `every_step`: what reporting progress adds to a step, as a share of it, from the pairs; `inside_us` is the mean CPU
  time spent inside the hook at such a step, measured there, and `inside` the same as a share: it misses what the hook
  does to caches, but a noisy machine does not blur it;
* `one_sample_ms`: what a sample of three steps (one of warm-up) adds, profiling and export together;
* `patterns`: the CPU time of the thread that looks at the job's stack, as a share of the time that passed: what it
  takes from the job at most, since it holds the interpreter for no longer;
* `amortised`: `inside`, `patterns` and a sample, the latter paid off over the interval that the hook itself leaves
  before the next one (`interval_steps`): what it believes that the sample has cost, divided by its budget. The steps
  at which it may sample lie further apart, so this is an upper bound; before the first sample is paid off it does not
  hold.

The guards against a busy host are off while this measures; its load average is on stderr.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from federation.base.screen import say
from simulation.studies.study import ROOT, Table

WARM_UP_STEPS, WINDOW = 50, 4
RESULT, ROUNDS, PAIRS = "PHAROAH_BENCH_RESULT", "PHAROAH_BENCH_ROUNDS", "PHAROAH_BENCH_PAIRS"
UNGUARDED = {f"PHAROAH_SAMPLE_{name}": "inf" for name in ("BUDGET", "LOAD", "JITTER")}
NEVER = {"PHAROAH_SAMPLE_FIRST_STEP": str(1 << 60), "PHAROAH_SAMPLE_SAMPLES": str(1 << 60)}


def plan(rounds: int, pairs: int) -> list[str]:
    """What each step is: `off` or `on`, `base` or `sample`; the same on every rank, which share each step."""
    order, steps = np.random.default_rng(1), ["on"] * WARM_UP_STEPS
    for _ in range(rounds):
        for _ in range(pairs):
            steps += order.permutation(["off", "on"]).tolist()
        for kind in order.permutation(["base", "sample"]).tolist():
            steps += [kind] * WINDOW
    return steps


class Switch:
    """Switches the hook before each step as planned, and notes what each took."""

    def __init__(self, hook: Any, steps: list[str]) -> None:
        self.hook, self.steps = hook, steps
        self.inside_s: list[float] = []
        self.charged_s: list[float] = []
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.began = (time.perf_counter(), time.process_time())
        self.patterns_share = 0.0
        hook.step = self.timed(hook.step)

    def timed(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """The hook's `step`, with a clock beside it."""

        def with_clock(loss: Any = None) -> None:
            began_s = time.thread_time()
            step(loss)
            if self.steps[len(self.wall_s)] == "on":
                self.inside_s.append(time.thread_time() - began_s)

        return with_clock

    def after_step(self, *_: Any) -> None:
        """What torch calls after the hook."""
        self.wall_s.append(time.perf_counter() - self.began[0])
        self.cpu_s.append(time.process_time() - self.began[1])
        done = len(self.wall_s)
        if done == len(self.steps):
            self.patterns_share = _cpu_of_patterns() / sum(self.wall_s)
        if done < len(self.steps):
            self._prepare(self.steps[done - 1], self.steps[done])
        self.began = (time.perf_counter(), time.process_time())

    def _prepare(self, before: str, coming: str) -> None:
        sampler = self.hook._sampler
        pacer = sampler._pacer
        if before != "sample" and coming == "sample":
            self.spent_s = pacer.spent_s
            pacer.next_step = self.hook._steps + 1
        elif before == "sample" and coming != "sample":
            self.charged_s.append(pacer.spent_s - self.spent_s)
            for trace in self.hook._run_dir.glob("trace-0-*.json"):
                trace.unlink(missing_ok=True)  # the other rank clears up too
        self.hook._idle = coming in ("off", "base")
        sampler._last = (self.hook._steps, time.perf_counter())


def work() -> None:
    """One rank: the job as it is, followed by the hook, followed by `Switch`."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from tenant_client.doctor.run.hook.follow import follow
    from tenant_client.doctor.run.hook.hook import current_hook

    follow(torch)
    switch = Switch(current_hook(), plan(int(os.environ[ROUNDS]), int(os.environ[PAIRS])))
    register_optimizer_step_post_hook(switch.after_step)
    sys.argv = ["ddp.py", "--steps", str(len(switch.steps)), "--batch", "8", "--seed", "1"]
    runpy.run_path(str(ROOT / "examples" / "ddp.py"), run_name="__main__")
    if os.environ["RANK"] == "0":
        names = ("steps", "wall_s", "cpu_s", "inside_s", "charged_s", "patterns_share")
        found = {name: getattr(switch, name) for name in names}
        Path(os.environ[RESULT]).write_text(json.dumps(found), encoding="utf-8")


def _cpu_of_patterns() -> float:
    threads = (thread for thread in threading.enumerate() if thread.name == "pharoah-patterns")
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads if thread.ident)


def paired(rounds: int, pairs: int) -> dict[str, Any]:
    """Runs the job under torchrun; what `Switch` noted on rank 0."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        settings = {RESULT: str(result), ROUNDS: str(rounds), PAIRS: str(pairs), "PHAROAH_RUN_DIR": scratch}
        environment = os.environ | UNGUARDED | NEVER | settings | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run([*launcher, __file__], check=True, env=environment, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def figures(found: dict[str, Any], clock: str, budget: float) -> dict[str, Any]:
    """The shares and their intervals by one clock, `wall_s` or `cpu_s`."""
    kinds = np.array(found["steps"])
    spans = {kind: np.array(found[clock])[kinds == kind] for kind in ("off", "base", "sample")}
    on = np.array(found[clock])[WARM_UP_STEPS:][kinds[WARM_UP_STEPS:] == "on"]
    usual_s = float(np.median(spans["off"]))
    usual_wall_s = float(np.median(np.array(found["wall_s"])[kinds == "off"]))
    windows_s = spans["sample"].reshape(-1, WINDOW).sum(1) - spans["base"].reshape(-1, WINDOW).sum(1)
    interval_steps = float(np.median(found["charged_s"])) / budget / usual_wall_s
    inside_s = np.array(found["inside_s"])
    inside = float(np.mean(inside_s)) / usual_s
    return {
        "clock": clock,
        "step_ms": 1e3 * usual_s,
        "every_step": _with_interval((on - spans["off"]) / usual_s),
        "inside_us": 1e6 * float(np.mean(inside_s)),
        "inside": inside,
        "patterns": found["patterns_share"],
        "one_sample_ms": _with_interval(1e3 * windows_s),
        "interval_steps": round(interval_steps),
        "amortised": _with_interval(inside + found["patterns_share"] + windows_s / (interval_steps * usual_s)),
    }


def _with_interval(values: Any) -> dict[str, float]:
    order = np.random.default_rng(1)
    medians = [np.median(order.choice(values, len(values))) for _ in range(2000)]
    low, high = np.quantile(medians, (0.025, 0.975))
    return {"median": float(np.median(values)), "low": float(low), "high": float(high)}


def run() -> Table:
    """What the hook adds to a step of examples/ddp.py, within one run, by both clocks."""
    from tenant_client.doctor.run.hook.pacing import PacingSettings

    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before the start")
    rounds, pairs = 20, 60  # a round takes one sample; pairs of steps, with and without the hook
    noted = paired(rounds, pairs)
    say(f"load average {os.getloadavg()[0]:.1f} at the end; the job itself is 2 of it")
    size = {"rounds": rounds, "pairs": rounds * pairs}
    return Table({clock: size | figures(noted, clock, PacingSettings().budget) for clock in ("wall_s", "cpu_s")})


if __name__ == "__main__":
    work()  # a rank that torchrun has started
