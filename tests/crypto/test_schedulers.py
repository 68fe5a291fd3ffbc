"""The examples for Slurm and Kubernetes, as far as they run without a cluster: real scripts, homes and checks."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from crypto.ids import LeaseId, Token
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from tests.support.federations import WEEKS, Grounds, begin, lease_id
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
OTHER = Token(bytes(range(16)))
VERDICTS = {
    PairJudgement.NOT_WORSE: ("ok", 0.0),
    PairJudgement.SUSPECTED: ("warning", 0.7),
    PairJudgement.WORSE: ("mismatch", 1.0),
}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """Homes of three tenants, each with a bundle that says something else of its first lease; a lease of each."""
    root = tmp_path_factory.mktemp("schedulers")
    leases: dict[str, str] = {}
    with Grounds.founded(root, 3).opened(root) as parties:
        entries = []
        for number, (judgement, (_, probability)) in enumerate(VERDICTS.items()):
            begin(parties, number)
            labels = parties.tenants[number].journal.labels(str(lease_id(number, WEEKS[0], 0)))
            workload, context = (Token(bytes.fromhex(labels[name])) for name in ("subarchetype", "context"))
            entries.append(MismatchEntry(workload, context, probability, 4.0, 2.0, 8.0, 12.0, judgement, (OTHER,)))
        for number, (judgement, entry) in enumerate(zip(VERDICTS, entries, strict=True)):
            signed = parties.publisher.issue(Bundle(number, 0, 168, (), (entry,), (), None))
            parties.tenants[number].accept(signed)
            leases[VERDICTS[judgement][0]] = str(lease_id(number, WEEKS[0], 0))
    return root / "tenants", leases


def environment(homes: tuple[Path, Mapping[str, str]], verdict: str, tools: Path, **more: str) -> dict[str, str]:
    root, leases = homes
    number = list(leases).index(verdict) if verdict in leases else 0
    program(tools / "pharoah-tenant", f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m tenant_client "$@"')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PHAROAH_", "SLURM_"))}
    own = {
        "PHAROAH_HOME": str(root / f"{number:03d}"),
        "PHAROAH_LEASE": leases.get(verdict, str(LeaseId(bytes(range(16))))),
    }
    return kept | own | {"PATH": f"{tools}:{os.environ['PATH']}"} | more


def executed(*command: str, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


# ---- Slurm ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("verdict", "enforced", "called"),
    [
        ("mismatch", "1", "scontrol requeuehold 7"),
        ("mismatch", "0", "srun pharoah-tenant run -- train.py"),
        ("warning", "1", "srun pharoah-tenant run -- train.py"),
        ("unknown", "1", "srun pharoah-tenant run -- train.py"),
        ("ok", "1", "srun pharoah-tenant run -- train.py"),
    ],
)
def test_a_batch_script_holds_a_mismatch_only_if_it_is_told_to(
    homes: tuple[Path, Mapping[str, str]], tmp_path: Path, verdict: str, enforced: str, called: str
) -> None:
    for name in ("srun", "scontrol"):
        program(tmp_path / name, f'echo "{name} $*"')  # of the cluster, which is not here: says how it was called
    env = environment(homes, verdict, tmp_path, PHAROAH_ENFORCE=enforced, SLURM_JOB_ID="7")
    done = executed("sh", str(EXAMPLES / "slurm/job.sbatch"), "train.py", env=env)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == called


# ---- Kubernetes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "enforced", "code"),
    [("mismatch", "1", 2), ("mismatch", "0", 0), ("warning", "1", 0), ("unknown", "1", 0), ("ok", "1", 0)],
)
def test_the_init_container_lets_all_start_but_a_mismatch_that_is_enforced(
    homes: tuple[Path, Mapping[str, str]], tmp_path: Path, verdict: str, enforced: str, code: int
) -> None:
    (container,) = job()["spec"]["template"]["spec"]["initContainers"]
    env = environment(homes, verdict, tmp_path, PHAROAH_ENFORCE=enforced)
    assert {variable["name"] for variable in container["env"]} <= env.keys()
    assert executed(*container["command"], *container["args"], env=env).returncode == code


def test_the_job_needs_no_privileges_and_gives_up_on_what_the_container_ends_with() -> None:
    spec = job()["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    pod = spec["template"]["spec"]
    (checking,) = pod["initContainers"]
    assert (rule["onExitCodes"]["containerName"], rule["onExitCodes"]["values"]) == (checking["name"], [2])
    assert pod["securityContext"]["runAsNonRoot"]
    for container in (checking, *pod["containers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def job() -> Any:
    return yaml.safe_load((EXAMPLES / "kubernetes/job.yaml").read_text())
