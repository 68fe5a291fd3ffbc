"""The Helm chart and the manifests made of it: valid by the published schemas, without privileges, and least in rights.

With `helm` (4, from its own site) the manifests are compared with what the chart gives. With the package
kubernetes-validate they are held to the schemas that Kubernetes publishes, strictly; with cel-python the rules of
admission policies are tried.
"""

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from typer.main import get_command

import provider_server.program.cli
import tenant_client.program.cli
import trustee.cli
from federation.base.console import verbs_of
from pharoah_kubernetes.objects import PATHS
from provider_server.rounds.settings import ProviderSettings
from tests import needs
from tests.support.kubernetes_schema import PUBLISHED
from trustee.settings import TrusteeSettings

ROOT = Path(__file__).resolve().parents[2]
CHART, MANIFESTS = ROOT / "ops/helm/pharoah", ROOT / "ops/kubernetes"
ROLES = {
    "provider": provider_server.program.cli.app,
    "trustee": trustee.cli.app,
    "tenant": tenant_client.program.cli.app,
}
READ = ["get", "list", "watch"]
# Manifests beside those of the roles: the role, and the values that they are made with.
MORE = {
    "provider-nodes": ("provider", ("nodes.label=true", "nodes.taint=gpu.nvidia.com")),
    "tenant-admission": ("tenant", ("admission.enabled=true",)),
}


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


@pytest.mark.parametrize("name", [*ROLES, *MORE])
def test_the_manifests_are_what_the_chart_gives(name: str) -> None:
    role, values = MORE.get(name, (name, ()))
    sets = [f"role={role}", f"image.repository=registry.example/pharoah-{role}", *values]
    words = [word for value in sets for word in ("--set", value)]
    given = helm("template", "pharoah", str(CHART), "--namespace", "pharoah", *words)
    told = "".join(line for line in given.splitlines(keepends=True) if line.strip())  # Helm's versions differ in others
    assert told == (MANIFESTS / f"{name}.yaml").read_text()
    assert "0 chart(s) failed" in helm("lint", str(CHART), *words)


@pytest.mark.parametrize(
    "wrong",
    [
        "role=judge",
        "image.tag=",
        "settings.other=x",
        "unknown=1",
        "admission.mode=deny",
        "admission.url=http://x",
        "nodes.taint=A_b",
    ],
)
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
    assert waiting["command"][0] == "python"  # there is no other program in an image
    elsewhere = given("role=tenant", "admission.enabled=true", "admission.url=https://hook.example:8446/pods")
    kinds = [one["kind"] for one in elsewhere]
    assert kinds == ["ServiceAccount", "Service", "StatefulSet", "MutatingWebhookConfiguration"]
    assert len(elsewhere[2]["spec"]["template"]["spec"]["containers"]) == 1
    assert elsewhere[3]["webhooks"][0]["clientConfig"] == {"url": "https://hook.example:8446/pods"}
    unguarded = given("nodes.label=true", "nodes.guard=false", "nodes.taint=gpu.nvidia.com")
    assert not any(one["kind"].startswith("Validating") for one in unguarded)
    assert not any(one["metadata"]["name"].endswith("-nodes") for one in given("follow=false", "nodes.label=true"))


@pytest.mark.parametrize("name", [*ROLES, *MORE])
def test_the_published_schemas_take_the_manifests(name: str) -> None:
    published = needs.package("kubernetes_validate")
    for one in manifests(name):
        published.validate(one, PUBLISHED, strict=True)
        with pytest.raises(published.ValidationError):
            published.validate({**one, "unknown": 1}, PUBLISHED, strict=True)


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


def test_what_the_provider_writes_has_a_role_of_its_own_and_only_if_asked() -> None:
    assert [one["metadata"]["name"] for one in of_kind("provider", "ClusterRole")] == ["pharoah-provider-leases"]
    leases, nodes = sorted(of_kind("provider-nodes", "ClusterRole"), key=lambda one: str(one["metadata"]["name"]))
    assert leases == of_kind("provider", "ClusterRole")[0]
    assert nodes["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["devicetaintrules"],
            "verbs": ["list", "create", "patch", "delete"],
        },
    ]
    account = "system:serviceaccount:pharoah:pharoah-provider"
    policies, bindings = (of_kind("provider-nodes", f"ValidatingAdmissionPolicy{kind}") for kind in ("", "Binding"))
    assert [one["spec"]["policyName"] for one in bindings] == [one["metadata"]["name"] for one in policies]
    for policy in policies:
        (whom,) = policy["spec"]["matchConditions"]
        assert whom["expression"] == f'request.userInfo.username == "{account}"'
    follower = pod("provider-nodes")["containers"][1]
    env = {one["name"]: one["value"] for one in follower["env"]}
    assert env["PHAROAH_KUBERNETES_LABEL_NODES"] == "true"
    assert env["PHAROAH_KUBERNETES_TAINT_DRIVER"] == "gpu.nvidia.com"


def holds(policy: str, before: Any, after: Any) -> bool:
    """Whether a policy lets a change through, by another implementation of CEL than that of Kubernetes."""
    celpy = needs.package("celpy")
    (spec,) = [
        one["spec"]
        for one in of_kind("provider-nodes", "ValidatingAdmissionPolicy")
        if one["metadata"]["name"].endswith(policy)
    ]

    def said(expression: str, known: dict[str, Any]) -> Any:
        environment = celpy.Environment()
        return environment.program(environment.compile(expression)).evaluate(known)

    operation = "CREATE" if before is None else "DELETE" if after is None else "UPDATE"
    told = {"object": after, "oldObject": before, "request": {"operation": operation}}
    known = {name: celpy.json_to_cel(one) for name, one in told.items()}
    text = celpy.celtypes.StringType
    variables = {text(one["name"]): said(one["expression"], known) for one in spec.get("variables", ())}
    known["variables"] = celpy.celtypes.MapType(variables)
    return all(bool(said(one["expression"], known)) for one in spec["validations"])


A_NODE: dict[str, Any] = {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {"podCIDR": "10.0.0.0/24"}}


@pytest.mark.parametrize(
    ("labels", "more", "is_let_through"),
    [
        ({"zone": "a", "pharoah.dev/context": "x"}, {}, True),
        ({"zone": "b"}, {}, False),
        ({}, {}, False),
        ({"zone": "a", "role": "b"}, {}, False),
        ({"zone": "a"}, {"spec": {"podCIDR": "10.0.0.0/24", "unschedulable": True}}, False),
        ({"zone": "a"}, {"metadata": {"annotations": {"a": "b"}}}, False),
        ({"zone": "a"}, {"metadata": {"finalizers": ["a"]}}, False),
    ],
)
def test_of_a_node_the_account_may_change_one_label(
    labels: dict[str, str], more: dict[str, Any], *, is_let_through: bool
) -> None:
    after = copy.deepcopy(A_NODE) | {"spec": more.get("spec", A_NODE["spec"])}
    after["metadata"] |= {"labels": labels, **more.get("metadata", {})}
    assert holds("-labels", A_NODE, after) == is_let_through
    marked = copy.deepcopy(A_NODE)
    marked["metadata"]["labels"]["pharoah.dev/context"] = "x"
    assert holds("-labels", marked, A_NODE)


def a_rule(effect: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "r", "labels": labels}, "spec": {"taint": {"key": "k", "effect": effect}}}


OURS = {"app.kubernetes.io/managed-by": "pharoah"}


@pytest.mark.parametrize(
    ("before", "after", "is_let_through"),
    [
        (None, a_rule("None", OURS), True),
        (None, a_rule("NoExecute", OURS), False),
        (a_rule("None", OURS), a_rule("NoSchedule", OURS), False),
        (a_rule("NoSchedule", OURS), a_rule("NoSchedule", OURS), True),
        (a_rule("NoSchedule", OURS), None, True),
        (a_rule("NoSchedule", {}), None, False),
        (a_rule("NoExecute", {"app.kubernetes.io/managed-by": "else"}), a_rule("None", OURS), False),
    ],
)
def test_the_account_marks_devices_without_effect_and_touches_its_own_rules_only(
    before: Any, after: Any, *, is_let_through: bool
) -> None:
    assert holds("-taints", before, after) == is_let_through


def test_the_webhook_fails_open_and_is_asked_about_pods_of_its_namespace_only() -> None:
    assert {one["kind"] for one in manifests("tenant-admission")} - {one["kind"] for one in manifests("tenant")} == {
        "MutatingWebhookConfiguration"
    }
    (configuration,) = of_kind("tenant-admission", "MutatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["timeoutSeconds"]) == ("Ignore", "None", 2)
    assert webhook["rules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }
    ]
    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["pharoah"]}
    ]
    service = next(one for one in of_kind("tenant-admission", "Service") if "ports" in one["spec"])
    assert webhook["clientConfig"]["service"]["name"] == service["metadata"]["name"]
    assert webhook["clientConfig"]["service"]["port"] == service["spec"]["ports"][0]["port"]
    container = pod("tenant-admission")["containers"][1]
    assert container["ports"] == [{"name": service["spec"]["ports"][0]["targetPort"], "containerPort": 8446}]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert container["args"][-1] == f"{mounts['admission']}/tls.key"


@pytest.mark.parametrize("role", [*ROLES, *MORE])
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


@pytest.mark.parametrize("name", [*ROLES, *MORE])
def test_containers_run_verbs_that_there_are(name: str) -> None:
    for container in pod(name)["containers"]:
        command, words = get_command(ROLES[MORE.get(name, (name, ()))[0]]), container["args"]
        while isinstance(command, click.Group):
            verb, *words = words
            command = verbs_of(command)[verb]
        options = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_ports_are_those_of_the_settings() -> None:
    listen = ProviderSettings().listen
    ports = {one["name"]: one["containerPort"] for one in pod("provider")["containers"][0]["ports"]}
    assert ports == {"tenants": listen.tenants_port, "online": listen.online_port}
    (port,) = pod("trustee")["containers"][0]["ports"]
    assert TrusteeSettings().trustee.listen.endswith(f":{port['containerPort']}")
    assert "ports" not in pod("tenant")["containers"][0]
