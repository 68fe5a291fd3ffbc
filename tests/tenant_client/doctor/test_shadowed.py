"""A job whose own folder holds packages of our names: each raises when it is imported, and none ever is."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tests import needs
from tests.jobs.wrapped import LEASE, ROOT, attempts, environment

OURS = ["crypto", "federation", "trustee", "provider_server", "simulation"]
ONCE_OURS = ["runtime", "protocol", "transport"]
AT_ONCE = {f"PHAROAH_SAMPLE_{name}": "inf" for name in ("LOAD", "JITTER", "BUDGET")}

TRAIN = """
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
print("trained")
"""
STEPS = """
import torch
from torch.optim import optimizer

for step in range(40):
    torch.Tensor().backward()
    optimizer.step()
print("trained")
"""
FAKE_TORCH = {
    "torch/__init__.py": """
from torch import nn
class Tensor:
    def numel(self): return 2
    def backward(self): pass
""",
    "torch/nn.py": """
class Module:
    def eval(self): pass
    def train(self, mode=True): pass
""",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
hooks = []
register_optimizer_step_post_hook = hooks.append
def step():
    for hook in hooks: hook(None, (), {})
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The job's folder, with packages in it that must not be imported."""
    for name in (*OURS, *ONCE_OURS):
        (tmp_path / "job" / name).mkdir(parents=True)
        (tmp_path / "job" / name / "__init__.py").write_text(f"raise AssertionError('the {name} of the job')\n")
    return tmp_path / "job"


def run(folder: Path, *options: str, **environs: str) -> "subprocess.CompletedProcess[str]":
    """`pharoah-tenant run -- python train.py` in the job's folder."""
    words = [
        sys.executable,
        "-P",
        "-m",
        "tenant_client",
        "run",
        "--home",
        str(folder.parent / "home"),
        "--lease",
        LEASE,
    ]
    job = [*words, *options, "--", sys.executable, "train.py"]
    env = environment(environs)
    return subprocess.run(job, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def shadow_us(folder: Path) -> None:
    (folder / "tenant_client").mkdir()
    (folder / "tenant_client" / "__init__.py").write_text("raise AssertionError('the tenant_client of the job')\n")


def test_a_job_with_packages_of_our_names_runs_and_its_steps_are_counted(folder: Path) -> None:
    shadow_us(folder)
    for name, text in FAKE_TORCH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "train.py").write_text(STEPS)
    done = run(folder, "--quiet")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "of the job" not in done.stderr
    assert attempts(folder.parent / "home")[-1].steps == 40


@pytest.mark.nightly
def test_a_job_with_packages_of_our_names_is_described(folder: Path) -> None:
    needs.installed("torch")
    shadow_us(folder)
    (folder / "train.py").write_text(TRAIN)
    done = run(folder, **AT_ONCE)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "of the job" not in done.stderr
    with closing(open_database(folder.parent / "home" / "tenant.db")) as connection:
        descriptor = Journal(connection).descriptors()[LEASE]
    assert ("linear", ()) in descriptor.structure


def test_a_folder_of_the_job_on_pythonpath_does_not_stand_before_ours(folder: Path) -> None:
    (folder / "train.py").write_text("print('trained')\n")
    done = run(folder, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "of the job" not in done.stderr
    assert [one.state for one in attempts(folder.parent / "home")] == ["succeeded"]
