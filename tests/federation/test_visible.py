"""What is written for people steers nothing, whatever it is; and no code of ours writes by another way."""

import ast
import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click
import pytest
from hypothesis import given, strategies as st
from rich.text import Text
from typer.main import get_command

import provider_server.program.cli
import simulation.cli
import tenant_client.program.cli
from federation.base import screen
from federation.base.screen import VisibleStream, say, show, show_json
from federation.base.visible import json_text, visible, visible_lines
from tests.support.terminals import ATTACKS, HOSTILE, assert_obeys_nothing

ROOT = Path(__file__).resolve().parents[2]
ANYTHING = st.text(st.characters(codec=None), max_size=60)
SPACES = "\u00a0\u1680\u2003\u202f\u3000"


# ---- the pure part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F)])
def test_every_control_is_spelt_out(code: int) -> None:
    shown = visible(f"a{chr(code)}b")
    assert shown.isascii()
    assert shown.isprintable() or code == ord("\t")
    assert (shown == f"a{chr(code)}b") == (code == ord("\t"))


@given(ANYTHING)
def test_any_text_becomes_one_line_that_steers_nothing(text: str) -> None:
    shown = visible(text)
    assert "\n" not in shown
    assert all(letter.isprintable() or letter == "\t" or letter.isspace() for letter in shown)
    assert shown.splitlines() == ([shown] if shown else [])
    assert visible(shown) == shown
    shown.encode()  # no half of a character is left


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M", "Zs"]), max_size=60))
def test_letters_of_all_scripts_stay(text: str) -> None:
    assert visible(text) == text


def test_letters_and_spaces_that_people_write_stay() -> None:
    text = f"温度 85 °C – ünï „🔥“ עברית العربية{SPACES}\tend"
    assert visible(text) == text


def test_our_own_ends_of_lines_stay_and_no_others() -> None:
    assert visible_lines("a\nb\r\nc\x85d\u2028e") == "a\nb\\r\nc\\x85d\\u2028e"


@given(ANYTHING)
def test_json_loses_nothing_and_steers_nothing(text: str) -> None:
    whole = json_text({text: [text]})
    assert json.loads(whole) == {text: [text]}
    assert whole.isascii()
    assert whole.isprintable()


@dataclass(frozen=True)
class View:
    name: str
    path: Path


def test_views_become_objects_of_their_fields() -> None:
    assert json.loads(json_text(View("a", Path("b")))) == {"name": "a", "path": "b"}


# ---- the streams -----------------------------------------------------------------------------------------------------


def test_results_and_words_go_to_their_streams_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    show("one\ntwo", f"three {HOSTILE}")
    show()
    say("four", "")
    show_json({"five": HOSTILE})
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert shown.out.startswith("one\\ntwo\nthree <")
    assert shown.err == "four\n\n"
    assert_obeys_nothing(shown.out)


def test_nothing_is_written_where_there_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    show("a")
    say("b")
    screen.guard()
    assert (sys.stdout, sys.stderr) == (None, None)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_stream_writes_nothing_that_steers(attack: str) -> None:
    behind = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    stream = screen.guarded(behind)
    stream.write(f"a {attack} é\n")
    stream.flush()
    data = behind.buffer.getvalue()
    assert data.startswith(b"a ")
    assert data.endswith(b" ?\n")
    assert_obeys_nothing(data.decode("ascii"))


def test_a_stream_is_guarded_once_and_has_no_way_round() -> None:
    behind = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stream = screen.guarded(behind)
    assert screen.guarded(stream) is stream
    assert isinstance(stream, VisibleStream)
    assert not hasattr(stream, "buffer")
    assert (stream.encoding, stream.isatty(), stream.writable()) == ("utf-8", False, True)
    with pytest.raises(TypeError):
        stream.write(b"\x1b[2J")  # type: ignore[arg-type]


def helps(command: click.Command) -> Iterator[str]:
    """Every text of ours that `--help` shows by rich, which takes `[words]` for markup."""
    yield command.help or ""
    yield from (getattr(one, "help", None) or "" for one in command.params)
    for verb in getattr(command, "commands", {}).values():
        yield from helps(verb)


@pytest.mark.parametrize("program", [tenant_client.program.cli, provider_server.program.cli, simulation.cli])
def test_no_help_loses_words_to_markup(program: ModuleType) -> None:
    texts = list(helps(get_command(program.app)))
    assert len(texts) > 20
    assert [text for text in texts if Text.from_markup(text).plain != text] == []


# ---- no other way ----------------------------------------------------------------------------------------------------

AROUND = """
import builtins, click, logging, sys, traceback, typer, rich
from click import echo as said
from rich import print as shown
from rich.console import Console
from rich.progress import Progress
from sys import stdout
from typer import echo, secho as told
print("1")
builtins.print("2")
typer.echo("3")
typer.prompt("4")
click.secho("5")
sys.stdout.write("6")
sys.stderr.write("7")
sys.__stdout__.write("8")
rich.print("9")
rich.get_console()
logging.StreamHandler()
logging.basicConfig()
traceback.print_exc()
"""


def test_the_linter_finds_every_line_that_goes_round() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--select", "T20,TID251", "--output-format", "json"]
    for package in (
        "crypto",
        "federation",
        "trustee",
        "tenant_client",
        "provider_server",
        "simulation",
        "plugins/any/src",
    ):
        words = [*command, "--no-cache", "--stdin-filename", str(ROOT / package / "verbs_new.py"), "-"]
        done = subprocess.run(words, input=AROUND, cwd=ROOT, capture_output=True, text=True, check=False)
        found = {int(one["location"]["row"]) for one in json.loads(done.stdout)}
        lines = AROUND.splitlines()
        assert found == set(range(3, len(lines) + 1)), [lines[row - 1] for row in range(3, len(lines) + 1)]


# Descriptors are written to by these alone: a job's own output, pipes and files.
WRITERS = {
    "tenant_client/doctor/run/relay.py": "the job's own output, byte for byte",
    "tenant_client/doctor/run/streams.py": "pipes to the relay",
    "tenant_client/doctor/run/observer_pipe.py": "a pipe to the observer",
    "tenant_client/doctor/run/hook/progress.py": "a file of a rank's progress",
    "tenant_client/doctor/run/hook/patterns.py": "a file of a rank's functions",
    "tenant_client/doctor/run/hook/readings.py": "a file of a rank's losses",
    "tenant_client/doctor/run/hook/answers.py": "the run directory, in which a path to a socket may be too long",
    "tenant_client/doctor/run/hook/sampler.py": "the folder of open files, counted",
    "plugins/benchmarks/src/pharoah_benchmarks/guard.py": "a pipe to the runner",
    "plugins/benchmarks/src/pharoah_benchmarks/record.py": "one line of a file by one write",
    "plugins/benchmarks/src/pharoah_benchmarks/inject/wire.py": "a network device",
    "plugins/benchmarks/src/pharoah_benchmarks/inject/worker.py": "files of a job that faults are injected into",
    "plugins/confirm/src/pharoah_confirm/machine.py": "a file on the disk that is tested",
    "federation/base/screen.py": "one line by one write, visible",
    "federation/transport/connections.py": "the folder of open files, read to find a connection's socket",
}
DESCRIPTORS = {"write", "writev", "pwrite", "pwritev", "sendfile", "splice", "dup2"}
DEVICES = ("/dev/tty", "/dev/std", "/dev/fd", "/dev/pts", "/proc/self/fd")


def packages() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ours = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return [*ours, *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("plugins/*/src"))]


def ways_round(source: str) -> Iterator[str]:
    """What could reach a terminal in a way that ruff has no rule for: descriptors, devices, `sys` by other names."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in DESCRIPTORS:
                yield f"line {node.lineno}: os.{name}"
            case ast.ImportFrom(module="os", names=names) if DESCRIPTORS & {one.name for one in names}:
                yield f"line {node.lineno}: from os import"
            case ast.Call(
                func=ast.Name(id="open") | ast.Attribute(attr="open" | "fdopen" | "FileIO"),
                args=[ast.Constant(value=int()), *_],
            ):
                yield f"line {node.lineno}: open of a descriptor"
            case ast.Call(func=ast.Name(id="getattr" | "vars"), args=[ast.Name(id="sys"), *_]):
                yield f"line {node.lineno}: sys by name"
            case ast.Constant(value=str(text)) if text.startswith(DEVICES):
                yield f"line {node.lineno}: {text}"
            case _:
                pass


def test_nothing_writes_to_descriptors_and_devices_unseen() -> None:
    found = {}
    for file in (file for package in packages() for file in (ROOT / package).rglob("*.py")):
        name, source = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        assert not any("noqa" in line and ("TID251" in line or "T20" in line) for line in source.splitlines()), name
        if ways := list(ways_round(source)):
            found[name] = ways
    assert found.keys() == WRITERS.keys(), found


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.write(2, b'')",
        "from os import write as say\nsay(1, b'')",
        "import os\nos.fdopen(1, 'w')",
        "open(1, 'w').write('')",
        "open('/dev/tty', 'w')",
        "import sys\ngetattr(sys, 'std' + 'out').write('')",
        "import sys\nvars(sys)['stdout']",
    ],
)
def test_ways_round_are_seen(source: str) -> None:
    assert list(ways_round(source))
