"""`pharoah-sim sweep`: a scenario over a grid of its keys and over seeds."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as
from simulation.judge.sweep import Played, SweepResult, csv_of, grid_of, results, runs_of
from simulation.run import engines
from simulation.run.engine_options import EngineKind, NoiseSeed, Set
from simulation.run.engines import Kind

FILE = "sweep.csv"


def sweep(
    scenario: Annotated[str, typer.Option(help="Name of a scenario, or a TOML file.")] = "quickstart",
    set_: Set = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds for each cell of the grid.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first cloud; the others follow.")] = 0,
    noise_seed: NoiseSeed = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for sweep.csv and each run's results. Run again, it goes on.", show_default=False),
    ] = None,
    engine: EngineKind = Kind.PROCESSES,
    *,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play a scenario for each cell of a grid and each seed, as one table of estimates beside the truth.

    --set epsilon=0.5,1,2 --set weeks=13,26 is a grid of six cells. Docs: simulation.md has the table's columns.
    """
    began = time.monotonic()
    runs = runs_of(scenario, grid_of(set_ or []), range(seed, seed + seeds), noise_seed)
    with ExitStack() as until_over:
        folder = out or Path(until_over.enter_context(tempfile.TemporaryDirectory(prefix="pharoah-sweep-")))
        side_by_side = until_over.enter_context(engines.engine(engine))
        say(f"{counted_as(len(runs), 'run')} of {scenario}")
        table: list[str] = []
        found: list[Played] = []
        for number, (run, rows) in enumerate(results(runs, side_by_side, folder / "runs"), start=1):
            table.append(csv_of(run, rows, header=number == 1))
            found.append({"scenario": run.scenario.name, "seed": run.seed, "changes": dict(run.changes), "rows": rows})
            say(f"{time.monotonic() - began:5.1f} s  {number} of {len(runs)} runs")
    if out is not None:
        (out / FILE).write_text("".join(table), encoding="utf-8")
        say(f"wrote {out / FILE}")
    if as_json:
        result: SweepResult = {"version": 1, "runs": found}
        show_json(result)
    elif as_csv or out is None:
        show(*"".join(table).splitlines())
