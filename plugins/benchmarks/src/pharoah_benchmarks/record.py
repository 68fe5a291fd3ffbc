"""What is kept of a run: a line of `benchmarks.jsonl` in the provider's home, of which findings learn from then on.

What it was made of is a line of `benchmarks/profiles.jsonl` there, by which versions are compared.

One process at a time runs jobs for a home: a lock on `benchmarks.lock` says so, and ends with its process.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from federation.base.clock import now_hour
from pharoah_benchmarks.run import SCRATCH, CannotRun, Ran
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.benchmark_jobs import FILE, BadBenchmarks, BenchmarkJob, Pace, parse
from provider_server.rounds.home import founded_hour

LOCK, FOLDER, PROFILES = "benchmarks.lock", "benchmarks", "profiles.jsonl"
UNDESCRIBED = "not described"


def profiles(home: Path) -> tuple[Ran, ...]:
    """What the runs of this home were made of, the oldest first; BadBenchmarks for a damaged file."""
    file = home / FOLDER / PROFILES
    try:
        return tuple(msgspec.json.Decoder(Ran).decode_lines(file.read_bytes())) if file.exists() else ()
    except msgspec.MsgspecError as error:
        raise BadBenchmarks(f"{file}: {error}", hint="remove the line that cannot be read") from error


@contextmanager
def running(home: Path) -> Iterator[Path]:
    """The folder for runs of this home, which nobody else uses meanwhile; CannotRun where somebody does."""
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotRun(
                "another benchmark runs for this home", hint="wait for it: two would disturb each other"
            ) from error
        folder = home / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in folder.glob(f"{SCRATCH}*"):  # by a runner that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield folder
    finally:
        os.close(descriptor)


def is_running(home: Path) -> bool:
    """Whether somebody runs jobs for this home."""
    try:
        with running(home):
            return False
    except CannotRun:
        return True


def context_of(home: Path, node: str) -> int:
    """The number of a node's context, as telemetry knows it; CannotRun where it does not."""
    kept = hardware.load(home)
    number = kept.contexts.of(node) if kept else None
    if number is None:
        raise CannotRun(
            f"no telemetry says which context {node} is of",
            hint="pass --context as leases have it, or --node as telemetry calls it",
        )
    return number


def told_by(home: Path, ran: Ran, context: int | str, archetype: str) -> BenchmarkJob:
    """What is kept of a run that has just ended; on one machine, whatever ranks it had."""
    return BenchmarkJob(
        job=ran.run,
        context=context,
        nodes=1,
        start_h=hours_since_founded(home, ran.seconds),
        hours=ran.seconds / 3600,
        outcome=ran.outcome,
        archetype=archetype or ran.archetype or UNDESCRIBED,
        versions=ran.versions,
        settings={"node": ran.node, "ranks": float(ran.ranks), "size": ran.size, "precision": ran.precision},
        pace=Pace(ran.job, ran.seconds_per_step, ran.spread) if ran.seconds_per_step else None,
    )


def hours_since_founded(home: Path, seconds: float) -> float:
    """When it began, if it has just ended after so many seconds."""
    return max(0.0, now_hour() - founded_hour(home) - seconds / 3600)


def record(home: Path, job: BenchmarkJob, ran: Ran | None = None) -> None:
    """Appends a line, and another of what it was made of; BadBenchmarks for one that would cost findings all others."""
    line = msgspec.json.encode(job)
    parse(line, job.job)
    _append(home / FILE, line)
    if ran is not None:
        (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
        _append(home / FOLDER / PROFILES, msgspec.json.encode(ran))


def _append(file: Path, line: bytes) -> None:
    line += b"\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, line) < len(line):  # findings read no file with half a line in it
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
