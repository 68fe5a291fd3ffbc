"""From what each group shows to the ranks where the trouble begins.

Guarantees: whoever waits, in any group, for a rank that is named or has no dump is not itself named, unless in a cycle
of ranks that wait for each other, or for a deviation or standstill that no waiting excuses.
"""

from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from itertools import groupby

from tenant_client.doctor.diagnosis.collectives.findings import (
    CAUSES,
    CollectiveFindings,
    CollectiveVerdict,
    Culprit,
    GroupFinding,
)
from tenant_client.doctor.diagnosis.collectives.merge import Job
from tenant_client.doctor.diagnosis.collectives.mismatch import mismatches
from tenant_client.doctor.diagnosis.collectives.pairs import unmatched
from tenant_client.doctor.diagnosis.collectives.progress import behind, stalled
from tenant_client.doctor.sources.flight_recorder import Dump

Graph = dict[int, list[int]]

_BEHIND = {CollectiveVerdict.MISSING, CollectiveVerdict.STOPPED}


def analyse(dumps: Iterable[Dump]) -> CollectiveFindings:
    """Who stopped the job, from one dump per rank; ranks of the groups that have none are named in `no_dump`."""
    job = Job(dumps)
    groups = [(group, rows) for group in range(len(job.groups)) if len(rows := job.rows_of(group))]
    found = [one for group, rows in groups for one in (*mismatches(job, group, rows), *behind(job, group, rows))]
    found = _waited_for([*found, *unmatched(job)])
    culprits = ends(found, job.dumps.keys())
    if not culprits:
        elsewhere = {rank for one in found for rank in (*one.waiting, *one.ranks)}
        found += [one for group, rows in groups for one in stalled(job, group, rows, elsewhere)]
    found.sort(key=lambda one: (culprits.isdisjoint(one.ranks), one.call.at_s, one.call.group.name, one.call.seq))
    accused = sorted((_culprit(job, rank, found) for rank in culprits), key=lambda one: (one.call.at_s, one.rank))
    return CollectiveFindings(_verdict(accused, found), tuple(accused), tuple(found), job.no_dump)


def _verdict(accused: Sequence[Culprit], found: Sequence[GroupFinding]) -> CollectiveVerdict:
    """The most telling; who is missing is not known if each of them waits for a rank without a dump."""
    causes = {culprit.cause for culprit in accused}
    verdicts = [verdict for verdict, cause in CAUSES.items() if cause in causes]
    if not causes:
        verdicts = [CollectiveVerdict.UNDECIDED if one.verdict in _BEHIND else one.verdict for one in found]
    return min(verdicts, key=lambda verdict: verdict.order, default=CollectiveVerdict.CLEAN)


def _waited_for(found: Sequence[GroupFinding]) -> list[GroupFinding]:
    """Without the ranks that are behind but keep nobody waiting: a dump a moment earlier than the others shows that."""
    blamed = {rank for one in found if one.waiting for rank in one.ranks}
    return [one for one in found if one.verdict not in _BEHIND or not blamed.isdisjoint(one.ranks)]


def ends(found: Sequence[GroupFinding], known: AbstractSet[int]) -> set[int]:
    """Where the paths from waiting ranks to those they wait for end, of the `known` ranks."""
    after = _waits_for(found)
    component = components(after)
    left = {component[node] for node, nodes in after.items() if any(component[to] != component[node] for to in nodes)}
    last = {node for node in after if component[node] not in left}
    return last & known & {rank for one in found for rank in one.ranks}


def _waits_for(found: Sequence[GroupFinding]) -> Graph:
    """From each waiting rank to those it waits for, if no finding that nothing excuses is on the waiting one.

    A finding is a node too, with a negative number: as many edges as ranks, where pairs of ranks may be millions.
    """
    fixed = {rank for one in found if not one.excusable for rank in one.ranks}
    after: Graph = {rank: [] for one in found for rank in (*one.ranks, *one.waiting)}
    for number, one in enumerate(found, 1):
        after[-number] = list(one.ranks)
        for rank in one.waiting if one.ranks else ():
            if rank not in fixed:
                after[rank].append(-number)
    return after


def components(after: Graph) -> dict[int, int]:
    """Each node's strongly connected component, named by one of its nodes (Kosaraju's algorithm)."""
    before: Graph = {node: [] for node in after}
    for node, nodes in after.items():
        for to in nodes:
            before[to].append(node)
    component: dict[int, int] = {}
    seen: set[int] = set()
    for root in reversed(list(_walked(after, after, set()))):
        component.update(dict.fromkeys(_walked(before, [root], seen), root))
    return component


def _walked(graph: Graph, starts: Iterable[int], seen: set[int]) -> Iterator[int]:
    """The nodes not `seen` that can be reached, depth first, each after those that were reached from it."""
    for start in starts:
        path = [] if start in seen else [(start, iter(graph[start]))]
        seen.add(start)
        while path:
            node, rest = path[-1]
            to = next((one for one in rest if one not in seen), None)
            if to is None:
                path.pop()
                yield node
            else:
                seen.add(to)
                path.append((to, iter(graph[to])))


def _culprit(job: Job, rank: int, found: Sequence[GroupFinding]) -> Culprit:
    """The worst that any group says of the rank, by verdict and then by time."""
    mine = [one for one in found if rank in one.ranks and one.verdict is not CollectiveVerdict.UNDECIDED]
    mine.sort(key=lambda one: (one.verdict.order, one.call.point_to_point, one.call.at_s))
    worst, *others = (next(these) for _, these in groupby(mine, key=lambda one: one.verdict))
    reason = "; ".join([worst.reason, *(f"{one.call}: {one.reason}" for one in others)])
    row = job.last_row(rank)
    last = None if row is None else job.call(row)
    age_s = None if row is None else int(job.ns.max() - job.ns[row]) / 1e9
    return Culprit(rank, job.dumps[rank].file, CAUSES[worst.verdict], worst.call, reason, last, age_s)
