"""What some tests need beyond requirements.lock: without it they are skipped, and say what to install.

`make test TESTS=--skipped` runs those that the last run skipped. As a program, it prints the Debian packages of the
programs that this machine lacks, one to a line: `python -m tests.needs`.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = {
    "torch": "`make torch` adds it",
    "ray": "`pip install 'pharoah-sim[ray]'` adds it",
    "celpy": "`pip install cel-python==0.5.0` adds it, for the rules of admission policies",
    "kubernetes_validate": "`pip install kubernetes-validate==1.37.0` adds it, with published schemas",
    "nvidia_resiliency_ext": "`pip install --no-deps nvidia-resiliency-ext defusedxml` adds it",
    "torchft": "`pip install torchft==0.2.0` adds it",
    "mlflow": "`pip install mlflow-skinny==3.17.2` adds it",
    "wandb": "`pip install wandb==0.31.0` adds it",
    "accelerate": "`pip install accelerate==1.15.0` adds it",
    "pytorch_lightning": "`pip install pytorch-lightning==2.6.6` adds it",
}
DEBIAN = {
    "amtool": "prometheus-alertmanager",
    "cc": "gcc",
    "chromium": "chromium",
    "ip": "iproute2",
    "nginx": "libnginx-mod-stream",
    "openssl": "openssl",
    "postgres": "postgresql",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "promtool": "prometheus",
    "mariadbd": "mariadb-server",
    "munged": "munge",
    "sbatch": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "slurmrestd": "slurmrestd",
}


def program(name: str) -> Path:
    """Where a program of `DEBIAN` is; the test is skipped where it is not installed."""
    found = find(name)
    if found is None:
        pytest.skip(f"there is no {name} here: Debian's package {DEBIAN[name]} adds it")
    return found


def find(name: str) -> Path | None:
    """A program by PATH, or where Debian keeps the newest PostgreSQL."""
    servers = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    found = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, servers), "/usr/sbin"])
    )
    return Path(found).resolve() if found else None


def package(name: str) -> Any:
    """A package of `PYTHON`; without it the test is skipped, or at the head of a module all its tests."""
    return pytest.importorskip(name, reason=_absence(name))


def installed(name: str) -> None:
    """The same for programs that tests start: here nothing is imported, as torch takes each worker two seconds."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(_absence(name), allow_module_level=True)


def _absence(name: str) -> str:
    return f"there is no {name} here: {PYTHON[name.partition('.')[0]]}"


if __name__ == "__main__":
    absent = {package for name, package in DEBIAN.items() if find(name) is None}
    sys.stdout.write("".join(f"{package}\n" for package in sorted(absent)))
