"""`pharoah-provider benchmark`: list the jobs, and run one of them; what runs them on idle nodes is in `runner`."""

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson, Verb, add_later, group
from federation.base.screen import show, show_json
from federation.base.visible import counted_as
from pharoah_benchmarks.catalogue import JOBS, Job, Parallel, Precision, SizeName
from pharoah_benchmarks.record import context_of, record, running, told_by
from pharoah_benchmarks.run import Asked, CannotRun, Ran, gpus_of, run as run_job
from provider_server.fleet.learning.benchmark_jobs import OK
from provider_server.program.verbs.console import Home, print_rows
from provider_server.rounds.home import founded

benchmark = group("benchmark", "Run training jobs on idle nodes.")


class JobRow(TypedDict):
    """A job of the catalogue, and how many ranks it has unless another number is asked for."""

    job: str
    family: str
    ranks: int
    exercises: str


@benchmark.command("list", cls=Verb)
def list_(*, as_json: AsJson = False) -> None:
    """List the jobs of the catalogue: what each is, and what it exercises."""
    print_rows([_row(job) for job in JOBS.values()], _line, as_json=as_json)


def _row(job: Job) -> JobRow:
    return {"job": job.name, "family": job.family, "ranks": job.ranks, "exercises": job.exercises}


def _line(row: JobRow) -> str:
    return f"{row['job']:<14}  {row['family']:<21}  {counted_as(row['ranks'], 'rank'):<7}  {row['exercises']}"


@benchmark.command(cls=Verb)
def run(
    job: Annotated[str, typer.Argument(help="A job of `benchmark list`.", show_default=False)],
    home: Home = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long it trains, after PyTorch is loaded.")] = 600.0,
    size: Annotated[
        SizeName | None, typer.Option(help="What it is sized for; by default gpu, gpus for several ranks, or cpu.")
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="By default bf16 on GPUs, else fp32.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, max=64, help="By default those of `benchmark list`.")] = None,
    context: Annotated[
        str, typer.Option(help="The context that this machine is of, as leases have it.", show_default="of the node")
    ] = "",
    node: Annotated[str, typer.Option(help="What telemetry calls this machine.", show_default="its host name")] = "",
    stands_for: Annotated[
        str,
        typer.Option(
            metavar="TOKEN", help="The workload that it stands in for, as `findings list` has it.", show_default=False
        ),
    ] = "",
    python: Annotated[str, typer.Option(help="Another environment's Python, which has PyTorch.")] = sys.executable,
    *,
    local: Annotated[bool, typer.Option("--local", help="On this machine, the only place so far.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job of the catalogue on this machine, and say what became of it.

    It runs as a tenant's job does, behind `pharoah-tenant run`, whose diagnosis is the outcome. With --home a line is
    added to benchmarks.jsonl there, from which findings learn from then on; without it nothing is kept.

    Exit code 0: the job did well. 1: it failed. 2: it could not be run, and nothing is recorded.
    """
    if not local:
        raise typer.BadParameter("pass --local: it runs on this machine")
    if job not in JOBS:
        raise typer.BadParameter(f"no job {job!r}: pass one of {', '.join(JOBS)}")
    asked = _asked(job, seconds, size, precision, ranks, python)
    if JOBS[job].parallel is Parallel.PIPELINE and asked.ranks > (depth := JOBS[job].sizes[asked.size].depth):
        raise CannotRun(f"{asked.ranks} ranks are more than its {depth} layers", hint="pass fewer --ranks")
    node = node or socket.gethostname()
    if home is None:
        ran = run_job(asked, None, node)
    else:
        founded(home)
        with running(home) as folder:
            place = int(context) if context.isdecimal() else context or context_of(home, node)
            ran = run_job(asked, folder, node)
            record(home, told_by(home, ran, place, stands_for), ran)
    if as_json:
        show_json(ran)
    else:
        show(*_lines(ran))
    if ran.outcome != OK:
        raise typer.Exit(1)


def _asked(
    job: str, seconds: float, size: SizeName | None, precision: Precision | None, ranks: int | None, python: str
) -> Asked:
    """With what is left open settled by the machine; CannotRun where it does not fit."""
    many = JOBS[job].ranks if ranks is None else ranks
    python = str(Path(python).absolute()) if "/" in python else python  # the job has a folder of its own
    on_cpu = Asked(job, seconds, SizeName.CPU, precision or Precision.FP32, many, python)
    gpus = gpus_of(python)
    if size is SizeName.CPU or (size is None and not gpus):
        return on_cpu
    if gpus < many:
        raise CannotRun(f"{many} ranks need as many GPUs, and PyTorch finds {gpus}", hint="pass --ranks or --size cpu")
    sized = size or (SizeName.GPUS if many > 1 else SizeName.GPU)
    return replace(on_cpu, size=sized, precision=precision or Precision.BF16)


def _lines(ran: Ran) -> list[str]:
    pace = "" if ran.seconds_per_step is None else f", {ran.seconds_per_step:.3g} s each"
    return [
        f"{ran.job} on {ran.node}: {ran.outcome}{f' ({ran.reason})' if ran.reason else ''}, {ran.steps} steps{pace}",
        *([f"  {ran.said}"] if ran.said else []),
        f"archetype {ran.archetype or 'not described'}",
    ]


for room, verbs in (
    ("runner.verbs", ("plan", "start", "status", "stop")),
    ("inject.verb", ("inject",)),
    ("version_verbs", ("environments", "versions")),
):
    for verb in verbs:
        add_later(benchmark, f"pharoah_benchmarks.{room}.{verb}", cls=Verb)
