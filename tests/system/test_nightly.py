"""What takes a night: every step runs, whatever failed before it, and the report says what came of each."""

import signal
import sys
from pathlib import Path

import pytest

from tests import nightly
from tests.nightly import Step, load, steps

PASSES = (sys.executable, "-c", "print('== 3 passed in 1.00s ==')")
FAILS = (sys.executable, "-c", "print('FAILED tests/test_x.py::test_y - E'); print('1 failed'); raise SystemExit(1)")


def test_a_step_that_fails_ends_no_other_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.run([Step("order 1", FAILS, under_load=True), Step("order 2", PASSES)], tmp_path) == 1
    said = capsys.readouterr().out
    assert said == (tmp_path / "report.md").read_text()
    assert "| order 1 | failed | 0 | 1 failed |" in said
    assert "| order 2 | passed | 0 | 3 passed in 1.00s |" in said
    assert "- order 1: FAILED tests/test_x.py::test_y - E" in said
    assert (tmp_path / "order-1.log").read_text().startswith("FAILED")
    assert nightly.run([Step("order 2", PASSES)], tmp_path) == 0


def test_every_order_is_another_one_and_all_of_them_run_under_load() -> None:
    orders = [step for step in steps(4, 60) if step.name.startswith("order ")]
    assert [step.command[-2:] for step in orders] == [("--order-seed", seed) for seed in "1234"]
    assert all(step.under_load for step in orders)
    assert [step.name for step in steps(0, 60)] == [
        "audit",
        "diagnosis",
        "syndromes",
        "odd ranks",
        "mutants",
        "soak",
        "fuzz",
    ]
    assert steps(0, 60)[-1].command[-1] == "SECONDS_EACH=60"


def test_the_load_ends_with_its_context() -> None:
    with load(2) as spinning:
        assert [process.poll() for process in spinning] == [None, None]
    assert [process.poll() for process in spinning] == [-signal.SIGKILL] * 2
