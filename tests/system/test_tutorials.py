"""The tutorials: every command of them is run, in one shell and an empty folder, and prints what they show."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
LONG = {name: [pytest.mark.nightly] for name in ("operator", "bad-link")}  # as tests/system/test_programs.py
ALONE = {"operator-alone": "prometheus", "engineer": None}  # a quarter of an hour
LONGEST_S = 900.0
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "--- end of block {} ---"
PROGRAMS = {
    "pharoah-tenant": "tenant_client",
    "pharoah-trustee": "trustee",
    "pharoah-provider": "provider_server",
    "pharoah-sim": "simulation",
}
pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.nightly]  # one federation of real programs at a time


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """The programs by name, whatever environment the tests run in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, package in PROGRAMS.items():
        (folder / name).write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m {package} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "tutorial", [pytest.param(path, marks=LONG.get(path.stem, [])) for path in TUTORIALS], ids=lambda path: path.stem
)
def test_every_command_runs_and_prints_what_the_tutorial_shows(tutorial: Path, tools: Path, tmp_path: Path) -> None:
    if ALONE.get(tutorial.stem):
        needs.program(str(ALONE[tutorial.stem]))
    parts = BLOCK.findall(tutorial.read_text(encoding="utf-8"))
    scripts = [text for kind, text in parts if kind == "sh"]
    timed = f"echo $SECONDS >> {tmp_path}/seconds.txt"
    script = "\n".join(f"{text}\n{timed}; echo; echo '{END.format(n)}'" for n, text in enumerate(scripts))
    said = run(script, tools, tmp_path)
    if tutorial.stem in {*ALONE, "bad-link"}:
        ends_s = [int(line) for line in (tmp_path / "seconds.txt").read_text().split()]
        steps_s = [end - begin for begin, end in pairwise([0, *ends_s])]
        sys.stdout.write(f"{tutorial.stem}: {ends_s[-1]} s, by step {steps_s}\n")  # shown by pytest -rP
        assert tutorial.stem not in ALONE or ends_s[-1] < LONGEST_S
    outputs = [block.rpartition(END.format(n))[0] for n, block in enumerate(re.split(r"(?<= ---)\n", said))]
    number = -1
    for kind, text in parts:
        number += kind == "sh"
        for line in text.splitlines() if kind == "text" else ():
            pattern = ".*".join(re.escape(piece) for piece in line.strip().split("…"))
            assert re.search(pattern, outputs[number]), f"{tutorial.name} shows {line!r}, but:\n{outputs[number]}"


def run(script: str, tools: Path, folder: Path) -> str:
    """What a script prints, errors among it; it must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHAROAH_")}
    kept["PHAROAH_SOURCE"] = str(ROOT)
    env = kept | {"PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    (folder / "simulation").symlink_to(ROOT / "simulation")
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_there_is_one_for_each_of_the_three_who_use_it_for_nodes_alone_and_for_a_bad_link() -> None:
    assert [path.stem for path in TUTORIALS] == ["bad-link", "engineer", "operator-alone", "operator", "researcher"]


def test_a_line_that_is_not_printed_is_noticed(tools: Path, tmp_path: Path) -> None:
    tutorial = tmp_path / "false.md"
    tutorial.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError, match="shows 'two'"):
        test_every_command_runs_and_prints_what_the_tutorial_shows(tutorial, tools, tmp_path)
    tutorial.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError):
        run("false", tools, tmp_path / "bin")
