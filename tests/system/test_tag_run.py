"""The example that tags runs of MLflow and W&B: what it tells, to a local store of each; no line of a log."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
CAUSE = {"reason": "ecc_error", "sentence": "ecc_error: out.log, line 4: secret words of a log"}
JOURNAL = {
    "attempts": [
        {"unit": "80", "attempt": 1, "state": "succeeded", "cause": {"reason": "unknown"}},
        {"unit": "81", "attempt": 1, "state": "succeeded", "cause": {"reason": "unknown"}},
        {"unit": "81", "attempt": 2, "state": "failed", "cause": CAUSE},
    ]
}
TOLD = {"pharoah.lease": "81", "pharoah.attempt": "2", "pharoah.state": "failed", "pharoah.cause": "ecc_error"}


def tag(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/tag_run.py"), *words],
        input=json.dumps(JOURNAL),
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_it_tells_nothing_unless_it_is_asked(tmp_path: Path) -> None:
    """Without either option neither package is imported."""
    (tmp_path / "mlflow.py").write_text("raise SystemExit(7)")
    (tmp_path / "wandb.py").write_text("raise SystemExit(7)")
    done = tag(tmp_path, "81", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["82", "--mlflow", "1"], "the journal has no lease '82'"),
        (["81", "--wandb", "run"], "--wandb 'run' is no run: pass entity/project/id"),
    ],
)
def test_a_lease_or_a_run_that_is_none_is_named(tmp_path: Path, words: list[str], said: str) -> None:
    done = tag(tmp_path, *words)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.nightly
def test_a_run_of_mlflow_in_a_local_file_store_has_the_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = needs.package("mlflow")
    store = {"MLFLOW_TRACKING_URI": (tmp_path / "runs").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    client = mlflow.MlflowClient(tracking_uri=store["MLFLOW_TRACKING_URI"])
    run = client.create_run(client.create_experiment("train")).info.run_id
    done = tag(tmp_path, "81", "--mlflow", run, **store)
    assert done.returncode == 0, done.stderr
    tags = client.get_run(run).data.tags
    assert {name: value for name, value in tags.items() if name.startswith("pharoah.")} == TOLD


@pytest.mark.nightly
def test_an_offline_run_of_wandb_has_the_tags_in_its_summary(tmp_path: Path) -> None:
    needs.package("wandb")
    done = tag(tmp_path, "81", "--wandb", "team/train/abc123", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("wandb/offline-run-*-abc123/run-abc123.wandb")
    data = kept.read_bytes()
    assert all(word.encode() in data for pair in TOLD.items() for word in pair)
    assert b"secret words" not in data
