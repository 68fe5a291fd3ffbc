"""No frame of ours stands in a traceback of a job, wherever the job raises."""

import sys
from pathlib import Path

import pytest

from tests import needs
from tests.jobs.wrapped import attempts, run

OURS = ("tenant_client", "sitecustomize")
# Each step raises below a function of torch's that the hook listens to; what it says is the whole traceback.
RAISES = """
import traceback

import torch

class Bad(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient): raise ValueError("in backward")

class Model(torch.nn.Linear):
    def train(self, mode=True):
        super().train(mode)
        for child in self.children():
            child.train(mode)

class Layer(torch.nn.Module):
    def train(self, mode=True): raise ValueError("in eval" if not mode else "in train")

class Profile(torch.autograd.profiler.profile):
    def config(self, **options): raise ValueError("in profiler")

def raising(work):
    try:
        work()
    except Exception:
        traceback.print_exc()
    else:
        raise SystemExit("nothing was raised")

model = Model(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
raising(lambda: Bad.apply(model(torch.ones(3, 4)).sum()).backward())
raising(lambda: model(torch.ones(3, 4)).backward())
model.layer = Layer()
raising(model.eval)
raising(model.train)
raising(Profile().__enter__)
optimizer.step(closure=lambda: [].pop(1))
"""


@pytest.mark.nightly
def test_a_step_that_raises_inside_a_function_that_the_hook_listens_to(tmp_path: Path) -> None:
    needs.installed("torch")
    (tmp_path / "train.py").write_text(RAISES)
    done = run(tmp_path / "home", [sys.executable, tmp_path / "train.py"])
    assert done.code == 1
    said = ["in backward", "grad can be implicitly created", "in eval", "in train", "in profiler", "IndexError"]
    assert [text for text in said if text not in done.stderr] == []
    lines = [line for line in done.stderr.splitlines() if line.lstrip().startswith("File ")]
    assert lines
    assert not [line for line in lines if any(name in line for name in OURS)]
    (attempt,) = attempts(tmp_path / "home")
    assert attempt.steps == 4


def test_an_import_of_torch_that_fails(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import libcudart_of_another_version\n")
    (tmp_path / "train.py").write_text("import torch\n")
    done = run(tmp_path / "home", [sys.executable, tmp_path / "train.py"])
    assert done.code == 1
    assert "No module named 'libcudart_of_another_version'" in done.stderr
    assert not [line for line in done.stderr.splitlines() if any(name in line for name in OURS)], done.stderr
