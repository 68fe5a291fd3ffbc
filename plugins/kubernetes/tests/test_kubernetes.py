"""Leases of a Kubernetes cluster: a fake API server that takes what the published API allows, and a real follower."""

import json
import os
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from crypto.errors import DecodeError, Unreachable
from crypto.ids import TenantId
from federation.base.key_files import write_secret
from federation.base.settings import BadSettings
from federation.protocol.job_leases import lease_key
from federation.protocol.pod_leases import Gang, lease_of_gang
from federation.transport.certificates import make_certificate
from pharoah_kubernetes import follow
from pharoah_kubernetes.api import Api, ApiRefused, Server, VersionGone
from pharoah_kubernetes.follow import STATE, Follower, Watches, watching
from pharoah_kubernetes.gangs import Cluster, standing
from pharoah_kubernetes.objects import (
    GROUP_SIZE,
    PATHS,
    Job,
    JobSet,
    LeaderWorkerSet,
    Pod,
    Watched,
    Workload,
    read_as,
)
from pharoah_kubernetes.settings import Kubernetes, settings_of
from plugins.kubernetes.tests.fake_api import FakeApi, Served, served
from provider_server.fleet.leases import Lease
from provider_server.program.cli import app
from provider_server.rounds import home as homes
from provider_server.rounds.intake.recorder import OPEN_H, LeaseRecorder, Recorded
from tenant_client.doctor.run.run_directory import LEASE_KEY, lease_of_start
from tests import needs
from tests.support import schemas
from tests.support.kubernetes_schema import PUBLISHED, violations
from tests.support.leasing import Scene, founded as founded, scene as scene
from tests.support.waiting import until

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
SECRET = bytes(range(32))
KINDS: dict[str, type[Watched]] = {kind.__name__: kind for kind in PATHS}


def time(hours: float = 0.0) -> str:
    return (START + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def a_pod(name: str, node: str = "n1", phase: str = "Running", start_h: float = 0.0, **more: Any) -> dict[str, Any]:
    """A pod with a GPU; `labels`, `annotations`, `owner`, `end_h`, `resources`, `deadline_s` of it."""
    meta: dict[str, Any] = {"name": name, "namespace": more.get("namespace", "team"), "uid": f"uid-{name}"}
    meta |= {key: more[key] for key in ("labels", "annotations") if key in more}
    if "owner" in more:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Owner", "name": "owner", "uid": more["owner"]}]
    container = {
        "name": "main",
        "image": "train",
        "resources": more.get("resources", {"limits": {"nvidia.com/gpu": "8"}}),
    }
    spec: dict[str, Any] = {"containers": [container]} | ({"nodeName": node} if node else {})
    if "deadline_s" in more:
        spec["activeDeadlineSeconds"] = more["deadline_s"]
    status: dict[str, Any] = {"phase": phase} | ({"startTime": time(start_h)} if node else {})
    if "end_h" in more:
        state = {"terminated": {"exitCode": 1, "finishedAt": time(more["end_h"])}}
        one = {"name": "main", "ready": False, "restartCount": 0, "image": "train", "imageID": "", "state": state}
        status["containerStatuses"] = [one]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def an_object(kind: str, version: str, uid: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    meta = {"name": uid, "namespace": "team", "uid": uid, **more.pop("metadata", {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec, **more}


TEMPLATE = {"spec": {"containers": [{"name": "main"}], "restartPolicy": "Never"}}


def a_job(uid: str, parallelism: int, **spec: Any) -> dict[str, Any]:
    return an_object("Job", "batch/v1", uid, {"parallelism": parallelism, "template": TEMPLATE, **spec})


def a_jobset(uid: str, *sizes: tuple[int, int]) -> dict[str, Any]:
    jobs = [
        {"name": f"j{place}", "replicas": replicas, "template": {"spec": {"parallelism": each, "template": TEMPLATE}}}
        for place, (replicas, each) in enumerate(sizes)
    ]
    return an_object("JobSet", "jobset.x-k8s.io/v1alpha2", uid, {"replicatedJobs": jobs})


def a_workload(owner: str, *, evicted: bool, limit_s: int | None = None) -> dict[str, Any]:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": owner}
    condition = {"type": "Evicted", "status": str(evicted), "reason": "Preempted", "message": ""}
    spec: dict[str, Any] = {} if limit_s is None else {"maximumExecutionTimeSeconds": limit_s}
    return an_object(
        "Workload",
        "kueue.x-k8s.io/v1beta2",
        f"workload-{owner}",
        spec,
        metadata={"ownerReferences": [reference]},
        status={"conditions": [{**condition, "lastTransitionTime": time()}]},
    )


@dataclass
class Play:
    """A follower, and a cluster that is handed to it as objects."""

    scene: Scene
    follower: Follower

    def look(self, *told: dict[str, Any], hours: float = 0.0) -> list[Recorded]:
        cluster = Cluster()
        for one in told:
            assert violations(one) == []
            kind = KINDS[one["kind"]]
            cluster.see(kind, read_as(kind, json.dumps(one).encode()), is_gone=False)
        return self.follower.look(cluster, START + timedelta(hours=hours))

    def lease(self, kind: Any, uid: str, restart: int = 0) -> Lease | None:
        tenant = self.follower._tenants["team"]
        return self.scene.provider.store.lease(lease_of_gang(lease_key(SECRET, tenant), Gang(kind, uid, restart)))

    def hours(self, kind: Any, uid: str, restart: int = 0) -> tuple[float, float]:
        """Start and end of a lease, in hours after `START`."""
        lease, zero = self.lease(kind, uid, restart), START.timestamp() / 3600
        assert lease is not None
        return round(lease.start_h - zero, 6), round(lease.end_h - zero, 6)


def follower_of(scene: Scene) -> Follower:
    settings = Kubernetes(namespaces={"team": scene.tenant})
    return Follower(LeaseRecorder(scene.provider, scene.home), scene.home, SECRET, settings)


@pytest.fixture
def play(scene: Scene) -> Play:
    return Play(scene, follower_of(scene))


# ---- gangs -----------------------------------------------------------------------------------------------------------


def test_a_pod_with_a_gpu_is_a_lease_from_its_start_to_its_end(play: Play) -> None:
    assert play.look(a_pod("a", "", "Pending")) == []
    assert play.look(a_pod("a")) == [Recorded.BEGUN]
    assert play.look(a_pod("a")) == []
    assert play.look(a_pod("a", phase="Failed", end_h=2.5), hours=3.0) == [Recorded.ENDED]
    assert play.hours("pod", "uid-a") == (0.0, 2.5)
    lease = play.lease("pod", "uid-a")
    assert lease is not None
    assert play.scene.provider.store.placed(lease.start_h + 1)[0][1] == ("n1",)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("a", resources={"requests": {"cpu": "8"}}),
        a_pod("a", resources={}),
        a_pod("a", namespace="other"),
        *(
            a_pod("a", resources={"limits": {"nvidia.com/gpu": odd}})
            for odd in ("0", 0, "0k", "500m", "1.5", "1e-3", "100u", "-1", "-1k", "eight", "k", "1ki", "1Kii", "²", "")
        ),
    ],
)
def test_other_pods_are_no_leases(pod: dict[str, Any], play: Play) -> None:
    assert play.look(pod) == []
    assert play.scene.provider.store.leases(0, 1e9) == []


@pytest.mark.parametrize(
    "quantity", ["8", 8, "1k", "1Ki", "2M", "1e3", "1E+2", "1000m", "3000000u", "0.5k", "8.", "+8", "007"]
)
def test_quantities_in_every_form_of_kubernetes_ask_for_gpus(quantity: str | int, play: Play) -> None:
    assert play.look(a_pod("a", resources={"limits": {"nvidia.com/gpu": quantity}})) == [Recorded.BEGUN]


def test_a_pod_that_claims_devices_is_a_lease(play: Play) -> None:
    pod = a_pod("a", resources={})
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "eight"}]
    assert play.look(pod) == [Recorded.BEGUN]


def test_a_pod_whose_init_container_asks_for_gpus_is_a_lease(play: Play) -> None:
    pod = a_pod("a", resources={})
    first = {"name": "infer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod["spec"]["initContainers"] = [first]
    assert play.look(pod) == [Recorded.BEGUN]


def test_an_indexed_job_is_one_lease_once_all_its_pods_run(play: Play) -> None:
    labels = {"batch.kubernetes.io/controller-uid": "job-1", "batch.kubernetes.io/job-completion-index": "0"}
    one, two = a_pod("a", "n1", labels=labels), a_pod("b", "n2", start_h=0.5, labels=labels)
    waiting = a_pod("b", "", "Pending", labels=labels)
    assert play.look(a_job("job-1", 2), one) == []
    assert play.look(a_job("job-1", 2), one, waiting) == []
    assert play.look(a_job("job-1", 2, activeDeadlineSeconds=7200), one, two) == [Recorded.BEGUN]
    assert play.hours("job", "job-1") == (0.5, 2.5)
    lease = play.lease("job", "job-1")
    assert lease is not None
    assert lease.nodes == 2
    assert play.look(a_job("job-1", 2, activeDeadlineSeconds=10800), one, two) == [Recorded.CHANGED]
    done = a_pod("a", "n1", "Succeeded", labels=labels, end_h=1.0)
    assert play.look(a_job("job-1", 2), done, two) == []
    both = a_pod("b", "n2", "Succeeded", start_h=0.5, labels=labels, end_h=1.5)
    assert play.look(a_job("job-1", 2), done, both, hours=1.6) == [Recorded.ENDED]
    assert play.hours("job", "job-1") == (0.5, 1.5)


def test_each_restart_of_a_jobset_is_a_lease(play: Play) -> None:
    def pods(attempt: int, **more: Any) -> list[dict[str, Any]]:
        labels = {"jobset.sigs.k8s.io/jobset-uid": "set-1", "jobset.sigs.k8s.io/restart-attempt": str(attempt)}
        return [a_pod(f"{name}{attempt}", node, labels=labels, **more) for name, node in (("a", "n1"), ("b", "n2"))]

    jobset = a_jobset("set-1", (1, 1), (1, 1))
    assert play.look(jobset, pods(0)[0]) == []
    assert play.look(jobset, *pods(0)) == [Recorded.BEGUN]
    assert play.look(jobset, *pods(1, start_h=2.0), hours=2.0) == [Recorded.BEGUN, Recorded.ENDED]
    assert play.hours("jobset", "set-1", 0) == (0.0, 0.0)
    lease = play.lease("jobset", "set-1", 1)
    assert lease is not None
    assert lease.nodes == 2


def test_a_group_of_a_leader_and_workers_is_the_lease_of_its_leader(play: Play) -> None:
    def member(name: str, node: str, index: int) -> dict[str, Any]:
        labels = {"leaderworkerset.sigs.k8s.io/group-key": "g", "leaderworkerset.sigs.k8s.io/worker-index": str(index)}
        return a_pod(name, node, labels=labels, owner="set")

    template = {"size": 2, "workerTemplate": TEMPLATE}
    group = an_object("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "set", {"leaderWorkerTemplate": template})
    assert play.look(group, member("a", "n1", 0)) == []
    assert play.look(group, member("a", "n1", 0), member("b", "n2", 1)) == [Recorded.BEGUN]
    lease = play.lease("pod", "uid-a")
    assert lease is not None
    assert lease.nodes == 2


def test_what_kueue_evicts_is_requeued_and_its_limit_is_the_planned_end(play: Play) -> None:
    pod = a_pod("a", owner="job-1")
    admitted = a_workload("job-1", evicted=False, limit_s=3600)
    assert play.look(pod, admitted) == [Recorded.BEGUN]
    assert play.hours("pod", "uid-a") == (0.0, 1.0)
    assert play.look(pod, admitted, hours=0.4) == []
    assert play.look(a_workload("job-1", evicted=True, limit_s=3600), hours=0.5) == [Recorded.REQUEUED]
    assert play.hours("pod", "uid-a") == (0.0, 0.4)


def without_start(pod: dict[str, Any], **state: Any) -> dict[str, Any]:
    one = {"name": "main", "ready": True, "restartCount": 0, "image": "train", "imageID": "", "state": state}
    status = {"phase": pod["status"]["phase"]} | ({"containerStatuses": [one]} if state else {})
    return {**pod, "status": status}


def test_a_pod_that_tells_no_start_began_when_its_container_did(play: Play) -> None:
    pod = without_start(a_pod("a"), running={"startedAt": time(0.25)})
    assert play.look(pod, hours=1.0) == [Recorded.BEGUN]
    assert play.hours("pod", "uid-a")[0] == 0.25


def test_pods_of_which_nothing_tells_the_start_are_told_once_by_number_and_name(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    pods = [without_start(a_pod(name)) for name in ("b", "a")]
    waiting = a_pod("w", "", "Pending")
    for _ in range(2):
        assert play.look(*pods, waiting, a_pod("c", "n2")) in ([Recorded.BEGUN], [])
    assert play.look(pods[0]) == [Recorded.ENDED]
    (said,) = [one.message for one in caplog.records if "left out" in one.message]
    assert "2 pods, the first team/a: neither status.startTime nor a container" in said


# ---- one tenant's object beside those of others ----------------------------------------------------------------------


ODD_PODS = {
    "a size that is no number": a_pod("odd", annotations={GROUP_SIZE: "²"}),
    "a size of many digits": a_pod("odd", annotations={GROUP_SIZE: "9" * 5000}),
    "a restart that is no number": a_pod(
        "odd", labels={"jobset.sigs.k8s.io/jobset-uid": "s", "jobset.sigs.k8s.io/restart-attempt": "³"}
    ),
    "a deadline in ten thousand years": a_pod("odd", deadline_s=300_000_000_000),
    "a deadline beyond every float": a_pod("odd", deadline_s=10**400),
    "a deadline before the start": a_pod("odd", deadline_s=-5),
    "a start before 1970": a_pod("odd", start_h=-1e6),
}


@pytest.mark.parametrize("what", ODD_PODS)
def test_an_odd_pod_of_one_tenant_keeps_no_other_from_its_lease(what: str, play: Play) -> None:
    cluster = Cluster()
    for one in (ODD_PODS[what], a_pod("b", "n2")):
        cluster.see(Pod, read_as(Pod, json.dumps(one).encode()), is_gone=False)
    assert Recorded.BEGUN in play.follower.look(cluster, START)
    assert play.lease("pod", "uid-b") is not None


def test_a_deadline_that_nobody_lives_to_see_is_no_planned_end(play: Play) -> None:
    play.look(a_pod("a", deadline_s=300_000_000_000))
    assert play.hours("pod", "uid-a") == (0.0, OPEN_H)


def test_a_broken_gang_is_named_and_left_out(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with one, and nobody has thought of."""
    whole = standing

    def broken(gang: Gang, *rest: Any) -> Any:
        return 1 // 0 if gang.uid == "uid-a" else whole(gang, *rest)

    monkeypatch.setattr(follow, "standing", broken)
    for _ in range(2):
        play.look(a_pod("a"), a_pod("b", "n2"))
    assert play.lease("pod", "uid-b") is not None
    (said,) = [one.message for one in caplog.records if "not recorded" in one.message]
    assert "team/a" in said
    assert "ZeroDivisionError" in said


def of_two(scene: Scene) -> Play:
    """A follower of two tenants, each with a namespace; the other one is not enrolled."""
    settings = Kubernetes(namespaces={"team": scene.tenant, "rival": "ff" * 16})
    return Play(scene, Follower(LeaseRecorder(scene.provider, scene.home), scene.home, SECRET, settings))


def test_labels_of_another_namespace_take_no_lease_and_move_no_end(scene: Scene) -> None:
    play = of_two(scene)
    labels = {"batch.kubernetes.io/controller-uid": "job-1", "batch.kubernetes.io/job-completion-index": "0"}
    own = a_pod("a", labels=labels, owner="job-1")
    taking = a_pod("x", "n2", namespace="rival", labels=labels, owner="job-1")
    evicting = a_workload("job-1", evicted=True, limit_s=60)
    evicting["metadata"] |= {"namespace": "rival", "uid": "of-rival"}
    job = a_job("job-1", 1, activeDeadlineSeconds=7200)
    assert play.look(job, taking, own, evicting) == [Recorded.BEGUN]
    assert play.hours("job", "job-1") == (0.0, 2.0)
    lease = play.lease("job", "job-1")
    assert lease is not None
    assert lease.nodes == 1
    assert play.look(job, taking, evicting, hours=1.0) == [Recorded.ENDED]


def test_a_state_of_an_older_version_is_continued(play: Play) -> None:
    play.look(a_pod("a"))
    file = play.scene.home / STATE
    kept = json.loads(file.read_bytes())
    (running,) = kept["running"].values()
    del running["namespace"]
    file.write_text(json.dumps({**kept, "running": {"pod/uid-a/0": running}}))
    again = Play(play.scene, follower_of(play.scene))
    assert again.look(a_pod("a"), hours=1.0) == []
    assert again.look(a_pod("a", phase="Failed", end_h=2.5), hours=3.0) == [Recorded.ENDED]
    assert again.hours("pod", "uid-a") == (0.0, 2.5)


def test_an_object_that_cannot_be_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeApi()
    fake.put(a_pod("a"))
    fake.objects["Pod"]["uid-b"] = a_pod("b", deadline_s="soon")
    with connected(fake, tmp_path) as (api, _):
        assert [one.metadata.name for one in api.list(Pod).objects] == ["a"]
    (said,) = [one.message for one in caplog.records if "left out" in one.message]
    assert "Pod team/b" in said
    with pytest.raises(DecodeError, match=r"Pod team-a/train-0 is none .*`uid`"):
        read_as(Pod, (Path(__file__).parent / "pod_without_uid.json").read_bytes())


# ---- breaks ----------------------------------------------------------------------------------------------------------


def test_pods_that_went_while_nobody_looked_end_at_the_last_look(play: Play) -> None:
    play.look(a_pod("a"), a_pod("b", "n2"))
    play.look(a_pod("a"), a_pod("b", "n2"), hours=1.0)
    again = Play(play.scene, follower_of(play.scene))
    assert again.look(a_pod("b", "n2"), hours=9.0) == [Recorded.ENDED]
    assert again.hours("pod", "uid-a") == (0.0, 1.0)
    assert again.look(a_pod("b", "n2", "Failed", end_h=9.5), hours=10.0) == [Recorded.ENDED]
    assert again.hours("pod", "uid-b") == (0.0, 9.5)


def test_a_lease_that_nobody_saw_running_is_recorded_whole(play: Play) -> None:
    assert play.look(a_pod("a", phase="Succeeded", end_h=0.25), hours=1.0) == [Recorded.BEGUN, Recorded.ENDED]
    assert play.hours("pod", "uid-a") == (0.0, 0.25)
    again = Play(play.scene, follower_of(play.scene))
    assert again.look(a_pod("a", phase="Succeeded", end_h=0.25), hours=2.0) == []


def test_a_node_without_a_context_is_said_once_and_tried_again(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert play.look(a_pod("a", "n9"), a_pod("b", "n2")) in ([Recorded.BEGUN], [])
    assert [record.message for record in caplog.records if "n9" in record.message] == [
        "a lease of team/a is not recorded: node n9 has no context"
    ]
    assert play.lease("pod", "uid-a") is None


def test_a_damaged_state_is_refused(scene: Scene) -> None:
    (scene.home / STATE).write_bytes(b"{")
    with pytest.raises(DecodeError, match=STATE):
        follower_of(scene)


def test_the_sample_holds_every_key_with_its_default(tmp_path: Path) -> None:
    sample = resources.files("pharoah_kubernetes").joinpath("kubernetes.toml").read_text()
    assert tomllib.loads(sample) == {"kubernetes": json.loads(msgspec.json.encode(Kubernetes()))}
    (tmp_path / "provider.toml").write_text(sample)
    assert settings_of(tmp_path) == Kubernetes()


def test_settings_are_read_beside_those_of_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both from one file; a key that neither has is refused by whose section it is in."""
    file = tmp_path / "provider.toml"
    file.write_text('[rounds]\nevery = "manual"\n[kubernetes]\ntaint_level = 1\n')
    monkeypatch.setenv("PHAROAH_KUBERNETES_LABEL_NODES", "true")
    assert settings_of(tmp_path) == Kubernetes(label_nodes=True, taint_level=1)
    assert homes.settings_of(tmp_path).rounds.every == "manual"
    file.write_text("[kubernetes]\ntaint = 1\n")
    with pytest.raises(BadSettings, match="unknown key 'taint'"):
        settings_of(tmp_path)
    file.write_text("[kubernetes]\n")
    monkeypatch.setenv("PHAROAH_KUBERNETES_LABEL", "true")
    with pytest.raises(BadSettings, match="unknown variable PHAROAH_KUBERNETES_LABEL"):
        settings_of(tmp_path)


def test_a_namespace_names_a_tenant() -> None:
    with pytest.raises(BadSettings):
        Kubernetes(namespaces={"team": "nobody"}).tenants()


# ---- the API ---------------------------------------------------------------------------------------------------------


@contextmanager
def connected(fake: FakeApi, folder: Path) -> Iterator[tuple[Api, Served]]:
    with served(fake, folder) as at:
        api = Api(Server(at.url, at.token_file, at.ca_file))
        try:
            yield api, at
        finally:
            api.close()


def test_lists_come_in_pages_and_lack_kinds_that_the_cluster_lacks(tmp_path: Path) -> None:
    fake = FakeApi(absent=frozenset({PATHS[JobSet], PATHS[LeaderWorkerSet], PATHS[Workload]}))
    for number in range(5):
        fake.put(a_pod(str(number)))
    with connected(fake, tmp_path) as (api, _):
        listed = api.list(Pod)
        assert [one.metadata.name for one in listed.objects] == ["0", "1", "2", "3", "4"]
        assert listed.version == str(fake.version)
        assert sum(PATHS[Pod] in path for path in fake.asked) == 3
        assert api.list(JobSet).version is None
        assert api.list(Job) == ([], str(fake.version))


def test_a_watch_goes_on_from_a_version_and_ends_where_it_is_gone(tmp_path: Path) -> None:
    fake = FakeApi()
    with connected(fake, tmp_path) as (api, _):
        version = api.list(Pod).version
        assert version is not None
        fake.put(a_pod("a"))
        fake.put(a_job("job-1", 1))
        fake.remove("Pod", "uid-a")
        seen = api.watch(Pod, version)
        assert [(one.found and one.found.metadata.name, one.is_gone) for one in (next(seen), next(seen))] == [
            ("a", False),
            ("a", True),
        ]
        bookmark = next(seen)
        assert (bookmark.found, bookmark.version) == (None, str(fake.version))
        fake.expire()
        with pytest.raises(VersionGone):
            list(seen)
        with pytest.raises(VersionGone):
            list(api.watch(Pod, version))


def test_a_replaced_token_is_read_and_a_wrong_one_is_refused_without_being_shown(tmp_path: Path) -> None:
    fake = FakeApi()
    with connected(fake, tmp_path) as (api, at):
        assert api.list(Pod).objects == []
        fake.token = "second"
        with pytest.raises(ApiRefused, match="401") as caught:
            api.list(Pod)
        assert "first" not in str(caught.value)
        at.token_file.write_text("second\n")
        assert api.list(Pod).objects == []
        at.token_file.unlink()
        with pytest.raises(Unreachable):
            api.list(Pod)


def test_connections_that_another_thread_has_closed_are_an_error_of_ours(tmp_path: Path) -> None:
    with connected(FakeApi(), tmp_path) as (api, _):
        api.close()
        with pytest.raises(Unreachable, match="closed"):
            api.list(Pod)


def test_the_api_is_asked_over_tls_only_and_under_its_own_certificate(tmp_path: Path) -> None:
    with served(FakeApi(), tmp_path) as at:
        with pytest.raises(ApiRefused, match="https"):
            Api(Server(at.url.replace("https", "http"), at.token_file, at.ca_file))
        foreign = tmp_path / "foreign.crt"
        foreign.write_bytes(make_certificate(["127.0.0.1"], datetime.now(UTC)).certificate_pem)
        distrusting = Api(Server(at.url, at.token_file, foreign))
        with pytest.raises(Unreachable):
            distrusting.list(Pod)
    with pytest.raises(Unreachable):
        Server.inside({})
    inside = Server.inside({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert inside.url == "https://[fd00::1]:6443"


def test_watches_keep_up_with_a_cluster_whatever_it_forgets(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put(a_pod("a"))

    def names(watches: Watches) -> set[str]:
        with watches.changed:
            return {pod.metadata.name for pod in watches.cluster.pods()}

    with connected(fake, tmp_path) as (api, _), watching(api) as watches:
        until(lambda: watches.is_whole)
        fake.put(a_pod("b"))
        until(lambda: names(watches) == {"a", "b"})
        with fake.changed:
            fake.objects["Pod"].pop("uid-a")  # goes, and the word of it is lost with the version
            fake.expire()
        until(lambda: names(watches) == {"b"})
        fake.put(a_pod("c"))
        until(lambda: names(watches) == {"b", "c"})


def test_a_list_that_took_too_long_is_begun_anew(tmp_path: Path) -> None:
    fake = FakeApi(late=2)
    for name in "abc":
        fake.put(a_pod(name))
    with connected(fake, tmp_path) as (api, _), watching(api) as watches:
        until(lambda: watches.is_whole)
        with watches.changed:
            assert {pod.metadata.name for pod in watches.cluster.pods()} == {"a", "b", "c"}
    assert fake.late == 0


def test_the_verb_records_the_leases_of_a_cluster(scene: Scene, tmp_path: Path) -> None:
    folder, fake, before = tmp_path / "cluster", FakeApi(), set(threading.enumerate())
    folder.mkdir()
    fake.put(a_pod("a"))
    fake.put(a_pod("b", "n2", "Succeeded", end_h=1.0))
    with served(fake, folder) as at:
        table = f'[kubernetes]\nserver = "{at.url}"\ntoken_file = "{at.token_file}"\nca_file = "{at.ca_file}"\n'
        with (scene.home / "provider.toml").open("a") as settings:
            settings.write(f'\n{table}namespaces = {{ team = "{scene.tenant}" }}\n')
        words = ["kubernetes", "--once", "--home", str(scene.home), "--log-format", "text", "--json"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.stderr
    (row,) = schemas.held("pharoah-provider kubernetes", result.stdout)
    assert row == {"begun": 2, "changed": 0, "ended": 1, "requeued": 0}
    assert len(scene.provider.store.leases(0, 1e9)) == 2
    until(lambda: set(threading.enumerate()) <= before)  # no watch goes on


# ---- the tenant's side -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "gang"),
    [
        ({"POD_UID": "u"}, Gang("pod", "u")),
        ({"POD_UID": "u", "JOB_UID": "j", "JOBSET_UID": ""}, Gang("pod", "u")),
        ({"POD_UID": "u", "JOB_UID": "j", "JOB_COMPLETION_INDEX": "0"}, Gang("job", "j")),
        (
            {"POD_UID": "u", "JOB_UID": "j", "JOB_COMPLETION_INDEX": "3", "JOBSET_UID": "s", "JOBSET_RESTART": "2"},
            Gang("jobset", "s", 2),
        ),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
    ],
)
def test_a_pod_finds_its_lease_by_what_the_downward_api_tells_it(
    environment: dict[str, str], gang: Gang | None, tmp_path: Path
) -> None:
    assert lease_of_start(environment, tmp_path) is None
    key = lease_key(SECRET, TenantId(bytes(16)))
    write_secret(tmp_path / LEASE_KEY, key)
    assert lease_of_start(environment, tmp_path) == (lease_of_gang(key, gang) if gang else None)


def test_leases_of_gangs_differ() -> None:
    keys = [lease_key(SECRET, TenantId(bytes([number]) * 16)) for number in range(2)]
    gangs = [Gang("pod", "u"), Gang("job", "u"), Gang("jobset", "u"), Gang("jobset", "u", 1), Gang("pod", "v")]
    assert len({lease_of_gang(key, gang) for key in keys for gang in gangs}) == 10


# ---- the published schema --------------------------------------------------------------------------------------------


def test_what_is_not_of_the_published_kind_is_refused_by_the_fake_server() -> None:
    pod = a_pod("a")
    assert violations(pod) == []
    assert violations({**pod, "spec": {}}) == ["Pod.spec.containers: missing"]
    assert violations({**pod, "outcome": 1}) == ["Pod.outcome: unknown"]
    assert violations({**pod, "status": {"phase": 1}}) == ["Pod.status.phase: int"]
    assert violations({**pod, "status": {"startTime": "today"}}) == ["Pod.status.startTime: no time"]
    assert violations({**pod, "kind": "Pods"}) == ["unknown kind 'Pods'"]


EVERY = (
    a_pod("a", labels={"team": "a"}, annotations={GROUP_SIZE: "2"}, owner="o", deadline_s=60, end_h=1.0),
    a_pod("b", "", "Pending"),
    a_job("job-1", 2, activeDeadlineSeconds=7200),
    a_jobset("set-1", (1, 2)),
    an_object(
        "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "set", {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE}}
    ),
    a_workload("job-1", evicted=True, limit_s=60),
)


@pytest.mark.parametrize("told", EVERY[:3])
def test_the_whole_published_schema_takes_what_the_fake_server_takes(told: dict[str, Any]) -> None:
    published = needs.package("kubernetes_validate")
    published.validate(told, PUBLISHED, strict=True)
    with pytest.raises(published.ValidationError):
        published.validate({**told, "status": {"unknown": 1}}, PUBLISHED, strict=True)


@pytest.mark.parametrize("told", EVERY[3:])
def test_the_published_resource_definitions_take_what_the_fake_server_takes(told: dict[str, Any]) -> None:
    """`PHAROAH_CRDS` is a folder with the definitions of JobSet, LeaderWorkerSet and Kueue, as they publish them."""
    needs.package("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    folder = os.environ.get("PHAROAH_CRDS")
    if not folder:
        pytest.skip("PHAROAH_CRDS names no folder with resource definitions")
    group, version = told["apiVersion"].split("/")
    definitions = [yaml.safe_load(file.read_text()) for file in Path(folder).glob("*.yaml")]
    (own,) = [
        one["schema"]["openAPIV3Schema"]
        for definition in definitions
        if (definition["spec"]["group"], definition["spec"]["names"]["kind"]) == (group, told["kind"])
        for one in definition["spec"]["versions"]
        if one["name"] == version
    ]
    strict = jsonschema.Draft7Validator(_without_unknown(own))
    assert [error.message for error in strict.iter_errors(told)] == []
    assert list(strict.iter_errors({**told, "spec": {"unknown": 1}}))


def _without_unknown(schema: Any) -> Any:
    """The schema, under which a key that it does not name is an error, as a strict API server says; but in metadata."""
    if isinstance(schema, list):
        return [_without_unknown(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _without_unknown(one) for key, one in schema.items()}
    closed = isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema
    return inner | ({"additionalProperties": False} if closed else {})
