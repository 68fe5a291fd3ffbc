"""A runner on a Kubernetes cluster: a fake API server that takes what the published API allows."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pharoah_benchmarks.runner import kubernetes
from pharoah_benchmarks.runner.kubernetes import OURS, Kubernetes
from pharoah_benchmarks.runner.places import End, How, PlaceAway
from pharoah_benchmarks.runner.settings import Benchmark
from plugins.kubernetes.tests.fake_api import FakeApi, Served, served

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC).isoformat()
WORDS = ["run", "graph", "--local", "--json"]


def node(name: str, *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready), "reason": "", "message": "", "lastTransitionTime": NOW}
    meta = {"name": name, "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": {"conditions": [condition]}}


def pod(
    name: str, on: str = "", *, phase: str = "Running", asks: str = GPU, reason: str = "", run: str = ""
) -> dict[str, Any]:
    labels = {**OURS, "job-name": run} if run else {}
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": "",
        "lastTransitionTime": NOW,
    }
    container = {"name": "main", "resources": {"limits": {asks: "8"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "idle", "uid": f"uid-{name}", "labels": labels},
        "spec": {"containers": [container], "nodeName": on},
        "status": {"phase": phase, "conditions": [condition] if reason else []},
    }


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    for name in ("n1", "n2", "n3"):
        made.put(node(name))
    return made


@pytest.fixture
def server(api: FakeApi, tmp_path: Path) -> Iterator[Served]:
    with served(api, tmp_path) as made:
        yield made


@pytest.fixture
def cluster(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    monkeypatch.setattr(kubernetes, "LOOK_S", 0.0)
    made = Kubernetes(
        Benchmark(
            place="kubernetes",
            namespace="idle",
            image="registry/pharoah:1",
            priority_class="idle",
            limits={GPU: "8"},
            server=server.url,
            token_file=str(server.token_file),
            ca_file=str(server.ca_file),
        )
    )
    with made._client:
        yield made


def ends(api: FakeApi, run: str, reason: str = "") -> None:
    """The controller of Jobs says that one is over."""
    job = api.named("Job", run)
    assert job is not None
    kind = "Failed" if reason else "Complete"
    condition = {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": NOW}
    api.put({**job, "status": {"conditions": [condition]}})


def test_idle_is_a_ready_node_that_takes_pods_and_has_none_that_asks_for_devices(
    api: FakeApi, cluster: Kubernetes
) -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    for told in (node("n4", ready=False), node("n5", unschedulable=True), node("n6", taints=[taint])):
        api.put(told)
    api.put(pod("a", "n1"))
    api.put(pod("b", "n2", phase="Succeeded"))
    api.put(pod("c", "n3", asks="cpu"))
    assert cluster.idle() == ["n2", "n3"]


def test_a_run_is_a_job_of_low_priority_that_ends_by_itself(api: FakeApi, cluster: Kubernetes) -> None:
    running = cluster.start("pharoah-graph-1", "n2", WORDS, 840.0)
    assert running.poll() is None
    made = api.named("Job", "pharoah-graph-1")
    assert made is not None
    spec, pod_spec = made["spec"], made["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"] > 0) == (0, 840, True)
    assert (pod_spec["priorityClassName"], pod_spec["restartPolicy"]) == ("idle", "Never")
    assert pod_spec["containers"][0]["command"][-4:] == WORDS
    (term,) = pod_spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]


@pytest.mark.parametrize(
    ("reason", "more", "how"),
    [
        ("", {}, How.ENDED),
        ("BackoffLimitExceeded", {}, How.ENDED),
        ("BackoffLimitExceeded", {"reason": "PreemptionByScheduler"}, How.DISPLACED),
        ("DeadlineExceeded", {}, How.STOPPED),
    ],
)
def test_how_a_job_ended_is_told_with_its_log(
    api: FakeApi, cluster: Kubernetes, reason: str, more: dict[str, str], how: How
) -> None:
    running = cluster.start("pharoah-graph-1", "n2", WORDS, 840.0)
    api.put(pod("p1", "n2", run="pharoah-graph-1", **more))
    api.logs["p1"] = b"loading\n{}\n"
    assert running.poll() is None
    ends(api, "pharoah-graph-1", reason)
    assert running.poll() == End(how, b"loading\n{}\n")
    api.remove("Pod", "uid-p1")
    assert running.poll() == End(how, b"loading\n{}\n")


def test_a_pod_that_was_deleted_is_displaced_and_one_that_never_began_is_no_exposure(
    api: FakeApi, cluster: Kubernetes
) -> None:
    one, other = (cluster.start(f"pharoah-graph-{number}", "n2", WORDS, 840.0) for number in (1, 2))
    api.put(pod("p1", "n2", run="pharoah-graph-1"))
    api.put(pod("p2", phase="Pending", run="pharoah-graph-2"))
    assert (one.poll(), other.poll()) == (None, None)
    for number in (1, 2):
        api.remove("Pod", f"uid-p{number}")
        ends(api, f"pharoah-graph-{number}", "BackoffLimitExceeded")
    assert one.poll() == End(How.DISPLACED, b"")
    assert other.poll() == End(How.ENDED, b"its pod was never started")


def test_a_job_is_removed_when_it_is_stopped_or_its_runner_is_gone(api: FakeApi, cluster: Kubernetes) -> None:
    running = cluster.start("pharoah-graph-1", "n2", WORDS, 840.0)
    api.put(pod("p1", "n2", run="pharoah-graph-1"))
    assert running.poll() is None
    assert not cluster.end("pharoah-graph-1")  # its pod is ending
    api.remove("Pod", "uid-p1")
    assert cluster.end("pharoah-graph-1")
    assert api.named("Job", "pharoah-graph-1") is None
    assert running.poll() == End(How.DISPLACED, b"")
    again = cluster.start("pharoah-graph-2", "n2", WORDS, 840.0)
    api.put(pod("p2", "n2", run="pharoah-graph-2"))
    assert again.poll() is None
    again.stop()
    assert again.poll() == End(How.STOPPED, b"")


def test_an_api_that_refuses_or_is_gone_is_away(api: FakeApi, server: Served, cluster: Kubernetes) -> None:
    server.token_file.write_text("stolen")
    with pytest.raises(PlaceAway, match="answers 401 to GET") as refused:
        cluster.idle()
    assert "stolen" not in str(refused.value)
    server.token_file.unlink()
    with pytest.raises(PlaceAway, match="no token"):
        cluster.idle()
    nowhere = msgspec.structs.replace(cluster._settings, server="https://127.0.0.1:9", ca_file=str(server.ca_file))
    server.token_file.write_text(api.token)
    gone = Kubernetes(nowhere)
    with gone._client, pytest.raises(PlaceAway, match="does not answer"):
        gone.idle()
    with pytest.raises(PlaceAway, match="no certificate"):
        Kubernetes(msgspec.structs.replace(nowhere, ca_file="/nowhere"))
