"""Who ended it: real jobs, each ended in a known state, and what the journal says of it.

`ended_jobs.toml` says how each is ended and what is right; step times and seeds differ from case to case.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "jobs" / "ended_job.py"
RUN = (sys.executable, "-m", "tenant_client", "run", "--quiet")
STEP_S = (0.02, 0.1, 0.4, 1.0)
PATIENCE_S = 300.0
LIMIT_S = 60.0  # of `timeout`: long enough for a busy machine to have come to its steps


@dataclass(frozen=True)
class Case:
    """One job: the kind, how it is ended, and how long its steps take."""

    kind: str
    by: str
    step_s: float
    seed: int
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """What the journal says of a job's first attempt."""

    case: Case
    state: str
    reason: str
    sentence: str
    counted: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether reason and count are."""
        wanted = tuple(self.case.row.get("counted", ()))
        return (self.reason, self.counted) == (self.case.row["reason"], wanted) and self.state == "stopped"


def cases(each: int, seed: int) -> list[Case]:
    """So many of each kind and way."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rng = random.Random(seed)
    return [
        Case(kind, by, rng.choice(STEP_S), rng.randrange(1000), row)
        for kind, row in table.items()
        for by in row["by"]
        for _ in range(each)
    ]


def ended(case: Case, folder: Path) -> Said:
    """Runs a job and ends it as the case says."""
    home, job = (
        folder / "home",
        [sys.executable, str(JOB), case.row["job"], str(case.step_s), str(case.seed), "--last", "1000000"],
    )
    env = _environment(case)
    options = ["--home", str(home)]
    if "kernel" in case.row:
        (folder / "kernel.log").write_text(case.row["kernel"] + "\n", encoding="utf-8")
        options += ["--log", str(folder / "kernel.log")]
    inner = ["timeout", str(LIMIT_S)] if case.by == "inner" else []
    outer = ["timeout", str(LIMIT_S)] if case.by == "timeout" else []
    if case.by == "slurm":
        options += ["--log", str(folder / "slurm.log")]
    command = [*outer, *RUN, *options, "--", *inner, *job]
    with _started(command, env, folder) as process:
        _wait(process, case)
        _end(process, case, folder)
        process.wait(PATIENCE_S)
    if case.row.get("again"):
        again = [*RUN, *options, "--", *job[:-3], str(case.seed + 1), "--last", "3"]
        with _started(again, env, folder) as process:
            process.communicate(timeout=PATIENCE_S)
    with closing(open_database(home / "tenant.db")) as connection:
        attempt = Attempts(connection).list()[0]
        counted = tuple(reason for (reason,) in connection.execute("SELECT reason FROM failures"))
    return Said(case, attempt.state.value, attempt.cause.reason, attempt.cause.sentence, counted)


def _environment(case: Case) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PHAROAH_", "SLURM_", "PET_"))}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    limit = {"SLURM_JOB_ID": "4711", "SLURM_JOB_END_TIME": f"{time.time() + 90:.0f}"} if case.by == "limit" else {}
    return ours | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | limit


def _started(command: Sequence[str], env: Mapping[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait(process: "subprocess.Popen[bytes]", case: Case) -> None:
    """Until the job has come to what it does, and then for as long as the case says."""
    output: Any = process.stdout
    for line in output:
        if line == b"now\n":
            break
    reader = threading.Thread(target=output.read, daemon=True)  # so that the job can go on writing
    reader.start()
    time.sleep(max(case.row["wait_s"], case.row.get("wait_steps", 0) * case.step_s))


def _end(process: "subprocess.Popen[bytes]", case: Case, folder: Path) -> None:
    if case.by in ("timeout", "inner"):
        return
    if case.by == "slurm":
        (folder / "slurm.log").write_text(case.row["line"] + "\n", encoding="utf-8")
    number = signal.SIGINT if case.by == "int" else signal.SIGTERM
    with suppress(ProcessLookupError):
        os.kill(_job_of(process.pid) if case.by == "job" else process.pid, number)


def _job_of(run: int) -> int:
    """The child of `run` that is the job."""
    for child in Path(f"/proc/{run}/task/{run}/children").read_text(encoding="ascii").split():
        if str(JOB) in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0"):
            return int(child)
    raise ProcessLookupError(run)


def score(said: Sequence[Said]) -> dict[str, Any]:
    """The share that is right, of all and by kind, and what was said wrong."""
    kinds = dict.fromkeys(one.case.kind for one in said)
    of_kind = {kind: [one for one in said if one.case.kind == kind] for kind in kinds}
    return {
        "n": len(said),
        "right": round(sum(one.right for one in said) / len(said), 4),
        "kinds": {kind: f"{sum(one.right for one in ones)} of {len(ones)}" for kind, ones in of_kind.items()},
        "wrong": [
            [one.case.kind, one.case.by, one.case.step_s, one.state, one.reason, list(one.counted), one.sentence]
            for one in said
            if not one.right
        ],
    }


def run_all(todo: Sequence[Case], folder: Path, parallel: int) -> list[Said]:
    """The cases, some at the same time, each in a folder of its own below this one."""
    folders = [folder / str(number) for number in range(len(todo))]
    for one in folders:
        one.mkdir()
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(ended, todo, folders))
