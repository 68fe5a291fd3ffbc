"""Verbs that other distributions add: a wheel made here, installed beside ours, and no file of ours touched."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import Result
from typer.testing import CliRunner

from federation.base import console
from federation.base.console import CommandLine
from federation.base.plugin_verbs import GROUP
from federation.base.settings import BadSettings
from provider_server.program.cli import app
from provider_server.rounds.home import settings_of
from tenant_client.program.cli import app as tenant

WEATHER = """
import typer

def weather(place: str) -> None:
    '''Says what the weather is.'''
    if place == "atlantis":
        raise FileNotFoundError(2, "sunk", place)
    print("sunny in", place)

group = typer.Typer(help="More of it.")

@group.command()
def rain() -> None:
    '''Says that it rains.'''
    print("it rains")

@group.command()
def snow() -> None:
    '''Says that it snows.'''
"""


def wheel(folder: Path, name: str, source: str, *verbs: str, summary: str = "Weather [/of] the hall") -> Path:
    """A distribution of one module, with its verbs as `PROGRAM.VERB = OBJECT`."""
    module = name.replace("-", "_")
    info, made = f"{module}-1.0.dist-info", folder / f"{module}-1.0-py3-none-any.whl"
    entries = [verb.replace("= ", f"= {module}:") for verb in verbs]
    with ZipFile(made, "w") as file:
        file.writestr(f"{module}.py", source)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: {summary}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "\n".join([f"[{GROUP}]", *entries, ""]))
        file.writestr(f"{info}/RECORD", "")
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plug-ins: one that works, two that cannot be imported, and two that want the same verb."""
    folder = tmp_path_factory.mktemp("plugins")
    verbs = [f"pharoah-provider.{verb}" for verb in ("weather = weather", "more = group", "status = weather")]
    verbs += [f"pharoah-provider.leases.{verb}" for verb in ("weather = weather", "record = weather")]
    empty = "def verb() -> None: ..."
    wheels = [
        wheel(folder, "hall-weather", WEATHER, *verbs, "pharoah-tenant.tenants-own = weather"),
        wheel(folder, "hall-broken", "import not_installed_anywhere", "pharoah-provider.broken = verb"),
        wheel(folder, "hall-odd", "verb = 7", "pharoah-provider.odd = verb"),
        wheel(folder, "hall-a", empty, "pharoah-provider.torn = verb"),
        wheel(folder, "hall-b", empty, "pharoah-provider.torn = verb"),
    ]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(folder / "beside"), *map(str, wheels)], check=True)
    return folder / "beside"


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("hall_")}


@pytest.fixture
def beside(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plug-ins, beside ours; none was imported before, and none is afterwards."""
    monkeypatch.syspath_prepend(str(installed))
    assert imported() == set()
    yield installed
    for name in imported():
        del sys.modules[name]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})


@pytest.mark.usefixtures("beside")
def test_help_names_the_verbs_of_plug_ins_and_imports_none() -> None:
    done = call("--help")
    panel = done.stdout.partition(" Plug-ins ")[2]
    assert done.exit_code == 0
    for verb in ("weather", "more", "broken", "torn", "kubernetes"):
        assert f" {verb} " in panel
    assert "Weather [/of] the hall (hall-weather)" in panel
    assert "tenants-own" not in done.stdout
    assert " status " not in panel
    assert imported() == set()


@pytest.mark.usefixtures("beside")
def test_a_verb_of_a_plug_in_runs_as_ours_do() -> None:
    assert "Says what the weather is." in call("weather", "-h").stdout
    done, sunk = call("weather", "Cairo"), call("weather", "atlantis")
    assert (done.exit_code, done.stdout) == (0, "sunny in Cairo\n")
    assert (sunk.exit_code, sunk.stderr) == (2, "pharoah-provider: error: sunk: atlantis\n")
    assert imported() == {"hall_weather"}


@pytest.mark.usefixtures("beside")
def test_a_plug_in_may_add_a_group() -> None:
    assert call("more", "rain").stdout == "it rains\n"
    assert "snow" in call("more", "--help").stdout


@pytest.mark.usefixtures("beside")
def test_a_plug_in_may_add_to_a_group_of_ours_and_replaces_nothing_there() -> None:
    panel = call("leases", "--help").stdout.partition(" Plug-ins ")[2]
    assert " weather " in panel
    assert " record " not in panel
    assert imported() == set()
    assert call("leases", "weather", "Cairo").stdout == "sunny in Cairo\n"
    assert "Record granted leases" in call("leases", "record", "-h").stdout
    assert "No such command 'weather'" in call("rounds", "weather").stderr


@pytest.mark.usefixtures("beside")
def test_another_verb_imports_no_plug_in(tmp_path: Path) -> None:
    assert "no provider in this home" in call("status", "--home", str(tmp_path)).stderr  # ours, not the plug-in's
    assert "No such command" in call("weathr").stderr
    assert call("leases", "--help").exit_code == 0
    assert imported() == set()


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("verb", "told"),
    [
        ("broken", "the plug-in hall-broken cannot be imported: ModuleNotFoundError: No module named 'not_inst"),
        ("odd", "the plug-in hall-odd cannot be imported: TypeError: "),
        ("torn", "more than one plug-in adds torn: hall-a, hall-b"),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_an_error_of_its_verb_alone(verb: str, told: str) -> None:
    done = call(verb)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pharoah-provider: error: {told}")
    assert "\nhint: " in done.stderr
    assert call("weather", "Cairo").exit_code == 0


@pytest.mark.parametrize(
    ("program", "words", "needed"),
    [
        (app, ["kubernetes", "--once"], "pharoah-provider: error: this verb needs `pip install pharoah-kubernetes`\n"),
        (app, ["leases", "slurm"], "pharoah-provider: error: this verb needs `pip install pharoah-slurm`\n"),
        (app, ["node-check", "n1"], "pharoah-provider: error: this verb needs `pip install pharoah-nodes`\n"),
        (tenant, ["evidence", "0a1b"], "pharoah-tenant: error: this verb needs `pip install pharoah-claims`\n"),
        (tenant, ["confirm", "-h"], "pharoah-tenant: error: this verb needs `pip install pharoah-confirm`\n"),
    ],
)
def test_a_verb_of_ours_says_which_distribution_would_bring_it(
    program: CommandLine, words: list[str], needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "plug_ins", lambda group: {})
    done = CliRunner().invoke(program, words)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith(needed)
    assert "No such command 'nothing'" in CliRunner().invoke(program, ["nothing"]).stderr


def test_a_section_is_left_to_the_plug_in_that_is_installed(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "provider.toml").write_text('[rounds]\nevery = "manual"\n[weather]\nplace = 1\n')
    with pytest.raises(BadSettings, match="unknown key 'weather'"):
        settings_of(tmp_path)
    monkeypatch.syspath_prepend(str(installed))
    assert settings_of(tmp_path).rounds.every == "manual"
    monkeypatch.setenv("PHAROAH_ROUNDS_EVERY", "window")
    assert settings_of(tmp_path).rounds.every == "window"
    (tmp_path / "provider.toml").write_text("[weathr]\nplace = 1\n")
    with pytest.raises(BadSettings, match="unknown key 'weathr'"):
        settings_of(tmp_path)
