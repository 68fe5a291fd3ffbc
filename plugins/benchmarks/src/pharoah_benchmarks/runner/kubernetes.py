"""Idle nodes of a Kubernetes cluster, and runs on them as Jobs of a low priority class.

Idle is a ready node that takes pods and has none which asks for what a run asks for (`limits`). A Job is tried once,
ends by its deadline, and is removed after a while. A pod that comes first displaces it. Its result is in the pod's log.

Not promised: that nothing runs once the runner is killed. What it started goes on until its deadline, or until a runner
of this home starts again, which ends it.
"""

import os
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from pharoah_benchmarks.runner.places import MOST_BYTES, End, How, PlaceAway
from pharoah_benchmarks.runner.settings import Benchmark

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE_S = 30.0
PAGE = 500
LOOK_S = 5.0  # the answer of a moment ago serves all runs
KEPT_S = 3600  # that a Job stays when it is over, for who wants to know why
TAIL = "20"  # lines of a log; bytes would be counted from its beginning
GRACE_S = 5
OURS = {"app.kubernetes.io/managed-by": "pharoah-benchmark"}
MISSING = 404


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    """A part of an object, with the fields that are read."""


class _Metadata(_Read, frozen=True):
    name: str
    labels: dict[str, str] = {}


class _Condition(_Read, frozen=True):
    type: str
    status: str
    reason: str = ""


class _Taint(_Read, frozen=True):
    effect: str


class _Resources(_Read, frozen=True):
    limits: dict[str, str | int] = {}


class _Container(_Read, frozen=True):
    resources: _Resources = _Resources()


class _Spec(_Read, frozen=True):
    node_name: str = ""
    unschedulable: bool = False
    taints: tuple[_Taint, ...] = ()
    containers: tuple[_Container, ...] = ()


class _Status(_Read, frozen=True):
    phase: str = ""
    conditions: tuple[_Condition, ...] = ()

    def has(self, *kinds: str) -> _Condition | None:
        return next((one for one in self.conditions if one.type in kinds and one.status == "True"), None)


class _Object(_Read, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _ListMetadata(_Read, frozen=True):
    going_on: str = msgspec.field(name="continue", default="")


class _Page(_Read, frozen=True):
    metadata: _ListMetadata = _ListMetadata()
    items: tuple[_Object, ...] | None = None


class Kubernetes:
    """A cluster, as the settings have it; PlaceAway where its certificate cannot be read."""

    def __init__(self, settings: Benchmark) -> None:
        self._settings = settings
        self._token = Path(settings.token_file or ACCOUNT / "token")
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = settings.server or f"https://{f'[{host}]' if ':' in host else host}:{port}"
        ca_file = settings.ca_file or str(ACCOUNT / "ca.crt")
        try:
            trusted = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise PlaceAway(
                f"no certificate of the Kubernetes API: {ca_file}",
                hint="set [benchmark] server, token_file and ca_file",
            ) from error
        self._client = httpx.Client(base_url=url, verify=trusted, timeout=PATIENCE_S)
        self._jobs = f"/apis/batch/v1/namespaces/{settings.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._seen_s, self._seen = -LOOK_S, (dict[str, _Object](), dict[str, _Object]())

    def idle(self) -> list[str]:
        """As `Place`."""
        taken = {
            pod.spec.node_name
            for pod in self._list("/api/v1/pods")
            if pod.status.phase not in ("Succeeded", "Failed")
            and any(name in one.resources.limits for one in pod.spec.containers for name in self._settings.limits)
        }
        nodes = self._list("/api/v1/nodes", self._settings.node_labels)
        return sorted(node.metadata.name for node in nodes if _takes_pods(node) and node.metadata.name not in taken)

    def start(self, run: str, node: str, words: Sequence[str], limit_s: float) -> "_Job":
        """As `Place`; a node that was taken meanwhile keeps it waiting, until its deadline at most."""
        self._asked("POST", self._jobs, body=_made(self._settings, run, node, words, limit_s))
        self._seen_s = -LOOK_S
        return _Job(self, run)

    def end(self, run: str) -> bool:
        """As `Place`."""
        self._asked("DELETE", f"{self._jobs}/{run}", {"propagationPolicy": "Background"}, missing=True)
        self._seen_s = -LOOK_S
        jobs, pods = self.seen()
        return run not in jobs and run not in pods

    def seen(self) -> tuple[dict[str, _Object], dict[str, _Object]]:
        """Our Jobs, and the pods of each."""
        if time.monotonic() - self._seen_s >= LOOK_S:
            chosen = ",".join(f"{key}={value}" for key, value in OURS.items())
            jobs = {one.metadata.name: one for one in self._list(self._jobs, chosen)}
            pods = {one.metadata.labels.get("job-name", ""): one for one in self._list(self._pods, chosen)}
            self._seen_s, self._seen = time.monotonic(), (jobs, pods)
        return self._seen

    def log(self, pod: str) -> bytes:
        """The last that a pod printed."""
        words = {"tailLines": TAIL, "limitBytes": str(MOST_BYTES)}
        return self._asked("GET", f"{self._pods}/{pod}/log", words, missing=True)

    def _list(self, path: str, labels: str = "") -> list[_Object]:
        found: list[_Object] = []
        words = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        going_on = ""
        while True:
            told = self._asked("GET", path, words | ({"continue": going_on} if going_on else {}))
            try:
                page = msgspec.json.decode(told, type=_Page)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise PlaceAway(f"no answer of the Kubernetes API: {error}") from error
            found += page.items or ()
            going_on = page.metadata.going_on
            if not going_on:
                return found

    def _asked(
        self,
        method: str,
        path: str,
        words: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, object] | None = None,
        missing: bool = False,
    ) -> bytes:
        try:
            token = self._token.read_text(encoding="ascii").strip()
            answer = self._client.request(
                method, path, params=words, json=body, headers={"Authorization": f"Bearer {token}"}
            )
        except httpx.HTTPError as error:
            raise PlaceAway(f"the Kubernetes API does not answer: {type(error).__name__}: {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise PlaceAway(f"no token for the Kubernetes API: {self._token}") from error
        if missing and answer.status_code == MISSING:
            return b""
        if not answer.is_success:
            raise PlaceAway(
                f"the Kubernetes API answers {answer.status_code} to {method} {path}",
                hint="check the role of the service account: docs/learning.md says what it may do",
            )
        return answer.content


class _Job:
    """A run in a Job."""

    def __init__(self, cluster: Kubernetes, run: str) -> None:
        self._cluster = cluster
        self._run = run
        self._stopped = self._began = False
        self._end: End | None = None

    def poll(self) -> End | None:
        """As `Running`."""
        jobs, pods = self._cluster.seen()
        job, pod = jobs.get(self._run), pods.get(self._run)
        self._began = self._began or bool(pod and pod.status.phase != "Pending")
        if self._end is None and (job is None or job.status.has("Complete", "Failed")):
            text = self._cluster.log(pod.metadata.name) if pod else b""
            self._end = End(How.STOPPED if self._stopped else _how(job, pod), text)
            if not self._began:
                self._end = End(How.ENDED, b"its pod was never started")
        return self._end

    def stop(self) -> None:
        """As `Running`."""
        self._stopped = True
        self._cluster.end(self._run)

    kill = stop


def _how(job: _Object | None, pod: _Object | None) -> How:
    """How a Job that is over came to its end: who displaces a pod deletes it."""
    failed = job and job.status.has("Failed")
    if failed and failed.reason == "DeadlineExceeded":
        return How.STOPPED
    if job is None or pod is None or pod.status.has("DisruptionTarget"):
        return How.DISPLACED
    return How.ENDED


def _takes_pods(node: _Object) -> bool:
    tainted = any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.spec.taints)
    return bool(node.status.has("Ready")) and not node.spec.unschedulable and not tainted


def _made(settings: Benchmark, run: str, node: str, words: Sequence[str], limit_s: float) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    container = {
        "name": "benchmark",
        "image": settings.image,
        "command": [settings.program or "python3", "-m", "provider_server", "benchmark", *words],
        "resources": {"limits": settings.limits},
    }
    pod = {
        "restartPolicy": "Never",
        "priorityClassName": settings.priority_class,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": run, "labels": OURS},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(limit_s),
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": OURS}, "spec": pod},
        },
    }
