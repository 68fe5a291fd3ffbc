"""What `pip install pharoah` brings to a training image: size, packages, time to import, and numpy left as it was.

`core` is measured in a clean environment, `beside` beside numpy 1.26 and PyTorch, where a job is run too; both
environments lie in a temporary folder, and pip fetches what it lacks. Sizes are those of files on the disk with their
compiled forms; numpy, pip and setuptools are not counted. Times are CPU seconds of the fastest of many processes.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulation.studies.study import ROOT, Figures, Only, Table, fastest, figures

CORE: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
NOT_COUNTED = re.compile(r"numpy|pip|setuptools|pkg_resources|_distutils_hack|distutils-precedence")
IMAGE = ["numpy==1.26.4", "torch==2.13.0"]
RUNS = 15
AT_ONCE = {f"PHAROAH_SAMPLE_{name}": "inf" for name in ("LOAD", "JITTER", "BUDGET")}  # on a busy machine too
JOB = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def core() -> Figures:
    """The core alone."""
    with _environment() as python:
        wheel = _install(python)
        folder = _site_packages(python)
        counted = [path for path in folder.iterdir() if not NOT_COUNTED.match(path.name)]
        return {
            "wheel_kb": round(wheel.stat().st_size / 1e3),
            "installed_mb": round(sum(map(_bytes, counted)) / 1e6, 1),
            "of_which_pharoah_mb": round(sum(_bytes(path) for path in counted if path.name in _packages()) / 1e6, 1),
            "dependencies": len(CORE),
            "packages_that_come_along": sorted(_versions(python)),
            "import_cpu_s": _cpu_s(python, "-c", "import tenant_client.program.cli"),
            "python_alone_cpu_s": _cpu_s(python, "-c", "pass"),
            "status_cpu_s": _cpu_s(python, "-m", "tenant_client", "status", "--home", "none"),
        }


def beside() -> Figures:
    """In an image with PyTorch and an older numpy, which stay as they are, a job is run and described."""
    with _environment() as python:
        _pip(python, *IMAGE)
        before = _versions(python)
        _install(python)
        after = _versions(python)
        home, job = python.parent / "home", python.parent / "job.py"
        job.write_text(JOB)
        tenant = [str(python), "-m", "tenant_client"]
        ran = subprocess.run([*tenant, "run", "--home", home, "--", python, job], env=os.environ | AT_ONCE, check=False)
        seen = subprocess.run(
            [*tenant, "show", "--only", "journal", "--home", home, "--json"], check=True, capture_output=True
        )
        journal = json.loads(seen.stdout)
        return {
            "image": IMAGE,
            "changed_in_image": sorted(name for name in before if after[name] != before[name]),
            "added": sorted(f"{name} {version}" for name, version in after.items() if name not in before),
            "job_exit_code": ran.returncode,
            "attempts": [(one["state"], one["steps"]) for one in journal["attempts"]],
            "workloads_described": len(journal["workloads"]),
        }


@contextmanager
def _environment() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pharoah-install-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        yield Path(folder) / "bin" / "python"


def _install(python: Path) -> Path:
    """The wheel with the core's own list; the wheel."""
    _pip(python, *CORE)
    folder = python.parent / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.iterdir()
    _pip(python, "--no-deps", str(wheel))
    return wheel


def _pip(python: Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *words], check=True)


def _versions(python: Path) -> dict[str, str]:
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
    found = {row["name"].lower(): row["version"] for row in json.loads(listed.stdout)}
    return {name: version for name, version in found.items() if name not in ("pip", "setuptools", "pharoah")}


def _site_packages(python: Path) -> Path:
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    return folder


def _packages() -> list[str]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named: list[str] = table["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return named


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_blocks * 512 for one in files if one.is_file())


def _cpu_s(python: Path, *words: str) -> float:
    return round(fastest(lambda: subprocess.run([python, *words], check=False, capture_output=True), RUNS, _spent_s), 3)


def _spent_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def run(only: Only = None) -> Table:
    """Size, packages and time to import of the tenant's core, alone and beside numpy and PyTorch."""
    return figures(only, core, beside)
