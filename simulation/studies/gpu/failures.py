"""Real failures behind `pharoah-tenant run`: reason, rank and whose side, as the journal has them afterwards."""

import os
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

from simulation.studies.gpu.notes import Notes
from tenant_client.doctor.records.attempts import Attempt, Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.sources.flight_recorder import read_dumps
from tenant_client.doctor.sources.nccl_topology import read_topology
from tenant_client.doctor.sources.reasons import REASONS
from tenant_client.doctor.sources.software import software_of

JOB = Path(__file__).with_name("broken_job.py")
TOGETHER = ("mismatch", "hang")  # of two ranks: over NCCL, if it lets them share a card
QUICK = ("--hang-floor-s", "3", "--hang-factor", "3", "--poll-s", "0.25")
SHARED = ("Duplicate GPU detected", "are using the same GPU")
SETTINGS = {"OMP_NUM_THREADS": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "INFO"}
SETTINGS |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}
SETTINGS |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "3000"}


def fail(notes: Notes, fault: str) -> None:
    """Runs a job with this fault on two ranks, and judges what was said of it."""
    kind = notes.device.partition(":")[0]
    backend = "nccl" if kind == "cuda" and fault in TOGETHER else "gloo"
    attempt, output = ran(notes, fault, kind, backend, 2)
    if backend == "nccl" and any(words in output for words in SHARED):
        notes.evidence("two ranks on one card", output)
        said = f"{domain_of(attempt)}: {attempt.cause.sentence}"
        notes.check("two ranks on one card: whose side", said, good=domain_of(attempt) != "infrastructure")
        attempt, output = ran(notes, fault, kind, backend := "gloo", 2)
    notes.figures(backend=backend)
    notes.evidence("output", output)
    rows = tomllib.loads(Path(__file__).with_name("failures.toml").read_text(encoding="utf-8"))
    judge(notes, attempt, rows[fault], kind)


def judge(notes: Notes, attempt: Attempt, row: dict[str, Any], kind: str) -> None:
    """Checks the reason, the rank, whose side, and what the watch said."""
    notes.check("reason", attempt.cause.sentence, good=attempt.cause.reason in row[kind])
    notes.check("whose side", domain_of(attempt) or "nobody's", good=domain_of(attempt) != row.get("not"))
    findings = [f"{one['kind']} {one['ranks']}: {one['text'][:150]}" for one in attempt.findings]
    if "watch" in row:
        good = any(row["watch"] in one["kind"] and list(one["ranks"]) == [row["rank"]] for one in attempt.findings)
        notes.check("the watch names the rank", findings, good=good)
    elif "rank" in row:
        notes.check("rank", attempt.cause.rank, good=attempt.cause.rank == row["rank"])
    notes.figures(findings=findings)


def domain_of(attempt: Attempt) -> str:
    """Whose side its cause is on, "" where that may be anybody's."""
    reason = REASONS.get(attempt.cause.reason)
    return str(reason.domain or "") if reason else ""


def ran(notes: Notes, fault: str, kind: str, backend: str, ranks: int, number: int = 1) -> tuple[Attempt, str]:
    """The attempt in the journal, and what the job and the program wrote. Gloo may not find its peers at first."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    home = notes.folder / f"home-{fault}-{backend}-{ranks}-{number}"
    command = [sys.executable, "-m", "tenant_client", "run", "--home", str(home), "--lease", "job", *QUICK]
    command += ["--", sys.executable, *torchrun, str(JOB), fault, kind, backend]
    done = subprocess.run(
        command, env=os.environ | SETTINGS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode(errors="replace")
    if "connectFullMesh" in output and number == 1:
        return ran(notes, fault, kind, backend, ranks, 2)
    with closing(open_database(home / "tenant.db")) as connection:
        return Attempts(connection).list()[-1], output


def collective(notes: Notes) -> None:
    """A real time-out of NCCL, on one rank: its INFO lines, its flight recorder and the diagnosis are read."""
    attempt, output = ran(notes, "hang", "cuda", "nccl", 1)
    notes.evidence("output", output)
    notes.check("reason", attempt.cause.sentence, good=attempt.cause.reason == "collective_timeout")
    run_dir = notes.folder / "home-hang-nccl-1-1" / "runs" / "job-1"
    members = {(one.rank, one.size, one.device) for one in read_topology(run_dir.glob("*.log")).members}
    notes.check("NCCL INFO: the rank, its group and its card", members, good=(0, 1, 0) in members)
    versions = sorted(software_of(output.splitlines()).versions.get("nccl", ()))
    notes.check("NCCL INFO: the version", versions, good=bool(versions))
    found = [(dump.rank, len(dump.records.state)) for dump in read_dumps(run_dir / "dumps")]
    notes.check("flight recorder: the rank and its records", found, good=any(rank == 0 and n > 5 for rank, n in found))
