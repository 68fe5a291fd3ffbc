"""Pilots of real programs: that of docs/operate.md by its own commands, and one that goes on to play with.

The commands are those of the document, but for the ports. Between them the tenants' jobs of last week are made up.
"""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.run.processes import environment
from tests.support.waiting import until
from tests.system.test_tutorials import ROOT, run, tools

__all__ = ["tools"]  # a fixture
pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.nightly]  # a minute and a half each

LONGEST_S, TENANTS = 600.0, 4
JOBS = (
    "from pathlib import Path; from simulation.run.processes import Places, happen, last_week;"
    f" happen(Places(Path(), {TENANTS}, 3), last_week())"
)


def blocks() -> list[str]:
    text = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
    section = re.split(r"^### A pilot in ten minutes$", text, flags=re.MULTILINE)[1].split("\n#")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def free_ports(count: int) -> int:
    """The first of so many ports side by side that nobody uses."""
    for first in range(21_000, 30_000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def test_from_nothing_to_a_published_report(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, hold, end = blocks()
    first = free_ports(6)
    found = found.replace("127.0.0.1:710$n", f"127.0.0.1:$(({first} + n))")
    listen = {"tenants": first, "online": first + 4, "metrics": first + 5}
    ports = "".join(f"export PHAROAH_LISTEN_{name.upper()}_PORT={port}\n" for name, port in listen.items())
    jobs = f'PYTHONPATH="{ROOT}" "{sys.executable}" -c "{JOBS}"\necho "jobs after $SECONDS s"\n'
    said = run(
        f"trap 'kill $(jobs -p)' EXIT\n{ports}{found}{jobs}{hold}echo all after $SECONDS s\n{end}", tools, tmp_path
    )
    assert "4 tenants, 3 trustees, any 2 of whom make tokens, pilot" in said
    assert "does not answer" not in said
    assert re.search(r"round \w+: .*, 4 contributions, .* epsilon 1\.000", said)
    assert re.search(r"counted since .*, 4 contributions", said)
    assert "pilot       policy.toml lets plans of a pilot through" in said
    assert "no pilot: rows of 5 tenants or more, sums of 10 or more" in said
    assert "the next round lacks tenants enrolled for cohort_minimum: 4 of 10" in said
    (seconds,) = map(int, re.findall(r"all after (\d+) s", said))
    sys.stdout.write(f"a pilot: {seconds} s\n")  # shown by pytest -rP
    assert seconds < LONGEST_S


def test_a_federation_that_is_kept_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    out = tmp_path / "fed"
    command = [sys.executable, "-m", "simulation", "federation", "--keep", "--out", str(out)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment())
    pids = [int(pid) for pid in (out / "stop").read_text().split("kill ")[1].split()]
    try:
        said = subprocess.run(
            [sys.executable, "-m", "provider_server", "status", "--home", str(out / "homes/provider")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        ).stdout
        assert len(pids) == TENANTS + 4
        assert "4 contributions" in made.stdout
        assert f"stop        sh {out / 'stop'}" in made.stderr
        assert "provider, serving" in said
        assert said.count(" up\n") == 3
        assert "lacking" not in said
    finally:
        subprocess.run(["/bin/sh", str(out / "stop")], check=True)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
