"""Runs one attempt of a job from start to finish. Read `run` first.

    make the run directory → block signals → start the relay → start the observer → run the job → drain its output
    → the observer journals how the job ended and why → exit as the job did

Every step except the job itself may fail; the next step runs anyway.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tenant_client.doctor.run import streams as laying, supervise
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.observer_pipe import Link
from tenant_client.doctor.run.restarts import is_torchrun
from tenant_client.doctor.run.run_directory import RUN_DIR, RunDirectory, environment, make_place, remove
from tenant_client.doctor.run.settings import RunSettings
from tenant_client.doctor.run.streams import Streams
from tenant_client.doctor.run.supervise import Ending, Job


def run(command: Sequence[str], settings: RunSettings) -> NoReturn:
    """Runs the job and ends this process with the job's exit status."""
    ours = FailOpen(quiet=settings.quiet)
    mask = supervise.block()
    place: RunDirectory | None = None
    streams: Streams | None = None
    link: Link | None = None
    env = dict(os.environ)

    with ours.guard("cannot make the run directory"):
        elastic = is_torchrun(command) and "PET_LOG_DIR" not in env
        place = make_place(settings.home, settings.lease, elastic=elastic, wanted_bytes=4 * settings.spool_bytes)
        env = environment(os.environ, place, sample=settings.sample, describe_now=settings.describe_now)
    with ours.guard("cannot capture the job's output"):
        streams = laying.lay(None if place is None else place.run_dir, settings.spool_bytes)
    if place is not None:
        with ours.guard("cannot start the observer, so the attempt is not recorded"):
            link = Link(settings, place)

    job = _start(command, env, streams, mask)
    if isinstance(job, Ending):
        with ours.guard("cannot remove the empty run directory"):
            remove(place)
        supervise.end_like(job)
    with ours.guard("cannot reach the observer, so the attempt is not recorded"):
        if link is not None:
            link.begun(job.pid)
    ending = _wait(job, streams, link, "" if place is None else f"{RUN_DIR}={place.run_dir}", ours)

    with ours.guard("the end of the job's output may be missing"):
        if streams is not None and not streams.drain(settings.drain_s):
            ours.warn("the job's output is not drained yet: a background process copies the rest")
    with ours.guard("cannot record how the job ended"):
        if link is not None:
            link.ended(ending)
            link.close()
            if not link.await_end(settings.grace_s):
                ours.warn(f"the diagnosis took longer than {settings.grace_s:.0f} s and was stopped (see --grace-s)")
    supervise.end_like(ending)


def _start(command: Sequence[str], env: dict[str, str], streams: Streams | None, mask: frozenset[int]) -> Job | Ending:
    """The job, or the exit code that a shell uses for a command that cannot start."""
    try:
        return supervise.start(command, env, streams.files() if streams else {}, mask)
    except OSError as error:
        FailOpen(quiet=False).say(f"error: {command[0]}: {error.strerror}")
        missing = isinstance(error, FileNotFoundError)
        return Ending(supervise.NOT_FOUND if missing else supervise.NOT_EXECUTABLE)
    finally:
        if streams is not None:
            streams.let_go()


def _wait(job: Job, streams: Streams | None, link: Link | None, mark: str, ours: FailOpen) -> Ending:
    def asked(number: int, sender: int, at_s: float) -> None:
        with ours.guard("cannot reach the observer"):
            if link is not None:
                name = TERMINAL if sender == supervise.BY_TERMINAL else sender_of(sender, job.pid, mark)
                link.asked(number, name, at_s)

    with ours.guard("signals and output are no longer forwarded"):
        return supervise.wait(job, streams, asked)
    return supervise.wait_only(job)


# ---- senders of signals ----------------------------------------------------------------------------------------------


TERMINAL = "the terminal"
_LOOKS, _NAP_S = 4, 0.005


def sender_of(pid: int, job: int, mark: str = "") -> str | None:
    """The name of the program with this process id, "" if unknown; None for the job itself or what it started.

    `mark` is a line of the environment that the job alone was given: what it started may have lost its parent by now.
    """
    if mark and mark in _environment(pid):
        return None
    seen: set[int] = set()
    name, at = "", pid
    while at > 1 and at not in seen:
        if at == job:
            return None
        seen.add(at)
        try:
            text = Path(f"/proc/{at}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        name = name or text[text.index("(") + 1 : text.rindex(")")]
        at = int(text.rpartition(")")[2].split()[1])
    return name


def _environment(pid: int) -> list[str]:
    """What a process was started with; none if it is gone, or somebody else's."""
    for _ in range(_LOOKS):
        try:
            text = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        if text:
            return text.split("\0")
        time.sleep(_NAP_S)  # it becomes another program at this moment, as a shell does for its last command
    return []
