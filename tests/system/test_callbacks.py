"""Callbacks of trainers, each in a real training loop that the hook watches: a hint's request is answered, once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import sys, time
from pathlib import Path
import torch
sys.path.insert(0, {examples!r})
run_dir, saved = Path({run!r}), {saved!r}
def ask(step):
    time.sleep(0.05)
    if step == 5:
        (run_dir / "save-now").touch()
    if step in (4, 9):
        print("saved" if Path(saved).exists() else "nothing", flush=True)
        if step == 9:
            print("again" if Path(saved).stat().st_mtime > time.time() - 0.1 else "once")
"""
LIGHTNING = """
import pytorch_lightning as pl
from lightning_callback import PharoahCallback
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        ask(number)
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[PharoahCallback(saved)], **quiet).fit(Model(), loader)
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate_step import after_step
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
for step in range(10):
    ask(step)
    accelerator.backward(model(torch.randn(4, 4)).square().mean())
    optimizer.step()
    after_step(accelerator, saved)
"""
# Composer is not installed here: a trainer that calls the same method with the same arguments.
COMPOSER = """
from types import SimpleNamespace
from composer_callback import PharoahCallback
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
callback = PharoahCallback(lambda state: torch.save(state.model.state_dict(), saved))
for step in range(10):
    ask(step)
    loss = model(torch.randn(4, 4)).square().mean()
    loss.backward()
    optimizer.step()
    callback.batch_end(SimpleNamespace(model=model, loss=loss), None)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("package", "loop"),
    [("pytorch_lightning", LIGHTNING), ("accelerate", ACCELERATE), ("torch", COMPOSER)],
    ids=["lightning", "accelerate", "composer's interface"],
)
def test_a_hint_is_answered_with_one_checkpoint(package: str, loop: str, tmp_path: Path) -> None:
    needs.installed("torch")
    needs.package(package)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    head = HEAD.format(examples=str(ROOT / "examples/callbacks"), run=str(run_dir), saved=str(tmp_path / "saved"))
    autoload = str(ROOT / "tenant_client/doctor/run/hook/autoload")
    paths = os.pathsep.join([autoload, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    (tmp_path / "job.py").write_text(head + loop)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        env={**os.environ, "PYTHONPATH": paths, "PHAROAH_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["nothing", "saved", "once"], done.stdout + done.stderr
