"""Are the workloads of jobs on a busy host described, or is it said why not? One JSON object on stdout.

    python benchmarks/described.py [--at-once 4] [--minutes 15]

Twenty jobs behind `pharoah-tenant run`, while one process for each core does nothing but compute. What a right answer
is stands beside each job in `JOBS`: a description, or a reason that holds certain words. A long job is stopped as its
owner would once it is described, at the latest after `--minutes`; its default settings put a first sample off for ten
minutes at most. `silent` counts jobs without a description and without a reason.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, show
from tenant_client.records.database import open_database
from tenant_client.records.journal import Journal

ROOT = Path(__file__).resolve().parents[1]
LEASE, POLL_S = "busy", 2.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
LONG = "1000000"
PROFILED = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile():
    for _ in range(30):
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
"""


@dataclass(frozen=True)
class BusyJob:
    """A command, options of `run`, and what is right: "" for a description, else words of the reason."""

    name: str
    command: tuple[str, ...]
    right: tuple[str, ...]
    options: tuple[str, ...] = ()


def example(name: str, *options: str) -> tuple[str, ...]:
    """An example on two ranks over Gloo."""
    return (*TORCHRUN, str(ROOT / "examples" / f"{name}.py"), *options)


EXAMPLES = ("ddp", "fsdp", "pipeline", "dataloader")
JOBS = (
    *(
        BusyJob(f"long {name} {seed}", example(name, "--steps", LONG, "--seed", seed), ("",))
        for seed in "12"
        for name in EXAMPLES
    ),
    *(BusyJob(f"at once {name}", example(name, "--steps", "12"), ("",), ("--describe", "now")) for name in EXAMPLES),
    *(BusyJob(f"minute {name}", example(name, "--steps", "40"), ("", "the host is busy")) for name in EXAMPLES),
    *(BusyJob(f"short {name}", example(name, "--steps", "6"), ("too few steps",)) for name in EXAMPLES[:2]),
    BusyJob("no training", (sys.executable, "-c", "import time; time.sleep(3)"), ("no step of a PyTorch optimiser",)),
    BusyJob("profiled by its owner", (sys.executable, "-c", PROFILED), ("profiled by its owner", "the host is busy")),
)


@contextmanager
def hogs() -> Iterator[None]:
    """One busy process for each core."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def held(job: BusyJob, minutes: float) -> Figure:
    """Runs `job`; whether it was described and after how many seconds, else why not, and whether that is right."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        client = [sys.executable, "-m", "tenant_client", "run", "--home", str(home), "--lease", LEASE]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        began_s, described_s = time.monotonic(), None
        with subprocess.Popen(
            [*client, *job.options, "--", *job.command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while process.poll() is None:
                time.sleep(POLL_S)
                elapsed_s = time.monotonic() - began_s
                if described_s is None and _known(home)[0]:
                    described_s = elapsed_s
                if (described_s and LONG in job.command) or elapsed_s > 60 * minutes:
                    process.terminate()
                    process.wait()
        described, why = _known(home)
    said = "" if described else why
    right = any(words in said if words else described for words in job.right)
    sys.stderr.write(f"{job.name}: {'described' if described else why or 'SILENT'}\n")
    return {"job": job.name, "described": described, "after_s": described_s, "why": said, "right": right}


def _known(home: Path) -> tuple[bool, str]:
    """Whether the journal has a description, and the reason that it gives else."""
    if not (home / "tenant.db").exists():
        return False, ""
    with closing(open_database(home / "tenant.db")) as connection:
        journal = Journal(connection)
        return LEASE in journal.descriptors(), journal.undescribed().get(LEASE, "")


def measure(jobs: Sequence[BusyJob], at_once: int, minutes: float) -> Figure:
    """All jobs, so many at once."""
    with hogs(), ThreadPoolExecutor(at_once) as pool:
        rows = list(pool.map(lambda job: held(job, minutes), jobs))
        load = os.getloadavg()[1] / (os.cpu_count() or 1)
    return {
        "figure": "described",
        "jobs": len(rows),
        "described": sum(row["described"] for row in rows),
        "reason_said": sum(bool(row["why"]) for row in rows),
        "silent": sum(not row["described"] and not row["why"] for row in rows),
        "right": sum(row["right"] for row in rows),
        "load_per_core": load,
        "rows": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="descriptions of workloads on a busy host")
    parser.add_argument("--at-once", type=int, default=4, help="jobs at a time (default: 4)")
    parser.add_argument("--minutes", type=float, default=15.0, help="the longest a job may run (default: 15)")
    options = parser.parse_args()
    show([measure(JOBS, options.at_once, options.minutes)])
