"""Is a job's archetype the same in every sample of it, and another one than other jobs'? JSON on stdout.

    python benchmarks/stability.py [--windows 100]

Each of the four example jobs runs several times under torchrun, with other seeds, numbers of steps, batch sizes and
sequence lengths; the hook samples both ranks at five steps. A window is one such sample of one rank: two training
steps. Its archetype is that of `tenant_client.workload.describe`, with an empty catalogue.

The sampler's guards (budget, load, jitter) are off here: windows are to be many, not cheap.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from benchmarks.figures import Figure, show
from tenant_client.workload.describe import describe_files
from tenant_client.workload.descriptor import rungs

ROOT = Path(__file__).resolve().parents[1]
RANKS, SAMPLES_PER_RUN = 2, 5
JOBS = {"ddp": True, "fsdp": False, "pipeline": True, "dataloader": False}  # whether it has a sequence length
UNGUARDED = {
    "PHAROAH_SAMPLE_FIRST_STEP": "4",  # 4, 8, 16, 32, 64
    "PHAROAH_SAMPLE_SAMPLES": str(SAMPLES_PER_RUN),
    "PHAROAH_SAMPLE_BUDGET": "inf",
    "PHAROAH_SAMPLE_LOAD": "inf",
    "PHAROAH_SAMPLE_JITTER": "inf",
}


def options(*, run: int, has_sequences: bool) -> list[str]:
    """The options of run number `run`: nothing but the seed comes twice in ten runs."""
    found = {"--seed": 1 + run, "--steps": 68 + 7 * run, "--batch": 4 * (1 + 3 * run % 10)}
    if has_sequences:
        found["--seq"] = 16 + 12 * (7 * run % 10)
    return [str(item) for pair in found.items() for item in pair]


def sample(job: str, run: int, run_dir: Path) -> list[Path]:
    """Runs `job` once; the traces that it left."""
    autoload = ROOT / "tenant_client" / "run" / "hook" / "autoload"
    environment = os.environ | UNGUARDED | {"PYTHONPATH": str(autoload), "PHAROAH_RUN_DIR": str(run_dir)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [*launcher, str(ROOT / "examples" / f"{job}.py"), *options(run=run, has_sequences=JOBS[job])]
    subprocess.run(command, check=True, capture_output=True, env=environment | {"OMP_NUM_THREADS": "1"})
    return sorted(run_dir.glob("trace-*.json"))


def archetypes(job: str, windows: int) -> Counter[bytes]:
    """How often each archetype was found in `windows` windows of `job`."""
    found: Counter[bytes] = Counter()
    run = 0
    while found.total() < windows:
        with tempfile.TemporaryDirectory() as run_dir:
            traces = sample(job, run, Path(run_dir))
            if not traces:
                raise RuntimeError(f"{job}: no trace")
            kept = traces[: windows - found.total()]
            found.update(rungs(describe_files([trace]), ()).archetype for trace in kept)
        run += 1
        sys.stderr.write(f"{job}: {found.total()} of {windows} windows, {len(found)} archetypes\n")
    return found


def measure(windows: int) -> Iterator[Figure]:
    """One figure per job, and one on what the jobs share."""
    by_job = {}
    for job in JOBS:
        by_job[job] = found = archetypes(job, windows)
        modal = found.most_common(1)[0][1]
        yield {"figure": "stability", "job": job, "windows": windows, "modal": modal / windows, "distinct": len(found)}
    shared = {kind for first, second in combinations(by_job.values(), 2) for kind in set(first) & set(second)}
    yield {"figure": "separation", "jobs": len(by_job), "archetypes_shared": len(shared)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="stability of archetypes over windows of the example jobs")
    parser.add_argument("--windows", type=int, default=100, help="per job (default: 100)")
    show(measure(parser.parse_args().windows))
