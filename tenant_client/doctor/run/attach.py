"""Watches a process that Pharoah did not start, or journals a log directory of torchrun.

- A process is followed by its pidfd, so that a new process with the same id is never mistaken for it.
- Its exit status is read from /proc, where it is available to its owner until the parent reaps it; else the status and
  the reason are unknown.
- In a log directory, every attempt except the last one failed; the last one failed if it has an error file.
"""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from crypto.errors import PharoahError
from tenant_client.doctor.run import restarts
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.ended import Asked
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.observe import Observer
from tenant_client.doctor.run.run_directory import RUN_DIR, held, make_place
from tenant_client.doctor.run.settings import RunSettings
from tenant_client.doctor.run.supervise import Ending, ending_of

_EXIT_CODE_FIELD = 49  # of /proc/<pid>/stat, counted from after the name in parentheses


class NothingToAttachTo(PharoahError):
    """The target is neither a running process nor a log directory."""

    default_hint = "pass the id of a running process of yours, or torchrun's --log-dir"


def attach(target: str, settings: RunSettings) -> None:
    """Follows a process until it ends, or reads a log directory; NothingToAttachTo if `target` is neither."""
    if target.isdecimal():
        attach_process(int(target), settings)
    else:
        attach_directory(Path(target), settings)


def attach_process(pid: int, settings: RunSettings, clock: Callable[[], float] = time.time) -> None:
    """Follows process `pid` until it ends."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise NothingToAttachTo(f"cannot follow process {pid}: {error.strerror}") from error
    try:
        observer = _observer_of(pid, settings, clock())
        while not select.select([pidfd], [], [], settings.poll_s)[0]:
            observer.tick(clock())
        status = exit_status(pid)
    finally:
        os.close(pidfd)
    observer.end(None if status is None else ending_of(status), clock())


def attach_directory(log_dir: Path, settings: RunSettings) -> None:
    """Journals the attempts in a log directory of torchrun."""
    found = restarts.attempt_dirs(log_dir)
    if not found:
        raise NothingToAttachTo(f"no attempt_<n> folder in {log_dir}")
    ours = FailOpen(quiet=settings.quiet)
    run_dir = next(iter(found.values())).parent
    record = Record(settings.home, settings.lease, run_dir, settings.logs, ours, notes=False)
    first, last = min(found), max(found)
    record.restart = first
    record.begin(found[first].stat().st_mtime, 1)
    ended_s = max(path.stat().st_mtime for path in found[last].rglob("*"))
    record.restarted(found, {}, ended_s, 0, ())
    if any(found[last].glob("*/error.json")):
        record.ended(Ending(None), Asked(ended_s), ended_s, 0, (), found)
        record.say_next()
    else:
        record.interrupted(ended_s, 0, ())


def exit_status(pid: int) -> int | None:
    """The wait status of an ended process that its parent has not reaped; None if it is not readable."""
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
    return Observer(settings, told, FailOpen(quiet=settings.quiet), pid, now_s)


def _environment_of(pid: int) -> dict[str, str]:
    """The environment of the process; empty if another user owns it."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
