"""A small real training job that spends its time as asked: spends.py FOLDER STEPS [DO@STEP:SECONDS …].

What it did and when, by its own clock, is in `truth-<rank>-<restart>` in the folder, a JSON line each.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

STEP_S = 0.05
folder, steps, asked = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
rank, restart = os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
plan = [(one.partition("@")[0], *one.partition("@")[2].split(":")) for one in asked]


@contextmanager
def told(what: str) -> Iterator[None]:
    begun = time.time()
    try:
        yield
    finally:
        with (folder / f"truth-{rank}-{restart}").open("a") as file:
            file.write(json.dumps([what, begun, time.time()]) + "\n")


class Slow:
    """A file on storage that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.until = time.time() + seconds

    def write(self, data: bytes) -> int:
        time.sleep(max(0.0, self.until - time.time()))
        return len(data)

    def flush(self) -> None:
        pass


def metrics(seconds: float) -> None:
    import numpy as np
    from sklearn.metrics import roc_auc_score

    draw, until = np.random.default_rng(0), time.time() + seconds
    labels, scores = draw.integers(0, 2, 200_000), draw.random(200_000)
    while time.time() < until:
        roc_auc_score(labels, scores)


def do(what: str, seconds: float, model: Any, torch: Any, pharoah: Any) -> None:
    if what == "checkpoint":
        with told("checkpoint"), pharoah.phase("checkpoint"):
            time.sleep(seconds)
    elif what == "save":
        with told("checkpoint"):
            torch.save(model.state_dict(), Slow(seconds))
    elif what in ("evaluate", "metrics"):
        with told({"evaluate": "evaluation"}.get(what, what)):
            model.eval()
            (metrics if what == "metrics" else time.sleep)(seconds)
            model.train()
    elif what == "stall":
        with told("stall"):
            time.sleep(seconds)
    elif what == "raise":
        raise KeyError("learning_rate")
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "term":
        os.kill(int(os.environ["ASKED_PID"]), signal.SIGTERM)


def main() -> None:
    with told("start"):
        time.sleep(sum(float(of[1]) for what, *of in plan if what == "start"))
        import sklearn.metrics  # noqa: F401
        import torch

        import pharoah

        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            import datetime as dt

            torch.distributed.init_process_group("gloo", timeout=dt.timedelta(seconds=9))
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        with told("step") if step > 1 else nullcontext():
            time.sleep(STEP_S)
            loss = model(torch.ones(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if world > 1:
                for parameter in model.parameters():
                    torch.distributed.all_reduce(parameter.grad)
            optimizer.step()
        for what, at, *seconds in plan:
            what, _, who = what.partition("/")
            if what != "start" and at == str(step) and who in ("", f"{rank}.{restart}"):
                do(what, float((seconds or ["0"])[0]), model, torch, pharoah)
    with told("end"):
        time.sleep(sum(float(of[1]) for what, *of in plan if what == "end"))


main()
