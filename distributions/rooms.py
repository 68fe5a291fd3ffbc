"""`make rooms`: installs dist/ into bare environments of the Python that runs this, role by role, and tries it.

It needs nothing but that Python's standard library, and a network for what the distributions need:

    python3.14 distributions/rooms.py                                  # every role
    python3.12 distributions/rooms.py tenant --beside numpy==1.26.4    # beside what must stay as it is
    python3.11 distributions/rooms.py trustee --round python3.14       # and a round with tenants of another Python

A row for each role: the Python and machine, the role, what was there before, the megabytes and packages that came (none
of the files compiled), seconds, and ok or what failed. The exit status is 1 if any did.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIST = Path(__file__).resolve().parents[1] / "dist"
LOG = "[rank3]:[E1] [PG 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
# What is installed, and commands in a home of their own with the exit status of each.
ROLES: dict[str, tuple[list[str], list[tuple[str, int]]]] = {
    "tenant": (
        ["pharoah"],
        [
            ("pharoah-tenant --version", 0),
            ("pharoah-tenant run -- sh -c 'exit 3'", 3),
            ("pharoah-tenant jobs --json", 0),
            ("pharoah-tenant diagnose job.log", 0),
        ],
    ),
    "page": (
        ["pharoah[page]"],
        [("pharoah-tenant page --help", 0), ("python -c 'import tenant_client.program.pages.serving'", 0)],
    ),
    "federation": (
        ["pharoah[federation]"],
        [
            ("pharoah-tenant status", 3),
            ("python -c 'import tenant_client.rounds.network.flower, tenant_client.program.pages.serving'", 0),
        ],
    ),
    "trustee": (
        ["pharoah-trustee"],
        [("pharoah-trustee init --address localhost:7100", 0), ("pharoah-trustee status", 0)],
    ),
    "provider": (
        ["pharoah-provider"],
        [
            ("pharoah-provider status", 2),
            ("python -c 'import provider_server.program.service, provider_server.fleet.learning'", 0),
        ],
    ),
    "sim": (["pharoah-sim"], [("pharoah-sim run --scenario tiny --seed 1 --out out", 0)]),
    "plug-ins": (
        [f"pharoah-{name}" for name in ("benchmarks", "claims", "confirm", "fabric", "kubernetes", "nodes", "slurm")],
        [
            ("pharoah-provider benchmark --help", 0),
            ("pharoah-provider kubernetes --help", 0),
            ("pharoah-provider leases slurm --help", 0),
            ("pharoah-provider nodes check --help", 0),
            ("pharoah-provider nodes path --help", 0),
            ("pharoah-tenant privacy evidence --help", 0),
            ("pharoah-tenant confirm memory --seconds=0.1 --device=cpu", 3),
        ],
    ),
}

ROUND = """
import sys
from pathlib import Path
from simulation.run.processes import Places, hold
tenants = ["sh", "-c", 'shift; unset PYTHONPATH; exec "' + sys.argv[1] + '" "$@"', "sh"]
places = Places(Path("homes").absolute(), 4, 3, wrapped={f"tenant-{number}": tenants for number in range(1, 5)})
places.root.mkdir()
sys.exit(hold(places, lambda _: None)["contributors"] != 4)
"""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("roles", nargs="*", help="of " + ", ".join(ROLES), default=list(ROLES))
    parser.add_argument("--beside", nargs="*", default=[], help="packages that are there before, as pip takes them")
    parser.add_argument(
        "--uv", help="the program uv, which is to install in place of that Python's pip, in a tenth of the time"
    )
    parser.add_argument("--round", metavar="PYTHON", help="hold a round too, whose tenants run in a room of this one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pharoah-rooms-") as folder:
        if asked.uv:
            install = [asked.uv, "--no-config", "pip", "install", "--quiet", "--python", "{room}"]
        else:
            subprocess.run([sys.executable, "-m", "venv", f"{folder}/pip"], check=True)
            install = [f"{folder}/pip/bin/python", "-m", "pip", "--quiet", "--python", "{room}", "install"]
        fine = [room(Path(folder) / role, install, role, asked.beside) for role in asked.roles]
        if asked.round:
            fine.append(across(Path(folder), install, asked.round))
    return int(not all(fine))


def room(folder: Path, installer: list[str], role: str, beside: list[str]) -> bool:
    """Whether the role works in a room of its own; prints its row."""
    began_s = time.monotonic()
    python, install = empty(folder, installer, sys.executable)
    wanted, commands = ROLES[role]
    said = installed([*install, *beside]) if beside else ""
    before, there_mb = packages(python), size_mb(python)
    said = said or installed([*install, "--find-links", str(DIST), *wanted])
    after, came_mb = packages(python), size_mb(python) - there_mb
    changed = [name for name in before if after.get(name) != before[name]]
    said = said or (f"changed {', '.join(changed)}" if changed else "") or tried(python, commands) or "ok"
    there = " ".join(beside) or "nothing"
    tell(role, there, f"{came_mb:.0f} MB", str(len(after) - len(before)), f"{time.monotonic() - began_s:.0f} s", said)
    shutil.rmtree(folder)
    return said == "ok"


def across(folder: Path, installer: list[str], other: str) -> bool:
    """Whether a round passes whose tenants are of another Python than all else; prints its row."""
    began_s = time.monotonic()
    ours, install_ours = empty(folder / "ours", installer, sys.executable)
    theirs, install_theirs = empty(folder / "theirs", installer, other)
    said = installed([*install_ours, "--find-links", str(DIST), "pharoah-sim"])
    said = said or installed([*install_theirs, "--find-links", str(DIST), "pharoah[federation]"])
    said = said or tried(ours, [(shlex.join(["python", "-c", ROUND, str(theirs)]), 0)]) or "ok"
    version = subprocess.run([theirs, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    mb, count = size_mb(ours) + size_mb(theirs), len(packages(ours)) + len(packages(theirs))
    took = f"{time.monotonic() - began_s:.0f} s"
    tell(f"a round, tenants of {version}", "nothing", f"{mb:.0f} MB", str(count), took, said)
    return said == "ok"


def empty(folder: Path, installer: list[str], of: str) -> tuple[Path, list[str]]:
    """The Python of a new environment, and what installs into it."""
    subprocess.run([of, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [*(word.format(room=python) for word in installer), "--no-compile", "--only-binary", ":all:"]
    return python, install


def tell(*cells: str) -> None:
    """A row."""
    sys.stdout.write("| " + " | ".join((f"{platform.python_version()} {platform.machine()}", *cells)) + " |\n")
    sys.stdout.flush()


def tried(python: Path, commands: list[tuple[str, int]]) -> str:
    """What the first command said that ended otherwise than it should; nothing if none did."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PHAROAH_"))}
    home = python.parents[2] / "home"
    homes = dict.fromkeys(("PHAROAH_HOME", "PHAROAH_PROVIDER_HOME", "PHAROAH_TRUSTEE_HOME"), str(home / "of-role"))
    home.mkdir()
    (home / "job.log").write_text(LOG)
    environment = kept | homes | {"PATH": f"{python.parent}:{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0"}
    for command, status in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=home, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != status or "Traceback" in done.stderr:
            last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            return f"{command}: exit status {done.returncode}, not {status}: {last}"
    return ""


def installed(command: list[str]) -> str:
    """Installs; the last line of pip's complaint, or nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"pip: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


def packages(python: Path) -> dict[str, str]:
    """Names and versions of what is installed."""
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    listed: dict[str, str] = json.loads(subprocess.run([python, "-c", script], check=True, capture_output=True).stdout)
    return listed


def size_mb(python: Path) -> float:
    """Of the environment's files on the disk."""
    return sum(one.lstat().st_blocks * 512 for one in python.parents[1].rglob("*") if not one.is_symlink()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
