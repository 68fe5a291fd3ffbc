"""Pods that work together, and what their objects say of them: when all ran, until when they may, and when they ended.

| pods | are one gang by | together |
|---|---|---|
| of a JobSet | its UID and its restart | as many as its Jobs have in parallel |
| of an indexed Job | the Job's UID | as many as it has in parallel |
| of a group of a LeaderWorkerSet | its leader's UID | as many as the group has |
| any other | the pod's UID | one |

A gang has begun once all of its pods run, and is over once none of them does. Labels, annotations and owners are a
tenant's own words: they hold within its namespace, and an object of another namespace is none of the gang. Pure:
nothing is asked here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from federation.base.foreign import LATEST_S, moment, number
from federation.protocol.pod_leases import Gang
from pharoah_kubernetes.objects import (
    COMPLETION_INDEX,
    CONTROLLER_UID,
    GROUP_INDEX,
    GROUP_KEY,
    GROUP_SIZE,
    JOBSET_ATTEMPT,
    JOBSET_UID,
    Job,
    JobSet,
    JobTemplate,
    LeaderWorkerSet,
    Pod,
    Watched,
    Workload,
)

Workloads = Mapping[tuple[str, str], Workload]  # by namespace, and the UID of what one stands for


@dataclass
class Cluster:
    """The objects of each kind, by UID, as far as they are known."""

    of: dict[type[Watched], dict[str, Watched]] = field(default_factory=lambda: defaultdict(dict))

    def see(self, kind: type[Watched], found: Watched, *, is_gone: bool) -> None:
        """An object that was added or changed, or is gone."""
        if is_gone:
            self.of[kind].pop(found.metadata.uid, None)
        else:
            self.of[kind][found.metadata.uid] = found

    def copied(self) -> "Cluster":
        """The same objects, while others go on to change these."""
        return Cluster(defaultdict(dict, {kind: dict(known) for kind, known in self.of.items()}))

    def pods(self) -> list[Pod]:
        """All pods."""
        return [one for one in self.of[Pod].values() if isinstance(one, Pod)]

    def of_namespace(self, kind: type[Watched], namespace: str, uid: str) -> Watched | None:
        """The object of a UID, if it is in this namespace."""
        found = self.of[kind].get(uid)
        return found if found is not None and found.metadata.namespace == namespace else None

    def workloads(self) -> Workloads:
        """Kueue's workloads, by their namespace and the UID of what they stand for."""
        found = (one for one in self.of[Workload].values() if isinstance(one, Workload))
        return {
            (one.metadata.namespace, owner.uid): one for one in found for owner in one.metadata.owner_references or ()
        }


class Standing(NamedTuple):
    """A gang: `nodes` where all of its pods have begun, from `since`; `over_at` once it is over; `until` if planned.

    `owners` are the UIDs of whatever its pods belong to.
    """

    gang: Gang
    namespace: str
    nodes: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    over_at: datetime | None
    is_over: bool
    owners: tuple[str, ...]


def gangs(cluster: Cluster, namespaces: Iterable[str], resources: Sequence[str]) -> dict[tuple[str, Gang], list[Pod]]:
    """The pods in these namespaces that ask for these resources, by namespace and gang."""
    leaders = {
        (pod.metadata.namespace, pod.metadata.label(GROUP_KEY)): pod.metadata.uid
        for pod in cluster.pods()
        if pod.metadata.label(GROUP_INDEX) == "0" and not pod.is_over
    }
    watched = frozenset(namespaces)
    members: defaultdict[tuple[str, Gang], list[Pod]] = defaultdict(list)
    for pod in cluster.pods():
        if pod.metadata.namespace in watched and pod.asks_for(resources):
            members[pod.metadata.namespace, _gang(pod, leaders)].append(pod)
    return members


def _gang(pod: Pod, leaders: Mapping[tuple[str, str], str]) -> Gang:
    meta = pod.metadata
    if uid := meta.label(JOBSET_UID):
        return Gang("jobset", uid, number(meta.label(JOBSET_ATTEMPT)) or 0)
    if meta.label(COMPLETION_INDEX) and (uid := meta.label(CONTROLLER_UID)):
        return Gang("job", uid)
    return Gang("pod", leaders.get((meta.namespace, meta.label(GROUP_KEY)), meta.uid))


def standing(gang: Gang, pods: Sequence[Pod], cluster: Cluster, workloads: Workloads) -> Standing:
    """What the objects of a gang say of it; all of its pods are in one namespace."""
    namespace = pods[0].metadata.namespace
    ran = [pod for pod in pods if pod.has_run]
    starts = [start for pod in ran if (start := pod.started_at)]
    begun = len(ran) >= _size(gang, pods, cluster) and all(pod.has_run or pod.is_over for pod in pods)
    is_over = all(pod.is_over for pod in pods)
    ends = [end for pod in pods if (end := pod.ended_at)]
    owners = {owner.uid for pod in pods for owner in pod.metadata.owner_references or ()} | {gang.uid}
    own = [workloads[namespace, uid] for uid in owners if (namespace, uid) in workloads]
    since = max(starts) if begun else None
    return Standing(
        gang,
        namespace,
        tuple(sorted({pod.spec.node_name for pod in ran})) if begun else (),
        since,
        _until(since, pods, owners, cluster, own),
        max(ends) if is_over and ends else None,
        is_over,
        tuple(sorted(owners)),
    )


def _size(gang: Gang, pods: Sequence[Pod], cluster: Cluster) -> int:
    """How many pods belong together; 1 where that is not known yet or their owner is gone."""
    owner = cluster.of_namespace(JobSet if gang.kind == "jobset" else Job, pods[0].metadata.namespace, gang.uid)
    if isinstance(owner, JobSet):
        jobs = owner.spec.replicated_jobs or ()
        return sum(one.replicas * _parallel(one.template) for one in jobs)
    if isinstance(owner, Job):
        return _parallel(owner)
    return max(_group_size(pod, cluster) for pod in pods)


def _parallel(job: Job | JobTemplate) -> int:
    return 1 if job.spec.parallelism is None else job.spec.parallelism


def _group_size(pod: Pod, cluster: Cluster) -> int:
    told = number((pod.metadata.annotations or {}).get(GROUP_SIZE, ""))
    if told is not None:
        return told
    for owner in pod.metadata.owner_references or ():
        found = cluster.of_namespace(LeaderWorkerSet, pod.metadata.namespace, owner.uid)
        if isinstance(found, LeaderWorkerSet):
            return found.spec.leader_worker_template.size or 1
    return 1


def _until(
    since: datetime | None, pods: Sequence[Pod], owners: Iterable[str], cluster: Cluster, own: Sequence[Workload]
) -> datetime | None:
    """The earliest end that is planned: a deadline of the pods or of their Job, or Kueue's; none in centuries."""
    namespace = pods[0].metadata.namespace
    jobs = [job for uid in owners if isinstance(job := cluster.of_namespace(Job, namespace, uid), Job)]
    limits = [
        *(pod.spec.active_deadline_seconds for pod in pods),
        *(job.spec.active_deadline_seconds for job in jobs),
        *(one.spec.maximum_execution_time_seconds for one in own),
    ]
    known = [limit for limit in limits if limit is not None]
    return moment(since.timestamp() + min(*known, LATEST_S)) if since and known else None
