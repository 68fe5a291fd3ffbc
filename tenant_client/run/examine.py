"""After a failure: everything that may tell why is read, and one cause comes out, or `unknown`.

Each reader may fail without taking the others along. What our own watchers saw is evidence too: a hang is a symptom of
unknown cause until a flight recorder dump shows the collective that hangs; slow ranks and bad losses are the owner's
business and name no cause.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tenant_client.run.attempts import UNKNOWN, Cause
from tenant_client.run.failopen import FailOpen
from tenant_client.run.place import DUMPS
from tenant_client.run.watch import Finding
from tenant_client.sources.evidence import Evidence, Role

if TYPE_CHECKING:
    from tenant_client.diagnosis import Diagnosis

_SOURCE = "watch"
_SPOOLS = ("output.log.1", "output.log", "stdout.log.1", "stdout.log", "stderr.log.1", "stderr.log")


def files_of(run_dir: Path, logs: Iterable[Path]) -> list[Path]:
    """Whatever of an attempt may tell why it failed: what it wrote, torchrun's error files, further logs."""
    own = [run_dir / name for name in _SPOOLS]
    elastic = sorted(run_dir.glob("attempt_*/*/*"))
    return [path for path in (*own, *elastic, *logs) if path.is_file() and path.stat().st_size]


def cause_of(
    run_dir: Path, paths: Sequence[Path], findings: Iterable[Finding], status: int | None, ours: FailOpen
) -> Cause:
    """The cause of one attempt's failure. `status` as a shell puts it, None where nobody saw it."""
    found = watched(findings)
    with ours.guard("reading the logs"):
        from tenant_client.diagnosis import gather

        gathered = gather(paths)
        found += gathered.evidence
        for fault in gathered.faults:
            ours.warn(str(fault))
    with ours.guard("reading flight recorder dumps"):
        found += _dumped(run_dir / DUMPS, ours)
    with ours.guard("reading the exit status"):
        from tenant_client.sources import exit_status

        ended = exit_status.of(status or 0)
        found += [ended] if ended else []
    with ours.guard("the diagnosis"):
        from tenant_client.diagnosis import diagnose

        return _cause(diagnose(found))
    return Cause()


def watched(findings: Iterable[Finding]) -> list[Evidence]:
    """What our own watchers saw and what had not passed when the job ended, as evidence that names no cause."""
    return [
        Evidence(
            UNKNOWN,
            Role.SYMPTOM,
            _SOURCE,
            "progress",
            0,
            f"{finding.kind}: {finding.text}",
            finding.since_s,
            _only(finding),
        )
        for finding in findings
        if finding.cleared_at_s is None
    ]


def _only(finding: Finding) -> int | None:
    return finding.ranks[0] if len(finding.ranks) == 1 else None


def _dumped(folder: Path, ours: FailOpen) -> list[Evidence]:
    from tenant_client import collectives
    from tenant_client.sources.flight_recorder import read_dumps

    if not folder.is_dir() or not any(folder.iterdir()):
        return []
    dumps = list(read_dumps(folder, refused=lambda error: ours.warn(error.what)))
    return collectives.evidence(collectives.analyse(dumps)) if dumps else []


def _cause(diagnosis: "Diagnosis") -> Cause:
    cause = Cause(diagnosis.reason, sentence=diagnosis.sentence)
    if diagnosis.root is None:
        return cause
    return replace(cause, rank=diagnosis.rank, host=diagnosis.host, gpu=diagnosis.gpu, place=diagnosis.root.where)
