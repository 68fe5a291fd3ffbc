"""How far did the ranks of a group get? Those that stopped, did not join or did not begin, or all of them stuck.

Judges one group by itself: whether a rank that is behind only waits elsewhere is for `blame` to find out.
"""

from collections.abc import Iterator, Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from tenant_client.doctor.diagnosis.collectives.findings import CollectiveVerdict, GroupFinding, listed
from tenant_client.doctor.diagnosis.collectives.merge import NO_STATUS, Job, Rows
from tenant_client.doctor.diagnosis.collectives.mismatch import NEEDS_ALL
from tenant_client.doctor.sources.flight_recorder import CollectiveState


def behind(job: Job, group: int, rows: Rows) -> Iterator[GroupFinding]:
    """Ranks of the group that others are ahead of, from its collectives' `rows`; what lacks a dump is undecided."""
    done = _completed_by_somebody(job, group, rows)
    yield from _stopped(job, group, rows, done)
    yield from _missing(job, group, rows, done)
    after = _unfinished_after(job, rows, done)
    absent = [rank for rank in job.members[group] if rank not in job.dumps]
    if absent and len(after):
        yield job.finding(CollectiveVerdict.UNDECIDED, after[0], absent, f"no dump of {listed(absent)}", excusable=True)
    yield from _not_started(job, group, after)


def stalled(job: Job, group: int, rows: Rows, elsewhere: AbstractSet[int]) -> Iterator[GroupFinding]:
    """The group, if all have joined, it does not advance, and none of its ranks is concerned `elsewhere`."""
    rows, members = _unfinished_after(job, rows, _completed_by_somebody(job, group, rows)), job.members[group]
    if len(rows) and elsewhere.isdisjoint(members):
        started = (job.state[rows] == CollectiveState.STARTED).any()
        begun = "started" if started else "joined, whether it began is not recorded,"
        yield job.finding(
            CollectiveVerdict.NETWORK, rows[0], (), f"all {len(members)} ranks {begun} and none completes it"
        )


def _needs_all(job: Job, rows: Rows) -> NDArray[np.bool_]:
    """Which rows call a collective that completes nowhere before every rank has joined."""
    used, inverse = np.unique(job.operation[rows], return_inverse=True)
    return np.array([bool(NEEDS_ALL.search(job.operations[one].kind)) for one in used], bool)[inverse]


def _completed_by_somebody(job: Job, group: int, rows: Rows) -> int:
    """The last sequence number of a collective that needs all ranks and that one of them saw complete, or -1."""
    rows = rows[_needs_all(job, rows)]
    seq = job.seq[rows]
    told = max((job.status.get((group, rank), NO_STATUS)[1] for rank in job.members[group]), default=-1)
    return int(seq[(job.state[rows] == CollectiveState.COMPLETED) | (seq <= told)].max(initial=-1))


def _unfinished_after(job: Job, rows: Rows, done: int) -> Rows:
    after: Rows = rows[(job.seq[rows] > done) & (job.state[rows] != CollectiveState.COMPLETED)]
    return after


def _stopped(job: Job, group: int, rows: Rows, done: int) -> Iterator[GroupFinding]:
    """Ranks that did not finish what a peer saw complete."""
    late = rows[(job.seq[rows] <= done) & (job.state[rows] != CollectiveState.COMPLETED) & _needs_all(job, rows)]
    told = np.array([job.status.get((group, rank), NO_STATUS)[1] for rank in job.rank[late].tolist()], np.int64)
    late = late[told < job.seq[late]]
    ranks = sorted(set(job.rank[late].tolist()))
    if not ranks:
        return
    reason = f"unfinished there on {listed(ranks)}, while peers completed up to seq {done}"
    if 2 * len(ranks) > len(job.members[group]):
        yield job.finding(CollectiveVerdict.NETWORK, late[0], (), f"{reason}; too many to be at fault themselves")
    else:
        yield job.finding(CollectiveVerdict.STOPPED, late[0], ranks, reason)


def _missing(job: Job, group: int, rows: Rows, done: int) -> Iterator[GroupFinding]:
    """The ranks furthest behind in what they joined."""
    joined = _joined(job, group, done)
    top = max(joined.values(), default=-1)
    late = {rank: seq for rank, seq in joined.items() if seq < top and not _dropped(job, rank, rows, seq)}
    if not late:
        return
    last = min(late.values())
    row = rows[min(int(np.searchsorted(job.seq[rows], last + 1)), len(rows) - 1)]
    ranks = [rank for rank, seq in late.items() if seq == last]
    if last == -1 and 2 * len(ranks) > len(joined) and not all(job.dumps[rank].complete for rank in ranks):
        reason = f"most of the group, {listed(ranks)}, shows no record, and none of having left it out"
        yield job.finding(CollectiveVerdict.UNDECIDED, row, (), reason)
    else:
        reason = f"{listed(ranks)} did not join, {len(joined) - len(late)} of {len(joined)} ranks did"
        yield job.finding(CollectiveVerdict.MISSING, row, ranks, reason, excusable=True)


def _joined(job: Job, group: int, done: int) -> dict[int, int]:
    """The last call of each rank with a dump: recorded, told by its status, or the `done` one that needs all."""
    keys = [(group, rank) for rank in job.members[group] if rank in job.dumps]
    return {key[1]: max(done, job.top.get(key, -1), job.status.get(key, NO_STATUS)[0]) for key in keys}


def _dropped(job: Job, rank: int, rows: Rows, seq: int) -> bool:
    """Whether the rank's ring buffer begins only after its peers made the call: it may have dropped its own."""
    records = job.dumps[rank].records
    wrapped = len(records.seq) > 0 and int(records.record_id[0]) > 0
    return seq == -1 and wrapped and int(job.ns[rows].max()) < int(records.created_ns[0])


def _not_started(job: Job, group: int, after: Rows) -> Iterator[GroupFinding]:
    """Among calls that nobody completed: the first one, where all have joined and some have not begun."""
    if len(after) == 0:
        return
    first = after[job.seq[after] == job.seq[after[0]]]
    idle = sorted(job.rank[first][job.state[first] == CollectiveState.SCHEDULED].tolist())
    if len(first) == len(job.members[group]) and 0 < 2 * len(idle) <= len(first):
        reason = f"scheduled but not started on {listed(idle)}, started on the others"
        yield job.finding(CollectiveVerdict.STOPPED, first[0], idle, reason, excusable=True)
