"""The reference that `make docs` writes from the code: every verb, setting and message has its words.

Editors complete settings by the schemas in it: `taplo`, which they run, takes every file that the project writes.
"""

import json
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import msgspec
import pytest
from typer.main import get_command

from federation.base.console import verbs_of
from provider_server.fleet.telemetry import inventory
from provider_server.fleet.telemetry.recipe import Ingredient, Recipe
from tests import needs
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


def test_manual_pages_are_as_mandoc_and_groff_want_them(generate: ModuleType, tmp_path: Path) -> None:
    program = str(needs.program("mandoc"))
    for name, text in generate.manuals().items():
        (tmp_path / name).write_text(text, encoding="ascii")
        done = subprocess.run([program, "-Tlint", "-Wwarning", tmp_path / name], capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"")


def linted(file: Path, *words: str) -> str:
    """What taplo finds wrong with a TOML file, with its own schema or that of the words."""
    command = [str(needs.program("taplo")), "lint", "--colors", "never", *words, file.name]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode != 0) == ("error: " in done.stderr)
    return done.stderr if done.returncode else ""


INVENTORY = textwrap.dedent("    [[node]]\n" + (inventory.__doc__ or "").partition("    [[node]]\n")[2])
RECIPE = Recipe({"xid": Ingredient(30, "failures"), "row_remap_failure": Ingredient(60)}).toml()
# By schema: what stands in a sample, and what would be wrong there.
WRONG = {
    "provider": ("tenants_port = 8443", ("tenants_port = '8443'", "tenant_port = 8443")),
    "tenant": ("tick_s = 5.0", ("tick_s = -1.0", "tick = 5.0")),
    "trustee": ("cohort_minimum = 2", ("cohort_minimum = 1", "cohort = 2")),
    "policy": ("link_epochs = false", ("link_epochs = 0", "link_epoch = false")),
    "inventory": ("index = 0", ("index = 'a'", "idx = 0")),
    "recipe": ("interval_s = 30", ("interval_s = 0", "interval = 30")),
}


@pytest.mark.parametrize("name", WRONG)
def test_editors_take_every_sample_and_find_what_is_misspelt_or_of_another_type(
    generate: ModuleType, tmp_path: Path, name: str
) -> None:
    assert set(WRONG) == set(generate.SCHEMAS)
    (tmp_path / f"{name}.schema.json").write_text(generate.schemas()[f"{name}.schema.json"], encoding="utf-8")
    schema = f"--schema=file://{tmp_path}/{name}.schema.json"
    plug_ins = "\n[kubernetes]\nlabel_nodes = true\n[benchmark]\nplace = 'slurm'\n" if name == "provider" else ""
    _, shipped = generate.SCHEMAS[name]
    texts = {"inventory": INVENTORY, "recipe": RECIPE}
    text = texts.get(name) or shipped.read_text(encoding="utf-8") + plug_ins
    (tmp_path / "file.toml").write_text(text, encoding="utf-8")
    assert linted(tmp_path / "file.toml", schema) == ""
    right, wrongs = WRONG[name]
    assert right in text
    for wrong in wrongs:
        (tmp_path / "file.toml").write_text(text.replace(right, wrong, 1), encoding="utf-8")
        assert linted(tmp_path / "file.toml", schema)


@pytest.mark.parametrize("name", ["provider", "tenant", "trustee", "policy"])
def test_every_key_of_a_sample_has_a_description_in_its_schema(generate: ModuleType, name: str) -> None:
    told = json.loads(generate.schemas()[f"{name}.schema.json"])
    parts = [told, *(part for title, part in told["$defs"].items() if title not in ("Kubernetes", "Benchmark"))]
    keys = {
        key: about for part in parts for key, about in part.get("properties", {}).items() if "$defs" not in str(about)
    }
    assert len(keys) > 3
    assert {key for key, about in keys.items() if len(about.get("description", "")) < 8} == set()


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
