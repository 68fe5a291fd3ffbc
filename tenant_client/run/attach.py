"""Joining late: a process that runs already, or a log directory of torchrun.

A process that is not our child is followed by its handle (pidfd), so that a new process with the same number is never
taken for it. Its exit status is in /proc for as long as its parent has not asked for it, and then only for its owner;
else it is unknown, and so is the reason. Of a log directory every attempt but the last is known to have failed; the
last one is known to have failed if it left an error file.
"""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from crypto.errors import PharoahError
from tenant_client.run import restarts
from tenant_client.run.attempt_recorder import Record
from tenant_client.run.fail_open import FailOpen
from tenant_client.run.observe import Observer
from tenant_client.run.run_directory import RUN_DIR, held, make_place
from tenant_client.run.settings import RunSettings
from tenant_client.run.supervise import Ending, ending_of

_EXIT_CODE_FIELD = 49  # of /proc/<pid>/stat, counted from after the name in parentheses


class NothingToAttachTo(PharoahError):
    """Neither a running process nor a log directory."""

    default_hint = "name the id of a running process of yours, or torchrun's --log-dir"


def attach(target: str, settings: RunSettings) -> None:
    """Follows a process until it ends, or reads a log directory; NothingToAttachTo where `target` is neither."""
    if target.isdecimal():
        attach_process(int(target), settings)
    else:
        attach_directory(Path(target), settings)


def attach_process(pid: int, settings: RunSettings, clock: Callable[[], float] = time.time) -> None:
    """Follows process `pid` until it ends."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise NothingToAttachTo(f"process {pid}: {error.strerror}") from error
    try:
        observer = _observer_of(pid, settings, clock())
        while not select.select([pidfd], [], [], settings.poll_s)[0]:
            observer.tick(clock())
        status = exit_status(pid)
    finally:
        os.close(pidfd)
    observer.end(None if status is None else ending_of(status), clock())


def attach_directory(log_dir: Path, settings: RunSettings) -> None:
    """Journals the attempts that a log directory of torchrun shows."""
    found = restarts.attempt_dirs(log_dir)
    if not found:
        raise NothingToAttachTo(f"{log_dir} has no attempt_<n> in it")
    ours = FailOpen(quiet=settings.quiet)
    run_dir = next(iter(found.values())).parent
    record = Record(settings.home, settings.lease, run_dir, settings.logs, ours, notes=False)
    first, last = min(found), max(found)
    record.restart = first
    record.begin(found[first].stat().st_mtime, 1)
    ended_s = max(path.stat().st_mtime for path in found[last].rglob("*"))
    record.restarted(found, ended_s, 0, ())
    if any(found[last].glob("*/error.json")):
        record.ended(Ending(None), ended_s, 0, (), found)
    else:
        record.interrupted(ended_s, 0, ())


def exit_status(pid: int) -> int | None:
    """The wait status of an ended process whose parent has not asked for it yet; None where the kernel keeps it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if fields[0] != "Z" or len(fields) <= _EXIT_CODE_FIELD:
        return None
    return int(fields[_EXIT_CODE_FIELD])


def _observer_of(pid: int, settings: RunSettings, now_s: float) -> Observer:
    env = _environment_of(pid)
    told = {"elastic_dir": env.get("PET_LOG_DIR", ""), "elastic_is_ours": "False"}
    if RUN_DIR in env:
        run_dir = Path(env[RUN_DIR])
        if held(run_dir):
            raise NothingToAttachTo(f"process {pid} is watched already", hint=f"see {run_dir}")
        number = run_dir.name.rpartition("-")[2]
        told |= {"run_dir": str(run_dir), "attempt": number if number.isdecimal() else "1"}
    else:
        place = make_place(settings.home, settings.lease, elastic=False)
        told |= {"run_dir": str(place.run_dir), "attempt": str(place.attempt)}
    observer = Observer(settings, told, FailOpen(quiet=settings.quiet))
    observer.begin(pid, now_s)
    return observer


def _environment_of(pid: int) -> dict[str, str]:
    """What the process was started with; empty where it is somebody else's."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
