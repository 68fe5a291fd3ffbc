"""What the published API says of the objects that tests put into a cluster: the fields that we use, and their types.

Written down from these specifications, field by field, and without their texts:

- kubernetes/kubernetes v1.34, api/openapi-spec/swagger.json: Pod, Job, Node (and the role of the chart);
- kubernetes/kubernetes v1.37, the same: DeviceTaintRule, as v1alpha3 (1.35), v1beta2 (1.36) and v1 (1.37) have it;
- kubernetes/kubernetes v1.34, staging/src/k8s.io/api/admission/v1/types.go: AdmissionReview, which has no schema;
- kubernetes-sigs/jobset v0.13.0-devel (08dfbdfd), config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml;
- kubernetes-sigs/lws 060ab4d, config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml;
- kubernetes-sigs/kueue v0.20.0-devel (ff69552e79), config/components/crd/bases/kueue.x-k8s.io_workloads.yaml, v1beta2;
- prometheus-operator 0.93.0 (6adcebc50), example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml.

`violations` looks for fields that are not in here, values of another type, and what is required and missing. Where the
package `kubernetes-validate` is installed, `published_violations` asks the whole published schema instead.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

PUBLISHED = "1.34"

TIME = "time"
META = {
    "name": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "creationTimestamp": TIME,
    "deletionTimestamp": TIME,
    "labels": {str: str},
    "annotations": {str: str},
    "ownerReferences": [{"apiVersion!": str, "kind!": str, "name!": str, "uid!": str, "controller": bool}],
}
TAINT = {
    "key!": str,
    "effect!": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "value": str,
    "timeAdded": TIME,
}
CONDITION = {"type!": str, "status!": str, "reason!": str, "message!": str, "lastTransitionTime!": TIME}
CONTAINER = {
    "name!": str,
    "image": str,
    "command": [str],
    "args": [str],
    "resources": {"requests": {str: (str, int)}, "limits": {str: (str, int)}},
    "env": [{"name!": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath!": str}}}],
}
EXPRESSION = {"key!": str, "operator!": {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}, "values": [str]}
TERM = {"matchExpressions": [EXPRESSION], "matchFields": [EXPRESSION]}
NODE_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms!": [TERM]},
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight!": int, "preference!": TERM}],
}
POD_SPEC = {
    "containers!": [CONTAINER],
    "initContainers": [CONTAINER],
    "nodeName": str,
    "nodeSelector": {str: str},
    "affinity": {"nodeAffinity": NODE_AFFINITY, "podAffinity": {str: object}},
    "restartPolicy": str,
    "activeDeadlineSeconds": int,
    "terminationGracePeriodSeconds": int,
    "automountServiceAccountToken": bool,
    "priorityClassName": str,
    "resourceClaims": [{"name!": str, "resourceClaimName": str, "resourceClaimTemplateName": str}],
}
CONTAINER_STATUS = {
    "name!": str,
    "ready!": bool,
    "restartCount!": int,
    "image!": str,
    "imageID!": str,
    "state": {
        "running": {"startedAt": TIME},
        "terminated": {"exitCode!": int, "reason": str, "startedAt": TIME, "finishedAt": TIME},
    },
}
TEMPLATE = {"metadata": META, "spec": POD_SPEC}
JOB_SPEC = {
    "parallelism": int,
    "completions": int,
    "completionMode": str,
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "ttlSecondsAfterFinished": int,
    "template!": TEMPLATE,
}


def _kind(version: str, name: str, spec: Mapping[Any, Any], status: Mapping[Any, Any]) -> dict[str, Any]:
    return {"apiVersion!": {version}, "kind!": {name}, "metadata!": META, "spec!": spec, "status": status}


KINDS: dict[str, dict[str, Any]] = {
    "Pod": _kind(
        "v1",
        "Pod",
        POD_SPEC,
        {"phase": str, "startTime": TIME, "containerStatuses": [CONTAINER_STATUS], "conditions": [CONDITION]},
    ),
    "Job": _kind("batch/v1", "Job", JOB_SPEC, {"active": int, "conditions": [CONDITION]}),
    "JobSet": _kind(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {"replicatedJobs": [{"name!": str, "replicas": int, "template!": {"metadata": META, "spec": JOB_SPEC}}]},
        {"restarts": int},
    ),
    "LeaderWorkerSet": _kind(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": int, "leaderWorkerTemplate!": {"size": int, "workerTemplate!": TEMPLATE}},
        {"replicas": int},
    ),
    "Workload": _kind(
        "kueue.x-k8s.io/v1beta2",
        "Workload",
        {
            "active": bool,
            "queueName": str,
            "maximumExecutionTimeSeconds": int,
            "podSets": [{"name!": str, "count!": int, "template!": TEMPLATE}],
        },
        {"conditions": [CONDITION]},
    ),
    "Node": _kind(
        "v1",
        "Node",
        {
            "unschedulable": bool,
            "podCIDR": str,
            "taints": [TAINT],
        },
        {"phase": str, "conditions": [CONDITION]},
    ),
    "DeviceTaintRule": {
        "apiVersion!": {f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1alpha3")},
        "kind!": {"DeviceTaintRule"},
        "metadata!": META,
        "spec!": {
            "deviceSelector": {"driver": str, "pool": str, "device": str},
            "taint!": {"key!": str, "value": str, "effect!": {"None", "NoSchedule", "NoExecute"}, "timeAdded": TIME},
        },
    },
    "ServiceMonitor": {
        "apiVersion!": {"monitoring.coreos.com/v1"},
        "kind!": {"ServiceMonitor"},
        "metadata!": META,
        "spec!": {
            "selector!": {"matchLabels": {str: str}},
            "endpoints!": [
                {
                    "port": str,
                    "path": str,
                    "interval": str,
                    "scheme": {"http", "https", "HTTP", "HTTPS"},
                    "tlsConfig": {"insecureSkipVerify": bool, "serverName": str, "ca": object},
                    "relabelings": [{"targetLabel": str, "replacement": str}],
                }
            ],
        },
    },
    "AdmissionReview": {
        "apiVersion!": {"admission.k8s.io/v1"},
        "kind!": {"AdmissionReview"},
        "request": {
            "uid!": str,
            "kind!": {"group!": str, "version!": str, "kind!": str},
            "resource!": {"group!": str, "version!": str, "resource!": str},
            "requestKind": {"group!": str, "version!": str, "kind!": str},
            "requestResource": {"group!": str, "version!": str, "resource!": str},
            "name": str,
            "namespace": str,
            "operation!": {"CREATE", "UPDATE", "DELETE", "CONNECT"},
            "userInfo!": {"username": str, "uid": str, "groups": [str]},
            "object": object,
            "oldObject": object,
            "dryRun": bool,
            "options": object,
        },
        "response": {
            "uid!": str,
            "allowed!": bool,
            "status": {"code": int, "message": str},
            "patch": str,
            "patchType": {"JSONPatch"},
            "auditAnnotations": {str: str},
            "warnings": [str],
        },
    },
}


def violations(told: Mapping[str, Any]) -> list[str]:
    """Where an object is not of its kind, by path; empty where it is."""
    kind = str(told.get("kind", ""))
    return list(_violations(told, KINDS[kind], kind)) if kind in KINDS else [f"unknown kind {kind!r}"]


def _violations(told: Any, wanted: Any, where: str) -> Iterator[str]:
    if wanted == TIME:
        if not _is_time(told):
            yield f"{where}: no time"
    elif isinstance(wanted, set):
        if told not in wanted:
            yield f"{where}: {told!r}"
    elif isinstance(wanted, list):
        if not isinstance(told, list):
            yield f"{where}: no list"
            return
        for number, one in enumerate(told):
            yield from _violations(one, wanted[0], f"{where}[{number}]")
    elif isinstance(wanted, dict):
        yield from _of_object(told, wanted, where)
    elif not isinstance(told, wanted) or (isinstance(told, bool) and wanted is not bool):
        yield f"{where}: {type(told).__name__}"


def _of_object(told: Any, wanted: dict[Any, Any], where: str) -> Iterator[str]:
    if not isinstance(told, dict):
        yield f"{where}: no object"
        return
    if str in wanted:
        for key, one in told.items():
            yield from _violations(one, wanted[str], f"{where}.{key}")
        return
    fields = {str(key).rstrip("!"): kind for key, kind in wanted.items()}
    yield from (f"{where}.{key}: unknown" for key in told.keys() - fields.keys())
    yield from (f"{where}.{key[:-1]}: missing" for key in wanted if str(key).endswith("!") and key[:-1] not in told)
    for key in told.keys() & fields.keys():
        yield from _violations(told[key], fields[key], f"{where}.{key}")


def _is_time(told: Any) -> bool:
    try:
        return isinstance(told, str) and datetime.fromisoformat(told).tzinfo is not None
    except ValueError:
        return False
