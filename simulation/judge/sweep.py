"""Many runs of a scenario, over a grid of its keys and over seeds, as one tidy table.

    runs = runs_of("tiny", grid_of(["epsilon=0.5,1,2"]), seeds=range(10))
    for run, rows in results(runs, engine, folder=Path("sweep")):
        ...

Each run that is over is a file in the folder, so that a sweep that was ended goes on where it stopped. The rows of a
run are its estimates beside the truth that only a simulation knows, and figures of the run as a whole.
"""

import csv
import io
import json
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields as fields_of
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from federation.base.clock import now_hour
from federation.base.visible import json_text
from federation.protocol.plan import HOURS_PER_WEEK
from simulation.cloud.scenario import Scenario, ScenarioError, load
from simulation.judge.score import Judge, Outcome
from simulation.run.engines import Engine, Here
from simulation.run.insecure import InsecureRepeatable
from simulation.run.play import Player

Changes = Mapping[str, Any]
REPEATABLE_WEEK = 2920  # when runs with a noise seed end: tokens, and the order of rows with them, hang on the date
_PLAN = "plan."


@dataclass(frozen=True)
class Row:
    """One estimate of a run, or one figure of the whole run: `quantity` says what.

    `risk_ratio`: how many times as often a workload fails on a hardware context as its parts explain, with the
    `probability` that it is worse, and the planted factor as `truth`. `failure_rate`: failures per 1,000 node-hours of
    a context at a wear level, in an age band. `low` to `high` is the interval of 95%. All other quantities are figures
    of the outcome under their names there.
    """

    quantity: str
    estimate: float | None
    truth: float | None = None
    low: float | None = None
    high: float | None = None
    probability: float | None = None
    workload: str = ""
    context: str = ""
    level: int | None = None
    band: str = ""


@dataclass(frozen=True)
class Run:
    """A cell of the grid and a seed of a cloud; a `noise_seed` makes keys and noise repeat, which is insecure."""

    changes: Changes
    scenario: Scenario
    seed: int
    noise_seed: int | None = None

    @property
    def file(self) -> str:
        """The name of its results: what would play otherwise has another."""
        played = json.dumps([msgspec.to_builtins(self.scenario), self.noise_seed], sort_keys=True)
        return f"{sha256(played.encode()).hexdigest()[:16]}-{self.seed}.json"


def grid_of(settings: Iterable[str]) -> list[Changes]:
    """The cells of a grid: each `KEY=VALUE,VALUE` has values as TOML writes them, text with or without quotes.

    >>> grid_of(["plan.epsilon=0.5,1", "windows=[1, 2]"])
    [{'epsilon': 0.5, 'windows': [1, 2]}, {'epsilon': 1, 'windows': [1, 2]}]
    """
    values: dict[str, list[Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ScenarioError(f"{setting!r} is no KEY=VALUE", hint="as in --set epsilon=0.5")
        values[key.removeprefix(_PLAN)] = _values(text)
    return [dict(zip(values, cell, strict=True)) for cell in product(*values.values())]


def runs_of(scenario: str, grid: Iterable[Changes], seeds: Sequence[int], noise_seed: int | None = None) -> list[Run]:
    """Every cell with every seed; ScenarioError where a cell is no scenario."""
    cells = [(changes, load(scenario, changes)) for changes in grid]
    return [Run(changes, loaded, seed, noise_seed) for changes, loaded in cells for seed in seeds]


class Played(TypedDict):
    """A run and its rows, as JSON has them."""

    scenario: str
    seed: int
    changes: dict[str, Any]
    rows: list[Row]


class SweepResult(TypedDict):
    """All runs of a sweep."""

    version: int
    runs: list[Played]


def results(runs: Sequence[Run], engine: Engine, folder: Path) -> Iterator[tuple[Run, list[Row]]]:
    """Plays the runs whose results are not in the folder, side by side; each result in the order of `runs`."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not (folder / run.file).exists()]
    made = engine.map(_rows, None, missing)
    for run in runs:
        file = folder / run.file
        if not file.exists():
            draft = file.with_suffix(".draft")
            draft.write_text(json_text(next(made)), encoding="utf-8")
            draft.replace(file)
        yield run, msgspec.json.decode(file.read_bytes(), type=list[Row])


def outcome_of(run: Run, root: Path, engine: Engine, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Plays a run below `root`, which is empty, and judges it; `tell` hears how far it is."""
    began, scenario = time.monotonic(), run.scenario
    insecure = None if run.noise_seed is None else InsecureRepeatable(run.noise_seed, run.seed)
    end_week = int(now_hour() // HOURS_PER_WEEK) if insecure is None else REPEATABLE_WEEK
    player = Player(scenario, run.seed, root, end_week - scenario.weeks, insecure)
    tell(f"made keys and homes of {scenario.tenants} tenants")
    try:
        for week in player.weeks():
            tell(f"finished week {week + 1} of {scenario.weeks}")
        judge = Judge(player.played())
        return judge.outcome(run.seed, began, engine, tell, changes=run.changes, noise_seed=run.noise_seed)
    finally:
        player.close()


def rows_of(outcome: Outcome, factor: float) -> list[Row]:
    """An outcome as rows; planted pairs fail `factor` times as often as their parts explain."""
    detail = outcome["detail"]
    workload, context = detail["workloads"], detail["contexts"]
    pairs = [
        Row(
            "risk_ratio",
            pair["risk_ratio"],
            factor if pair["planted"] else 1.0,
            pair["low"],
            pair["high"],
            pair["probability"],
            workload[pair["workload"]],
            context[pair["context"]],
        )
        for pair in detail["mismatch"]
    ]
    rates = [
        Row(
            "failure_rate",
            rate["rate"],
            rate["truth"],
            rate["low"],
            rate["high"],
            context=context[rate["context"]],
            level=rate["level"],
            band=rate["band"],
        )
        for rate in detail["hazard"]
    ]
    parts: dict[str, dict[str, Any]] = {
        "mismatch": {**outcome["mismatch"]},
        "hazard": {**outcome["hazard"]},
        "impact": outcome["impact"],
    }
    figures = [
        Row(f"{part}.{name}", value)
        for part, of in parts.items()
        for name, value in of.items()
        if not isinstance(value, dict)
    ]
    return pairs + rates + figures


def csv_of(run: Run, rows: Iterable[Row], *, header: bool) -> str:
    """The rows as CSV, each with the keys that were changed and the seed before it; numbers in full precision."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if header:
        lines.writerow(["scenario", *run.changes, "seed", *(column.name for column in fields_of(Row))])
    fixed = [run.scenario.name, *map(_plain, run.changes.values()), run.seed]
    lines.writerows([*fixed, *map(_plain, asdict(row).values())] for row in rows)
    return text.getvalue()


def _rows(_: None, run: Run) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="pharoah-sweep-") as folder:
        return rows_of(outcome_of(run, Path(folder), Here()), run.scenario.mismatch_factor)


def _values(text: str) -> list[Any]:
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [value.strip() for value in text.split(",")]
    return values


def _plain(value: object) -> object:
    return "" if value is None else json_text(value) if isinstance(value, list | dict | bool) else value
