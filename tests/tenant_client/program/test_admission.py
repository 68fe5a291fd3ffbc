"""The admission webhook: what it adds to a pod, over real HTTPS, and that whatever is wrong lets the pod start."""

import base64
import copy
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from crypto.errors import DecodeError
from crypto.ids import Token
from federation.base.pinned_directory import pin
from federation.base.settings import BadSettings
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from federation.protocol.pod_leases import CONTEXT_LABEL as CONTEXT
from federation.transport.certificates import make_certificate
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.program.admission.decision import LIKE, AdmissionMode, Desk, kept_from
from tenant_client.program.admission.review import PREFERRED, REQUIRED, PodSpec, read_review
from tenant_client.program.admission.serving import LONGEST_BODY, AdmissionNotServed, Certificate, Listening, listening
from tests import needs
from tests.support.factories import keys, labels, lease_id
from tests.support.kubernetes_schema import PUBLISHED, violations
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
BEFORE = lease_id(0, 1)
BAD, GOOD = labels(0, 0)["context"], labels(0, 1)["context"]
MAYBE = bytes(range(16)).hex()
COMMAND = ["pharoah-tenant", "run", "--", "python", "train.py", "--lr", "0.1 or so"]
GPUS = {"limits": {"nvidia.com/gpu": "8", "cpu": 4}}


def entry(context: str, judgement: PairJudgement) -> MismatchEntry:
    workload = Token.fromhex(labels(0, 0)["subarchetype"])
    figures = (0.01, 1.0, 0.9, 1.1, 9.0) if judgement is PairJudgement.NOT_WORSE else (0.99, 8.0, 4.0, 16.0, 9.0)
    return MismatchEntry(workload, Token.fromhex(context), *figures, judgement, ())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which a job ran before, and a bundle that says where it fails, where it may, and where it does not."""
    said = {BAD: PairJudgement.WORSE, GOOD: PairJudgement.NOT_WORSE, MAYBE: PairJudgement.SUSPECTED}
    pairs = tuple(entry(*one) for one in sorted(said.items()))
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        pin(connection, [keys().founding])
        Journal(connection).add([Unit(str(BEFORE), 1.0, labels(0, 1))], [])
        Attempts(connection).name(str(BEFORE), "python train.py --lr '0.1 or so'")
        BundleLog(connection).keep(7, keys().provider.sign(Bundle(7, 0, 0, (), pairs, (), None)))
    return tmp_path


def a_pod(**spec: Any) -> dict[str, Any]:
    """A pod about to be made, whose command ran before."""
    container = {"name": "main", "image": "train", "command": COMMAND[:3], "args": COMMAND[3:], "resources": GPUS}
    meta = {"name": "train-0", "namespace": "team-a", "annotations": spec.pop("annotations", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}


def review(pod: Any, **request: Any) -> bytes:
    """What an API server asks about a pod."""
    told = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:job-controller"},
            "object": pod,
            "dryRun": False,
            **request,
        },
    }
    assert violations(told) == []
    return json.dumps(told).encode()


def response(answer: bytes) -> dict[str, Any]:
    """The response of a review, which has the published form and the uid of the request."""
    told = json.loads(answer)
    assert violations(told) == []
    found: dict[str, Any] = told["response"]
    assert found["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert all(len(one) <= 256 for one in found.get("warnings", ()))  # longer ones are cut by API servers
    return found


def patched(pod: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The pod that starts: the patch applied, by the rules of RFC 6902 for `add`."""
    pod = copy.deepcopy(pod)
    for one in json.loads(base64.b64decode(found.get("patch", "W10="))):
        assert one["op"] == "add"
        *way, last = one["path"].split("/")[1:]
        at: Any = pod
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if isinstance(at, list):
            assert last == "-"
            at.append(one["value"])
        else:
            at[last] = one["value"]
    assert violations(pod) == []
    return pod


def asked(home: Path, pod: dict[str, Any], mode: str = "prefer", **request: Any) -> dict[str, Any]:
    return response(Desk(home, AdmissionMode(mode), ("nvidia.com/", "amd.com/")).answer(review(pod, **request)))


def node_affinity(home: Path, pod: dict[str, Any], mode: str) -> dict[str, Any]:
    found = asked(home, pod, mode)
    assert found["allowed"] is True
    affinity: dict[str, Any] = patched(pod, found)["spec"]["affinity"]["nodeAffinity"]
    return affinity


def not_in(*contexts: str) -> dict[str, Any]:
    return {"key": CONTEXT, "operator": "NotIn", "values": list(contexts)}


# ---- what is added ---------------------------------------------------------------------------------------------------


def test_a_pod_prefers_nodes_where_its_workload_is_not_known_to_fail(home: Path) -> None:
    assert node_affinity(home, a_pod(), "prefer") == {
        PREFERRED: [
            {"weight": 100, "preference": {"matchExpressions": [not_in(BAD)]}},
            {"weight": 10, "preference": {"matchExpressions": [not_in(MAYBE)]}},
        ]
    }
    assert asked(home, a_pod())["warnings"] == ["pharoah: kept from 2 contexts by bundle 7"]


@pytest.mark.parametrize("mode", ["require", "refuse"])
def test_a_pod_must_have_such_nodes_only_if_asked(home: Path, mode: str) -> None:
    assert node_affinity(home, a_pod(), mode) == {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [not_in(BAD)]}]},
        PREFERRED: [{"weight": 10, "preference": {"matchExpressions": [not_in(MAYBE)]}}],
    }


@pytest.mark.parametrize(("mode", "is_allowed"), [("prefer", True), ("require", True), ("refuse", False)])
def test_a_pod_that_selects_the_context_itself_is_denied_only_if_asked(
    home: Path, mode: str, *, is_allowed: bool
) -> None:
    found = asked(home, a_pod(nodeSelector={CONTEXT: BAD}), mode)
    assert (found["allowed"], "patch" in found) == (is_allowed, False)
    words = found["warnings"][0] if is_allowed else found["status"]["message"]
    assert words == "pharoah: this workload is known to fail in the context that the pod selects (bundle 7)"


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {CONTEXT: GOOD}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [not_in("x")]}]}}}},
        {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [not_in("x")]}}]}}},
    ],
)
def test_a_pod_that_says_its_contexts_itself_is_left_as_it_is(home: Path, spec: dict[str, Any]) -> None:
    for mode in AdmissionMode:
        assert asked(home, a_pod(**spec), mode) == {"uid": read_review(review(a_pod())).uid, "allowed": True}


def test_the_patched_pod_is_of_the_published_schema(home: Path) -> None:
    published = needs.package("kubernetes_validate")
    for mode in ("prefer", "require"):
        pod = a_pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [not_in("x")]}]}}})
        for one in (a_pod(), pod):
            published.validate(patched(one, asked(home, one, mode)), PUBLISHED, strict=True)


def fits(term: dict[str, Any], node: dict[str, str]) -> bool:
    """Whether a term holds for a node, as the scheduler says: what the oracle of these tests is."""
    rules = [*term.get("matchExpressions", ()), *term.get("matchFields", ())]
    return bool(rules) and all((node.get(one["key"]) in one["values"]) == (one["operator"] == "In") for one in rules)


def may_run(spec: dict[str, Any], node: dict[str, str]) -> bool:
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    return required is None or any(fits(term, node) for term in required["nodeSelectorTerms"])


def score(spec: dict[str, Any], node: dict[str, str]) -> int:
    wishes = spec.get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, ())
    return sum(one["weight"] for one in wishes if fits(one["preference"], node))


RULES = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["zone", "gpu"]),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(st.sampled_from("abc"), min_size=1, max_size=2),
    }
)
TERMS = st.dictionaries(st.sampled_from(["matchExpressions", "matchFields"]), st.lists(RULES, max_size=2))
NODE_AFFINITIES = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.fixed_dictionaries({"nodeSelectorTerms": st.lists(TERMS, min_size=1, max_size=3)}),
        PREFERRED: st.lists(st.fixed_dictionaries({"weight": st.integers(1, 100), "preference": TERMS}), max_size=2),
    },
)
AFFINITIES = st.fixed_dictionaries({}, optional={"nodeAffinity": NODE_AFFINITIES, "podAffinity": st.just({"a": 1})})
NODES = [
    {"zone": zone, "gpu": gpu} | ({CONTEXT: context} if context else {})
    for zone in "ab"
    for gpu in "bc"
    for context in ("", "bad", "maybe", "good")
]


@settings(max_examples=40, deadline=None)
@given(affinity=st.none() | AFFINITIES)
def test_what_a_pod_asked_for_still_holds_and_only_bad_nodes_are_lost(affinity: dict[str, Any] | None) -> None:
    spec = a_pod()["spec"] | ({} if affinity is None else {"affinity": affinity})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
    read: PodSpec = read_review(review(pod)).pod().spec
    patch = json.dumps(kept_from(read, not_in("bad"), [(10, not_in("maybe"))])).encode()
    after = patched(pod, {"patch": base64.b64encode(patch)})["spec"]
    for node in NODES:
        assert may_run(after, node) == (may_run(spec, node) and node.get(CONTEXT) != "bad")
        assert score(after, node) == score(spec, node) + (0 if node.get(CONTEXT) == "maybe" else 10)
    assert kept_from(read, {}, [(10, {})]) == []


def failing_on(home: Path, *nodes: str, reason: str = "ecc_error") -> None:
    """Own jobs that failed now, each on a node of its own lease."""
    with closing(open_database(home / "tenant.db")) as connection:
        for number, node in enumerate(nodes, start=2):
            unit = str(lease_id(0, number))
            Journal(connection).add([Unit(unit, 1.0, labels(0, 1))], [])
            Journal(connection).place(unit, node)
            attempts = Attempts(connection)
            attempt = attempts.begin(unit, time.time() - 7200.0)
            attempts.end(unit, attempt, AttemptState.FAILED, time.time() - 3600.0 * number)
            attempts.explain(unit, attempt, AttemptCause(reason))
            attempts.count(unit, attempt)


@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_a_pod_is_kept_from_nodes_that_failed_its_owner_s_jobs_only_if_the_owner_lets_that_out(
    home: Path, mode: str
) -> None:
    failing_on(home, "gpu-07", "gpu-09")
    before = node_affinity(home, a_pod(), mode)
    assert "gpu-07" not in json.dumps(before)
    (home / "tenant.toml").write_text("[decisions]\nown_history = true\n")
    wish = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["gpu-07", "gpu-09"]}
    after = node_affinity(home, a_pod(), mode)
    assert {"weight": 100, "preference": {"matchExpressions": [wish]}} in after[PREFERRED]
    assert after.get(REQUIRED) == before.get(REQUIRED)  # a node that failed once is never forbidden
    assert asked(home, a_pod(), mode)["warnings"][0].endswith(" and 2 nodes where own jobs failed")


# ---- whom it concerns ------------------------------------------------------------------------------------------------


def with_container(**fields: Any) -> dict[str, Any]:
    pod = a_pod()
    pod["spec"]["containers"][0] |= fields
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(),
        with_container(resources={"requests": {"amd.com/gpu": 1}}),
        with_container(resources={}) | {"spec": a_pod(resourceClaims=[{"name": "gpus"}])["spec"]},
        with_container(command=["/opt/venv/bin/pharoah-tenant", "run", "--quiet", "--"]),
        a_pod(annotations={LIKE: str(BEFORE)[:8]}, containers=[{"name": "main", "resources": GPUS}]),
        a_pod(initContainers=[{"name": "first", "resources": GPUS}]),
    ],
)
def test_pods_with_gpus_of_a_known_workload_are_patched(home: Path, pod: dict[str, Any]) -> None:
    assert "patch" in asked(home, pod)


@pytest.mark.parametrize(
    "pod",
    [
        with_container(resources={}),
        with_container(resources={"limits": {"cpu": "8"}}),
        with_container(args=["python", "another.py"]),
        with_container(command=["python"], args=["train.py"]),
        with_container(command=["pharoah-tenant"], args=[]),
    ],
)
def test_other_pods_are_left_as_they_are(home: Path, pod: dict[str, Any]) -> None:
    for mode in AdmissionMode:
        assert asked(home, pod, mode) == {"uid": read_review(review(pod)).uid, "allowed": True}


def test_other_requests_and_the_mode_off_change_nothing(home: Path) -> None:
    allowed = {"uid": read_review(review(a_pod())).uid, "allowed": True}
    assert asked(home, a_pod(), operation="UPDATE", oldObject=a_pod()) == allowed
    assert asked(home, {}, kind={"group": "apps", "version": "v1", "kind": "Deployment"}) == allowed
    assert asked(home, a_pod(nodeSelector={CONTEXT: BAD}), "off") == allowed


# ---- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["no database", "no home", "no bundle", "no such lease", "two such leases"])
def test_what_is_not_known_lets_the_pod_start(home: Path, caplog: pytest.LogCaptureFixture, broken: str) -> None:
    pod = a_pod()
    if broken == "no database":
        (home / "tenant.db").unlink()
    if broken == "no bundle":
        with closing(open_database(home / "tenant.db")) as connection:
            connection.execute("DELETE FROM bundles")
    if broken == "no such lease":
        pod = a_pod(annotations={LIKE: "secret-name"})
    if broken == "two such leases":
        with closing(open_database(home / "tenant.db")) as connection:
            Journal(connection).add([Unit(f"secret-{end}", 1.0, labels(0, 1)) for end in "ab"], [])
        pod = a_pod(annotations={LIKE: "secret-"})
    found = asked(home / "none" if broken == "no home" else home, pod, "refuse")
    assert found == {"uid": found["uid"], "allowed": True}
    assert "secret-" not in caplog.text


@pytest.mark.parametrize("broken", ["damaged database", "bad settings", "no pod", "pod of numbers"])
def test_whatever_is_wrong_lets_the_pod_start_and_says_no_more_than_that(
    home: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    pod: Any = a_pod(nodeSelector={CONTEXT: BAD})
    if broken == "damaged database":
        (home / "tenant.db").write_bytes(b"SQLite format 3\0" + bytes(4096))
    if broken == "bad settings":
        (home / "tenant.toml").write_text("[decisions]\nown_history = 'secret-name'\n")
    if broken == "no pod":
        pod = None
    if broken == "pod of numbers":
        pod = {"spec": {"containers": [7]}, "metadata": {"annotations": {"secret-name": 7}}}
    with caplog.at_level(logging.INFO):
        found = asked(home, pod, "refuse")
    assert found == {"uid": found["uid"], "allowed": True, "warnings": ["pharoah: not checked"]}
    assert "a pod was not checked" in caplog.text
    assert "secret-name" not in caplog.text


def test_logs_tell_no_more_than_the_answer(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        asked(home, a_pod())
    for hidden in ("train.py", str(BEFORE), labels(0, 1)["subarchetype"]):
        assert hidden not in caplog.text
        assert not any(hidden in str(vars(record)) for record in caplog.records)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"kind": "AdmissionReview", "request": {"uid": "u"}}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 7}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_review_is_refused(home: Path, body: bytes) -> None:
    with pytest.raises(DecodeError, match="no AdmissionReview"):
        Desk(home, AdmissionMode.PREFER, ("nvidia.com/",)).answer(body)


# ---- over HTTPS ------------------------------------------------------------------------------------------------------


def certified(folder: Path) -> Certificate:
    """A fresh certificate for this machine."""
    made = make_certificate(["127.0.0.1"], datetime.now(UTC))
    (folder / "tls.crt").write_bytes(made.certificate_pem)
    (folder / "tls.key").write_bytes(made.key_pem)
    return Certificate(folder / "tls.crt", folder / "tls.key")


@contextmanager
def served(home: Path, certificate: Certificate) -> Iterator[Listening]:
    with listening(Desk(home, AdmissionMode.PREFER, ("nvidia.com/",)).answer, "127.0.0.1:0", certificate) as at:
        yield at


def posted(port: int, ca: Path, body: bytes, path: str = "/pods") -> httpx.Response:
    with httpx.Client(verify=ssl.create_default_context(cafile=str(ca)), trust_env=False) as client:
        return client.post(f"https://127.0.0.1:{port}{path}", content=body, timeout=30.0)


def test_an_api_server_is_answered_over_https(home: Path) -> None:
    certificate = certified(home)
    with served(home, certificate) as at:
        answer = posted(at.port, certificate.certificate, review(a_pod()))
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert response(answer.content) == asked(home, a_pod())
        assert posted(at.port, certificate.certificate, b"{").status_code == 400
        assert posted(at.port, certificate.certificate, b"x" * (LONGEST_BODY + 1)).status_code == 413
        assert posted(at.port, certificate.certificate, b"", "/docs").status_code == 404
        assert posted(at.port, certificate.certificate, review(a_pod())).status_code == 200


def test_a_new_certificate_is_taken_and_a_damaged_one_is_not(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, old = certified(home), home / "old.crt"
    old.write_bytes(certificate.certificate.read_bytes())
    with served(home, certificate) as at:
        certified(home)
        with pytest.raises(httpx.ConnectError):
            posted(at.port, certificate.certificate, review(a_pod()))
        at.renew()
        assert posted(at.port, certificate.certificate, review(a_pod())).status_code == 200
        with pytest.raises(httpx.ConnectError):
            posted(at.port, old, review(a_pod()))
        new = certificate.certificate.read_bytes()
        certificate.certificate.write_bytes(b"damaged")
        at.renew()
        assert "the old certificate stays" in caplog.text
        (home / "new.crt").write_bytes(new)
        assert posted(at.port, home / "new.crt", review(a_pod())).status_code == 200


def test_what_cannot_be_served_is_said(home: Path) -> None:
    certificate = certified(home)
    for listen in ("8446", "localhost:²", "localhost:65536", f"localhost:{'1' * 5000}"):
        with pytest.raises(BadSettings), listening(bytes, listen, certificate):
            pass
    with pytest.raises(AdmissionNotServed), served(home, Certificate(home / "none.crt", certificate.key)):
        pass
    with pytest.raises(AdmissionNotServed), served(home, Certificate(certificate.certificate, home / "tenant.db")):
        pass
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AdmissionNotServed, match=str(port)), listening(bytes, f"127.0.0.1:{port}", certificate):
            pass


@pytest.mark.nightly
def test_the_program_serves_until_it_is_stopped(home: Path) -> None:
    certificate = certified(home)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    files = ["--certificate", str(certificate.certificate), "--key", str(certificate.key)]
    words = ["admission", "--home", str(home), "--listen", f"127.0.0.1:{port}", "--mode", "require", *files]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    program = subprocess.Popen([sys.executable, "-m", "tenant_client", *words], env=env, stderr=subprocess.PIPE)

    def answers() -> bool:
        try:
            return posted(port, certificate.certificate, review(a_pod())).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        until(answers)
        found = response(posted(port, certificate.certificate, review(a_pod())).content)
        assert REQUIRED in patched(a_pod(), found)["spec"]["affinity"]["nodeAffinity"]
    finally:
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 0
    assert b'"event": "admission"' in said or b'"event":"admission"' in said


def certified_as_documented(home: Path) -> tuple[Certificate, str]:
    """The certificate that the command of the docs makes, and the name that it is for."""
    needs.program("openssl")
    text = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
    (command,) = [line for line in text.splitlines() if line.startswith("openssl req")]
    subprocess.run(shlex.split(command), cwd=home, check=True, capture_output=True)
    return Certificate(home / "tls.crt", home / "tls.key"), command.rpartition("DNS:")[2]


def test_the_certificate_of_the_docs_is_one_for_the_service(home: Path) -> None:
    certificate, name = certified_as_documented(home)
    (service,) = [
        one
        for one in yaml.safe_load_all((ROOT / "ops/kubernetes/tenant-admission.yaml").read_text(encoding="utf-8"))
        if one["kind"] == "Service" and "ports" in one["spec"]
    ]
    assert name == f"{service['metadata']['name']}.team-a.svc"
    with served(home, certificate) as at:
        trusting = ssl.create_default_context(cafile=str(home / "tls.crt"))
        with (
            socket.create_connection(("127.0.0.1", at.port), timeout=30.0) as plain,
            trusting.wrap_socket(plain, server_hostname=name) as tls,
        ):
            assert tls.version() == "TLSv1.3"


def test_the_client_of_kubernetes_posts_reviews_over_tls(home: Path) -> None:
    """By kubectl, whose TLS and HTTP are those of an API server."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("there is no kubectl here: it comes from kubernetes.io")
    certificate, name = certified_as_documented(home)
    (home / "review.json").write_bytes(review(a_pod()))
    with served(home, certificate) as at:
        words = ["--server", f"https://127.0.0.1:{at.port}", "--tls-server-name", name, "--kubeconfig", os.devnull]
        words += ["--certificate-authority", str(certificate.certificate), "--token", "none"]
        raw = ["create", "--raw", "/pods", "-f", str(home / "review.json")]
        answer = subprocess.run([program, *words, *raw], check=True, capture_output=True, timeout=60).stdout
        assert response(answer) == asked(home, a_pod())
        words[3] = "another.team-a.svc"
        distrusting = subprocess.run([program, *words, *raw], check=False, capture_output=True, timeout=60)
        assert b"failed to verify certificate" in distrusting.stderr
