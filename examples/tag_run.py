"""Tags a run of Weights & Biases or MLflow with its lease, and how the newest attempt ended. Off unless called.

    pharoah-tenant run --lease 81 -- torchrun train.py
    pharoah-tenant show 81 --only journal --json | python examples/tag_run.py 81 --mlflow RUN_ID
    pharoah-tenant show 81 --only journal --json | python examples/tag_run.py 81 --wandb entity/project/RUN_ID

Where either keeps its runs is its own setting (MLFLOW_TRACKING_URI; WANDB_MODE, WANDB_BASE_URL): whoever reads them
there reads the cause. What is told is the lease, the attempt, its state and its cause; no line of a log.
"""

import argparse
import json
import sys
from typing import Any


def tags_of(journal: dict[str, Any], lease: str) -> dict[str, str]:
    """What is told of the newest attempt of a lease; nothing of an unknown one."""
    attempts = [one for one in journal["attempts"] if one["unit"] == lease]
    if not attempts:
        return {}
    newest = attempts[-1]
    tags = {"lease": lease, "attempt": str(newest["attempt"]), "state": newest["state"]}
    if newest["state"] != "succeeded":
        tags["cause"] = newest["cause"]["reason"]
    return {f"pharoah.{name}": value for name, value in tags.items()}


def tag_mlflow(run: str, tags: dict[str, str]) -> None:
    """Sets the tags of a run of MLflow."""
    from mlflow import MlflowClient

    client = MlflowClient()
    for name, value in tags.items():
        client.set_tag(run, name, value)


def tag_wandb(run: str, tags: dict[str, str]) -> None:
    """Resumes a run of W&B, entity/project/id, and sets the tags in its summary; offline under WANDB_MODE=offline."""
    import wandb

    entity, project, name = run.split("/")
    with wandb.init(entity=entity, project=project, id=name, resume="allow") as resumed:
        resumed.summary.update(tags)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tags a run with its lease and how its newest attempt ended.")
    parser.add_argument("lease")
    parser.add_argument("--mlflow", default="", help="a run of MLflow, by its id")
    parser.add_argument("--wandb", default="", help="a run of W&B: entity/project/id")
    given = parser.parse_args()
    told = tags_of(json.load(sys.stdin), given.lease)
    if not told:
        sys.exit(f"tag_run: the journal has no lease {given.lease!r}: `pharoah-tenant jobs` lists them")
    if given.wandb and given.wandb.count("/") != 2:
        sys.exit(f"tag_run: --wandb {given.wandb!r} is no run: pass entity/project/id")
    if given.mlflow:
        tag_mlflow(given.mlflow, told)
    if given.wandb:
        tag_wandb(given.wandb, told)
