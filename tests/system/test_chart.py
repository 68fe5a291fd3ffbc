"""The Helm chart and the manifests made of it: valid by the published schemas, without privileges, and least in rights.

With `helm` (4, from its own site) the manifests are compared with what the chart gives. With the package
kubernetes-validate they are held to the schemas that Kubernetes publishes, strictly.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from typer.main import get_command

import provider_server.cli
import tenant_client.cli
import trustee.cli
from provider_server.intake.kubernetes.objects import PATHS
from provider_server.settings import ProviderSettings
from tests import needs
from tests.support.kubernetes_schema import PUBLISHED
from trustee.settings import TrusteeSettings

ROOT = Path(__file__).resolve().parents[2]
CHART, MANIFESTS = ROOT / "ops/helm/pharoah", ROOT / "ops/kubernetes"
ROLES = {"provider": provider_server.cli.app, "trustee": trustee.cli.app, "tenant": tenant_client.cli.app}
READ = ["get", "list", "watch"]


def manifests(role: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{role}.yaml").read_text(encoding="utf-8")))


def of_kind(role: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests(role) if one["kind"] == kind]


def pod(role: str) -> dict[str, Any]:
    (stateful,) = of_kind(role, "StatefulSet")
    spec: dict[str, Any] = stateful["spec"]["template"]["spec"]
    return spec


def helm(*words: str) -> str:
    program = shutil.which("helm")
    if program is None:
        pytest.skip("there is no helm here: it comes from helm.sh, and is in no package of Debian 12")
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("role", ROLES)
def test_the_manifests_are_what_the_chart_gives(role: str) -> None:
    words = ["--namespace", "pharoah", "--set", f"role={role}"]
    image = ["--set", f"image.repository=registry.example/pharoah-{role}"]
    assert helm("template", "pharoah", str(CHART), *words, *image) == (MANIFESTS / f"{role}.yaml").read_text()
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--set", f"role={role}")


@pytest.mark.parametrize("wrong", ["role=judge", "image.tag=", "settings.other=x", "unknown=1"])
def test_wrong_values_are_refused(wrong: str) -> None:
    helm("version")
    with pytest.raises(subprocess.CalledProcessError):
        helm("template", "pharoah", str(CHART), "--set", wrong)


def test_other_values_change_what_they_say() -> None:
    def given(*words: str) -> list[dict[str, Any]]:
        sets = [word for value in words for word in ("--set", value)]
        return [one for one in yaml.safe_load_all(helm("template", "x", str(CHART), *sets)) if one]

    alone = given("follow=false", "settings.PHAROAH_ROUNDS_EVERY=manual", "databaseSecret=store")
    assert {one["kind"] for one in alone} == {"ServiceAccount", "Service", "StatefulSet"}
    (container,) = alone[-1]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one for one in container["env"]}
    assert env["PHAROAH_ROUNDS_EVERY"]["value"] == "manual"
    assert env["PHAROAH_DATABASE"]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "url"}
    (waiting,) = given("pause=true")[-1]["spec"]["template"]["spec"]["containers"]
    assert waiting["command"] == ["sleep", "infinity"]


@pytest.mark.parametrize("role", ROLES)
def test_the_published_schemas_take_the_manifests(role: str) -> None:
    published = needs.package("kubernetes_validate")
    for one in manifests(role):
        published.validate(one, PUBLISHED, strict=True)
    with pytest.raises(published.ValidationError):
        published.validate({**manifests(role)[0], "unknown": 1}, PUBLISHED, strict=True)


def test_only_the_provider_reads_the_cluster_and_only_what_it_watches() -> None:
    (role,) = of_kind("provider", "ClusterRole")
    kinds = {(path.split("/")[2] if path.startswith("/apis/") else "", path.split("/")[-1]) for path in PATHS.values()}
    assert all((one["verbs"], len(one["apiGroups"]), len(one["resources"])) == (READ, 1, 1) for one in role["rules"])
    assert {(one["apiGroups"][0], one["resources"][0]) for one in role["rules"]} == kinds
    (binding,) = of_kind("provider", "ClusterRoleBinding")
    (account,) = of_kind("provider", "ServiceAccount")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [account["metadata"]["name"]]
    for name in ("trustee", "tenant"):
        assert {one["kind"] for one in manifests(name)} == {"ServiceAccount", "Service", "StatefulSet"}


@pytest.mark.parametrize("role", ROLES)
def test_no_container_has_privileges_and_only_the_follower_has_a_token(role: str) -> None:
    spec = pod(role)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
        assert rights["capabilities"] == {"drop": ["ALL"]}
        mounts = {one["name"] for one in container["volumeMounts"]}
        assert ("cluster" in mounts) == (container["args"] == ["kubernetes"])


@pytest.mark.parametrize(("role", "app"), ROLES.items())
def test_containers_run_verbs_that_there_are(role: str, app: Any) -> None:
    command = get_command(app)
    assert isinstance(command, click.Group)
    assert {container["args"][0] for container in pod(role)["containers"]} <= command.commands.keys()


def test_ports_are_those_of_the_settings() -> None:
    listen = ProviderSettings().listen
    ports = {one["name"]: one["containerPort"] for one in pod("provider")["containers"][0]["ports"]}
    assert ports == {"tenants": listen.tenants_port, "online": listen.online_port}
    (port,) = pod("trustee")["containers"][0]["ports"]
    assert TrusteeSettings().trustee.listen.endswith(f":{port['containerPort']}")
    assert "ports" not in pod("tenant")["containers"][0]
