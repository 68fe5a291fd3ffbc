"""The objects of the Kubernetes API that are watched or marked, with those of their fields that are read.

Sources: Kubernetes API v1.34 (core/v1 Pod and Node, batch/v1 Job) and v1.37 (resource.k8s.io DeviceTaintRule), JobSet
v1alpha2, LeaderWorkerSet v1, Kueue Workload v1beta2.
Fields that are not named here are ignored; a field of another type than the published one is an error.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Annotated, TypeVar

import msgspec

from crypto.errors import DecodeError
from federation.base.foreign import MALFORMED

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
GROUP_SIZE = "leaderworkerset.sigs.k8s.io/size"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
# A quantity (apimachinery, api/resource): of devices the API server takes whole ones only, and writes 1000 as "1k".
_QUANTITY = re.compile(r"\+?(\d{1,18}\.?\d{0,9}|\.\d{1,9})([numkMGTPE]?|[KMGTPE]i|[eE][+-]?\d{1,2})", re.ASCII)
_FACTORS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_FACTORS |= {sign: Fraction(1000**power) for power, sign in enumerate("kMGTPE", 1)}
_FACTORS |= {f"{sign}i": Fraction(1024**power) for power, sign in enumerate("KMGTPE", 1)}


Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    """A part of an object."""


class Owner(_Read, frozen=True):
    """Who owns an object."""

    uid: str
    kind: str


class Metadata(_Read, frozen=True):
    """The metadata of an object."""

    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None
    deletion_timestamp: Time | None = None

    def label(self, name: str) -> str:
        """A label, empty where there is none."""
        return (self.labels or {}).get(name, "")


class Resources(_Read, frozen=True):
    """What a container asks for."""

    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class Container(_Read, frozen=True):
    """A container of a pod."""

    resources: Resources = Resources()


class ClaimReference(_Read, frozen=True):
    """A claim of a pod for devices (dynamic resource allocation)."""

    name: str


class PodSpec(_Read, frozen=True):
    """What a pod shall be."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] | None = None
    node_name: str = ""
    active_deadline_seconds: int | None = None
    resource_claims: tuple[ClaimReference, ...] | None = None


class Running(_Read, frozen=True):
    """When a container began."""

    started_at: Time | None = None


class Terminated(_Read, frozen=True):
    """When a container began and ended."""

    started_at: Time | None = None
    finished_at: Time | None = None


class ContainerState(_Read, frozen=True):
    """The state of a container."""

    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Read, frozen=True):
    """What a container is."""

    state: ContainerState = ContainerState()


class PodStatus(_Read, frozen=True):
    """What a pod is."""

    phase: str = "Pending"
    start_time: Time | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(_Read, frozen=True):
    """A pod."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def started_at(self) -> datetime | None:
        """When it began on its node, else when the first of its containers did; None where nothing tells."""
        states = [status.state for status in self.status.container_statuses or ()]
        parts = [part for state in states for part in (state.running, state.terminated) if part]
        return self.status.start_time or min((part.started_at for part in parts if part.started_at), default=None)

    @property
    def has_run(self) -> bool:
        """Whether it has begun on a node."""
        return bool(self.spec.node_name and self.started_at)

    @property
    def lacks_start(self) -> bool:
        """Whether it is or was on a node, and nothing tells since when."""
        return bool(self.spec.node_name and self.status.phase != "Pending" and self.started_at is None)

    @property
    def is_over(self) -> bool:
        """Whether none of its containers runs again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ended_at(self) -> datetime | None:
        """When the last container ended, or it was deleted; None where nothing tells."""
        ends = [
            status.state.terminated.finished_at
            for status in self.status.container_statuses or ()
            if status.state.terminated and status.state.terminated.finished_at
        ]
        return max(ends, default=self.metadata.deletion_timestamp)

    def asks_for(self, resources: Iterable[str]) -> bool:
        """Whether a container asks for one or more of these resources, or the pod claims devices."""
        asked = {
            name
            for container in (*self.spec.containers, *(self.spec.init_containers or ()))
            for part in (container.resources.requests, container.resources.limits)
            for name, count in (part or {}).items()
            if _is_a_number_of_devices(str(count))
        }
        return bool(self.spec.resource_claims) or any(name.startswith(tuple(resources)) for name in asked)


def _is_a_number_of_devices(quantity: str) -> bool:
    """Whether a quantity is a whole number from 1 on.

    >>> [one for one in ("8", "1k", "1Ki", "1e3", "2000m", "500m", "0", "-1", "all") if _is_a_number_of_devices(one)]
    ['8', '1k', '1Ki', '1e3', '2000m']
    """
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return False
    number, suffix = found.groups()
    factor = _FACTORS.get(suffix) or Fraction(f"1{suffix}")
    count = Fraction(number) * factor
    return count > 0 and count.denominator == 1


class JobSpec(_Read, frozen=True):
    """What a Job shall be."""

    parallelism: int | None = None
    active_deadline_seconds: int | None = None


class Job(_Read, frozen=True):
    """A Job."""

    metadata: Metadata
    spec: JobSpec = JobSpec()


class JobTemplate(_Read, frozen=True):
    """A Job of a JobSet."""

    spec: JobSpec = JobSpec()


class ReplicatedJob(_Read, frozen=True):
    """Jobs of a JobSet that are alike."""

    name: str
    template: JobTemplate = JobTemplate()
    replicas: int = 1


class JobSetSpec(_Read, frozen=True):
    """What a JobSet shall be."""

    replicated_jobs: tuple[ReplicatedJob, ...] | None = None


class JobSet(_Read, frozen=True):
    """A JobSet."""

    metadata: Metadata
    spec: JobSetSpec = JobSetSpec()


class GroupTemplate(_Read, frozen=True):
    """A group of a LeaderWorkerSet."""

    size: int | None = None


class LeaderWorkerSetSpec(_Read, frozen=True):
    """What a LeaderWorkerSet shall be."""

    leader_worker_template: GroupTemplate = GroupTemplate()


class LeaderWorkerSet(_Read, frozen=True):
    """A LeaderWorkerSet."""

    metadata: Metadata
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class Condition(_Read, frozen=True):
    """A condition of an object or a node."""

    type: str
    status: str
    reason: str = ""
    last_transition_time: Time | None = None


class WorkloadSpec(_Read, frozen=True):
    """What Kueue admits."""

    maximum_execution_time_seconds: int | None = None


class WorkloadStatus(_Read, frozen=True):
    """What became of a workload."""

    conditions: tuple[Condition, ...] | None = None


class Workload(_Read, frozen=True):
    """A Workload of Kueue."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def is_evicted(self) -> bool:
        """Whether its pods were taken away, to be admitted again."""
        return any(one.type == "Evicted" and one.status == "True" for one in self.status.conditions or ())


class Taint(_Read, frozen=True, omit_defaults=True):
    """A taint of a node, as it is written back."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


class NodeSpec(_Read, frozen=True):
    """What of a node's specification is read."""

    taints: tuple[Taint, ...] | None = None


class Node(_Read, frozen=True):
    """A node, of which labels and taints are read."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()


class DeviceTaint(_Read, frozen=True):
    """A mark of devices."""

    key: str
    effect: str
    value: str = ""


class DeviceSelector(_Read, frozen=True):
    """Which devices a rule marks: those of a driver in a pool."""

    driver: str = ""
    pool: str = ""


class DeviceTaintRuleSpec(_Read, frozen=True):
    """A mark, and what it is on."""

    taint: DeviceTaint
    device_selector: DeviceSelector | None = None


class DeviceTaintRule(_Read, frozen=True):
    """A rule by which devices are marked (resource.k8s.io v1alpha3, v1beta2, v1)."""

    metadata: Metadata
    spec: DeviceTaintRuleSpec


_LONGEST_NAME = 253
Watched = Pod | Job | JobSet | LeaderWorkerSet | Workload
Kind = TypeVar("Kind", bound=_Read)

# Where the API has each kind.
PATHS: Mapping[type[Watched], str] = {
    Pod: "/api/v1/pods",
    Job: "/apis/batch/v1/jobs",
    JobSet: "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    LeaderWorkerSet: "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
    Workload: "/apis/kueue.x-k8s.io/v1beta2/workloads",
}


class _Named(msgspec.Struct, frozen=True):
    """The metadata alone, of whatever types its fields are."""

    metadata: dict[str, object] = {}


def read_as(kind: type[Kind], told: msgspec.Raw | bytes) -> Kind:
    """An object of the API; DecodeError, which names it, where a field is not of the published type."""
    try:
        return msgspec.json.decode(told, type=kind)
    except MALFORMED as error:
        raise DecodeError(f"{kind.__name__}{_name(told)} is none of the Kubernetes API: {error}") from error


def _name(told: msgspec.Raw | bytes) -> str:
    try:
        known = msgspec.json.decode(told, type=_Named).metadata
    except MALFORMED:
        return ""
    names = [str(known[key])[:_LONGEST_NAME] for key in ("namespace", "name") if known.get(key)]
    return f" {'/'.join(names)}" if names else ""
