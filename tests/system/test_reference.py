"""The reference that `make docs` writes from the code: every verb, setting and message has its words."""

import json
from collections.abc import Iterator
from types import ModuleType

import click
import msgspec
import pytest
from typer.main import get_command

from federation.base.console import verbs_of
from tests.support import schemas

FIGURES = (  # studies whose JSON has figures by name, as many as there are parts
    *(
        "audit",
        "confirm",
        "cost",
        "diagnosis",
        "explanations",
        "gpu",
        "honest",
        "injection",
        "install-size",
        "labelled-logs",
    ),
    *("odd-ranks", "overhead", "poison", "replacement", "sureness", "syndromes", "two-sided", "xid"),
)
NO_SCHEMA = {f"pharoah-sim study {name}": "figures by name" for name in FIGURES}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return schemas.generate()


def test_manual_pages_tell_every_verb_and_no_line_is_taken_for_a_request(generate: ModuleType) -> None:
    pages = generate.manuals()
    assert set(pages) == {f"{program}.1" for program in generate.PROGRAMS}
    assert '.SS "pharoah\\-tenant check fit [OPTIONS] [JOB]"' in pages["pharoah-tenant.1"]
    assert "enrol [" not in pages["pharoah-tenant.1"]
    for line in "".join(pages.values()).splitlines():
        assert not line.startswith("'")
        assert not line.startswith(".") or line.split()[0] in (".TH", ".SH", ".SS", ".TP", ".B")


def test_every_verb_setting_and_message_has_words(generate: ModuleType) -> None:
    pages = generate.pages()
    assert (
        "| `JOB` | The job, or the start of its name (see `jobs`); by default the newest. Also `PHAROAH_LEASE`. |  |"
        in pages["commands.md"]
    )
    assert "| `epsilon` | `PHAROAH_PLAN_EPSILON` | float above 0 | `1.0` |" in pages["settings.md"]
    assert "`pharoah/hint/1`" in pages["messages.md"]
    for page in pages.values():
        assert "None\n\n" not in page
        assert "|  |  |  |" not in page


def in_json(words: str, command: click.Command) -> Iterator[str]:
    """The verbs of a program that have `--json`, hidden ones too."""
    if isinstance(command, click.Group):
        for name, verb in verbs_of(command).items():
            yield from () if name == "bench" else in_json(f"{words} {name}", verb)  # `study` under its old name
    elif any("--json" in one.opts for one in command.params):
        yield words


def test_every_verb_with_json_has_a_schema_or_a_reason(generate: ModuleType) -> None:
    verbs = {verb for program, app in generate.PROGRAMS.items() for verb in in_json(program, get_command(app))}
    # "pharoah-provider rounds hold --give-up" and "pharoah-tenant join INVITATION" are further forms of a verb.
    forms = [[word for word in form.split() if word[0] != "-" and word.islower()] for form in generate.JSON]
    assert {" ".join(words) for words in forms} == verbs - set(NO_SCHEMA)
    assert set(NO_SCHEMA) <= verbs


def test_what_is_held_to_a_schema_can_fail() -> None:
    row = {"file": "leases.jsonl", "leases": 2}
    assert schemas.held("pharoah-provider leases record", json.dumps([row])) == [row]
    for wrong in ({"file": "leases.jsonl"}, row | {"more": 1}, row | {"leases": "2"}):
        with pytest.raises((AssertionError, msgspec.ValidationError)):
            schemas.held("pharoah-provider leases record", json.dumps([wrong]))
