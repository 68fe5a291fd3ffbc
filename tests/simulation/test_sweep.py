"""Sweeps: the grid, the table, figures that repeat, and a sweep that goes on after it was killed."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import simulation.cli
from simulation.cloud.scenario import ScenarioError
from simulation.judge.sweep import Row, csv_of, grid_of, rows_of, runs_of
from tests.support import schemas

CHANGED = ("weeks=1", "windows=[1]", "failures_per_week.infrastructure=6")
DOCS = Path(__file__).resolve().parents[2] / "docs"
SMALL = ("--scenario", "tiny", *(word for setting in CHANGED for word in ("--set", setting)))


def swept(*arguments: str) -> str:
    result = CliRunner().invoke(simulation.cli.app, ["sweep", *SMALL, *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_grid_has_every_combination_with_values_as_toml_writes_them() -> None:
    cells = grid_of(["plan.epsilon=0.5, 1", "windows=[1, 2],[2]", "mechanism=discrete_laplace"])
    assert len(cells) == 4
    assert cells[1] == {"epsilon": 0.5, "windows": [2], "mechanism": "discrete_laplace"}
    assert grid_of([]) == [{}]


@pytest.mark.parametrize("setting", ["epsilon", "=1"])
def test_a_setting_without_key_or_value_is_refused(setting: str) -> None:
    with pytest.raises(ScenarioError, match="no KEY=VALUE"):
        grid_of([setting])


@pytest.mark.parametrize(
    ("setting", "message"),
    [("epsilom=1", "epsilom"), ("epsilon=-1", "epsilon = -1"), ("tenants=many", "tenants"), ("nowhere.x=1", "nowhere")],
)
def test_a_wrong_key_or_value_is_refused_before_anything_is_played(setting: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        runs_of("tiny", grid_of([setting]), [0])


def test_a_key_of_a_table_can_be_changed() -> None:
    (run,) = runs_of("tiny", grid_of(["failures_per_week.script=7"]), [0])
    assert {str(domain): rate for domain, rate in run.scenario.failures_per_week.items()}["script"] == 7


def test_what_would_play_otherwise_has_another_file() -> None:
    grid = grid_of(["epsilon=1,2"])
    runs = [*runs_of("tiny", grid, [0, 1]), *runs_of("tiny", grid, [0], 3), *runs_of("standard", grid, [0])]
    assert len({run.file for run in runs}) == len(runs) == 8
    assert runs_of("tiny", grid_of(["epsilon=1"]), [0])[0].file == runs[0].file  # 1 and 1.0 are one value


def test_rows_have_the_planted_factor_or_one_as_truth() -> None:
    pair = {"risk_ratio": 3.0, "low": 1.0, "high": 9.0, "probability": 0.9, "workload": 0, "context": 0}
    detail = {
        "workloads": ["BERT, v1"],
        "contexts": ["hall"],
        "mismatch": [pair | {"planted": True}, pair | {"planted": False}],
        "hazard": [{"context": 0, "level": 1, "band": "> 6 h", "rate": 2.0, "low": 1.0, "high": 4.0, "truth": 3.0}],
    }
    outcome = {"detail": detail, "mismatch": {"auroc": None}, "hazard": {}, "impact": {"x": 1.0, "nested": {}}}
    rows = rows_of(outcome, 8.0)  # type: ignore[arg-type]
    assert [row.truth for row in rows[:3]] == [8.0, 1.0, 3.0]
    assert [row.quantity for row in rows[3:]] == ["mismatch.auroc", "impact.x"]
    (run,) = runs_of("tiny", grid_of(["epsilon=2"]), [4])
    (line,) = csv.DictReader(io.StringIO(csv_of(run, rows[:1], header=True)))
    assert (line["epsilon"], line["seed"], line["workload"], line["level"]) == ("2", "4", "BERT, v1", "")


def test_figures_repeat_with_a_seed_of_noise_and_with_no_other() -> None:
    table = swept("--noise-seed", "1", "--csv")
    assert swept("--noise-seed", "1", "--csv") == table
    assert len({table, swept("--noise-seed", "2", "--csv"), swept("--csv")}) == 3
    result = schemas.held("pharoah-sim sweep", swept("--noise-seed", "1", "--json"))
    estimates = [row["estimate"] for row in result["runs"][0]["rows"] if row["quantity"] == "failure_rate"]
    read = [row for row in csv.DictReader(io.StringIO(table)) if row["quantity"] == "failure_rate"]
    assert [float(row["estimate"]) for row in read] == estimates  # no digit is lost


def is_ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_sweep_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    grid = ("--set", "epsilon=0.5,2", "--seeds", "2", "--noise-seed", "5", "--out", str(tmp_path))
    command = [sys.executable, "-m", "simulation", "sweep", *SMALL, *grid]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as program:
        until = time.monotonic() + 120
        while not (done := set(tmp_path.glob("runs/*.json"))) and time.monotonic() < until:
            time.sleep(0.05)
        program.kill()
    assert 0 < len(done) < 4
    while not (ended := is_ended(program.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    assert ended, "its workers live on"
    done = set(tmp_path.glob("runs/*.json"))
    assert not (tmp_path / "sweep.csv").exists()
    written = {file: file.stat().st_mtime_ns for file in done}
    table = swept(*grid, "--csv")
    assert {file: file.stat().st_mtime_ns for file in done} == written
    assert len(set(tmp_path.glob("runs/*.json"))) == 4
    assert (tmp_path / "sweep.csv").read_text() == table
    assert {(row["epsilon"], row["seed"]) for row in csv.DictReader(io.StringIO(table))} == {
        (epsilon, seed) for epsilon in ("0.5", "2") for seed in "01"
    }


def test_a_run_of_a_grid_is_refused() -> None:
    result = CliRunner().invoke(simulation.cli.app, ["run", *SMALL, "--set", "epsilon=1,2"])
    assert result.exit_code == 2
    assert "`pharoah-sim sweep` plays a grid" in result.stderr


def test_an_absent_row_value_is_an_empty_field() -> None:
    (run,) = runs_of("tiny", [{}], [0])
    assert csv_of(run, [Row("mismatch.auroc", None)], header=False) == "tiny,0,mismatch.auroc,,,,,,,,,\n"


def test_the_notebook_makes_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = json.loads((DOCS / "tutorials" / "privacy-cost.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace("range(2)", "range(1)"), names)  # noqa: S102
    assert (tmp_path / "privacy-cost" / "privacy-cost.pdf").read_bytes().startswith(b"%PDF")
