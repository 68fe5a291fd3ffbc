"""Foreign text on a provider's terminal and a researcher's: inventory, telemetry, leases, benchmark jobs, answers."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

import provider_server.program.cli
import simulation.cli
from crypto.errors import PharoahError
from federation.base.logs import Format, configure
from provider_server.program.reporting.findings_text import explanation_lines, learnt_lines
from provider_server.program.verbs.console import failing, print_rows
from simulation.judge.report import render
from tests.jobs import wrapped
from tests.support.terminals import FORGED, HOSTILE, HOSTILE_NAME, assert_obeys_nothing, lines_that_begin, on_a_terminal

START, HOURS, STEP_S, NODES = 480_000, 72, 600, 40
ROW: dict[str, Any] = {
    "workload": "ab" * 16,
    "context": "cd" * 16,
    "context_name": HOSTILE,
    "reason": HOSTILE,
    "alternatives": ["ef"],
    "alternative_names": [HOSTILE],
}


def calm(*words: object, app: object = provider_server.program.cli.app, code: int | None = None) -> Result:
    """What a verb says, none of which a terminal obeys."""
    result = CliRunner().invoke(app, [str(word) for word in words])  # type: ignore[arg-type]
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert code in (None, result.exit_code), result.stderr
    for shown in (result.stdout, result.stderr):
        assert_obeys_nothing(shown)
    return result


def node(number: int) -> str:
    return f"n{number}{HOSTILE}"


def toml(text: str) -> str:
    """A string as a TOML file may have it."""
    return '"' + "".join(f"\\U{ord(letter):08X}" for letter in text) + '"'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A provider's home beside telemetry and an inventory of nodes, every other of which fails; names are hostile."""
    rng = np.random.default_rng(7)
    times = np.arange(START * 3600 + 5, (START + HOURS) * 3600, STEP_S)
    frames = []
    for number in range(NODES):
        codes = np.zeros(len(times))
        codes[(np.array([4, 30, 56]) + rng.integers(0, 12, 3)) * (3600 // STEP_S)] = 79.0 if number % 2 else 0.0
        for metric, values in (
            ("DCGM_FI_DEV_GPU_TEMP", rng.normal(60, 1, len(times))),
            ("DCGM_FI_DEV_XID_ERRORS", codes),
            (f"DCGM_{HOSTILE}", codes),
        ):
            columns = {"time_s": times, "metric": metric, "value": values, "Hostname": node(number), "gpu": "0"}
            frames.append(pl.DataFrame(columns))
    pl.concat(frames).sort("time_s", maintain_order=True).write_csv(tmp_path / "telemetry.csv")
    models = [f"{'HA'[number % 2]}100 {HOSTILE}\n{FORGED}" for number in range(NODES)]
    stock = [f"[[node]]\nname = {toml(node(number))}\nmodel = {toml(model)}\n" for number, model in enumerate(models)]
    (tmp_path / "inventory.toml").write_text("".join(stock))
    (tmp_path / "provider.toml").touch()
    return tmp_path


def telemetry(home: Path) -> list[object]:
    window = "--start", START, "--end", START + HOURS
    return ["--home", home, "--file", home / "telemetry.csv", "--inventory", home / "inventory.toml", *window]


# ---- telemetry and inventory -----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_contexts_hazards_and_repairs_obey_nothing(home: Path) -> None:
    found = calm("nodes", "contexts", *telemetry(home), code=0)
    assert "100 <" in found.stdout
    assert "unknown_metric" in found.stderr
    assert len(found.stdout.splitlines()) == 2  # a line each, whatever its description holds
    assert not lines_that_begin("hint:", found.stdout)
    calm("nodes", "contexts", *telemetry(home), "--json", code=0)
    assert "no context" not in calm("nodes", "hazard", *telemetry(home), code=0).stdout
    calm("nodes", "hazard", *telemetry(home), "--json", code=0)
    assert calm("nodes", "repaired", node(3), "--home", home, code=0).stdout.startswith(r"n3<\x1b]52;c;")
    calm("nodes", "repaired", f"no {node(99)}", "--home", home, code=2)


@pytest.mark.parametrize("name", ["inventory.toml", "inventory.csv", "missing.toml"])
def test_a_broken_inventory_obeys_nothing(name: str, home: Path) -> None:
    broken = home / f"{HOSTILE_NAME}{name}"
    if "missing" not in name:
        broken.write_bytes(f'kind,name\n"{HOSTILE}",x\n'.encode())
    words = [home / "telemetry.csv" if word == home / "telemetry.csv" else word for word in telemetry(home)]
    words[words.index("--inventory") + 1] = broken
    assert calm("nodes", "contexts", *words, code=2).stderr.startswith("pharoah-provider: error: ")


# ---- leases, cards, benchmark jobs, what was learnt ------------------------------------------------------------------


def test_files_that_are_none_obey_nothing(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").write_text(f"[{toml(HOSTILE)}]\n")
    file = tmp_path / HOSTILE_NAME
    file.write_bytes(HOSTILE.encode())
    for words in (
        ["tenants", "enrol", file, "--out", file],
        ["leases", "record", file],
        ["findings", "learn", "--benchmarks", file],
        ["serve"],
    ):
        assert calm(*words, "--home", tmp_path, code=2).stderr
    calm("rounds", "releases", HOSTILE, "--home", tmp_path / "missing", code=2)


def test_what_was_learnt_obeys_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    accused = ROW | {"judgement": "worse"}
    rule: dict[str, Any] = {
        "conditions": [HOSTILE],
        "ratio": 2.0,
        "low": 1.0,
        "high": None,
        "failures": 3.0,
        "node_hours": 10.0,
    }
    new = {"context": HOSTILE, "rate_per_1000_node_hours": 1.0, "low": 0.5, "high": 2.0, "basis": HOSTILE}
    new |= {"step_time": {"ratio": 1.0, "low": 0.9, "high": 1.1, "basis": HOSTILE}}
    learnt: Any = {
        "releases": 1,
        "readers": "operators",
        "pairs": 1,
        "rates": 1,
        "accused": [accused],
        "versions": [],
        "rules": [rule],
        "newcomers": [new],
        "alarms": [f"{HOSTILE}\n{FORGED}"],
        "against_bundle": HOSTILE,
        "calibration_slope": None,
    }
    numbers = "rate_per_1000_node_hours rate_high failures failures_elsewhere ratio_to_elsewhere"
    explained: Any = accused | dict.fromkeys([*numbers.split(), "net_outcome", "sign_p", "gamma"], 0.5)
    explained |= {"control_fires": False, "control_sees": True, "version": None, "forecast": None}
    for as_json in (False, True):
        print_rows([learnt], learnt_lines, as_json=as_json)
        print_rows([explained], explanation_lines, as_json=as_json)
    shown = capsys.readouterr().out
    assert "alarm: <" in shown
    assert_obeys_nothing(shown)
    assert not lines_that_begin("pharoah-tenant:", shown)


def test_what_the_running_server_answers_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), failing():
        raise PharoahError(f"PlanRefused: {HOSTILE}\n{FORGED}", hint=f"{HOSTILE}\npharoah-provider: error: run evil")
    shown = capsys.readouterr().err
    assert_obeys_nothing(shown)
    assert [line.partition(": ")[0] for line in shown.splitlines()] == ["pharoah-provider", "hint"]


# ---- logs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Where log lines go; what was configured before is put back."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.parametrize("kind", Format)
def test_log_lines_obey_nothing_and_are_one_each(kind: Format, logged: io.StringIO) -> None:
    with redirect_stderr(logged):
        configure(kind)
    logger = logging.getLogger("pharoah.test")
    logger.warning("refused %s\n2026-01-01 00:00:00,000 INFO all is well", HOSTILE, extra={"peer": HOSTILE})
    try:
        raise ValueError(f"{HOSTILE}\n2026-01-01 00:00:00,000 INFO all is well")
    except ValueError:
        logger.exception("failed")
    shown = logged.getvalue()
    assert_obeys_nothing(shown)
    assert not lines_that_begin("2026-01-01 00:00:00,000", shown)
    assert "ValueError" in shown
    if kind is Format.JSON:
        first, second = map(json.loads, shown.splitlines())
        assert (first["peer"], HOSTILE in second["exception"]) == (HOSTILE, True)


# ---- the researcher's program ----------------------------------------------------------------------------------------


def test_a_scenario_that_is_none_obeys_nothing(tmp_path: Path) -> None:
    file = tmp_path / f"{HOSTILE_NAME}.toml"
    for text in (f'title = "{HOSTILE}"', f"{toml(HOSTILE)} = 1\n"):
        file.write_bytes(text.encode())
        assert calm("run", "--scenario", file, app=simulation.cli.app, code=2).stderr
    calm("replay", "lung", "--epsilon", HOSTILE, app=simulation.cli.app, code=2)


def test_a_report_obeys_nothing() -> None:
    detail: dict[str, Any] = {"workloads": [HOSTILE], "contexts": [HOSTILE], "budget": []}
    detail["mismatch"] = [{"workload": 0, "context": 0, "planted": True, "probability": 0.9, "risk_ratio": 2.0}]
    shown = render({"title": f"{HOSTILE}", "rounds": 4, "detail": detail})
    assert "52;c;" in shown
    assert_obeys_nothing(shown)


def test_bars_move_the_cursor_and_foreign_words_beside_them_do_not() -> None:
    program = (
        "import sys\n"
        "from federation.base import screen\n"
        "screen.guard()\n"
        "with screen.progress() as bars:\n"
        "    for _ in bars.track(range(3), description='weeks'):\n"
        f"        screen.say({HOSTILE!r}); sys.stderr.write({HOSTILE!r})\n"
    )
    _, shown = on_a_terminal([sys.executable, "-c", program], wrapped.environment({"TERM": "xterm"}))
    assert b"\x1b[" in shown  # ours
    for attack in ("\x1b]52", "\x1bP", "\x9b", "\x9d", "\u202e", "\u2066", "\x07", "\x08"):
        assert attack not in shown.decode()
