"""What the provider writes into a cluster: contexts of nodes as labels, and marks on devices that show signs."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from typer.testing import CliRunner

from federation.base import json_files
from federation.protocol.pod_leases import CONTEXT_LABEL
from pharoah_kubernetes.api import Api, ApiRefused, Server
from pharoah_kubernetes.marks import Marks, marking, risk_change, rules
from pharoah_kubernetes.objects import Node
from pharoah_kubernetes.settings import Kubernetes
from plugins.kubernetes.tests.fake_api import TAINT_RULES, FakeApi, served
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_reports import STALE_H, NodeReport
from provider_server.fleet.learning import hardware
from provider_server.program.cli import app
from tests import needs
from tests.support.kubernetes_schema import violations
from tests.support.leasing import Scene, at as at_hour, founded as founded, scene as scene
from tests.support.waiting import until

HOUR = 480_000
NOW_S = 3600.0 * (HOUR + 1)
DRIVER = "gpu.nvidia.com"
# The first version of Kubernetes that knows effect None in each version of the API.
KUBERNETES = {"v1alpha3": "1.35", "v1beta2": "1.36", "v1": "1.37"}
EXPOSED = Kubernetes(label_nodes=True, taint_driver=DRIVER)


def a_node(name: str, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "labels": {"zone": "a", **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"podCIDR": "10.0.0.0/24"}}


def report(node: str, level: int, hour: int = HOUR, *, is_heard: bool = True) -> NodeReport:
    return NodeReport(node, hour, level, is_heard, "memory", 4, "H100")


@dataclass
class Play:
    """A cluster, and what the provider of a home writes into it."""

    fake: FakeApi
    api: Api
    home: Path
    marks: Marks

    def told(self, *reports: NodeReport, now_s: float = NOW_S) -> None:
        node_reports.keep(self.home, reports)
        self.marks.look(now_s)

    def labels(self) -> dict[str, dict[str, str]]:
        return {one["metadata"]["name"]: one["metadata"]["labels"] for one in self.fake.objects["Node"].values()}

    def rules(self) -> dict[str, dict[str, Any]]:
        found = {one["metadata"]["name"]: one for one in self.fake.objects["DeviceTaintRule"].values()}
        assert all(violations(one) == [] for one in found.values())
        return found


def token(hour: float, context: str) -> str:
    """A token of a context, another one in another epoch."""
    return f"{context.replace(' ', '-')}.{int(hour) // 1_000_000}"


@contextmanager
def playing(home: Path, folder: Path, fake: FakeApi, settings: Kubernetes = EXPOSED) -> Iterator[Play]:
    folder.mkdir()
    with served(fake, folder) as at:
        api = Api(Server(at.url, at.token_file, at.ca_file))
        try:
            yield Play(fake, api, home, Marks(api, home, token, settings, {"h[1-2]": "hall 3"}))
        finally:
            api.close()


@pytest.fixture
def play(scene: Scene, tmp_path: Path) -> Iterator[Play]:
    """Nodes n1 and n2 are in context 4 by telemetry, h1 and h2 in a hall by name; what h9 is nobody says."""
    fake = FakeApi()
    for name in ("n1", "n2", "h1", "h2", "h9"):
        fake.put(a_node(name))
    with playing(scene.home, tmp_path / "cluster", fake) as played:
        yield played


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_nodes_are_labelled_by_the_context_of_leases_on_them_and_written_once(play: Play) -> None:
    play.told()
    found = {node: own.get(CONTEXT_LABEL) for node, own in play.labels().items()}
    hall, four = "hall-3.0", "context-4.0"
    assert found == {"n1": four, "n2": four, "h1": hall, "h2": hall, "h9": None}
    assert all(own["zone"] == "a" for own in play.labels().values())
    assert sorted(play.fake.writes) == [("PATCH", node) for node in ("h1", "h2", "n1", "n2")]
    play.told()
    assert len(play.fake.writes) == 4


def test_labels_follow_the_epoch_and_go_with_the_context(play: Play) -> None:
    play.told()
    play.fake.put(a_node("h9", **{CONTEXT_LABEL: "of-another-hand"}))
    play.told(now_s=3600.0 * 1_000_000)
    found = {node: own.get(CONTEXT_LABEL) for node, own in play.labels().items()}
    assert (found["n1"], found["h1"], found["h9"]) == ("context-4.1", "hall-3.1", None)


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_devices_of_a_raised_node_are_marked_without_effect_until_it_is_not(play: Play) -> None:
    play.told(report("n1", 2), report("n2", 1))
    (rule,) = play.rules().values()
    assert rule["apiVersion"] == "resource.k8s.io/v1"
    assert rule["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "pharoah"}
    assert rule["spec"] == {
        "deviceSelector": {"driver": DRIVER, "pool": "n1"},
        "taint": {"key": "pharoah.dev/build-up-level", "value": "2", "effect": "None"},
    }
    writes = len(play.fake.writes)
    play.told(report("n1", 2), report("n2", 1))
    assert len(play.fake.writes) == writes
    play.told(report("n1", 3), report("n2", 2))
    assert {name: one["spec"]["taint"]["value"] for name, one in play.rules().items()} == {
        "pharoah-n1": "3",
        "pharoah-n2": "2",
    }
    play.told(report("n1", 1), report("n2", 2))
    assert list(play.rules()) == ["pharoah-n2"]
    play.told()
    assert play.rules() == {}


@pytest.mark.parametrize(
    "told",
    [
        [report("n1", 3, is_heard=False)],
        [report("n1", 3, HOUR - STALE_H)],
        [report("Node_1", 3)],
        [report("n1/../../x", 3)],
        [report("n" * 250, 3)],
        [],
    ],
)
def test_what_is_silent_old_or_no_node_of_kubernetes_is_not_marked(play: Play, told: Sequence[NodeReport]) -> None:
    play.told(report("n1", 2))
    play.told(*told)
    assert play.rules() == {}


def test_rules_of_others_and_their_effects_stay(play: Play) -> None:
    theirs = rules([report("n2", 3)], NOW_S, DRIVER, 1)["pharoah-n2"].made("v1")
    theirs |= {"metadata": {"name": "by-hand", "uid": "u"}}
    play.fake.put(theirs)
    play.told(report("n1", 2))
    own = play.rules()["pharoah-n1"]
    own["spec"]["taint"]["effect"] = "NoSchedule"
    play.told(report("n1", 3))
    assert play.rules()["pharoah-n1"]["spec"]["taint"] == {
        "key": "pharoah.dev/build-up-level",
        "value": "3",
        "effect": "NoSchedule",
    }
    play.told()
    assert list(play.rules()) == ["by-hand"]


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_newest_version_that_the_cluster_has_is_written_to(scene: Scene, tmp_path: Path, version: str) -> None:
    others = {path for path in TAINT_RULES if path != f"/apis/resource.k8s.io/{version}/devicetaintrules"}
    fake = FakeApi(absent=frozenset(others))
    with playing(scene.home, tmp_path / "cluster", fake) as play:
        play.told(report("n1", 2))
        (rule,) = play.rules().values()
    assert rule["apiVersion"] == f"resource.k8s.io/{version}"
    published = needs.package("kubernetes_validate")
    published.validate(rule, KUBERNETES[version], strict=True)
    with pytest.raises(published.ValidationError):
        published.validate({**rule, "spec": {**rule["spec"], "unknown": 1}}, KUBERNETES[version], strict=True)


# ---- risks -----------------------------------------------------------------------------------------------------------


def risk_of(play: Play) -> dict[str, tuple[str | None, list[dict[str, str]]]]:
    nodes = [one for one in play.fake.objects["Node"].values() if one["metadata"]["name"][0] == "n"]
    assert all(violations(one) == [] for one in nodes)
    named = ((one["metadata"]["name"], one["metadata"]["labels"], one["spec"]) for one in nodes)
    return {name: (labels.get("pharoah.dev/risk-24h"), spec.get("taints", [])) for name, labels, spec in named}


@pytest.mark.parametrize("risk", ["label", "NoSchedule"])
def test_nodes_tell_their_risk_in_three_words_and_high_ones_get_a_taint_if_that_is_wanted(
    scene: Scene, tmp_path: Path, risk: Literal["label", "NoSchedule"]
) -> None:
    fake, other = FakeApi(), {"key": "of/others", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    for number in range(8):
        node = a_node(f"n{number}")
        fake.put({**node, "spec": {**node["spec"], "taints": [other]}} if number == 1 else node)
    with playing(scene.home, tmp_path / "cluster", fake, Kubernetes(risk=risk)) as play:
        json_files.keep(play.home / hardware.REPAIRS, [hardware.Repair("n1", HOUR + 1)])
        reports = [report(f"n{number}", 0) for number in range(6)] + [report("n6", 0, is_heard=False)]
        play.told(*reports)
        found, taint = risk_of(play), {"key": "pharoah.dev/risk-24h", "value": "high", "effect": "NoSchedule"}
        assert found["n1"] == ("high", [other, taint] if risk == "NoSchedule" else [other])
        assert found["n0"] == ("low", [])
        assert found["n6"] == found["n7"] == (None, [])  # silent, and unknown
        writes = len(play.fake.writes)
        play.told(*reports)
        assert len(play.fake.writes) == writes
        play.told(*(report(one.node, 0, HOUR + 24 * 60) for one in reports), now_s=NOW_S + 3600.0 * 24 * 60)
        assert risk_of(play)["n1"] == ("low", [other])
        play.told(now_s=NOW_S + 3600.0 * 24 * 61)
        assert {told for told, _ in risk_of(play).values()} == {None}


def test_a_taint_that_another_wrote_meanwhile_is_not_lost(scene: Scene, tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put(a_node("n1"))
    read = msgspec.json.decode(msgspec.json.encode(fake.objects["Node"]["uid-n1"]), type=Node)
    node = a_node("n1")
    fake.put({**node, "spec": {"taints": [{"key": "of/others", "effect": "NoSchedule"}]}})
    with playing(scene.home, tmp_path / "cluster", fake, Kubernetes(risk="NoSchedule")) as play:
        with pytest.raises(ApiRefused, match="409"):
            play.api.change("/api/v1/nodes/n1", risk_change(read, "high", "NoSchedule"))
        assert risk_of(play)["n1"] == (None, [{"key": "of/others", "effect": "NoSchedule"}])


# ---- switches and failures -------------------------------------------------------------------------------------------


def test_nothing_is_asked_or_written_unless_it_is_set(scene: Scene, tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put(a_node("n1"))
    with playing(scene.home, tmp_path / "cluster", fake, Kubernetes()) as play:
        play.told(report("n1", 3))
    assert (fake.asked, fake.writes, Kubernetes().taint_level) == ([], [], 2)


def test_what_the_cluster_refuses_is_said_once_and_tried_again(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    play.fake.refuses_effect_none = True
    for _ in range(3):
        play.told(report("n1", 2))
    said = [record.message for record in caplog.records]
    assert said == [
        "devices are not marked: the Kubernetes API answers 422 to /apis/resource.k8s.io/v1/devicetaintrules"
    ]
    assert play.labels()["n1"][CONTEXT_LABEL] == "context-4.0"
    play.fake.refuses_effect_none = False
    play.told(report("n1", 2))
    assert list(play.rules()) == ["pharoah-n1"]


@pytest.mark.parametrize("broken", ["no such kind", "another token", "damaged reports", "no reports"])
def test_whatever_is_wrong_ends_nothing(play: Play, caplog: pytest.LogCaptureFixture, broken: str) -> None:
    if broken == "no such kind":
        play.fake.absent = frozenset(TAINT_RULES)
    if broken == "another token":
        play.fake.token = "second"
    node_reports.keep(play.home, [report("n1", 2)])
    if broken == "damaged reports":
        (play.home / node_reports.FILE).write_bytes(b"{")
    if broken == "no reports":
        (play.home / node_reports.FILE).unlink()
    with caplog.at_level(logging.INFO):
        play.marks.look(NOW_S)
    assert play.rules() == {}
    assert ("are not marked" in caplog.text) == (broken != "no reports")
    assert "first" not in caplog.text


def test_marks_are_looked_at_beside_the_leases_until_the_end(play: Play) -> None:
    with marking(play.marks, once=False):
        until(lambda: CONTEXT_LABEL in play.labels()["h2"] and CONTEXT_LABEL in play.labels()["n2"])
    assert len(play.fake.writes) == 4


def test_the_verb_writes_the_token_that_a_lease_on_the_node_has(scene: Scene, tmp_path: Path) -> None:
    folder, fake = tmp_path / "cluster", FakeApi()
    folder.mkdir()
    fake.put(a_node("n1"))
    with served(fake, folder) as at:
        table = f'[kubernetes]\nserver = "{at.url}"\ntoken_file = "{at.token_file}"\nca_file = "{at.ca_file}"\n'
        with (scene.home / "provider.toml").open("a") as settings:
            settings.write(f"\n{table}label_nodes = true\n")
        words = ["kubernetes", "--once", "--home", str(scene.home), "--log-format", "text"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.stderr
    (node,) = fake.objects["Node"].values()
    now_h = time.time() / 3600
    scene.told(scene.line("begin", at=at_hour(now_h), until=at_hour(now_h + 1), node_names=["n1"]))
    (lease,) = scene.provider.store.leases(0, 1e9)
    assert node["metadata"]["labels"][CONTEXT_LABEL] == lease.labels["context"]
    assert fake.writes == [("PATCH", "n1")]
