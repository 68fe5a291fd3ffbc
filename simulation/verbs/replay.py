"""`pharoah-sim replay`: the federation on real data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from federation.base.console import AsJson, InputFile
from federation.base.screen import progress as progressing, show, show_json
from simulation.replay.brca import replay_brca
from simulation.replay.lung import replay_lung
from simulation.replay.lung_times import replay_lung_times
from simulation.replay.philly import replay_philly
from simulation.replay.titan import replay_titan, replay_titan_holdout
from simulation.replay.titan_times import replay_titan_times

Seeds = Annotated[int, typer.Option(min=1, help="Repeat the round this many times, with fresh noise.")]
Epsilon = Annotated[str, typer.Option(help="Privacy budget per unit, or 'none' for results without privacy.")]
DataFolder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="Folder with the data set.", show_default=False)
]
Holdout = Annotated[Literal["column"] | None, typer.Option(help="Predict failures in columns held out from the fit.")]
HideTimes = Annotated[bool, typer.Option(help="Hide the times of leaving as well, beside hiding who failed.")]
DataFile = Annotated[
    Path, typer.Argument(click_type=InputFile(exists=True), help="The data set's file.", show_default=False)
]


def titan(
    file: DataFile,
    epsilon: Epsilon = "1",
    seeds: Seeds = 1,
    holdout: Holdout = None,
    *,
    hide_times: HideTimes = False,
    as_json: AsJson = False,
) -> None:
    """Titan's GPU lifetimes: cabinet columns as tenants, 43 hazard ratios compared with the published ones."""
    if hide_times and holdout is not None:
        raise typer.BadParameter("no replay does both: leave out --holdout", param_hint="--hide-times")
    if hide_times:
        _replay(replay_titan_times(file, _epsilon(epsilon), seeds), 2 * seeds, as_json=as_json)
    else:
        play = replay_titan if holdout is None else replay_titan_holdout
        _replay(play(file, _epsilon(epsilon), seeds), seeds, as_json=as_json)


def philly(file: DataFile, epsilon: Epsilon = "1", seeds: Seeds = 1, *, as_json: AsJson = False) -> None:
    """Philly's jobs: users as tenants, survival by number of GPUs compared with the pooled curve."""
    _replay(replay_philly(file, _epsilon(epsilon), seeds), seeds, as_json=as_json)


def lung(epsilon: Epsilon = "1", seeds: Seeds = 1, *, hide_times: HideTimes = False, as_json: AsJson = False) -> None:
    """NCCTG's lung cancer data (shipped with lifelines): institutions as tenants, one survival curve."""
    play, rounds = (replay_lung_times, 2 * seeds) if hide_times else (replay_lung, seeds)
    _replay(play(_epsilon(epsilon), seeds), rounds, as_json=as_json)


def brca(
    folder: DataFolder,
    epsilon: Annotated[float, typer.Option(min=0.01, help="Epsilon per centre for Flower's private FedAvg.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat private FedAvg this many times.")] = 5,
    *,
    as_json: AsJson = False,
) -> None:
    """Fed-TCGA-BRCA: exact Newton steps over masked sums of six centres, compared with Flower's FedAvg."""
    _replay(replay_brca(folder, epsilon, seeds), seeds, as_json=as_json)


def _replay(steps: Iterator[object | None], rounds: int, *, as_json: bool) -> None:
    """Runs a replay, which yields None after each of its rounds and then its result, and prints the result."""
    with progressing() as progress:
        (result,) = [step for step in progress.track(steps, total=rounds + 1, description="rounds") if step is not None]
    if as_json:
        show_json(result)
    else:
        show(*(f"{key}: {value}" for key, value in vars(result).items()))


def _epsilon(text: str) -> float | None:
    try:
        value = None if text == "none" else float(text)
    except ValueError:
        value = -1.0
    if value is not None and not 0 < value < 1000:
        raise typer.BadParameter(f"{text!r} is neither a positive number nor 'none'", param_hint="--epsilon")
    return value
