"""A small real training job over Gloo to which things happen on schedule: faults, and pauses that are none.

    SCHEDULE=schedule.json EVENTS=events.jsonl RANK=0 WORLD_SIZE=2 ... python syndromes_job.py

An entry of the schedule is {"kind", "rank", "at_s", "for_s"}, its time counted from the first steps on. Each rank that
comes to an entry of its own writes when it did so, by the monotonic clock. Faults pass, so that a job has many.
"""

import datetime as dt
import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WIDTH, FIRST_STEPS = 32, 5


class Schedule:
    """What happens to this rank, and when."""

    def __init__(self, rank: int, began_s: float) -> None:
        given = json.loads(Path(os.environ["SCHEDULE"]).read_text(encoding="utf-8"))
        self.step_s, self.ddp, self.seconds = given["step_s"], given["ddp"], given["seconds"]
        self.began_s = began_s
        self.usual_s = self.step_s
        self._entries = [entry for entry in given["entries"] if entry["rank"] in (rank, -1)]
        self._seen: set[float] = set()
        self._rank = rank

    def due(self, *kinds: str) -> dict[str, Any] | None:
        """The entry of one of these kinds that begins now, once."""
        for entry in self.now(*kinds):
            if entry["at_s"] not in self._seen:
                return self._note(entry)
        return None

    def lasts(self, *kinds: str) -> bool:
        """Whether an entry of these kinds has begun and not ended."""
        for entry in self.now(*kinds):
            if entry["at_s"] not in self._seen:
                self._note(entry)
            return True
        return False

    def now(self, *kinds: str) -> list[dict[str, Any]]:
        """The entries of these kinds whose time it is."""
        since_s = time.monotonic() - self.began_s
        return [e for e in self._entries if e["kind"] in kinds and e["at_s"] <= since_s < e["at_s"] + e["for_s"]]

    def _note(self, entry: dict[str, Any]) -> dict[str, Any]:
        self._seen.add(entry["at_s"])
        line = json.dumps({**entry, "by": self._rank, "onset_s": time.monotonic()})
        with Path(os.environ["EVENTS"]).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        return entry


class Samples(torch.utils.data.IterableDataset):  # type: ignore[misc, unused-ignore]
    """Vectors; at its time, one takes long."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __iter__(self) -> Iterator[Any]:
        while True:
            if entry := self.schedule.due("stall_of_loader"):
                time.sleep(entry["for_s"])
            yield torch.ones(WIDTH)


class Feed:
    """The same from a thread of the job's own, without torch's loader."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._queue = schedule, queue.Queue[Any](2)
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        while True:
            if entry := self._schedule.due("stall_of_feed"):
                time.sleep(entry["for_s"])
            self._queue.put(torch.ones(4, WIDTH))

    def next_batch(self) -> Any:
        """Waits for it."""
        return self._queue.get()


def burn(seconds: float) -> None:
    """Computes."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        torch.ones(64, 64) @ torch.ones(64, 64)


def stop(seconds: float) -> None:
    """Stops this process for a while."""
    wake = f"sleep {seconds}; kill -CONT {os.getpid()}"
    subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True, stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGSTOP)


def save(seconds: float) -> None:
    """Writes checkpoints for so long."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        torch.save({"weights": torch.ones(1 << 20)}, Path(os.environ["EVENTS"]).with_name("checkpoint.pt"))


def pause(schedule: Schedule) -> None:
    """What a healthy job does between steps."""
    if entry := schedule.due("checkpoint"):
        save(entry["for_s"])
    if entry := schedule.due("evaluation", "compilation"):
        burn(entry["for_s"])
    if entry := schedule.due("stall_of_all"):
        time.sleep(entry["for_s"])


def fail(schedule: Schedule) -> None:
    """What goes wrong before the gradients are averaged; links are spoilt by whoever reads the events."""
    schedule.due("stalled_link", "throttled_link")
    if entry := schedule.due("stop"):
        stop(entry["for_s"])
    if entry := schedule.due("sleep"):
        time.sleep(entry["for_s"])
    if schedule.lasts("slow"):
        time.sleep(schedule.usual_s)
    if schedule.lasts("hog"):
        burn(schedule.usual_s)
    if schedule.due("mismatch"):
        dist.all_reduce(torch.ones(4096))
    if schedule.due("skip"):
        dist.barrier()


def main() -> None:
    """Trains until the schedule ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=900))
    rank = dist.get_rank()
    schedule = Schedule(rank, math.inf)
    model: Any = torch.nn.Sequential(torch.nn.Linear(WIDTH, 256), torch.nn.Linear(256, 1))
    model = torch.nn.parallel.DistributedDataParallel(model) if schedule.ddp else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader, feed = iter(torch.utils.data.DataLoader(Samples(schedule), batch_size=4)), Feed(schedule)
    ended = torch.zeros(1)
    for step in itertools.count():
        if step == FIRST_STEPS:  # until then, torch loads what it needs
            dist.barrier()
            schedule.began_s = time.monotonic()
        if step == 2 * FIRST_STEPS:  # a busy host makes steps longer than planned
            schedule.usual_s = (time.monotonic() - schedule.began_s) / FIRST_STEPS
        pause(schedule)
        time.sleep(schedule.step_s / 2)
        burn(schedule.step_s / 4)
        batch = next(loader) + feed.next_batch()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        if schedule.ddp:
            fail(schedule)
        loss.backward()
        if not schedule.ddp:
            fail(schedule)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        ended.fill_(time.monotonic() > schedule.began_s + schedule.seconds)
        dist.all_reduce(ended)
        if ended.item():
            break
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads sometimes abort at the end of an interpreter


if __name__ == "__main__":
    main()
