"""`pharoah-provider benchmark inject`: faults injected into a job that trains, and what telemetry shows of them."""

from pathlib import Path
from typing import Annotated

import typer

from federation.base.screen import say
from pharoah_benchmarks.catalogue import JOBS
from pharoah_benchmarks.inject.kinds import KINDS
from pharoah_benchmarks.inject.trace import FAULTY, HEALTHY, WINDOW_S, inject as inject_all
from provider_server.fleet.analysis.injected import Label


def inject(
    job: Annotated[str, typer.Argument(help="A job of `benchmark list`.", show_default=False)],
    fault: Annotated[list[str], typer.Option(help=f"One of {', '.join(KINDS)}; may be repeated.", show_default=False)],
    dose: Annotated[list[float], typer.Option(help="From 0 to 1; may be repeated: each fault has each.")],
    out: Annotated[Path, typer.Option(help="A file of traces, which is added to.", show_default=False)],
    window_s: Annotated[float, typer.Option(min=0.1, help="Seconds that stand for an hour.")] = WINDOW_S,
) -> None:
    """Inject faults into a job that trains on this machine, and write what telemetry shows of them.

    Two ranks train as two nodes, with networks and control groups of their own; the second has the fault, which grows
    to its dose. Needs root, and undoes everything, also where it is killed. `pharoah-sim study injection` reads what it
    wrote.
    """
    if job not in JOBS:
        raise typer.BadParameter(f"no job {job!r}: pass one of {', '.join(JOBS)}")
    if unknown := [name for name in fault if name not in KINDS]:
        raise typer.BadParameter(f"no fault {unknown[0]!r}: pass some of {', '.join(KINDS)}")
    if not all(0.0 < one <= 1.0 for one in dose):
        raise typer.BadParameter("a dose is above 0, and 1 at most")
    labels = [Label(job, kind, one, window_s, HEALTHY, FAULTY) for kind in fault for one in dose]
    with out.open("ab", buffering=0) as file:
        for label in inject_all(labels, file.write):
            say(f"{label.job}: {label.kind} at {label.dose:g}")
