"""Foreign text on a tenant's terminal: logs, traces, names and errors that would steer it are shown and not obeyed."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.cli import app
from tests.jobs import wrapped
from tests.support import calling
from tests.support.factories import a_descriptor
from tests.support.terminals import (
    ATTACKS,
    FORGED,
    HOSTILE,
    HOSTILE_NAME,
    assert_obeys_nothing,
    lines_that_begin,
    on_a_terminal,
)
from tests.support.traces import Op, Transformer, profiled

PROGRAM = (sys.executable, "-m", "tenant_client")
ECC = "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, Double Bit ECC Error"
STEPS = "".join(f"step {step} loss {1 / step:.4f}\n" for step in range(1, 60))


call = partial(calling.call, app)


def calm(*words: object) -> Result:
    """What a verb says, none of which a terminal obeys, in words or as JSON."""
    result = call(*words)
    for shown in (result.stdout, result.stderr):
        assert_obeys_nothing(shown)
    return result


def a_log(folder: Path, text: str, name: str = "job.log") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_bytes((STEPS + text + "\n").encode(errors="surrogateescape"))
    return file


def run_away(home: Path, *, honest: bool = False) -> None:
    """Journals a run that worked and one that failed, whose every foreign text is hostile."""
    text = "2.21" if honest else HOSTILE
    hostile = replace(
        a_descriptor(),
        precision=text,
        parallelism=text,
        versions=(("nccl", text), (text, "1")),
        structure=frozenset({(text, (1, 2))}),
        collectives=((text, 3, 20),),
    )
    with closing(open_database(home / "tenant.db")) as connection:
        attempts, journal = Attempts(connection), Journal(connection)
        for number, (unit, descriptor) in enumerate({"good": a_descriptor(), "bad": hostile}.items()):
            attempts.begin(unit, 3600.0 * number)
            journal.describe(unit, 0.0, descriptor)
            state = AttemptState.SUCCEEDED if unit == "good" else AttemptState.FAILED
            attempts.end(unit, 1, state, 3600.0 * number + 60.0, steps=7)
        cause = AttemptCause("ecc_error", 3, text, text, text, f"ecc_error: {text}\n{FORGED}")
        attempts.explain("bad", 1, cause)


# ---- diagnose, on a real terminal ------------------------------------------------------------------------------------


def test_a_terminal_gets_nothing_to_obey_from_a_log(tmp_path: Path) -> None:
    log = a_log(tmp_path / "logs", f"{ECC} 温度 85 °C – ünï „🔥“ {HOSTILE}")
    code, shown = on_a_terminal([*PROGRAM, "diagnose", log, "--home", tmp_path], wrapped.environment())
    assert code == 0
    assert (
        r"Double Bit ECC Error 温度 85 °C – ünï „🔥“ <\x1b]52;c;" in shown.decode()
    )  # honest letters are as they were
    assert_obeys_nothing(shown.decode())


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_each_attack_in_a_log_is_shown_and_not_obeyed(attack: str, tmp_path: Path) -> None:
    log = a_log(tmp_path / "logs", f"{ECC} {attack}")
    assert "Double Bit ECC Error" in calm("diagnose", log, "--home", tmp_path).stdout


def test_hints_and_what_followed_obey_nothing(tmp_path: Path) -> None:
    odd = a_log(tmp_path / "odd", f"fabricd: fatal error {HOSTILE}")
    assert "unusual line" in calm("diagnose", odd, "--home", tmp_path).stdout
    many = a_log(tmp_path / "many", f"{ECC}\nRuntimeError: NCCL error {HOSTILE}")
    calm("diagnose", many, "--home", tmp_path)
    calm("diagnose", many, "--home", tmp_path, "--json")


def test_an_error_file_forges_no_line(tmp_path: Path) -> None:
    rank = tmp_path / "logs/attempt_0/0"
    rank.mkdir(parents=True)
    message = {"message": f"ValueError: bad {HOSTILE}\n{FORGED}", "extraInfo": {"timestamp": "100", "py_callstack": ""}}
    (rank / "error.json").write_text(json.dumps({"message": message}))
    a_log(rank, ECC, "stderr.log")
    result = calm("diagnose", tmp_path / "logs", "--home", tmp_path)
    assert "then" in result.stdout
    assert not lines_that_begin("pharoah-tenant:", result.stdout)
    assert not lines_that_begin("hint:", result.stdout)


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_names_of_files_obey_nothing(words: list[str], tmp_path: Path) -> None:
    name = f"rank\x1b]0;owned\x07\x9b2J\u202e\udcff\n{FORGED.partition(chr(10))[0]}"
    log = a_log(tmp_path / "logs", ECC, name)
    result = calm("diagnose", log, tmp_path / f"missing {name}", "--home", tmp_path, *words)
    assert "missing" in result.stderr
    assert lines_that_begin("pharoah-tenant: error", result.stderr) == []


# ---- teach, journal, changes -----------------------------------------------------------------------------------------


def test_what_is_taught_is_said_and_kept_without_orders(tmp_path: Path) -> None:
    assert "added the pattern" in calm("teach", "network_error", f"fabricd {HOSTILE}", "--home", tmp_path).stderr
    kept = (tmp_path / "lessons.json").read_text()
    assert_obeys_nothing(kept)
    assert any("\u202e" in line for line in json.loads(kept)["lessons"])  # and nothing of it is lost
    refused = calm("teach", HOSTILE, "a line", "--home", tmp_path)
    assert refused.exit_code == 2


@pytest.mark.parametrize("verb", [["journal"], ["changes", "bad"], ["changes", HOSTILE]])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_journal_and_what_changed_obey_nothing(verb: list[str], words: list[str], tmp_path: Path) -> None:
    run_away(tmp_path)
    result = calm(*verb, "--home", tmp_path, *words)
    assert result.stdout or result.stderr
    assert not lines_that_begin("pharoah-tenant: error: your keys", result.stdout + result.stderr)


def test_the_journal_in_json_keeps_what_was_said(tmp_path: Path) -> None:
    run_away(tmp_path)
    shown = json.loads(calm("journal", "--home", tmp_path, "--json").stdout)
    assert shown["attempts"][-1]["cause"]["host"] == HOSTILE


def test_an_honest_journal_is_as_it_was(tmp_path: Path) -> None:
    run_away(tmp_path, honest=True)
    assert "changes" not in (shown := call("show", "--only", "changes", "bad", "--home", tmp_path).stdout)
    assert shown.startswith("good → bad\n")


# ---- describe, signature, compare, catalogue -------------------------------------------------------------------------


def hostile_trace(folder: Path) -> Path:
    ops = [*Transformer().step(), Op(f"aten::{HOSTILE}", ([8, 256],)), Op(f"nccl:{HOSTILE}", ([8],))]
    file = folder / "hostile.json"
    file.write_bytes(profiled([ops, ops], cuda_runtime_version=HOSTILE, distributedInfo={"nccl_version": HOSTILE}))
    return file


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_traces_and_catalogues_obey_nothing(words: list[str], tmp_path: Path) -> None:
    trace, honest, known = hostile_trace(tmp_path), tmp_path / "honest.json", tmp_path / "known.catalogue"
    honest.write_bytes(profiled([Transformer().step()] * 2))
    assert call("workload", "catalogue", known, f"{HOSTILE}={trace}").exit_code == 0
    home = "--home", tmp_path / "home"
    assert "aten::" in calm("describe", trace, *words).stdout
    assert "nearest" in calm("tokens", trace, "--catalogue", known, *home, *words).stdout
    assert calm("compare", trace, honest, "--catalogue", known, *home, *words).stdout
    assert calm("catalogue", known, f"{HOSTILE}={tmp_path / HOSTILE_NAME}").stderr


def test_faults_of_traces_obey_nothing(tmp_path: Path) -> None:
    broken = tmp_path / f"{HOSTILE_NAME}.json"
    broken.write_text(f'{{"schemaVersion": 1, "traceEvents": [{{"name": "{HOSTILE}"')
    assert calm("describe", broken).stderr.startswith("pharoah-tenant: error: ")


# ---- errors, warnings and logs, however they reach stderr ------------------------------------------------------------


def say(how: str, env: dict[str, str] | None = None) -> tuple[int, bytes]:
    """A program whose verb `status` does something, on a terminal."""
    program = (
        "import logging, sys, threading, warnings\n"
        "from tenant_client.program.cli import app\n"
        f"HOSTILE = {HOSTILE!r}\n"
        "def fault(*_, **__):\n"
        f"    {how}\n"
        "def bug(text):\n"
        "    raise ValueError(text)\n"
        "fault.bug = bug\n"
        "app.registered_commands = [one for one in app.registered_commands if one.name != 'status']\n"
        "app.command('status')(lambda: fault())\n"
        "app(['status'])\n"
    )
    return on_a_terminal([sys.executable, "-c", program], wrapped.environment(env))


ROUTES = {
    "a bug": "raise ValueError(HOSTILE)",
    "an error that explains itself": "raise SystemExit(HOSTILE)",
    "a log line without a place to go": "logging.getLogger('x').warning('%s', HOSTILE)",
    "a warning": "warnings.warn(HOSTILE)",
    "a thread": "one = threading.Thread(target=lambda: fault.bug(HOSTILE)); one.start(); one.join()",
    "a plain print": "print(HOSTILE); print(HOSTILE, file=sys.stderr)",
    "a wrong option": "import click; raise click.UsageError(HOSTILE)",
}


@pytest.mark.parametrize("how", ROUTES.values(), ids=ROUTES)
def test_no_route_to_the_terminal_goes_round(how: str) -> None:
    _, shown = say(how, {"PYTHONIOENCODING": "utf-8"})
    assert b"52;c;" in shown
    assert_obeys_nothing(shown.decode())


def test_a_terminal_of_ascii_alone_has_no_route_round() -> None:
    _, shown = say(ROUTES["a wrong option"], {"PYTHONIOENCODING": "ascii"})
    assert b"52;c;" in shown
    assert_obeys_nothing(shown.decode("ascii"))


def test_words_on_the_command_line_obey_nothing(tmp_path: Path) -> None:
    words = ["check", "lease", HOSTILE_NAME, "--home", tmp_path]
    code, shown = on_a_terminal([*PROGRAM, *words], wrapped.environment())
    assert (code, b"Usage" in shown) == (3, True)
    assert_obeys_nothing(shown.decode())


@pytest.mark.parametrize("verb", ["check", "show --only changes"])
def test_a_terminal_of_ascii_gets_question_marks_and_no_traceback(verb: str, tmp_path: Path) -> None:
    run_away(tmp_path)
    env = wrapped.environment({"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    _, shown = on_a_terminal([*PROGRAM, *verb.split(), "bad", "--home", tmp_path], env)
    assert b"Traceback" not in shown
    if verb != "check":
        assert shown.startswith(b"good ? bad")


# ---- beside a job ----------------------------------------------------------------------------------------------------


def test_the_jobs_own_output_passes_as_it_is_and_what_we_say_of_it_does_not(tmp_path: Path) -> None:
    said = f"{STEPS}{HOSTILE}\n{ECC} {HOSTILE}\n"
    job = f"import sys; sys.stdout.write({said!r}); sys.stdout.flush(); sys.exit(1)"
    command = wrapped.command(tmp_path, [sys.executable, "-c", job])
    code, shown = on_a_terminal(command, wrapped.environment({"PYTHONIOENCODING": "utf-8"}))
    assert code == 1
    before, itself, after = shown.partition(said.encode())
    assert itself  # byte for byte, and nothing of ours within
    ours = (before + after).decode()
    assert "Double Bit ECC Error" in ours
    assert_obeys_nothing(ours)


def test_a_log_directory_that_is_attached_to_obeys_nothing(tmp_path: Path) -> None:
    rank = tmp_path / "logs/run/attempt_0/0"
    rank.mkdir(parents=True)
    message = {"message": f"ValueError: {HOSTILE}", "extraInfo": {"timestamp": "100", "py_callstack": ""}}
    (rank / "error.json").write_text(json.dumps({"message": message}))
    words = ["attach", tmp_path / "logs", "--home", tmp_path / "home", "--lease", "lease-1"]
    _, shown = on_a_terminal([*PROGRAM, *words], wrapped.environment())
    assert b"failed" in shown
    assert_obeys_nothing(shown.decode())


def test_confirm_shows_names_of_devices_and_keeps_criteria_without_orders(tmp_path: Path) -> None:
    run = {"version": 1, "at_s": 0.0, "benchmark": "gemm", "device": HOSTILE, "unit": "GFLOP/s", "verdict": "ok"}
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(run | {"machine": f"m{number}", "values": [100.0 + number, 101.0, 102.0]}))
    result = calm("confirm", "learn", *files, "--out", tmp_path / "criteria.json")
    assert ": usual " in result.stdout
    assert_obeys_nothing((tmp_path / "criteria.json").read_text())
    assert json.loads((tmp_path / "criteria.json").read_text())["criteria"][0]["device"] == HOSTILE
