"""The Helm chart and the manifests made of it: valid by the published schemas, without privileges, and least in rights.

With `helm` 4 the manifests are compared with what the chart gives. With the package kubernetes-validate they are held
to the schemas that Kubernetes publishes, strictly; with cel-python the rules of admission policies are tried.
"""

import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
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
from federation.base.settings import BadSettings, load
from pharoah_kubernetes.objects import PATHS
from provider_server.program.metrics import Metrics
from provider_server.program.service import watched
from provider_server.rounds import home as homes
from provider_server.rounds.settings import Listen, ProviderSettings
from tests import needs
from tests.support.kubernetes_schema import PUBLISHED, violations
from trustee.settings import TrusteeSettings

ROOT = Path(__file__).resolve().parents[2]
CHART, MANIFESTS = ROOT / "ops/helm/pharoah", ROOT / "ops/kubernetes"
ROLES = {
    "provider": provider_server.program.cli.app,
    "trustee": trustee.cli.app,
    "tenant": tenant_client.program.cli.app,
}
BARE = {"NetworkPolicy", "ServiceAccount", "Service", "StatefulSet"}
READ = ["get", "list", "watch"]
# Manifests beside those of the roles: the role, and the values that they are made with.
MORE = {
    "provider-nodes": ("provider", ("nodes.label=true", "nodes.taint=gpu.nvidia.com")),
    "tenant-admission": ("tenant", ("admission.enabled=true",)),
}
ALL = (
    *("nodes.label=true", "nodes.taint=gpu.nvidia.com", "databaseSecret=store", "admission.enabled=true"),
    *("monitoring.enabled=true", "monitoring.labels.release=prometheus", "disruptionBudget=true"),
    *(
        "networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8",
        "networkPolicy.to.trustees.peers[0].podSelector.matchLabels.a=b",
    ),
    *("networkPolicy.egress[0].ports[0].port=8080", "service.type=LoadBalancer", "tolerations[0].operator=Exists"),
    *("storage.className=fast", "nodeSelector.zone=a", "settings.PHAROAH_ROUNDS_EVERY=manual"),
)


def manifests(role: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{role}.yaml").read_text(encoding="utf-8")))


def of_kind(role: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests(role) if one["kind"] == kind]


def pod(role: str) -> dict[str, Any]:
    (stateful,) = of_kind(role, "StatefulSet")
    spec: dict[str, Any] = stateful["spec"]["template"]["spec"]
    return spec


def helm(*words: str) -> str:
    return subprocess.run(
        [str(needs.program("helm")), *words], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout


def given(*values: str) -> list[dict[str, Any]]:
    """What the chart gives for values, in the order of Helm's kinds."""
    sets = [word for value in values for word in ("--set", value)]
    return [one for one in yaml.safe_load_all(helm("template", "x", str(CHART), *sets)) if one]


def the(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


@pytest.mark.parametrize("name", [*ROLES, *MORE])
def test_the_manifests_are_what_the_chart_gives(name: str) -> None:
    role, values = MORE.get(name, (name, ()))
    sets = [f"role={role}", f"image.repository=registry.example/pharoah-{role}", *values]
    words = [word for value in sets for word in ("--set", value)]
    text = helm("template", "pharoah", str(CHART), "--namespace", "pharoah", "--skip-tests", *words)
    told = "".join(line for line in text.splitlines(keepends=True) if line.strip())  # Helm's versions differ in others
    assert told == (MANIFESTS / f"{name}.yaml").read_text()
    linted = helm("lint", "--strict", str(CHART), *words)
    assert "0 chart(s) failed" in linted
    assert "[" not in linted  # no [INFO] either


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
        "networkPolicy.from[0].cidr=10.0.0.0/8",
        "networkPolicy.to.others.ports[0]=1",
        "networkPolicy.to.database.ports[0]=0",
        "monitoring.interval=soon",
        "disruptionBudget=1",
    ],
)
def test_wrong_values_are_refused(wrong: str) -> None:
    helm("version")
    with pytest.raises(subprocess.CalledProcessError):
        helm("template", "pharoah", str(CHART), "--set", wrong)


def test_other_values_change_what_they_say() -> None:
    alone = given("follow=false", "settings.PHAROAH_ROUNDS_EVERY=manual", "databaseSecret=store")
    assert {one["kind"] for one in alone} == {*BARE, "Pod"}
    (container,) = the("StatefulSet", alone)["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one for one in container["env"]}
    assert env["PHAROAH_ROUNDS_EVERY"]["value"] == "manual"
    assert env["PHAROAH_DATABASE"]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "url"}
    elsewhere = given("role=tenant", "admission.enabled=true", "admission.url=https://hook.example:8446/pods")
    assert {one["kind"] for one in elsewhere} == {*BARE, "MutatingWebhookConfiguration"}
    assert len(the("StatefulSet", elsewhere)["spec"]["template"]["spec"]["containers"]) == 1
    hook = the("MutatingWebhookConfiguration", elsewhere)["webhooks"][0]
    assert hook["clientConfig"] == {"url": "https://hook.example:8446/pods"}
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


@pytest.mark.parametrize("values", [(), ALL, (*ALL, "pause=true"), ("networkPolicy.enabled=false", "follow=false")])
@pytest.mark.parametrize("role", ROLES)
def test_every_option_of_every_role_gives_valid_objects_without_a_shell(role: str, values: tuple[str, ...]) -> None:
    published, objects = needs.package("kubernetes_validate"), given(f"role={role}", *values)
    monitors = [one for one in objects if one["kind"] == "ServiceMonitor"]
    assert len(monitors) == (role == "provider" and "monitoring.enabled=true" in values)
    for one in objects:
        if one in monitors:
            assert violations(one) == []
            assert violations({**one, "spec": {**one["spec"], "port": "metrics"}})
        else:
            published.validate(one, PUBLISHED, strict=True)
    pods = [one["spec"].get("template", one)["spec"] for one in objects if one["kind"] in ("Pod", "StatefulSet")]
    starts = {one.get("command", [""])[0] for spec in pods for one in spec["containers"]}
    assert starts <= {"", "python"}  # the image's own program, or its Python
    assert not re.search(r'"(exec|lifecycle)":', json.dumps(objects))


def leaves(values: dict[str, Any], schema: dict[str, Any], definitions: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """The values by their paths; each is in the schema, which takes no others beside it."""
    for name, value in values.items():
        known = schema["properties"][name]
        known = definitions[known["$ref"].rpartition("/")[2]] if "$ref" in known and "items" not in known else known
        if "propertyNames" in known and value:
            assert set(known["propertyNames"]["enum"]) == set(value)
            yield from ((f"{at}{name}.{key}", one) for key, one in value.items())
        elif value and isinstance(value, dict) and "properties" in known:
            assert known["additionalProperties"] is False, at
            yield from leaves(value, known, definitions, f"{at}{name}.")
        else:
            assert known.keys() & {"type", "enum"}, f"{at}{name}"
            yield f"{at}{name}", value


def test_the_readme_and_the_schema_have_every_value_and_the_chart_says_whose_it_is() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["additionalProperties"] is False
    told = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \| .*\|$", (CHART / "README.md").read_text(encoding="utf-8"), re.M)
    assert {key: json.loads(default) for key, default in told} == dict(leaves(values, schema, schema["definitions"]))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {chart["version"], chart["appVersion"], values["image"]["tag"]} == {project["version"]}
    assert chart["maintainers"] == project["authors"]
    assert chart["icon"].startswith("data:image/svg+xml,%3Csvg%20")


def test_the_network_lets_through_what_each_role_needs_and_no_more() -> None:
    def ports(rules: list[dict[str, Any]]) -> list[int]:
        return [port["port"] for rule in rules for port in rule.get("ports", ())]

    listen, dns = ProviderSettings().listen, [53, 53]
    own = {"provider": [listen.tenants_port, listen.online_port], "trustee": [7100], "tenant": []}
    asked = {"provider": [*dns, 7100, 9090, 443, 6443], "trustee": [], "tenant": [*dns, 8443, 8444, 7100]}
    for role in ROLES:
        spec = of_kind(role, "NetworkPolicy")[0]["spec"]
        assert (ports(spec["ingress"]), ports(spec["egress"])) == (own[role], asked[role])
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        (stateful,) = of_kind(role, "StatefulSet")
        assert spec["podSelector"] == stateful["spec"]["selector"]
    assert ports(of_kind("tenant-admission", "NetworkPolicy")[0]["spec"]["ingress"]) == [8446]


def test_variables_of_services_would_be_unknown_settings_so_pods_get_none(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="PHAROAH_TRUSTEE_SERVICE_HOST"):
        load(TrusteeSettings, tmp_path / "none", {"PHAROAH_TRUSTEE_SERVICE_HOST": "10.0.0.1"})
    assert {pod(name)["enableServiceLinks"] for name in (*ROLES, *MORE)} == {False}


def test_metrics_are_scraped_where_they_are_served_and_by_whom_may_read_them() -> None:
    objects = given("monitoring.enabled=true")
    (endpoint,) = the("ServiceMonitor", objects)["spec"]["endpoints"]
    service = next(one for one in the("Service", objects)["spec"]["ports"] if one["name"] == endpoint["port"])
    container = the("StatefulSet", objects)["spec"]["template"]["spec"]["containers"][0]
    assert {"name": service["targetPort"], "containerPort": Listen().metrics_port} in container["ports"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert env["PHAROAH_LISTEN_METRICS_HOST"] == "0.0.0.0"  # noqa: S104
    rules = the("NetworkPolicy", objects)["spec"]["ingress"]
    readers = [rule["from"] for rule in rules if {"port": Listen().metrics_port} in rule.get("ports", ())]
    assert readers == [[{"namespaceSelector": {}}]]
    assert [one for one in given("role=trustee", "monitoring.enabled=true") if one["kind"] == "ServiceMonitor"] == []


def test_what_helm_tests_passes_at_a_ready_provider_and_fails_elsewhere(tmp_path: Path) -> None:
    (container,) = the("Pod", given("monitoring.enabled=true"))["spec"]["containers"]
    _, *words, host, port, path = container["command"]
    assert (host, port, path) == ("x-provider", str(Listen().metrics_port), "/pharoah/readyz")

    def tried(*asked: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, *words, *asked], capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    homes.create(tmp_path, ["x-provider"], os.urandom, datetime.now(UTC))
    reason = ""
    with closing(watched(tmp_path, Listen(metrics_host="0.0.0.0", metrics_port=0), Metrics(), lambda: reason)) as at:  # noqa: S104
        open_port = at.address.rpartition(":")[2]
        assert tried("127.0.0.1", open_port) == (0, f"127.0.0.1:{open_port} speaks TLSv1.3\n")
        assert tried("127.0.0.1", open_port, path)[0] == 0
        reason = "no tenant is enrolled"
        code, told = tried("127.0.0.1", open_port, path)
        assert (code, told.splitlines()[1:]) == (1, [reason])
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        closed = str(silent.getsockname()[1])
    assert tried("127.0.0.1", closed)[0] == 1


def test_a_paused_party_waits_and_ends_when_it_is_told_to() -> None:
    (container, *_) = the("StatefulSet", given("pause=true"))["spec"]["template"]["spec"]["containers"]
    word = "print(flush=True); signal.pause"  # so that we know when it waits
    command = [sys.executable, "-c", container["command"][-1].replace("signal.pause", word)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(30) == 0


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
        assert {one["kind"] for one in manifests(name)} == BARE


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
