"""The acceptance on a GPU as a study: `python -m simulation.studies.gpu` in a process of its own, and its report."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from crypto.errors import PharoahError
from simulation.studies.study import ROOT, Table


class NothingTried(PharoahError):
    """The interpreter lacks what all parts need."""


def run(
    parts: Annotated[list[str] | None, typer.Argument(help="By default all.", show_default=False)] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Budget of all parts together.")] = 480.0,
) -> Table:
    """All that needs a GPU, tried on this machine's. It fails if a part does."""
    with TemporaryDirectory(prefix="pharoah-gpu-") as folder:
        command = [sys.executable, "-m", "simulation.studies.gpu", "--out", folder, "--seconds", str(seconds)]
        done = subprocess.run([*command, *(parts or ())], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        report = Path(folder) / "report.json"
        if not report.exists():
            raise NothingTried("nothing could be tried")
        return Table(json.loads(report.read_text(encoding="utf-8")), failed=done.returncode != 0)
