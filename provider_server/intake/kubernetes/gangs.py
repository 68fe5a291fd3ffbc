"""Pods that work together, and what their objects say of them: when all ran, until when they may, and when they ended.

| pods | are one gang by | together |
|---|---|---|
| of a JobSet | its UID and its restart | as many as its Jobs have in parallel |
| of an indexed Job | the Job's UID | as many as it has in parallel |
| of a group of a LeaderWorkerSet | its leader's UID | as many as the group has |
| any other | the pod's UID | one |

A gang has begun once all of its pods run, and is over once none of them does. Pure: nothing is asked here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from federation.protocol.pod_leases import Gang
from provider_server.intake.kubernetes.objects import (
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

    def is_evicted(self, owners: Iterable[str]) -> bool:
        """Whether Kueue took the pods of these owners away, to admit them again."""
        workloads = self.workloads()
        return any(uid in workloads and workloads[uid].is_evicted for uid in owners)

    def workloads(self) -> dict[str, Workload]:
        """Kueue's workloads, by the UID of what they stand for."""
        found = (one for one in self.of[Workload].values() if isinstance(one, Workload))
        return {owner.uid: one for one in found for owner in one.metadata.owner_references or ()}


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


def standings(cluster: Cluster, namespaces: Iterable[str], resources: Sequence[str]) -> list[Standing]:
    """The gangs of pods in these namespaces that ask for these resources."""
    leaders = {
        (pod.metadata.namespace, pod.metadata.label(GROUP_KEY)): pod.metadata.uid
        for pod in cluster.pods()
        if pod.metadata.label(GROUP_INDEX) == "0" and not pod.is_over
    }
    watched, workloads = frozenset(namespaces), cluster.workloads()
    members: defaultdict[Gang, list[Pod]] = defaultdict(list)
    for pod in cluster.pods():
        if pod.metadata.namespace in watched and pod.asks_for(resources):
            members[_gang(pod, leaders)].append(pod)
    return [_standing(gang, pods, cluster, workloads) for gang, pods in members.items()]


def _gang(pod: Pod, leaders: Mapping[tuple[str, str], str]) -> Gang:
    meta = pod.metadata
    if uid := meta.label(JOBSET_UID):
        attempt = meta.label(JOBSET_ATTEMPT)
        return Gang("jobset", uid, int(attempt) if attempt.isdigit() else 0)
    if meta.label(COMPLETION_INDEX) and (uid := meta.label(CONTROLLER_UID)):
        return Gang("job", uid)
    return Gang("pod", leaders.get((meta.namespace, meta.label(GROUP_KEY)), meta.uid))


def _standing(gang: Gang, pods: Sequence[Pod], cluster: Cluster, workloads: Mapping[str, Workload]) -> Standing:
    ran = [pod for pod in pods if pod.spec.node_name and pod.status.start_time]
    starts = [pod.status.start_time for pod in ran if pod.status.start_time]
    begun = len(ran) >= _size(gang, pods, cluster) and all(pod in ran or pod.is_over for pod in pods)
    is_over = all(pod.is_over for pod in pods)
    ends = [end for pod in pods if (end := pod.ended_at)]
    owners = {owner.uid for pod in pods for owner in pod.metadata.owner_references or ()} | {gang.uid}
    own = [workloads[uid] for uid in owners if uid in workloads]
    since = max(starts) if begun else None
    return Standing(
        gang,
        pods[0].metadata.namespace,
        tuple(sorted({pod.spec.node_name for pod in ran})) if begun else (),
        since,
        _until(since, pods, owners, cluster, own),
        max(ends) if is_over and ends else None,
        is_over,
        tuple(sorted(owners)),
    )


def _size(gang: Gang, pods: Sequence[Pod], cluster: Cluster) -> int:
    """How many pods belong together; 1 where that is not known yet or their owner is gone."""
    owner = cluster.of[JobSet if gang.kind == "jobset" else Job].get(gang.uid)
    if isinstance(owner, JobSet):
        jobs = owner.spec.replicated_jobs or ()
        return sum(one.replicas * _parallel(one.template) for one in jobs)
    if isinstance(owner, Job):
        return _parallel(owner)
    return max(_group_size(pod, cluster) for pod in pods)


def _parallel(job: Job | JobTemplate) -> int:
    return 1 if job.spec.parallelism is None else job.spec.parallelism


def _group_size(pod: Pod, cluster: Cluster) -> int:
    told = (pod.metadata.annotations or {}).get(GROUP_SIZE, "")
    if told.isdigit():
        return int(told)
    for owner in pod.metadata.owner_references or ():
        found = cluster.of[LeaderWorkerSet].get(owner.uid)
        if isinstance(found, LeaderWorkerSet):
            return found.spec.leader_worker_template.size or 1
    return 1


def _until(
    since: datetime | None, pods: Sequence[Pod], owners: Iterable[str], cluster: Cluster, own: Sequence[Workload]
) -> datetime | None:
    """The earliest end that is planned: a deadline of the pods or of their Job, or Kueue's."""
    jobs = [job for uid in owners if isinstance(job := cluster.of[Job].get(uid), Job)]
    limits = [
        *(pod.spec.active_deadline_seconds for pod in pods),
        *(job.spec.active_deadline_seconds for job in jobs),
        *(one.spec.maximum_execution_time_seconds for one in own),
    ]
    known = [limit for limit in limits if limit is not None]
    return since + timedelta(seconds=min(known)) if since and known else None
