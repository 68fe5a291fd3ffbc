"""`pharoah-tenant run -- …` as a person starts it, for tests: a process of its own, and what it left in the journal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tenant_client.doctor.records.attempts import Attempt, Attempts
from tenant_client.doctor.records.database import open_database

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "tests" / "jobs"
LEASE = "lease-1"
ENDS_IN_S = 45.0  # torchrun gives its ranks 30 s
PROGRAM = (sys.executable, "-c", "from tenant_client.program.cli import app; app()")


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: bytes
    stderr: str


def command(home: Path, job: Sequence[object], options: Iterable[object] = ()) -> list[str]:
    words = (*PROGRAM, "run", "--home", home, "--lease", LEASE, *options, "--", *job)
    return [str(word) for word in words]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PHAROAH_", "SLURM_", "PET_"))}
    return ours | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"} | dict(extra or {})


def run(
    home: Path,
    job: Sequence[object],
    options: Iterable[object] = (),
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout_s: float = 120.0,
    **more: Any,
) -> Outcome:
    """The job's outcome; TimeoutExpired, with all that was said, once it took `timeout_s` and was ended for that."""
    more |= {"stdin": subprocess.PIPE, "start_new_session": True}
    with start(home, job, options, env=env, **more) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout_s)
        except subprocess.TimeoutExpired as error:
            error.stdout, error.stderr = _end(process)
            raise
    return Outcome(process.returncode, stdout, stderr.decode(errors="replace"))


def _end(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Ends the job as its owner would, since only torchrun reaches its ranks, which have sessions of their own."""
    process.terminate()
    try:
        return process.communicate(timeout=ENDS_IN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=ENDS_IN_S)


def start(home: Path, job: Sequence[object], options: Iterable[object] = (), **more: Any) -> "subprocess.Popen[bytes]":
    more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    env = environment(more.pop("env", None))
    return cast("subprocess.Popen[bytes]", subprocess.Popen(command(home, job, options), env=env, **more))


def attempts(home: Path) -> list[Attempt]:
    """The journal's rows, after a check that the file is whole."""
    if not (home / "tenant.db").exists():
        return []
    with closing(open_database(home / "tenant.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return Attempts(connection).list()


def failures(home: Path) -> list[str]:
    """Reasons of the failures that will be counted."""
    with closing(open_database(home / "tenant.db")) as connection:
        return [reason for (reason,) in connection.execute("SELECT reason FROM failures ORDER BY at_h")]
