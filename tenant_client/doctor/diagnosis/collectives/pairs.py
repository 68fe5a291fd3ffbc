"""Sends and receives: does each have its other side, and of the same size?

Where both dumps are complete every send is counted against every receive, elsewhere the unfinished ones only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from tenant_client.doctor.diagnosis.collectives.findings import CollectiveVerdict, GroupFinding
from tenant_client.doctor.diagnosis.collectives.merge import Job
from tenant_client.doctor.diagnosis.collectives.mismatch import shown
from tenant_client.doctor.sources.flight_recorder import CollectiveState


def unmatched(job: Job) -> Iterator[GroupFinding]:
    """Sends and receives whose other side has not called, or has called with another size."""
    for (_, source, target), (sends, receives) in _by_ends(job).items():
        yield from _unmatched_pair(job, (source, target), sends, receives)


def _by_ends(job: Job) -> dict[tuple[int, int, int], tuple[list[int], list[int]]]:
    """Rows of sends and of receives by group, source and target."""
    found: dict[tuple[int, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row in np.flatnonzero(job.p2p).tolist():
        ends = job.peers(row)
        if ends:
            sends, receives = found[int(job.group[row]), *ends]
            (receives if job.operations[job.operation[row]].kind == "recv" else sends).append(row)
    return found


def _unmatched_pair(job: Job, ends: tuple[int, int], sends: list[int], receives: list[int]) -> Iterator[GroupFinding]:
    if not _pending(job, [*sends, *receives]):
        return
    if not all(end in job.dumps and job.dumps[end].complete for end in ends):
        sends, receives = _pending(job, sends), _pending(job, receives)
    both = min(len(sends), len(receives))
    if len(sends) > both:
        yield _not_posted(job, sends[both], absent=ends[1], waiting=ends[0])
    if len(receives) > both:
        yield _not_posted(job, receives[both], absent=ends[0], waiting=ends[1])
    for pair in zip(sends[:both], receives[:both], strict=True):
        if _put_in(job, pair[0]) != _taken_out(job, pair[1]) and _pending(job, pair):
            reason = f"no majority of two: {shown(job, [pair[0]])}; {shown(job, [pair[1]])}"
            waiting = tuple(sorted(ends))
            yield GroupFinding(CollectiveVerdict.MISMATCH, job.call(pair[0]), job.file(pair[0]), (), waiting, reason)
            return


def _pending(job: Job, rows: Sequence[int]) -> list[int]:
    return [row for row in rows if job.state[row] != CollectiveState.COMPLETED]


def _put_in(job: Job, row: int) -> int:
    return sum(map(prod, job.operations[job.operation[row]].input_sizes))


def _taken_out(job: Job, row: int) -> int:
    return sum(map(prod, job.operations[job.operation[row]].output_sizes))


def _not_posted(job: Job, row: int, *, absent: int, waiting: int) -> GroupFinding:
    here = job.call(row), job.file(row), (absent,), (waiting,)
    if absent not in job.dumps:
        return GroupFinding(CollectiveVerdict.UNDECIDED, *here, f"no dump of rank {absent}", excusable=True)
    reason = f"rank {absent} did not post its side, rank {waiting} waits"
    return GroupFinding(CollectiveVerdict.MISSING, *here, reason, excusable=True)
