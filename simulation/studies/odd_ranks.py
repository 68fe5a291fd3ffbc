"""Real jobs of two ranks in which one is odd on purpose: does the observer say what, and which rank?

Each job is `tests/jobs/odd_ranks.py` behind `pharoah-tenant run`. A job is right if the first finding of its kind names
the odd rank, and if no finding names the other. Clean jobs are right if there is no finding. What was said
is in `said`.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from simulation.studies.study import ROOT, Figures, Only, Table, chosen, tracked

KINDS = {
    "gc": "gc_pauses",
    "leak": "memory_growth",
    "flat": "loss_plateau",
    "spike": "loss_spike",
    "slow_input": "slow_function",
    "slow_compute": "slow_function",
}
BOTH = ("flat",)  # ranks that share their gradients share a loss that does not fall
GLOO_TRIES = 3


def findings(oddity: str, rank: int, seconds: float) -> list[tuple[str, str]]:
    """The kind and the text of what the observer says of one job."""
    said = ""
    for _ in range(GLOO_TRIES):
        with tempfile.TemporaryDirectory() as folder:
            job = [str(ROOT / "tests" / "jobs" / "odd_ranks.py"), oddity, str(rank), str(seconds), folder]
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *job]
            client = [sys.executable, "-m", "tenant_client", "run", "--home", folder, "--poll-s", "0.25", "--"]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            done = subprocess.run([*client, *launcher], env=environment, capture_output=True, text=True, check=False)
            said = done.stderr
            if not (Path(folder) / "no-gloo").exists():
                break
    return re.findall(r"^pharoah-tenant: ([a-z_]+): (.*)$", said, re.MULTILINE)


def judge(oddity: str, rank: int, seconds: float) -> Figures:
    """One job, and whether what was said of it is right."""
    said = [(kind, text) for kind, text in findings(oddity, rank, seconds) if kind in KINDS.values()]
    wanted = KINDS.get(oddity)
    named = {int(number) for _, text in said for number in re.findall(r"\brank (\d+)", text)}
    allowed = {0, 1} if oddity in BOTH else {rank}
    found = any(kind == wanted and f"rank {rank}" in text for kind, text in said)
    right = not said if wanted is None else found and named <= allowed
    return {"oddity": oddity, "rank": rank, "found": found, "right": right, "said": said}


def run(
    only: Only = None,
    repeats: Annotated[int, typer.Option(min=1, help="Jobs of each kind on each rank.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Of each job.")] = 60.0,
    clean: Annotated[int, typer.Option(min=0, help="Jobs without an odd rank.")] = 1,
) -> Table:
    """Real jobs with one odd rank: what the observer says of it. It fails unless all that is said is right."""
    cases = [(kind, rank) for _ in range(repeats) for kind in chosen(only, KINDS) for rank in (1, 0)]
    judged = tracked((judge(*case, seconds) for case in [*cases, *([("none", 0)] * clean)]), len(cases) + clean, "jobs")
    odd, quiet = judged[: len(cases)], judged[len(cases) :]
    right, alarms = sum(one["right"] for one in odd), sum(not one["right"] for one in quiet)
    found = {"n": len(odd), "right": right, "clean": clean, "false_alarms": alarms, "jobs": judged}
    return Table(found, failed=right < len(odd) or alarms > 0)
