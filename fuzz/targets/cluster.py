"""What a cluster asks a tenant's webhook, what its fabric is, and what runs and fails on it."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from crypto.errors import DecodeError
from crypto.ids import LeaseId, TenantId
from fuzz.targets.inputs import REPOSITORY, as_file
from fuzz.targets.target import require, target
from pharoah_fabric.routes import FabricHealth, routes
from pharoah_kubernetes.gangs import Cluster, gangs, standing
from pharoah_kubernetes.objects import PATHS, Pod, Watched, read_as
from pharoah_slurm.follow import events_of
from pharoah_slurm.starts import UnusableSlurm, read_starts
from provider_server.fleet.fabric import Fabric
from provider_server.fleet.fabric_files import FabricError, cables_of
from provider_server.fleet.outage_files import UnusableOutages, read_outages
from provider_server.rounds.intake.lease_events import FAULTS, BadLeases, Change, decoded, hours
from tenant_client.program.admission.decision import kept_from, names_context, not_in
from tenant_client.program.admission.review import PREFERRED, REQUIRED, read_review

RULE = {"key": "zone", "operator": "In", "values": ["a"]}
AFFINITY = {
    REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [RULE]}, {"matchFields": [RULE]}, {}]},
    PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [RULE]}}],
}


def reviews() -> Iterator[bytes]:
    """Of a pod with much, and of one with little."""
    container = {
        "name": "a",
        "command": ["pharoah-tenant", "run", "--"],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    much = {"containers": [container], "affinity": {"nodeAffinity": AFFINITY}, "nodeSelector": {"zone": "a"}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    specs: list[dict[str, Any]] = [much, {"containers": []}]
    for spec in specs:
        pod = {"metadata": {"annotations": {"pharoah.dev/like": "81"}}, "spec": spec}
        request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": pod}
        told = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        yield json.dumps(told).encode()


@target("admission", "any bytes are a review of a pod that can be patched, or DecodeError", reviews)
def check_admission(data: bytes) -> None:
    """A patch adds to the pod's affinity, and to nothing else."""
    with suppress(DecodeError):
        spec = read_review(data).pod().spec
        spec.asks_for(("nvidia.com/",))
        names_context(spec)
        for one in kept_from(spec, not_in("a", ["x"]), [(10, not_in("a", ["y"]))]):
            require("an addition", holds=one["op"] == "add" and one["path"].startswith("/spec/affinity"))


def fabrics() -> Iterator[bytes]:
    """One of each form."""
    port = {"id": {"type": "ifname", "value": "Eth1/1"}}
    yield json.dumps({"lldp": {"interface": {"eth0": {"chassis": {"leaf": {"id": {}}}, "port": port}}}}).encode()
    yield b"SwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Switches=s0\n"
    yield (
        b'Switch\t41 "S-e8eb"\t\t# "MF0;leaf1:MQM9700/U1" enhanced port 0\n'
        b'[1]\t"H-b8ce"[1](b8ce) \t# "n1 mlx5_0" lid 12\n\n'
        b'Ca\t1 "H-b8ce"\t\t# "n1 mlx5_0"\n[1](b8ce) \t"S-e8eb"[1]\t# lid 12 lmc 0 "MF0;leaf1:MQM9700/U1" lid 1\n'
    )


@target("fabric", "any bytes are cables, or FabricError", fabrics)
def check_fabric(data: bytes) -> None:
    """And between any two nodes of them is a route, be it one that is not known."""
    for name in ("n1.json", "topology.conf", "ib.txt"):
        with suppress(FabricError):
            cables, nodes = cables_of(Path(name), data.decode("utf-8", "replace"))
            known = Fabric.of(cables, nodes)
            for node in sorted(nodes)[:2]:
                require("a route", holds=len(routes(known, "n1", node, FabricHealth())) > 0)


FOLDER = REPOSITORY / "tests" / "provider_server" / "fleet"
META = {"namespace": "team", "labels": {}, "annotations": {"leaderworkerset.sigs.k8s.io/size": "2"}}


def objects() -> Iterator[bytes]:
    """Of each kind that is followed, one a line: a pod of each sort of gang, and its owners."""
    at = "2026-11-23T12:00:00Z"
    container = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    status = {"phase": "Failed", "startTime": at, "containerStatuses": [{"state": {"terminated": {"finishedAt": at}}}]}
    job_labels = {"batch.kubernetes.io/controller-uid": "3", "batch.kubernetes.io/job-completion-index": "0"}
    set_labels = {"jobset.sigs.k8s.io/jobset-uid": "4", "jobset.sigs.k8s.io/restart-attempt": "1"}
    spec = {"containers": [container], "nodeName": "n1", "activeDeadlineSeconds": 60}
    owners = [{"uid": uid, "kind": "Job"} for uid in "345"]
    told: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("Pod", "1", {"labels": job_labels, "ownerReferences": owners}, {"spec": spec, "status": status}),
        ("Pod", "2", {"labels": set_labels}, {"spec": spec, "status": status}),
        ("Pod", "6", {"ownerReferences": owners}, {"spec": spec, "status": status}),
        ("Job", "3", {}, {"spec": {"parallelism": 2, "activeDeadlineSeconds": 7200}}),
        ("JobSet", "4", {}, {"spec": {"replicatedJobs": [{"name": "a", "replicas": 2}]}}),
        ("LeaderWorkerSet", "5", {}, {"spec": {"leaderWorkerTemplate": {"size": 2}}}),
        ("Workload", "7", {"ownerReferences": owners}, {"spec": {"maximumExecutionTimeSeconds": 60}}),
    ]
    lines = [
        {"kind": kind, "metadata": {"name": "a", "uid": uid} | META | meta} | rest for kind, uid, meta, rest in told
    ]
    yield b"\n".join(json.dumps(line).encode() for line in lines)


@target("pods", "any objects are gangs, or each that is not is DecodeError or a fault that the intake names", objects)
def check_pods(data: bytes) -> None:
    """As they are followed: one line an object of its kind."""
    cluster = Cluster()
    kinds: dict[bytes, type[Watched]] = {f'"kind": "{kind.__name__}"'.encode(): kind for kind in PATHS}
    for line in data.splitlines():
        kind = next((kind for begin, kind in kinds.items() if begin in line), Pod)
        with suppress(DecodeError):
            cluster.see(kind, read_as(kind, line), is_gone=False)
    workloads = cluster.workloads()
    for (namespace, gang), pods in gangs(cluster, ["team"], ["nvidia.com/"]).items():
        require("one namespace", holds={pod.metadata.namespace for pod in pods} == {namespace})
        with suppress(*FAULTS):
            standing(gang, pods, cluster, workloads)


def lease_events() -> Iterator[bytes]:
    """One of each sort."""
    begin = {"event": "begin", "lease": "0a" * 16, "tenant": "3f" * 16, "at": "2026-11-23T21:00:00Z"}
    yield json.dumps({**begin, "node_names": ["n1"], "until": "2026-11-24T21:00:00Z"}).encode()
    yield json.dumps({**begin, "nodes": 2, "context": "c", "level": 1}).encode()
    yield json.dumps({"event": "change", "lease": "0a" * 16, "until": "2026-11-25T00:00:00Z"}).encode()


@target("lease-event", "any line is an event at a time that can be counted, or BadLeases", lease_events)
def check_lease_event(data: bytes) -> None:
    """Its times too."""
    with suppress(BadLeases):
        event = decoded(data)
        hours(event.until if isinstance(event, Change) else event.at)


def answers() -> Iterator[bytes]:
    """Of `sacct`."""
    for name in ("sacct-22.05.8.json", "sacct_node_fail_end_0.json", "sacct_no_nodes.json"):
        answer = json.loads((REPOSITORY / "plugins/slurm/tests/sacct" / name).read_bytes())
        yield json.dumps({**answer, "jobs": answer["jobs"][:3]}).encode()


@target("slurm", "any bytes are starts of jobs with events, and what was left out, or UnusableSlurm", answers)
def check_slurm(data: bytes) -> None:
    """Events that can be told; a fault of one start is named."""
    with suppress(UnusableSlurm):
        for start in read_starts(data, Counter()):
            with suppress(*FAULTS):
                list(events_of(start, LeaseId(bytes(16)), TenantId(bytes(16)), 1.8e9))


def outages() -> Iterator[bytes]:
    """Of each form."""
    for name in ("slurm_nodes.json", "sinfo_R.txt", "slurm_reasons.txt"):
        yield (FOLDER / "slurm" / name).read_bytes()[:2000]
    yield (FOLDER / "kubernetes" / "nvsentinel_cloudevent.json").read_bytes()
    yield b"node,start,end,kind\nn1,12.5,13,x\nn2,1970-01-02T00:00:00Z,,y/z\n"
    yield b"NodeName=n1 State=DOWN\n Reason=Xid 79 [root@2026-11-23T21:09:08]\n"
    times = {"startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z"}
    yield json.dumps({"alerts": [{"labels": {"node": "n1"}, **times}]}).encode()
    series = {"metric": {"__name__": "up", "instance": "n1:9100"}, "values": [[1782000000, "0"], [1782000300, "1"]]}
    yield json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    stored = {"nodename": "n1", "checkname": "c", "generatedtimestamp": {"seconds": 1782000000}, "isfatal": True}
    yield json.dumps({"healthevent": stored}).encode()
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-23T12:00:00Z"}
    yield json.dumps({"items": [{"metadata": {"name": "n1"}, "status": {"conditions": [condition]}}]}).encode()


@target("outages", "any file is outages at times that can be counted, or UnusableOutages", outages)
def check_outages(data: bytes) -> None:
    """By the window that they span."""
    with suppress(UnusableOutages):
        found = read_outages(as_file(data, "outages"))
        require("a window", holds=found.start_h < found.end_h)
