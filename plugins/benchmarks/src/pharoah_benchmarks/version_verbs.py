"""`pharoah-provider benchmark environments` and `versions`: run jobs in several environments, and say what differs."""

import random
import socket
from pathlib import Path
from typing import Annotated

import typer

from federation.base.screen import say
from pharoah_benchmarks.catalogue import JOBS, Precision, SizeName
from pharoah_benchmarks.record import context_of, record, running
from pharoah_benchmarks.run import Asked, gpus_of, run as run_job
from provider_server.program.verbs.console import Home, required
from provider_server.rounds.home import founded


def environments(
    python: Annotated[list[str], typer.Argument(help="The Pythons of the environments.", show_default=False)],
    home: Home = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Only this job; by default those with one rank.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long each run trains.")] = 60.0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each job in each environment.")] = 3,
    context: Annotated[
        str, typer.Option(help="The context that this machine is of, as leases have it.", show_default="of the node")
    ] = "",
    node: Annotated[str, typer.Option(help="What telemetry calls this machine.", show_default="its host name")] = "",
) -> None:
    """Run jobs in several environments in turn, on this machine: `benchmark versions` then says what differs.

    Each round has every job in every environment, in an order by chance, so that what disturbs a machine disturbs all
    alike. Each run is recorded as by `benchmark run`.
    """
    place, node = required(home), node or socket.gethostname()
    founded(place)
    names = job or [one.name for one in JOBS.values() if one.ranks == 1]
    if strange := set(names) - JOBS.keys():
        raise typer.BadParameter(f"no job {min(strange)!r}: pass some of {', '.join(JOBS)}")
    sizes = {str(Path(one).absolute()): _size(one) for one in python}  # as it is named: links are environments
    asked = [[Asked(name, seconds, *size, JOBS[name].ranks, one) for one, size in sizes.items()] for name in names]
    with running(place) as folder:
        where = int(context) if context.isdecimal() else context or context_of(place, node)
        for number in range(repeats):
            for runs in asked:
                for one in random.sample(runs, len(runs)):
                    ran = run_job(one, folder, node)
                    record(place, ran, where, "", one.size, one.precision)
                    say(f"round {number + 1} of {repeats}: {one.job} in {one.python}: {ran.outcome}")


def _size(python: str) -> tuple[SizeName, Precision]:
    return (SizeName.GPU, Precision.BF16) if gpus_of(python) else (SizeName.CPU, Precision.FP32)
