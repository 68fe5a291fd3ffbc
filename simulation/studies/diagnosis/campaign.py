"""The fault campaign: real torchrun jobs over Gloo, in each of which one known thing goes wrong.

`kinds.toml` says what goes wrong and what is right to say about it; a case is a kind at a place: rank, step, variant.
The campaign is written as lm-resiliency's fault campaigns are (schema version 1), with the truth as metadata.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.studies.diagnosis.answers import Answer, blames_infrastructure, fits

HERE = Path(__file__).resolve().parent
JOB = HERE / "train.py"
OWN = "own"
LAST_STEP = 6
ENDS_IN_S = 90.0  # torchrun gives its ranks 30 s to end
TRIES = 3
OWN_NETWORK = ("unshare", "--map-root-user", "--net")  # the link of such a job is its own
LINK_UP = 'ip link set lo up && exec "$@"'
# What the format's own executor would need to know about a fault of these.
_PARAMETERS: Mapping[str, dict[str, Any]] = {
    "sleep": {"delay_ms": 60_000},
    "nan_gradient": {"operation": "set_value", "value": "nan", "scope": "single"},
    "bit_flip": {"operation": "single_bitflip", "magnitude": "catastrophic", "scope": "single"},
}


@dataclass(frozen=True)
class Case:
    """One job: what goes wrong in which rank before which step's collective, and what is right to say about it."""

    id: str
    kind: str
    type: str
    surface: str
    resource: str
    rank: int
    step: int
    parameters: Mapping[str, Any]
    reasons: tuple[str, ...]
    side: str
    rank_is_known: bool

    @property
    def truth(self) -> dict[str, Any]:
        """What is right: slugs, whose fault it is, and the rank or None."""
        return {"reasons": self.reasons, "side": self.side, "rank": self.rank if self.rank_is_known else None}

    def incident(self) -> dict[str, Any]:
        """One incident of a campaign's file."""
        target: dict[str, Any] = {"rank": self.rank, "surface": self.surface, "metadata": {"action": self.kind}}
        if self.resource:
            target["resource"] = self.resource
        if self.type == "tensor_corruption":
            target["module_path"] = "0"
        fault = {"fault_id": self.kind, "type": self.type, "target": target, "parameters": dict(self.parameters)}
        return {
            "incident_id": self.id,
            "trigger": {"at": [self.step], "probability": 1.0},
            "lifetime": {"iterations": 1},
            "retrigger": "once",
            "faults": [fault],
        }


@dataclass(frozen=True)
class Ended:
    """A case that has run, and its log."""

    case: Case
    log: Path


def kinds() -> dict[str, dict[str, Any]]:
    """The table."""
    return tomllib.loads((HERE / "kinds.toml").read_text(encoding="utf-8"))


def cases(each: int, ranks: int, seed: int) -> list[Case]:
    """So many cases of each kind: the ranks in turn from the last one on, and steps and first variants by lot."""
    rng = random.Random(seed)  # noqa: S311 -- places of faults, no secret
    return [case for kind, row in kinds().items() for case in _of_kind(kind, row, each, ranks, rng)]


def _of_kind(kind: str, row: dict[str, Any], each: int, ranks: int, rng: random.Random) -> list[Case]:
    variants = row.get("variants", [{}])
    first = rng.randrange(len(variants))
    made = []
    for number in range(each):
        variant = variants[(first + number) % len(variants)]
        parameters = {name: value for name, value in variant.items() if name != "reasons"}
        one = Case(
            id=f"{kind}-{number}",
            kind=kind,
            type=row["type"],
            surface=row["surface"],
            resource=row.get("resource", ""),
            rank=(ranks - 1 - number) % ranks,
            step=rng.randint(2, LAST_STEP),
            parameters={**_PARAMETERS.get(kind, {}), **parameters},
            reasons=tuple(variant.get("reasons", row["reasons"])),
            side=row["side"],
            rank_is_known=row["rank"],
        )
        made.append(one)
    return made


def manifest(todo: Sequence[Case], seed: int) -> dict[str, Any]:
    """The campaign as lm-resiliency writes it; the truth is metadata, which changes nothing."""
    return {
        "schema_version": 1,
        "name": "pharoah-diagnosis",
        "seed": seed,
        "clock": {"type": "training_iteration", "origin": "training_run"},
        "incidents": [case.incident() for case in todo],
        "metadata": {"truth": {case.id: case.truth for case in todo}},
    }


# ---- running -------------------------------------------------------------------------------------------------------


def run(case: Case, ranks: int, folder: Path) -> Ended | None:
    """The log of the job with its fault, or None where it could not be brought about here.

    Gloo does not always find its peers; such a job has not come to its fault, and is tried again. A job that has run in
    this folder already is not run once more.
    """
    wanted, log = json.dumps({"ranks": ranks, **manifest([case], 0)}), folder / "job.log"
    ran = folder / "ran.json"
    for _ in range(TRIES):
        if ran.exists() and ran.read_text(encoding="utf-8") == wanted:
            return Ended(case, log)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(JOB, folder / "train.py")
        (folder / "campaign.json").write_text(json.dumps(manifest([case], 0)), encoding="utf-8")
        if _torchrun(case, ranks, folder) and (folder / "injected").exists():
            ran.write_text(wanted, encoding="utf-8")
            return Ended(case, log)
    return None


def _torchrun(case: Case, ranks: int, folder: Path) -> bool:
    """Whether the job failed; its output goes to `job.log`, as a person would keep it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "train.py"]
    if case.resource == "link":
        command = [*OWN_NETWORK, "sh", "-c", LINK_UP, "sh", *command]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PHAROAH_", "SLURM_", "PET_"))}
    settings = {"FAULT_CAMPAIGN": str(folder / "campaign.json"), "FAULT_INCIDENT": case.id}
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "job.log").open("wb") as log:
        job = subprocess.Popen(
            command,
            cwd=folder,
            env=ours | quiet | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return job.wait(ENDS_IN_S) != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Ends all that the job left running."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


# ---- scoring -------------------------------------------------------------------------------------------------------


def score(graded: Sequence[tuple[Case, Answer]]) -> dict[str, Any]:
    """The shares that are right, and how many faults of the job's own were called the infrastructure's."""
    placed = [(case, answer) for case, answer in graded if case.rank_is_known]
    return {
        "n": len(graded),
        "reason": _share([fits(answer.reason, case.reasons) for case, answer in graded]),
        "rank": _share([answer.rank == case.rank for case, answer in placed]),
        "own_called_infrastructure": sum(
            case.side == OWN and blames_infrastructure(answer.reason) for case, answer in graded
        ),
        "seconds_p99": _p99([answer.seconds for _, answer in graded]),
    }


def by_kind(graded: Sequence[tuple[Case, Answer]]) -> dict[str, dict[str, Any]]:
    """The same for each kind, and what was said."""
    table = {}
    for kind in dict.fromkeys(case.kind for case, _ in graded):
        of_kind = [(case, answer) for case, answer in graded if case.kind == kind]
        figures = score(of_kind)
        said = [answer.reason for _, answer in of_kind]
        table[kind] = {"n": figures["n"], "reason": figures["reason"], "rank": figures["rank"], "said": said}
    return table


def _share(hits: Sequence[bool]) -> float | None:
    return round(sum(hits) / len(hits), 4) if hits else None


def _p99(seconds: Sequence[float]) -> float | None:
    return round(sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1], 3) if seconds else None
