"""`pharoah-sim scenarios` and `status`: what there is to play, and what an output folder holds."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from simulation.cloud.scenario import load, names

ORDER = ("regional", "hyperscale", "standard", "quickstart", "tiny")  # those that fail as real clouds do first


def scenarios() -> None:
    """List the scenarios that come with the program."""
    for name in sorted(names(), key=ORDER.index):
        show(f"{name:<12} {load(name).title}")


class RunStatus(msgspec.Struct, frozen=True):
    """An output folder; facts are null where there is no outcome."""

    version: int
    out: str
    complete: bool
    scenario: str | None
    seed: int | None
    weeks: int | None
    tenants: int | None
    rounds: int | None
    epsilon: float | None
    homes: list[str]


def status(
    out: Annotated[Path, typer.Argument(help="The folder that `run --out` or `federation --out` wrote.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show what an output folder holds: the scenario, whether the run is complete, and the homes.

    Exit code 0: a complete run. 1: homes without an outcome. 2: the folder cannot be read. 3: it holds no run.
    """
    file, homes = out / "outcome.json", out / "homes"
    outcome = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = ("scenario", "seed", "weeks", "tenants", "rounds", "epsilon")
    facts = {key: outcome.get(key) for key in known}
    provider = [str(homes / "provider")] if (homes / "provider").is_dir() else []
    paths = provider + sorted(map(str, homes.glob("tenants/*")))
    if as_json:
        show_json(RunStatus(1, str(out), complete=bool(outcome), **facts, homes=paths))
    else:
        show(f"folder      {out}: {'complete' if outcome else 'no outcome'}")
        show(*(f"{key:<11} {value}" for key, value in facts.items() if value is not None))
        show(f"homes       {len(paths)}{f', the first is {paths[0]}' if paths else ''}")
    raise typer.Exit(0 if outcome else 1 if paths else 3)
