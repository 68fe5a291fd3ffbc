"""Real jobs of two ranks in which one is odd on purpose: does the observer say what, and which rank? JSON on stdout.

    python -m benchmarks.odd_ranks [--repeats 1] [--seconds 60] [--clean 1] [ODDITY…]

Each job is `tests/jobs/odd_ranks.py` behind `pharoah-tenant run`. A job is right if the first finding of its kind names
the odd rank, and if no finding names the other. Clean jobs are right if there is no finding. What was said
is in `said`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, show

ROOT = Path(__file__).resolve().parents[1]
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


def judge(oddity: str, rank: int, seconds: float) -> Figure:
    """One job, and whether what was said of it is right."""
    said = [(kind, text) for kind, text in findings(oddity, rank, seconds) if kind in KINDS.values()]
    wanted = KINDS.get(oddity)
    named = {int(number) for _, text in said for number in re.findall(r"\brank (\d+)", text)}
    allowed = {0, 1} if oddity in BOTH else {rank}
    found = any(kind == wanted and f"rank {rank}" in text for kind, text in said)
    right = not said if wanted is None else found and named <= allowed
    return {"figure": "odd_rank", "oddity": oddity, "rank": rank, "found": found, "right": right, "said": said}


def main() -> Iterator[Figure]:
    """The jobs, then how many were right; the exit status is 1 unless all were."""
    parser = argparse.ArgumentParser(description="jobs with one odd rank")
    parser.add_argument("oddities", nargs="*", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--repeats", type=int, default=1, help="jobs of each kind on each rank (default: 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each job (default: 60)")
    parser.add_argument("--clean", type=int, default=1, help="jobs without an odd rank (default: 1)")
    options = parser.parse_args()
    cases = [(kind, rank) for _ in range(options.repeats) for kind in options.oddities or KINDS for rank in (1, 0)]
    judged = []
    for oddity, rank in [*cases, *([("none", 0)] * options.clean)]:
        sys.stderr.write(f"{oddity} on rank {rank} …\n")
        judged.append(judge(oddity, rank, options.seconds))
        yield judged[-1]
    odd = [one for one in judged if one["oddity"] != "none"]
    yield {
        "figure": "odd_ranks",
        "n": len(odd),
        "right": sum(one["right"] for one in odd),
        "clean": len(judged) - len(odd),
        "false_alarms": sum(not one["right"] for one in judged if one["oddity"] == "none"),
    }
    if not all(one["right"] for one in judged):
        sys.exit(1)


if __name__ == "__main__":
    show(main())
