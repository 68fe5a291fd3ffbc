"""The options of verbs whose work is done side by side."""

from typing import Annotated

import typer

from simulation.run.engines import Kind

EngineKind = Annotated[
    Kind,
    typer.Option(
        "--engine", help="What does the work side by side: processes of this machine, or Ray, here or at RAY_ADDRESS."
    ),
]
