"""Environments that differ are told apart by what moved, and identical ones are not, whatever the machine does."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pharoah_benchmarks import record as recording, version_verbs
from pharoah_benchmarks.catalogue import Precision, SizeName
from pharoah_benchmarks.run import Ran
from pharoah_benchmarks.versions import Report, report
from provider_server.program.cli import app
from provider_server.rounds import home as homes
from tests.support import schemas
from tests.support.changing import replace

STEP_S = {"decoder": 0.2, "encoder": 0.15, "graph": 0.02}
OPERATORS = {
    "aten::mm": (20, 0.45),
    "aten::addmm": (7, 0.15),
    "aten::copy_": (130, 0.06),
    "Optimizer.step#AdamW.step": (1, 0.05),
    "aten::add_": (54, 0.04),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (2, 0.04),
    "aten::mul": (57, 0.04),
    "aten::lerp_": (28, 0.03),
    "aten::addcdiv_": (28, 0.03),
    "aten::sqrt": (28, 0.02),
    "aten::view": (60, 0.005),
}
OPTIMISER = ("Optimizer.step#AdamW.step", "aten::lerp_", "aten::addcdiv_", "aten::sqrt")
BY_HAND = {"aten::bmm": (4, 0.06), "aten::_safe_softmax": (2, 0.01)}
BUSY, LONGER = 0.2, 1.35  # of runs, and by what factor another program slows them down


def profiles(
    python: str,
    rng: np.random.Generator,
    runs: int = 5,
    *,
    version: str = "2.13.0",
    noise: float = 0.03,
    factors: Mapping[str, float] | None = None,
) -> list[Ran]:
    """Runs of each job in an environment; `factors` are of operators' times, by name."""
    found = []
    for job, step_s in STEP_S.items():
        for run in range(runs):
            busy = (LONGER if rng.random() < BUSY else 1.0) * float(np.exp(rng.normal(0.0, noise)))
            operators = {
                name: (
                    float(calls),
                    1e6 * step_s * share * busy * (factors or {}).get(name, 1.0) * float(np.exp(rng.normal(0, noise))),
                )
                for name, (calls, share) in OPERATORS.items()
            }
            seconds = sum(own_us for _calls, own_us in operators.values()) / 1e6
            ran = Ran(
                job,
                f"{python} {job} {run}",
                "n1",
                1,
                60,
                "ok",
                "",
                "",
                "ab" * 16,
                30.0,
                seconds,
                {"torch": version},
                SizeName.CPU,
                Precision.FP32,
            )
            memory = int(5e8 * np.exp(rng.normal(0.0, 0.002)))
            found.append(
                replace(ran, python=python, operators=operators, memory_bytes=memory, structure=(("linear", (7, 9)),))
            )
    return found


def changed(found: list[Ran], job: str, **fields: object) -> list[Ran]:
    return [replace(one, **fields) if one.job == job else one for one in found]


def test_an_attention_that_is_replaced_is_told_and_a_copy_is_not() -> None:
    rng = np.random.default_rng(1)
    other = profiles("/e/other/bin/python", rng, version="2.14.1")
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    by_hand = []
    for one in other:
        operators = {name: own for name, own in one.operators.items() if name != fused}
        operators |= {name: (float(calls), 1e6 * share * 0.2) for name, (calls, share) in BY_HAND.items()}
        by_hand.append(replace(one, operators=operators) if one.job == "decoder" else one)
    found = report([*profiles("/e/a/bin/python", rng), *profiles("/e/copy/bin/python", rng), *by_hand])
    assert found.alike_in["decoder"] == (("/e/a/bin/python", "/e/copy/bin/python"), ("/e/other/bin/python",))
    assert found.alike_in["graph"] == (("/e/a/bin/python", "/e/copy/bin/python", "/e/other/bin/python"),)
    copied, replaced = found.compared
    assert copied.moves == ()
    calls = {move.what: (move.before, move.after) for move in replaced.moves if move.kind == "calls"}
    assert calls == {"aten::bmm": (0, 4), "aten::_safe_softmax": (0, 2), fused: (2, 0)}
    assert replaced.moves[0].what == "aten::bmm", "what takes most of a step comes first"


def slowed(seed: int, factor: float) -> Report:
    rng = np.random.default_rng(seed)
    slow = profiles("/e/slow/bin/python", rng, factors=dict.fromkeys(OPTIMISER, factor))
    return report([*profiles("/e/a/bin/python", rng), *profiles("/e/copy/bin/python", rng), *slow])


def test_an_optimiser_that_is_slower_by_a_fifth_is_told_apart_and_its_copy_is_not() -> None:
    found = [slowed(seed, 1.2) for seed in range(20)]
    assert sum(len(one.alike[0]) == 2 for one in found) >= 18, "copies together, the slow one apart"
    moved = [{move.what for move in one.compared[1].moves} for one in found]
    assert sum(names <= {*OPTIMISER, "step"} for names in moved) >= 17, "and nothing else is blamed"


def splits_of_copies(seeds: range, runs: int, environments: int = 3) -> float:
    rngs = map(np.random.default_rng, seeds)
    split = [
        bool(
            report([one for at in range(environments) for one in profiles(f"/e/{at}/bin/python", rng, runs)])
            .compared[0]
            .moves
        )
        for rng in rngs
    ]
    return float(np.mean(split))


@pytest.mark.parametrize(
    ("runs", "count"), [(3, 60), *(pytest.param(runs, 400, marks=pytest.mark.nightly) for runs in (2, 3, 5, 10))]
)
def test_identical_environments_are_told_apart_in_one_of_twenty_cases_at_most(runs: int, count: int) -> None:
    assert splits_of_copies(range(count), runs) <= 0.05 + 2.0 * np.sqrt(0.05 * 0.95 / count) * (count < 400)


def test_with_one_run_each_no_time_is_compared() -> None:
    rng = np.random.default_rng(0)
    slow = profiles("/e/slow/bin/python", rng, 1, factors=dict.fromkeys(OPERATORS, 3.0))
    assert report([*profiles("/e/a/bin/python", rng, 1), *slow]).alike == (("/e/a/bin/python", "/e/slow/bin/python"),)


def test_views_are_told_last_and_set_nobody_apart() -> None:
    rng = np.random.default_rng(0)
    other = profiles("/e/b/bin/python", rng, version="2.14.1")
    viewed = [replace(one, operators=one.operators | {"aten::view": (58.0, 900.0)}) for one in other]
    found = report([*profiles("/e/a/bin/python", rng), *viewed])
    assert {(move.what, move.before, move.after) for move in found.compared[0].moves} == {("aten::view", 60, 58)}
    assert found.alike == (("/e/a/bin/python", "/e/b/bin/python"),)


def test_outcomes_and_structures_come_before_everything_else() -> None:
    rng = np.random.default_rng(0)
    other = profiles("/e/b/bin/python", rng, version="2.14.1", factors={"aten::mm": 3.0})
    other = changed(changed(other, "graph", outcome="wrong_result"), "decoder", structure=(("linear", (8, 8)),))
    moves = report([*profiles("/e/a/bin/python", rng), *other]).compared[0].moves
    assert [(move.job, move.kind) for move in moves[:2]] == [("decoder", "structure"), ("graph", "outcome")]
    assert (moves[1].before, moves[1].after) == ("ok", "wrong_result")
    assert {(move.job, move.what) for move in moves[2:]} >= {("decoder", "aten::mm"), ("encoder", "step")}


# ---- verbs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    homes.create(tmp_path / "provider", ["localhost"], os.urandom, datetime.now(UTC))
    return tmp_path / "provider"


def test_what_was_recorded_is_compared_and_written(home: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [
        *profiles("/e/a/bin/python", rng),
        *profiles("/e/b/bin/python", rng, version="2.14.1", factors={"aten::mm": 2.0}),
    ]
    for one in runs:
        recording.record(home, recording.told_by(home, one, 3, ""), one)
    words = ["benchmark", "versions", "--home", str(home)]
    told = CliRunner().invoke(app, [*words, "--json"])
    found = schemas.held(schemas.form_of("pharoah-provider", ("benchmark", "versions")), told.stdout)
    assert found["runs"] == {"/e/a/bin/python": 15, "/e/b/bin/python": 15}
    assert len(found["alike"]) == 2
    page = tmp_path / "versions.md"
    shown = CliRunner().invoke(app, [*words, "--write", str(page)]).stdout
    assert "torch 2.13.0 (a) → torch 2.14.1 (b)" in shown
    assert "## torch 2.13.0 (a) → torch 2.14.1 (b)" in page.read_text()
    assert "- decoder: aten::mm" in page.read_text()


def test_before_any_run_there_is_nothing_to_compare(home: Path) -> None:
    result = CliRunner().invoke(app, ["benchmark", "versions", "--home", str(home)])
    assert result.exit_code == 3
    assert "benchmark environments" in result.stderr


def test_each_round_has_every_job_in_every_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str]] = []

    def run(asked: object, *_: object) -> Ran:
        ran.append((asked.job, asked.python))  # type: ignore[attr-defined]
        return replace(profiles(ran[-1][1], np.random.default_rng(0), 1)[0], run=str(len(ran)), job=ran[-1][0])

    monkeypatch.setattr(version_verbs, "run_job", run)
    monkeypatch.setattr(version_verbs, "gpus_of", lambda python: 0)
    words = ["environments", "/e/a/bin/python", "/e/b/bin/python", "--home", str(home), "--repeats", "2"]
    result = CliRunner().invoke(app, ["benchmark", *words, "--context", "hall 3", "--job", "graph", "--job", "decoder"])
    assert result.exit_code == 0, result.stderr
    pairs = {(job, f"/e/{one}/bin/python") for job in ("graph", "decoder") for one in "ab"}
    assert len(ran) == 8
    assert set(ran[:4]) == set(ran[4:]) == pairs
    assert len(recording.profiles(home)) == 8
    strange = CliRunner().invoke(app, ["benchmark", *words, "--job", "gemm"])
    assert strange.exit_code == 2
    assert "no job 'gemm'" in strange.stderr
