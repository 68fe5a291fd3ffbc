"""The verb that says from which checkpoint to restart: `show --only restart`."""

from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from tenant_client.doctor.records.journal import the_one
from tenant_client.doctor.run.hook.readings import Reading, file_name, read
from tenant_client.doctor.run.restart_point import RestartPoint, attempts_in, restart_after
from tenant_client.doctor.run.run_directory import newest_runs
from tenant_client.doctor.run.spike_origin import Attempt
from tenant_client.program.verbs.console import Home, failing, say_error

FINE, BAD, UNKNOWN = 0, 1, 3


class Restart(TypedDict):
    """What to do: `checkpoint` is null if none is safe, and `skip` if nothing was out of band.

    `origin` is `data`, `hardware`, or "" where that cannot be told; `why` says so in words.
    """

    run: str
    trouble: str
    ranks: tuple[int, ...]
    checkpoint: int | None
    skip: tuple[int, int] | None
    origin: str
    why: str


def restart(
    home: Home,
    lease: Annotated[
        str, typer.Argument(metavar="[JOB]", help="The job, or the start of its name; by default the newest.")
    ] = "",
    saved: Annotated[
        list[Path] | None,
        typer.Option("--saved", help="A checkpoint of the job, placed by its time of change; repeatable."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show from which checkpoint to restart after a NaN or a loss spike, and which batches to skip. Nothing is sent.

    Says whether it came from data or from hardware, where two replicas, or an attempt before, saw the same batches.
    Steps count from the start of the attempt. Exit code 0: no NaN or loss spike was found. 1: one was.
    3: there is no such run, or it has no readings of losses yet.
    """
    runs = newest_runs(home)
    with failing(UNKNOWN):
        run_dir = runs[the_one([*runs], lease)]
    readings = _readings(run_dir)
    if not readings:
        hint = "losses are read from a PyTorch optimiser's steps, or from `pharoah.step(loss=…)`"
        say_error(f"no readings of losses yet of {run_dir.name}", hint)
        raise typer.Exit(UNKNOWN)
    steps = [_step_of(path, readings) for path in saved or ()]
    found = restart_after(_attempts(run_dir, readings), [step for step in steps if step is not None])
    if as_json:
        nothing = {"trouble": "", "ranks": (), "checkpoint": None, "skip": None, "origin": "", "why": ""}
        show_json({"run": run_dir.name, **(vars(found) if found else nothing)})
    else:
        show(f"{run_dir.name}: {found.sentence if found else 'no NaN or loss spike found'}")
        show(*([found.why] if found else []))
    raise typer.Exit(BAD if found else FINE)


def spike_in(run_dir: Path) -> RestartPoint | None:
    """The NaN or spike of the job whose newest run directory this is; None without one, or without readings."""
    readings = _readings(run_dir)
    return restart_after(_attempts(run_dir, readings)) if readings else None


def _attempts(run_dir: Path, readings: Attempt) -> list[Attempt]:
    """The attempts of the job that left readings, oldest first; `readings` are those of the newest run directory."""
    stem, _, number = run_dir.name.rpartition("-")
    before = [run_dir.with_name(f"{stem}-{one}") for one in range(1, int(number) if number.isdigit() else 1)]
    kept = [attempts_in(_readings(folder)) for folder in before if folder.is_dir()]
    return [*(one for attempts in kept for one in attempts), *attempts_in(readings)]


def _readings(run_dir: Path) -> dict[int, list[Reading]]:
    """The readings of each rank that has some."""
    ranks = [int(path.name.partition("-")[2]) for path in run_dir.glob("readings-*") if path.name[9:].isdigit()]
    readings = {rank: read(run_dir / file_name(rank)) for rank in ranks}
    return {rank: of_rank for rank, of_rank in readings.items() if of_rank}


def _step_of(path: Path, readings: dict[int, list[Reading]]) -> int | None:
    """The step that every rank had done when the checkpoint was written; None if it is not of this run."""
    try:
        at_s = path.stat().st_mtime
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--saved") from error
    steps = [[one.step for one in of_rank if one.at_s <= at_s] for of_rank in readings.values()]
    return min(of_rank[-1] for of_rank in steps) if all(steps) else None
