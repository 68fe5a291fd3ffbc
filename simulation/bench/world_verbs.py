"""The verbs of `pharoah-sim bench` that hold the simulation against public traces."""

from pathlib import Path
from typing import Annotated

import typer

from federation.runtime.console import AsJson, Console, InputFile
from federation.runtime.screen import progress as progressing, show, show_json

_console = Console("pharoah-sim")
TraceFile = Annotated[
    Path, typer.Argument(click_type=InputFile(exists=True), help="The trace's file.", show_default=False)
]
FirstSeed = Annotated[int, typer.Option(min=0, help="Seed of the first draw; the others follow.")]
Picture = Annotated[
    Path | None, typer.Option(help="Draw the comparison into this SVG or PNG file.", show_default=False)
]


def world(
    outages: TraceFile,
    draws: Annotated[int, typer.Option(min=1, help="Number of fleets of each kind.")] = 200,
    seeds: Annotated[int, typer.Option(min=0, help="Number of clouds, with and without histories of nodes.")] = 3,
    first_seed: FirstSeed = 0,
    *,
    first_half: Annotated[
        bool, typer.Option("--first-half", help="Compare with the half that the numbers were fitted to.")
    ] = False,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Faults of simulated nodes beside a real fleet's: gaps, recency after repairs, and shares by class."""
    with _console.failing(), progressing() as progress:
        from simulation.bench import world as bench_world

        half: bench_world.Half = "first" if first_half else "second"
        bench_world.trace(outages, half)  # at once, so that a file of something else costs no time
        steps = bench_world.steps(half, draws, seeds, first_seed)
        drawn = list(progress.track(steps, total=2 * (draws + seeds), description="draws"))
        found = bench_world.compared(outages, half, drawn)
    if as_json:
        show_json(found)
    else:
        show(*bench_world.lines(found))
    if picture is not None:
        with _console.failing():
            from simulation.bench import world_picture

            world_picture.draw(found, drawn, outages, picture)
