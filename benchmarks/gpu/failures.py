"""Real failures behind `pharoah-tenant run`: reason, rank and whose side, as the journal has them afterwards."""

import os
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.gpu.notes import Notes, Skipped
from tenant_client.records.attempts import Attempt, Attempts
from tenant_client.records.database import open_database
from tenant_client.sources.reasons import REASONS

JOB = Path(__file__).with_name("broken_job.py")
TOGETHER = ("mismatch", "hang")  # of two ranks: over NCCL, if it lets them share a card
QUICK = ("--hang-floor-s", "3", "--hang-factor", "3", "--poll-s", "0.25")
SHARED = ("Duplicate GPU detected", "are using the same GPU")
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "INFO"}
RECORDER = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}
RECORDER |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "3000"}


def fail(notes: Notes, fault: str) -> None:
    """Runs a job with this fault on two ranks, and judges what was said of it."""
    kind = notes.device.partition(":")[0]
    backend = "nccl" if kind == "cuda" and fault in TOGETHER else "gloo"
    attempt, output = ran(notes, fault, kind, backend, 2)
    if backend == "nccl" and any(words in output for words in SHARED):
        said = f"{domain_of(attempt)}: {attempt.cause.sentence}"
        notes.check("two ranks on one card: whose side", said, good=domain_of(attempt) != "infrastructure")
        notes.evidence("two ranks on one card", output)
        backend = "gloo"
        attempt, output = ran(notes, fault, kind, backend, 2)
    notes.figures(backend=backend, sentence=attempt.cause.sentence, steps=attempt.steps)
    notes.evidence("output", output)
    row = tomllib.loads(Path(__file__).with_name("failures.toml").read_text(encoding="utf-8"))[fault]
    judge(notes, attempt, row, kind)


def judge(notes: Notes, attempt: Attempt, row: dict[str, Any], kind: str) -> None:
    """Checks the reason, the rank, whose side, and what the watch said."""
    _judge_reason(notes, "reason", attempt, row, kind)
    notes.check("whose side", domain_of(attempt) or "nobody's", good=domain_of(attempt) != row.get("not"))
    findings = [f"{one['kind']} {one['ranks']}: {one['text'][:150]}" for one in attempt.findings]
    if "found" in row:
        good = any(row["found"] in one["kind"] and list(one["ranks"]) == [1] for one in attempt.findings)
        notes.check("the watch names rank 1", findings, good=good)
    elif not row.get("either"):
        notes.check("rank", attempt.cause.rank, good=attempt.cause.rank == 1)
    notes.figures(findings=findings)


def domain_of(attempt: Attempt) -> str:
    """Whose side its cause is on, "" where that may be anybody's."""
    reason = REASONS.get(attempt.cause.reason)
    return str(reason.domain or "") if reason else ""


def _judge_reason(notes: Notes, name: str, attempt: Attempt, row: dict[str, Any], kind: str) -> None:
    cause = attempt.cause
    notes.check(name, f"{cause.reason} (rank {cause.rank}): {cause.sentence[:200]}", good=cause.reason in row[kind])


def ran(notes: Notes, fault: str, kind: str, backend: str, ranks: int, number: int = 1) -> tuple[Attempt, str]:
    """The attempt in the journal, and what the job and the program wrote. Gloo may not find its peers at first."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    job = [sys.executable, *torchrun, str(JOB), fault, kind, backend]
    home = notes.folder / f"home-{fault}-{backend}-{number}"
    command = [sys.executable, "-m", "tenant_client", "run", "--home", str(home), "--lease", fault, *QUICK, "--"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | NCCL | RECORDER
    done = subprocess.run(
        [*command, *job], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode(errors="replace")
    if "connectFullMesh" in output and number == 1:
        return ran(notes, fault, kind, backend, ranks, 2)
    with closing(open_database(home / "tenant.db")) as connection:
        return Attempts(connection).list()[-1], output


def collective(notes: Notes) -> None:
    """A real time-out of NCCL on one rank: its INFO lines, its flight recorder and the diagnosis are read."""
    from tenant_client.sources.flight_recorder import read_dumps
    from tenant_client.sources.nccl_topology import read_topology
    from tenant_client.workload.describe import read_traces

    attempt, output = ran(notes, "timeout", "cuda", "nccl", 1)
    notes.figures(sentence=attempt.cause.sentence)
    notes.evidence("output", output)
    _judge_reason(notes, "reason", attempt, {"cuda": ["collective_timeout", "nccl_timeout_error"]}, "cuda")
    run_dir = next((notes.folder / "home-timeout-nccl-1" / "runs").glob("timeout-*"))
    logs = sorted(run_dir.glob("*.log"))
    said = notes.folder / "nccl.log"
    said.write_text("".join(line + "\n" for line in output.splitlines() if "NCCL" in line), encoding="utf-8")
    members = {(one.rank, one.size, one.device) for one in read_topology(logs).members}
    notes.check("NCCL INFO: the rank, its group and its card", members, good=(0, 1, 0) in members)
    versions = {name: value for trace in read_traces([said]) for name, value in trace.versions.items()}
    notes.check("NCCL INFO: the version", versions, good="nccl" in versions)
    dumps = list(read_dumps(run_dir / "dumps"))
    if not dumps:
        raise Skipped(f"no flight recorder dump: {sorted(path.name for path in run_dir.rglob('*'))}")
    found = [(dump.rank, len(dump.records.state)) for dump in dumps]
    notes.check("flight recorder: the rank and its records", found, good=found[0][0] == 0 and found[0][1] > 5)
