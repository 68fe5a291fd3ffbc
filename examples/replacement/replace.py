"""Runs `nodes.py` under `pharoah-tenant run` and acts on the plan: ends the agent of the node that is to go out.

    python examples/replacement/replace.py FOLDER --hang-node node-b --hang-step 25

Pharoah only plans. This is the other part, which with you is torchrun's or Slurm's own: it waits for a line of the
watch, asks `pharoah-tenant show --only replacement`, ends one agent and lets the standby in. All ranks go on from the
last checkpoint. What it did is in `actions.jsonl` in the folder.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

LEASE, SPARE = "81", "node-d"
TENANT = [sys.executable, "-m", "tenant_client"]
WATCHED = ("non_communication_hang:", "communication_hang:", "undecided:")
REPLACE = "replace"


def events(folder: Path) -> list[dict[str, Any]]:
    """What the ranks have noted so far."""
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def nodes_by_rank(folder: Path) -> list[str]:
    """The nodes that train now, in the order of their ranks."""
    newest = {event["rank"]: event["node"] for event in events(folder) if event["event"] == "start"}
    return [newest[rank] for rank in sorted(newest)]


def plan(folder: Path, home: Path) -> dict[str, Any]:
    """What Pharoah advises."""
    command = [*TENANT, "replacement", LEASE, "--home", str(home), "--spare", SPARE, "--json"]
    command += ["--nodes", ",".join(nodes_by_rank(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def end_node(folder: Path, node: str) -> None:
    """Ends agent and rank of a node at once, as if it were switched off."""
    agent = json.loads((folder / "agents.json").read_text(encoding="utf-8"))[node]
    ranks = Path(f"/proc/{agent}/task/{agent}/children").read_text(encoding="utf-8").split()
    for process in (agent, *map(int, ranks)):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def follow(folder: Path, home: Path, lines: Iterator[str]) -> None:
    """Acts once, on the first plan that says replace; an undecided one is a person's to act on."""
    has_acted = False
    for line in lines:
        sys.stderr.write(line)
        said = line.removeprefix("pharoah-tenant: ")
        if has_acted or said == line or not said.startswith(WATCHED):
            continue
        verdict_s = time.time()
        found = plan(folder, home)
        if has_acted := found["decision"] == REPLACE:
            (folder / "join").touch()
            end_node(folder, found["node_out"])
        note = json.dumps({"verdict_s": verdict_s, "acted_s": time.time(), "acted": has_acted, "plan": found})
        with (folder / "actions.jsonl").open("a", encoding="utf-8") as file:
            file.write(note + "\n")


def run(folder: Path, hang_node: str, hang_step: int, steps: int) -> int:
    """The whole job; its exit code."""
    home = folder / "home"
    options = ["run", "--home", str(home), "--lease", LEASE, "--poll-s", "0.5"]
    job = [sys.executable, str(Path(__file__).with_name("nodes.py")), str(folder), str(steps)]
    planted = {"HANG_NODE": hang_node, "HANG_STEP": str(hang_step)} if hang_node else {}
    env = os.environ | planted
    with subprocess.Popen([*TENANT, *options, "--", *job], env=env, stderr=subprocess.PIPE, text=True) as running:
        if running.stderr is not None:
            follow(folder, home, iter(running.stderr))
        return running.wait()


def main() -> int:
    """Reads the options and runs the job."""
    parser = argparse.ArgumentParser(description="a job of three nodes and a spare, one of which hangs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hang-node", default="")
    parser.add_argument("--hang-step", type=int, default=25)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    return run(options.folder, options.hang_node, options.hang_step, options.steps)


if __name__ == "__main__":
    sys.exit(main())
