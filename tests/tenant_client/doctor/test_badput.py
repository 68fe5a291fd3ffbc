"""Badput: what 12 real jobs spent by their own clock, and the ledger by hand."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenant_client.doctor.advice.expectations import LeaseExpectations
from tenant_client.rounds.disclosure.expected import expected
from tests.jobs.wrapped import JOBS, start
from tests.support.gloo import tried_again_without_gloo

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1", "--monitor-interval=0.1")
TWO = (*TORCHRUN, "--nproc-per-node=2")
ONE_OF_TORCHRUN = (*TORCHRUN, "--nproc-per-node=1")
ONE = (sys.executable,)


def spent(
    folder: Path, launcher: Sequence[str], steps: int, *plan: str
) -> tuple[float, Counter[str], LeaseExpectations]:
    """The seconds that the job's first process lived, as /proc has it; what rank 0 did; and what Pharoah booked."""
    job = [*launcher, str(JOBS / "spends.py"), str(folder), str(steps), *plan]
    with start(folder, job, ["--poll-s", "0.2", "--hang-floor-s", "5"], env={"PYTHONUNBUFFERED": "1"}) as process:
        wall_s = _lived_s(process.pid, job)
        process.communicate(timeout=60)
    done: Counter[str] = Counter()
    for file in folder.glob("truth-0-*"):
        for what, begun, ended in map(json.loads, file.read_text().splitlines()):
            done[what] += ended - begun
    (lease,) = expected(folder / "tenant.db", folder, time.time()).leases
    return wall_s, done, lease


def _lived_s(run: int, job: Sequence[str]) -> float:
    """From outside: when the process that runs exactly this command began, and when it was gone."""
    until, pid = time.monotonic() + 30, None
    while pid is None and time.monotonic() < until:
        time.sleep(0.005)
        pid = next((one for one in _children(run) if _words(one) == [*job]), None)
    assert pid is not None
    begun = time.monotonic()
    while _words(pid):  # a zombie has none
        time.sleep(0.005)
    return time.monotonic() - begun


def _children(pid: int) -> list[int]:
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


REAL_JOBS = [  # what rank 0 does, by launcher; steps that a failure loses
    ("a plain job", ONE, 300, (), 0),
    ("a slow start and a slow end", ONE, 200, ("start@0:5", "end@0:3"), 0),
    ("checkpoints in their phase", ONE, 200, ("checkpoint@50:2", "checkpoint@150:2"), 0),
    ("a checkpoint that only torch.save tells", ONE, 200, ("save@80:3",), 0),
    ("evaluations", ONE, 200, ("evaluate@60:3", "evaluate@160:1"), 0),
    ("metrics on the CPU within an evaluation", ONE, 200, ("metrics@60:5", "evaluate@120:2"), 0),
    ("a stall of the data", ONE, 200, ("stall@100:8",), 0),
    ("an exception, and no checkpoint", ONE, 300, ("raise@300",), None),
    ("a kill after a checkpoint", ONE, 200, ("checkpoint@80:1", "kill@180"), 100),
    ("an exception and a restart", ONE_OF_TORCHRUN, 150, ("checkpoint@60:1", "raise/0.0@120"), 60),
    ("two ranks that evaluate and save", TWO, 150, ("evaluate@50:2", "save@80:1.5", "checkpoint@120:1"), 0),
    ("two ranks, one of which stalls until Gloo gives up", TWO, 120, ("checkpoint@40:1", "stall/1.0@80:30"), 40),
]


@pytest.mark.nightly
@pytest.mark.parametrize("job", REAL_JOBS, ids=[name for name, *_ in REAL_JOBS])
@tried_again_without_gloo
def test_goodput_and_badput_are_the_time_that_a_real_job_took(tmp_path: Path, job: Any) -> None:
    """By the clocks of others: of the whole, /proc; of the parts, the job's own."""
    name, launcher, steps, plan, lost = job
    wall_s, done, lease = spent(tmp_path, launcher, steps, *plan)
    bad_s = {reason.value: seconds for reason, seconds in lease.bad_s.items()}
    good_s = sum(week.good_s for week in lease.weeks)
    figures = {"wall": wall_s, "booked": lease.all_s, "good": good_s, **bad_s, "by its own clock": dict(done)}
    (tmp_path / "figures.json").write_text(json.dumps({name: figures}) + "\n")
    assert lease.all_s == pytest.approx(wall_s, rel=0.01)
    assert good_s + sum(bad_s.values()) == pytest.approx(lease.all_s)
    for reason in ("checkpoint", "evaluation", "metrics", *(["stall"] if launcher is ONE else [])):
        assert bad_s.get(reason, 0.0) == pytest.approx(done[reason], rel=0.1, abs=0.5), reason
    if launcher is ONE:
        assert bad_s["start"] == pytest.approx(done["start"], rel=0.05, abs=0.6)  # with the interpreter's own start
    elif "stall" in name:
        assert 8.0 < bad_s["stall"] < 14.0
    stepped_s = good_s + bad_s.get("lost_work", 0.0) + bad_s.get("slow_steps", 0.0)
    assert stepped_s == pytest.approx(done["step"], rel=0.1) or bad_s.get("stall")
    assert lease.lost_steps == (lost if lost is None else pytest.approx(lost, abs=8))
