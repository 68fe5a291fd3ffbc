"""Options that verbs of the simulation share."""

from typing import Annotated

import typer

from simulation.run.engines import Kind

EngineKind = Annotated[
    Kind,
    typer.Option(
        "--engine", help="What does the work side by side: processes of this machine, or Ray, here or at RAY_ADDRESS."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another value for a key of the scenario.", show_default=False),
]
NoiseSeed = Annotated[
    int | None,
    typer.Option(help="Insecure: keys and noise from a seed, so that figures repeat bit by bit.", show_default=False),
]
