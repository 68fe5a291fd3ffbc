"""How well earlier runs tell what an example job needs: each run held out in turn. JSON on stdout.

    python -m benchmarks.resources [RUNS] [JOB]…

Runs every example job, or those named, RUNS times (default 3) with other seeds (`torchrun`, two ranks here, 20 steps),
with the hook and `UsageMeter` beside it, as `pharoah-tenant run` has them. Each run is then predicted from the other
runs of the same job. `right` counts expected values within 20%, `covered` 95% intervals that held what was measured.
Each run has a network of its own, whose loopback no other program uses: that needs the right to make namespaces.
Processor time is that of a machine that is as busy as it is.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, show
from tenant_client.advice.resources import SPREADS, expect, quantities
from tenant_client.records.usages import Usage
from tenant_client.run.rank_watch import progresses
from tenant_client.run.usage import UsageMeter

ROOT = Path(__file__).resolve().parents[1]
JOBS = ("ddp", "fsdp", "pipeline", "dataloader")
STEPS, LOOK_S, LIMIT_S = 20, 0.5, 400.0
RIGHT = 0.2
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def measured(job: str, seed: int) -> Usage:
    """One run of an example job."""
    with tempfile.TemporaryDirectory() as folder:
        hook = ROOT / "tenant_client/run/hook/autoload"
        env = os.environ | {
            "PYTHONPATH": f"{hook}:{ROOT}",
            "PHAROAH_RUN_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        command = [
            *ALONE,
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(str(ROOT / f"examples/{job}.py"), "--steps", str(STEPS), "--seed", str(seed)),
        ]
        meter, began = UsageMeter(), time.monotonic()
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                meter.look(list(progresses(Path(folder))))
                time.sleep(LOOK_S)
                if time.monotonic() - began > LIMIT_S:
                    process.terminate()
        if process.returncode:
            raise RuntimeError(f"{job} ended with {process.returncode}")
        return meter.usage


def held_out(job: str, usages: list[Usage]) -> Figure:
    """Every run of a job predicted from the others."""
    found: Figure = {"job": job, "runs": len(usages)}
    for name, spread in SPREADS.items():
        values = [quantities(one).get(name) for one in usages]
        known = [value for value in values if value is not None]
        errors, covered = [], []
        for place, value in enumerate(known):
            rest = known[:place] + known[place + 1 :]
            if rest:
                expected = expect(rest, spread)
                errors.append(abs(expected.value - value) / value if value else float(expected.value > 0))
                covered.append(expected.low <= value <= expected.high)
        found[name] = {
            "measured": known,
            "largest_error": max(errors, default=None),
            "right": sum(error <= RIGHT for error in errors),
            "covered": sum(covered),
            "predicted": len(errors),
        }
    return found


def main() -> None:
    """All jobs, in turns, so that a busy hour is shared by all."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    usages: dict[str, list[Usage]] = {job: [] for job in sys.argv[2:] or JOBS}
    for seed in range(runs):
        for job in usages:
            usages[job].append(measured(job, seed))
            sys.stderr.write(f"{job} {seed}: {usages[job][-1]}\n")
    rows = [held_out(job, found) for job, found in usages.items()]
    totals = {
        name: {key: int(np.sum([row[name][key] for row in rows])) for key in ("right", "covered", "predicted")}
        for name in SPREADS
    }
    show([{"jobs": rows, "totals": totals}])


if __name__ == "__main__":
    main()
