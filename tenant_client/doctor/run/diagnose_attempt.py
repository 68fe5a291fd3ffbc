"""Diagnoses a failed attempt from its run directory and further logs: one cause, or `unknown`.

- An unreadable file causes a warning and does not stop the diagnosis.
- A hang seen by the watchdog is evidence: a symptom, with the rank that the others waited for. Ranks that do not call
  the same are a cause.
- Slow ranks, NaN losses and loss spikes name no cause. Neither do hints: they predict failures.
"""

from collections.abc import Iterable, Sequence, Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tenant_client.doctor.advice.found import TIMED_OUT, hung_before
from tenant_client.doctor.records.attempts import AttemptCause
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.free_space import full_among
from tenant_client.doctor.run.run_directory import DUMPS, newest_runs
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.doctor.workload.descriptor import Descriptor

if TYPE_CHECKING:
    from tenant_client.doctor.advice.incompatibilities import Known
    from tenant_client.doctor.diagnosis.diagnose import Diagnosis
    from tenant_client.doctor.diagnosis.excerpts import Excerpt
    from tenant_client.doctor.diagnosis.lessons import Lessons
    from tenant_client.doctor.diagnosis.sureness import Sureness

_SOURCE = "watch"
_UNWRITTEN = ("checkpoint_write", "disk_full")
_SAYS = {
    Kind.MISMATCHED_COLLECTIVE: ("mismatched_collective", Role.ROOT),
    Kind.NON_COMMUNICATION_HANG: (TIMED_OUT, Role.SYMPTOM),
    Kind.OUT_OF_MEMORY: ("host_out_of_memory", Role.ROOT),
    Kind.UNEVEN_END: ("uneven_end", Role.SYMPTOM),
}
_SPOOLS = ("output.log.1", "output.log", "stdout.log.1", "stdout.log", "stderr.log.1", "stderr.log")


def files_of(run_dir: Path, logs: Iterable[Path]) -> list[Path]:
    """The files to diagnose: the job's output, torchrun's error files, further logs."""
    own = [run_dir / name for name in _SPOOLS]
    elastic = sorted(run_dir.glob("attempt_*/*/*"))
    files = (*own, *elastic, *logs, *dumps_of(run_dir))
    return [path for path in files if path.is_file() and path.stat().st_size]


def run_files(home: Path, lease: str) -> list[Path]:
    """What the newest attempt of the lease has left, if it has."""
    run = newest_runs(home).get(lease)
    return files_of(run, ()) if run else []


def dumps_of(run_dir: Path) -> list[Path]:
    """The flight recorder dumps of a run."""
    return sorted((run_dir / DUMPS).glob("*"))


@dataclass(frozen=True)
class Explained:
    """The cause of an attempt's failure, how sure it is, and the lines that tell the incident, if it is one.

    `source` is the kind of source that names it, "" without one; `lines` have their numbers masked, `excerpt` has not.
    """

    cause: AttemptCause = field(default_factory=AttemptCause)
    sure: "Sureness | None" = None
    lines: tuple[str, ...] = ()
    source: str = ""
    excerpt: "Excerpt | None" = None


def cause_of(
    paths: Sequence[Path],
    findings: Iterable[WatchFinding],
    status: int | None,
    home: Path,
    ours: FailOpen,
    dropped: AbstractSet[str] = frozenset(),
) -> Explained:
    """The cause of one attempt's failure. `status` is the exit code as in a shell, None if unknown.

    `dropped` are the lines that healthy attempts of the workload print.
    """
    with ours.guard("the diagnosis failed"):
        from tenant_client.doctor.diagnosis.diagnose import explain
        from tenant_client.doctor.diagnosis.excerpts import Excerpt, excerpt_of
        from tenant_client.doctor.diagnosis.precedents import telling_lines
        from tenant_client.doctor.diagnosis.sureness import sureness_of
        from tenant_client.doctor.run.plugins import gather_with_plugins
        from tenant_client.doctor.sources import exit_status

        gathered = gather_with_plugins(home, paths, lambda fault: ours.warn(fault.what))
        for fault in gathered.faults:
            ours.warn(str(fault))
        ended = exit_status.of(status or 0)
        findings = list(findings)
        gathered.evidence[:0] = watched(findings)
        gathered.evidence += [ended] if ended else []
        found = explain(gathered, _lessons(home / "lessons.json", ours))
        source = found.root.source if found.root else ""
        excerpt = excerpt_of(found, gathered, dropped, frozenset({_SOURCE}))
        cause = _cause(found, excerpt.where)
        if where := hung_before(cause.reason, [asdict(one) for one in findings]):
            cause, excerpt = _led_by(where, cause), Excerpt(lines=excerpt.lines)
        return Explained(cause, sureness_of(found), telling_lines(found, gathered, dropped), source, excerpt)
    return Explained()


def _led_by(where: str, cause: AttemptCause) -> AttemptCause:
    """Led by the rank that the watch found hanging: who timed out only waited for it."""
    rank, _, line = where.partition(" hung at ")
    advice = f"Look at {line}, where {rank} stood while the other ranks waited for it."
    sentence = f"{where}; {cause.reason} followed"
    return replace(cause, rank=int(rank.removeprefix("rank ")), sentence=sentence, advice=advice)


def with_space(explained: Explained, paths: AbstractSet[str], ours: FailOpen) -> Explained:
    """Of a write that failed, what is free on the file system of the job's `paths` that is full, or fullest."""
    cause = explained.cause
    if cause.reason not in _UNWRITTEN:
        return explained
    with ours.guard("cannot look at the free space"):
        is_full, free = full_among(paths)
        reason = "disk_full" if is_full else cause.reason
        sentence = f"{reason}{cause.sentence.removeprefix(cause.reason)}" + (f"; {free}" if free else "")
        return replace(explained, cause=replace(cause, reason=reason, sentence=sentence))
    return explained


def stalled_between(paths: Sequence[Path], ours: FailOpen) -> tuple[str, str] | None:
    """The two nodes between which a collective stalled, by dumps and NCCL's logs; None where these name no two."""
    with ours.guard("cannot look for two nodes to vote for"):
        from tenant_client.doctor.diagnosis.collectives.root_cause import analyse
        from tenant_client.doctor.diagnosis.network_pair import stalled_pair
        from tenant_client.doctor.diagnosis.rank_graph import graph_of
        from tenant_client.doctor.sources.flight_recorder import rank_in_name, read_dumps
        from tenant_client.doctor.sources.nccl_topology import read_topology

        recorded = [path for path in paths if rank_in_name(path.name) is not None]
        if recorded:
            dumps = (one for path in recorded for one in read_dumps(path, refused=lambda error: ours.warn(str(error))))
            seats = graph_of(read_topology(path for path in paths if path not in recorded)).seats
            return stalled_pair(analyse(dumps), seats)
    return None


def known_of(
    paths: Sequence[Path], cause: AttemptCause, descriptor: Descriptor | None, ours: FailOpen
) -> "tuple[Known, ...]":
    """What is known to fail like this attempt, with versions that its logs or its description name.

    What may apply by its versions alone is left to `diagnose`: it would be a list after every hang.
    """
    with ours.guard("cannot look for known incompatibilities"):
        from tenant_client.doctor.advice.incompatibilities import Fit
        from tenant_client.doctor.advice.log_scan import known_in

        known = known_in(paths, cause.reason, descriptor)
        return tuple(one for one in known if one.line or one.fit is Fit.APPLIES)
    return ()


def _lessons(file: Path, ours: FailOpen) -> "Lessons":
    from tenant_client.doctor.diagnosis.lessons import Lessons, load_lessons

    with ours.guard("cannot read the lessons"):
        return load_lessons(file)
    return Lessons()


def watched(findings: Iterable[WatchFinding]) -> list[Evidence]:
    """The watchdog's findings that still held when the job ended, as evidence."""
    return [
        Evidence(
            *_SAYS.get(finding.kind, (UNKNOWN, Role.SYMPTOM)),
            _SOURCE,
            "while it ran",
            0,
            finding.text if finding.kind in _SAYS else f"{finding.kind}: {finding.text}",
            finding.since_s,
            only_rank(finding),
        )
        for finding in findings
        if finding.cleared_at_s is None and finding.kind is not Kind.HINT
    ]


def only_rank(finding: WatchFinding) -> int | None:
    """The rank of a finding that is about one."""
    return finding.ranks[0] if len(finding.ranks) == 1 else None


def _cause(diagnosis: "Diagnosis", at: str) -> AttemptCause:
    """`at` is where in the job's own code it failed, "" where that is not known."""
    at = "" if at in diagnosis.sentence else f"; at {at}"
    cause = AttemptCause(diagnosis.reason, diagnosis.rank, sentence=f"{diagnosis.sentence}{at}")
    if diagnosis.root is None:
        return cause
    root = diagnosis.root
    own = replace(cause, domain=root.domain or "", advice=root.advice)
    return replace(own, rank=diagnosis.rank, host=diagnosis.host, gpu=diagnosis.gpu, place=root.where)
