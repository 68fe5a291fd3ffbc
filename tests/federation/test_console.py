"""Command lines: how a program starts without words, and old spellings of its verbs."""

import os
import sys
from pathlib import Path

import click
import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

from federation.base import screen
from federation.base.console import CommandLine, add_later, group, verbs_of
from tests.support.terminals import on_a_terminal

VERBS = """
from typing import Annotated
import typer
from federation.base.console import AsJson

def join(place: Annotated[str, typer.Argument(help="Where.")], as_json: AsJson = False) -> None:
    '''Join a federation.'''
    print("joined", place, as_json)

def path(rank: Annotated[int, typer.Option(help="Which.")] = 0) -> None:
    '''Show a path.'''
    print("path of", rank)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    (tmp_path / "hall_verbs.py").write_text(VERBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = CommandLine(
        name="hall",
        help="A hall.",
        start=["start here", "hall join PLACE"],
        renamed={"enrol": "join", "journal": "rules", "journal fix": "rules join", "path": "show JOB --only path"},
    )
    add_later(made, "hall_verbs.join")
    add_later(made, "hall_verbs.path", hidden=True)
    rules = group("rules", "Rules of the hall.")
    add_later(rules, "hall_verbs.join")
    made.add_typer(rules)
    monkeypatch.setitem(sys.modules, "hall_verbs", None)  # unless a test calls one
    return made


def call(app: CommandLine, *words: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.delitem(sys.modules, "hall_verbs", raising=False)
    return CliRunner().invoke(app, words)


def test_without_words_a_program_shows_how_to_start_and_imports_no_verb(app: CommandLine) -> None:
    done = CliRunner().invoke(app, [])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "start here\nhall join PLACE\n", "")


def test_help_shows_the_new_spellings_alone(app: CommandLine) -> None:
    shown = CliRunner().invoke(app, ["-h"]).stdout
    assert "join" in shown
    for old in ("enrol", "journal", "path"):
        assert old not in shown
    assert set(verbs_of(get_command(app))) == {"join", "path", "rules"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["enrol", "Cairo", "--json"], "joined Cairo True\n"),
        (["journal", "fix", "Cairo"], "joined Cairo False\n"),  # the longer of two spellings counts
        (["journal", "join", "Cairo"], "joined Cairo False\n"),
        (["path", "--rank", "3"], "path of 3\n"),  # a hidden verb has its old options
        (["join", "enrol"], "joined enrol False\n"),  # no verb stands there
    ],
)
def test_an_old_spelling_does_what_the_new_one_does_and_says_nothing_to_a_program(
    app: CommandLine, words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call(app, *words, monkeypatch=monkeypatch)
    assert (done.exit_code, done.stdout, done.stderr) == (0, printed, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["enrol", "Cairo"], "hall: `enrol` is now `hall join`\n"),
        (["path"], "hall: `path` is now `hall show JOB --only path`\n"),
        (["enrol", "Cairo", "--json"], ""),
        (["join", "Cairo"], ""),
    ],
)
def test_a_person_is_told_the_new_spelling(
    app: CommandLine, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "has_terminal", lambda: True)
    assert call(app, *words, monkeypatch=monkeypatch).stderr == told


def test_completion_tells_nobody_of_old_spellings(app: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        pytest.fail("completion writes between the words that a person types")

    monkeypatch.setattr(screen, "has_terminal", lambda: True)
    monkeypatch.setattr(screen, "say", refuse)
    monkeypatch.delitem(sys.modules, "hall_verbs", raising=False)
    command = get_command(app)
    context = command.make_context("hall", ["enrol", "Cairo"], resilient_parsing=True)
    assert isinstance(command, click.Group)
    name, _, rest = command.resolve_command(context, ["enrol", "Cairo"])
    assert (name, rest) == ("join", ["Cairo"])


def test_stderr_is_known_for_a_terminal_behind_the_guard() -> None:
    code = "from federation.base import screen; screen.guard(); print(screen.has_terminal())"
    assert on_a_terminal([sys.executable, "-c", code], os.environ) == (0, b"True\n")
    assert not screen.has_terminal()
