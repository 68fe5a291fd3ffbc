"""Verbs called in the tests' own process: `call = partial(calling.call, app)`."""

from typing import Any

from click.testing import Result
from typer import Typer
from typer.testing import CliRunner

from tests.support import schemas


def call(app: Typer, *words: object) -> Result:
    """How a verb ends and what it prints; an exception that no verb may end with is raised here."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(app: Typer, program: str, *words: object) -> Any:
    """What a verb prints with `--json`, which is of the schema of that verb."""
    result = call(app, *words, "--json")
    assert result.exit_code == 0, result.stderr
    return schemas.held(schemas.form_of(program, words), result.stdout)
