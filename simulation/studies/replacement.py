"""How long a job stands until a spare has taken the place of a node that hangs: `examples/replacement`, several times.

In each run one of three ranks stands still before a collective, on a node and at a step by lot. Measured from the
line of the watch that names the rank, and from the hang, to the first step beyond those done before: what was lost
since the last checkpoint is trained again by then. State is kept if each step that is trained again has the very loss
of the first time, on each rank, which needs the same weights, the same state of the optimizer and the same step.

What the seconds from the verdict go to, in this order: `plan` (the plan is made, the agent and its rank are ended),
`peers_end` (the other ranks see it), `rendezvous` (torch drops the lost agent, the standby joins, processes of all
ranks are started), `import` (Python and torch are loaded), `group` (Gloo connects them), `checkpoint` (model,
optimizer and state), `steps_again` (what was lost since the checkpoint, and one step more).

Not measured: nodes that are really apart, GPUs, large checkpoints. The planted hang is a rank that sleeps.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from simulation.studies.study import ROOT, Seed, Table, tracked

EXAMPLE = ROOT / "examples" / "replacement" / "replace.py"
NODES, SPARE = ("node-a", "node-b", "node-c"), "node-d"
FIRST_HANG, LAST_HANG, MORE_STEPS = 22, 38, 8
TIMEOUT_S = 240.0
FROM_VERDICT_S, FROM_HANG_S = 20.0, 35.0
PHASES = ("plan", "peers_end", "rendezvous", "import", "group", "checkpoint", "steps_again")


@dataclass(frozen=True)
class Replaced:
    """One run. Seconds are None where the job did not go on; `load` is the load average when it began.

    `phases_s` add up to `from_verdict_s`, in the order of `PHASES`; empty where the job did not go on.
    """

    node: str
    hang_step: int
    node_out: str
    node_in: str
    verdict_s: float | None
    from_verdict_s: float | None
    from_hang_s: float | None
    resumed_at: int | None
    is_state_kept: bool
    exit_code: int
    load: float
    phases_s: Mapping[str, float]


def replaced(node: str, hang_step: int) -> Replaced:
    """One job with its hang."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="replacement-") as name:
        folder = Path(name)
        command = [sys.executable, str(EXAMPLE), name, "--hang-node", node, "--hang-step", str(hang_step)]
        command += ["--steps", str(hang_step + MORE_STEPS)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, start_new_session=True) as job:
            try:
                code = job.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, 9)
                code = job.wait()
        return judged(node, hang_step, code, load, _lines(folder / "events.jsonl"), _lines(folder / "actions.jsonl"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def judged(
    node: str, hang_step: int, code: int, load: float, events: Sequence[dict[str, Any]], acts: Sequence[dict[str, Any]]
) -> Replaced:
    """What the ranks and the executor have noted."""
    hang_s = next((one["at_s"] for one in events if one["event"] == "hang"), None)
    act = next((one for one in acts if one["acted"]), None)
    if hang_s is None or act is None:
        nothing = (None, None, None, None)
        return Replaced(node, hang_step, "", "", *nothing, is_state_kept=False, exit_code=code, load=load, phases_s={})
    starts = [one for one in events if one["event"] == "start" and one["at_s"] > hang_s]
    steps = [one for one in events if one["event"] == "step"]
    done = max(one["step"] for one in steps if one["at_s"] < hang_s)
    new_s = min((one["at_s"] for one in steps if one["step"] > done and one["at_s"] > hang_s), default=None)
    return Replaced(
        node,
        hang_step,
        act["plan"]["node_out"],
        act["plan"]["node_in"] if any(one["node"] == SPARE for one in starts) else "",
        round(act["verdict_s"] - hang_s, 2),
        None if new_s is None else round(new_s - act["verdict_s"], 2),
        None if new_s is None else round(new_s - hang_s, 2),
        starts[0]["step"] if starts else None,
        is_state_kept=bool(starts) and _is_kept(steps, hang_s, starts[0]["step"], done),
        exit_code=code,
        load=round(load, 2),
        phases_s={} if new_s is None else _phases(act, events, starts, new_s),
    )


def _phases(
    act: dict[str, Any], events: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]], new_s: float
) -> dict[str, float]:
    """Seconds from the verdict on, phase by phase; of several ranks the last one ends a phase."""
    newest = {one["node"]: one for one in starts if one["at_s"] < new_s}.values()
    gone = [one["at_s"] for one in events if one["event"] == "gone" and act["verdict_s"] < one["at_s"] < new_s]
    ends = [act["acted_s"], max(gone, default=act["acted_s"])]
    ends += [max(one[name] for one in newest) for name in ("launched_s", "imported_s", "joined_s", "at_s")]
    ends.append(new_s)
    spans = zip(PHASES, pairwise([act["verdict_s"], *ends]), strict=True)
    return {name: round(end - begin, 2) for name, (begin, end) in spans}


def _is_kept(steps: Sequence[dict[str, Any]], hang_s: float, resumed_at: int, done: int) -> bool:
    """Whether each step since the checkpoint is trained again on each rank, with its loss of the first time."""
    before = {(one["step"], one["rank"]): one["loss"] for one in steps if one["at_s"] < hang_s}
    after = {(one["step"], one["rank"]): one["loss"] for one in steps if one["at_s"] > hang_s}
    again = [key for key in before if key[0] > resumed_at]
    follows = resumed_at > 0 and min(step for step, _ in after) == resumed_at + 1
    return follows and done >= resumed_at and all(before[key] == after.get(key) for key in again)


def figures(ran: Sequence[Replaced]) -> dict[str, Any]:
    """The figures of all runs; a run that did not go on is in `failed`."""
    went_on = [one for one in ran if one.from_verdict_s is not None and one.exit_code == 0]
    from_verdict = [one.from_verdict_s for one in went_on if one.from_verdict_s is not None]
    from_hang = [one.from_hang_s for one in went_on if one.from_hang_s is not None]
    phases = {name: [one.phases_s[name] for one in went_on] for name in PHASES}
    return {
        "runs": len(ran),
        "failed": len(ran) - len(went_on),
        "right_node": sum(one.node_out == one.node for one in ran),
        "spare_in": sum(one.node_in == SPARE for one in ran),
        "state_kept": sum(one.is_state_kept for one in ran),
        "from_verdict_s": {"median": statistics.median(from_verdict), "most": max(from_verdict)} if went_on else None,
        "from_hang_s": {"median": statistics.median(from_hang), "most": max(from_hang)} if went_on else None,
        "phases_s": {name: statistics.median(seconds) for name, seconds in phases.items()} if went_on else None,
        "load": statistics.median(one.load for one in ran),
        "wanted_s": [FROM_VERDICT_S, FROM_HANG_S],
        "within": sum(v <= FROM_VERDICT_S and h <= FROM_HANG_S for v, h in zip(from_verdict, from_hang, strict=True)),
        "cases": [asdict(one) for one in ran],
    }


def run(repeats: Annotated[int, typer.Option(min=1, help="Number of jobs.")] = 6, seed: Seed = 1) -> Table:
    """Seconds from a hang to the first new step with a spare in the place of the node that hangs."""
    rng = random.Random(seed)  # noqa: S311 -- places of faults, no secret
    places = [(rng.choice(NODES), rng.randint(FIRST_HANG, LAST_HANG)) for _ in range(repeats)]
    return Table(figures(tracked((replaced(*place) for place in places), repeats, "jobs")))
