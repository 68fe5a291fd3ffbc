"""One attempt from start to finish: the one function to read first.

    a place → signals wait → the relay lies ready → the observer stands by → the job runs → its last output is copied
    → the observer writes down how it ended and why → we end as the job did

Each line but the job's may fail, and the next one is done all the same.
"""

import os
from collections.abc import Sequence
from typing import NoReturn

from tenant_client.run import streams as laying, supervise
from tenant_client.run.fail_open import FailOpen
from tenant_client.run.observer_pipe import Link
from tenant_client.run.restarts import is_torchrun
from tenant_client.run.run_directory import RunDirectory, environment, make_place, remove
from tenant_client.run.settings import RunSettings
from tenant_client.run.streams import Streams
from tenant_client.run.supervise import Ending, Job


def run(command: Sequence[str], settings: RunSettings) -> NoReturn:
    """Runs the job under watch and ends this process as the job ended."""
    ours = FailOpen(quiet=settings.quiet)
    mask = supervise.block()
    place: RunDirectory | None = None
    streams: Streams | None = None
    link: Link | None = None
    env = dict(os.environ)

    with ours.guard("no run directory"):
        elastic = is_torchrun(command) and "PET_LOG_DIR" not in env
        place = make_place(settings.home, settings.lease, elastic=elastic, wanted_bytes=4 * settings.spool_bytes)
        env = environment(os.environ, place, sample=settings.sample)
    with ours.guard("the job's output is not kept"):
        streams = laying.lay(None if place is None else place.run_dir, settings.spool_bytes)
    if place is not None:
        with ours.guard("nothing is recorded"):
            link = Link(settings, place)

    job = _start(command, env, streams, mask)
    if isinstance(job, Ending):
        with ours.guard("an empty run directory stays"):
            remove(place)
        supervise.end_like(job)
    with ours.guard("nothing is recorded"):
        if link is not None:
            link.begun(job.pid)
    ending = _wait(job, streams, ours)

    with ours.guard("the last of the job's output may be missing"):
        if streams is not None and not streams.drain(settings.drain_s):
            ours.warn("the job's output goes on, or its reader is slow: a process of ours stays until all is copied")
    with ours.guard("the end is not recorded"):
        if link is not None:
            link.ended(ending)
            link.close()
            if not link.await_end(settings.grace_s):
                ours.warn(f"the record was not complete after {settings.grace_s:.0f} s and was left")
    supervise.end_like(ending)


def _start(command: Sequence[str], env: dict[str, str], streams: Streams | None, mask: frozenset[int]) -> Job | Ending:
    """The job, or how a shell would end that cannot start it."""
    try:
        return supervise.start(command, env, streams.files() if streams else {}, mask)
    except OSError as error:
        FailOpen(quiet=False).say(f"error: {command[0]}: {error.strerror}")
        missing = isinstance(error, FileNotFoundError)
        return Ending(supervise.NOT_FOUND if missing else supervise.NOT_EXECUTABLE)
    finally:
        if streams is not None:
            streams.let_go()


def _wait(job: Job, streams: Streams | None, ours: FailOpen) -> Ending:
    with ours.guard("signals and output are no longer looked after"):
        return supervise.wait(job, streams)
    return supervise.wait_only(job)
