"""`import pharoah`: what a training script calls, beside packages of other people that have our names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenant_client.doctor.run.hook.progress import file_name, read

ROOT = Path(__file__).resolve().parents[3]
TRAIN = """
import json, sys
before = {*sys.modules}
import pharoah
plain = sorted({name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names})

saved = []
pharoah.on_save_now(lambda: saved.append("asked"))
for step in range(5):
    pharoah.step(loss=1.0 / (step + 1))
    if pharoah.should_checkpoint(failures_per_hour=1e12):
        with pharoah.phase("checkpoint"):
            saved.append("interval")
loaded = sorted({name.partition(".")[0] for name in sys.modules} - {*sys.stdlib_module_names, "__main__"})
print(json.dumps([plain, loaded, saved]))
"""


def trained(folder: Path, **environs: str) -> str:
    """What the script above prints, in a folder with packages of our names, which comes first on the path."""
    for name in ("crypto", "federation", "simulation", "trustee", "provider_server"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise AssertionError('the {name} of somebody else')\n")
    (folder / "train.py").write_text(TRAIN)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PHAROAH_")}
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-S", str(folder / "train.py")]
    done = subprocess.run(command, env=environment | paths | environs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_in_a_run_steps_are_reported_and_packages_of_our_names_are_left_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    said = trained(tmp_path, PHAROAH_RUN_DIR=str(run))
    assert said.startswith('[["pharoah"], ["pharoah", "tenant_client"], ["interval"')
    progress = read(run / file_name(0))
    assert progress is not None
    assert (progress.step, progress.phase) == (5, "end")


def test_a_step_that_an_optimiser_took_before_the_first_call_counts_once(tmp_path: Path) -> None:
    script = """
import pharoah
from tenant_client.doctor.run.hook.hook import current_hook
for step in range(3):
    if not current_hook().explicit:  # as what follows optimisers does
        current_hook().step()
    pharoah.step()
"""
    environment = os.environ | {"PHAROAH_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    progress = read(tmp_path / file_name(0))
    assert progress is not None
    assert progress.step == 3


def test_outside_of_a_run_nothing_is_loaded_and_nothing_happens(tmp_path: Path) -> None:
    assert trained(tmp_path) == '[["pharoah"], ["pharoah"], []]\n'


@pytest.mark.parametrize("name", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.name)
def test_an_example_of_a_training_script_names_one_package_of_ours(name: Path) -> None:
    ours = "crypto|federation|trustee|tenant_client|provider_server|simulation"
    imports = [line for line in name.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
    assert not [line for line in imports if line.split()[1].partition(".")[0] in ours.split("|")]
