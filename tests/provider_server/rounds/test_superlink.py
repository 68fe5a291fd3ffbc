"""The provider's SuperLink and the tenants' nodes over TLS: who gets in, what gets through, and who comes back."""

import math
import os
import signal
import socket
import sqlite3
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)
from flwr.app import Context
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
    StopRunRequest,
    StopRunResponse,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.serverapp import Grid, ServerApp

from crypto.errors import PharoahError
from federation.base.web.guard import Receive, Scope, Send
from federation.protocol.queries import ROUND_BUNDLE_SHA256, Query
from federation.transport.flower_wire import CONTROL, FLEET, PROTOBUF, SignedTime, call
from provider_server.rounds.network.flower_app import server_app
from provider_server.rounds.network.grid_tenants import RETURN_S, GridTenants, Silence, Why
from provider_server.rounds.network.listeners import (
    PASSED,
    PUSH_OBJECT,
    SMALL_BODY,
    STRANGERS_BODY,
    CannotListen,
    private_socket,
)
from provider_server.rounds.network.superlink import (
    RunFailed,
    SuperLink,
    UnusableNodeKey,
    bundle,
    client_at,
    round_bundle,
    run_server_app,
)
from provider_server.rounds.week import Tenants
from simulation.run.processes import free_ports
from tenant_client.rounds.network.flower_node import (
    FleetNode,
    Link,
    NodeKey,
    NodeSettings,
    _ahead_s,
    make_node_key,
    until_tick,
)
from tests.support.changing import replace
from tests.support.superlink import (
    HOST,
    REPOSITORY,
    Certificates,
    Served,
    activation,
    certificates,
    headers,
    post,
    public_pem,
    serving,
)
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.xdist_group("superlink")


def echo(verb: Query, payload: bytes) -> bytes:
    return verb.encode() + b":" + payload


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def link(pem: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    async def ours(scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    with SuperLink(pem.settings(tmp_path_factory.mktemp("state") / "link.sqlite"), ours=ours) as running:
        yield running


def settings(link: SuperLink, pem: Certificates, key: NodeKey, **changes: Any) -> NodeSettings:
    return replace(NodeSettings(link.address, pem.authority, key.private_pem), **changes)


def joined(stack: ExitStack, link: SuperLink, pem: Certificates, key: NodeKey) -> tuple[int, Served]:
    node_id = link.register(key.public_openssh)
    served = stack.enter_context(serving(echo, settings(link, pem, key)))
    assert served.wait_for(Link.CONNECTED) == node_id
    return node_id, served


def asked(link: SuperLink, wanted: int, payload: bytes = b"plan") -> list[bytes]:
    answers: list[bytes] = []
    link.run(server_app(lambda tenants: answers.extend(tenants.ask(Query.CONTRIBUTION, payload)), wanted=wanted))
    return answers


def operator(link: SuperLink) -> httpx.Client:
    """Whoever may open the operator's socket."""
    return httpx.Client(base_url="http://superlink", transport=httpx.HTTPTransport(uds=str(link.control)))


# ---- questions and answers


@pytest.mark.nightly
def test_four_authenticated_nodes_answer_over_tls(link: SuperLink, pem: Certificates) -> None:
    answers: list[list[bytes]] = []

    def run(tenants: Tenants) -> None:
        answers.extend(sorted(tenants.ask(verb, b"\0" * 300_000)) for verb in Query)

    with ExitStack() as stack:
        ids = {joined(stack, link, pem, make_node_key())[0] for _ in range(4)}
        link.run(server_app(run, wanted=4))
        online = {node.node_id for node in link.nodes() if node.online}
    assert len(ids) == 4
    assert online == ids
    assert answers == [[echo(verb, b"\0" * 300_000)] * 4 for verb in Query]
    assert not any(node.online for node in link.nodes())  # they said goodbye


def test_the_bundle_that_is_built_is_the_agreed_one() -> None:
    assert round_bundle().hash_str == ROUND_BUNDLE_SHA256
    assert bundle("app = None").hash_str != ROUND_BUNDLE_SHA256


@pytest.mark.nightly
def test_a_run_with_another_bundle_gets_no_answer(link: SuperLink, pem: Certificates) -> None:
    silences: list[Silence] = []

    def run(tenants: Tenants) -> None:
        assert isinstance(tenants, GridTenants)
        assert list(tenants.ask(Query.CONTRIBUTION, b"plan")) == []
        silences.extend(tenants.silences)

    with ExitStack() as stack:
        joined(stack, link, pem, make_node_key())
        run_server_app(link.control, server_app(run, wanted=1), fab=bundle("import os"))
        assert len(asked(link, 1)) == 1  # and goes on with the agreed one
    assert [(silence.why, silence.detail) for silence in silences] == [(Why.FAILED, "INVALID_FAB")]


@pytest.mark.nightly
def test_what_a_run_raises_is_raised_and_the_next_run_works(link: SuperLink, pem: Certificates) -> None:
    def run(_tenants: Tenants) -> None:
        raise PharoahError("no")

    with ExitStack() as stack:
        joined(stack, link, pem, make_node_key())
        with pytest.raises(PharoahError):
            link.run(server_app(run, wanted=1))
        assert len(asked(link, 1)) == 1


@pytest.mark.nightly
def test_a_run_that_nobody_took_does_not_stand_in_the_way(link: SuperLink, pem: Certificates) -> None:
    with client_at(link.control) as control:
        call(control, CONTROL + "start-run", StartRunRequest(fab=round_bundle()), StartRunResponse)
    with ExitStack() as stack:
        joined(stack, link, pem, make_node_key())
        assert len(asked(link, 1)) == 1


def test_a_run_that_is_stopped_ends_with_an_error_and_without_a_signal(link: SuperLink) -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with client_at(link.control) as control:
            stop = StopRunRequest(run_id=context.run_id)
            assert call(control, CONTROL + "stop-run", stop, StopRunResponse).success
        list(grid.get_node_ids())
        raise AssertionError("the run goes on")

    with pytest.raises(RunFailed):  # a signal would be a KeyboardInterrupt
        link.run(app)


# ---- who gets in


def test_a_stranger_is_refused_until_it_is_registered(link: SuperLink, pem: Certificates) -> None:
    key = make_node_key()
    with serving(echo, settings(link, pem, key)) as served:
        assert served.wait_for(Link.REFUSED) is None
        assert Link.CONNECTED not in [state for state, _ in served.heard]
        node_id = link.register(key.public_openssh)
        assert served.wait_for(Link.CONNECTED) == node_id
        link.unregister(key.public_openssh)
        served.wait_for(Link.REFUSED, count=2)
    assert node_id not in {node.node_id for node in link.nodes()}
    with pytest.raises(UnusableNodeKey):
        link.register(key.public_openssh)


def test_registering_twice_changes_nothing(link: SuperLink) -> None:
    key = make_node_key()
    assert link.register(key.public_openssh) == link.register(key.public_openssh + " comment@host")
    link.unregister(key.public_openssh)
    link.unregister(key.public_openssh)


def test_only_a_p384_key_is_registered(link: SuperLink) -> None:
    p256 = ec.generate_private_key(ec.SECP256R1()).public_key()
    for text in ("", "ssh-rsa AAAA", p256.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()):
        with pytest.raises(UnusableNodeKey):
            link.register(text)


@pytest.fixture
def key(link: SuperLink) -> Iterator[NodeKey]:
    """The key of a node that is registered while the test runs."""
    made = make_node_key()
    link.register(made.public_openssh)
    yield made
    link.unregister(made.public_openssh)


def test_a_public_key_is_worth_nothing_without_its_private_key(
    link: SuperLink, pem: Certificates, key: NodeKey
) -> None:
    thief = make_node_key()
    path = FLEET + "activate-node"
    assert post(link.address, pem, path, activation(key), headers(thief, claimed=key)) == 401
    assert post(link.address, pem, path, activation(key), headers(thief)) == 401
    assert post(link.address, pem, path, activation(key), PROTOBUF) == 401
    assert post(link.address, pem, path, activation(key), headers(key) | {"host": "x/y"}) in {200, 400}
    assert post(link.address, pem, path, activation(key), PROTOBUF | {"host": "x/y"}) in {400, 401}


@pytest.mark.parametrize(("ahead_s", "status"), [(3.0, 200), (60.0, 401), (-240.0, 200), (-310.0, 401)])
def test_how_far_a_nodes_clock_may_be_off(
    link: SuperLink, pem: Certificates, key: NodeKey, ahead_s: float, status: int
) -> None:
    assert post(link.address, pem, FLEET + "activate-node", activation(key), headers(key, ahead_s=ahead_s)) == status


def test_a_node_says_by_how_much_its_clock_is_off(
    link: SuperLink, pem: Certificates, key: NodeKey, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = patch.object(SignedTime, "now", staticmethod(lambda: datetime.now(UTC) + timedelta(seconds=40)))
    with ahead, serving(echo, settings(link, pem, key)) as served:
        served.wait_for(Link.REFUSED)
    assert "401" in caplog.text
    assert "this one is" in caplog.text
    date = format_datetime(datetime.now(UTC) - timedelta(seconds=40))
    assert 39 <= _ahead_s(httpx.Response(401, headers={"date": date})) < 40 + PATIENCE_S
    assert math.isnan(_ahead_s(httpx.Response(401, headers={"date": "yesterday"})))


def test_a_client_without_tls_and_one_with_another_authority_get_nowhere(
    link: SuperLink, pem: Certificates, key: NodeKey, tmp_path: Path
) -> None:
    other = certificates(tmp_path)
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client, pytest.raises(httpx.TransportError):
        client.post(f"http://{link.address}{FLEET}activate-node", content=activation(key), headers=headers(key))
    with serving(echo, settings(link, other, key)) as served:
        served.wait_for(Link.AWAY)
        time.sleep(0.5)
    assert [state for state, _ in served.heard] == [Link.AWAY]
    context = ssl.create_default_context(cafile=pem.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with httpx.Client(verify=context, trust_env=False, timeout=PATIENCE_S) as client, pytest.raises(httpx.ConnectError):
        client.post(f"https://{link.address}{FLEET}activate-node", content=b"")


# ---- what gets through


def raw(link: SuperLink, pem: Certificates, request: bytes) -> bytes:
    """The first bytes of the answer to a request that no client would write."""
    context = ssl.create_default_context(cafile=pem.authority)
    host, port = link.address.split(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=HOST) as tls:
        tls.sendall(request)
        return tls.recv(12)


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/control/start-run", "/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/responses", "/health"),
        *("/docs", "/openapi.json", "/", "/pharoah/", "/pharoah/x", "/v1/fleet", "/v1/fleet/"),
        *("/v1/fleet/register-node", "/v1/fleet/unregister-node"),
        *("//v1/control/start-run", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"),
        *("/v1/fleet/..%2fcontrol/start-run", "/v1%2fcontrol/start-run", "/v1/fleet//../control/start-run"),
        *("/v1/fleet/%61ctivate-node", "/v1/fleet/activate-node/", "//v1/fleet/activate-node", "/V1/fleet/get-run"),
        *("/v1/fleet/activate-node%00", "/v1/fleet/activate-node;x", "http://127.0.0.1/v1/control/start-run"),
    ],
)
def test_the_tenants_port_has_nothing_but_the_fleet_api(link: SuperLink, pem: Certificates, target: str) -> None:
    head = f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\n\r\n"
    assert raw(link, pem, head.encode()) == b"HTTP/1.1 404"


def test_a_path_of_the_fleet_api_is_passed_to_post_alone(link: SuperLink, pem: Certificates) -> None:
    for path in sorted(PASSED):
        assert post(link.address, pem, path, b"", PROTOBUF) == 401, path
        head = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
        assert raw(link, pem, head.encode()) == b"HTTP/1.1 404", path


@pytest.mark.parametrize("head", ["Content-Length: {}\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n"])
def test_a_body_that_is_too_long_is_not_read_to_its_end(
    link: SuperLink, pem: Certificates, key: NodeKey, head: str
) -> None:
    begin = f"POST {FLEET}get-run HTTP/1.1\r\nHost: {HOST}\r\n"
    signed = begin + "".join(f"{name}: {value}\r\n" for name, value in headers(key).items())
    end = head.format(1 << 40).encode()
    assert raw(link, pem, signed.encode() + end + bytes(SMALL_BODY + 1)) == b"HTTP/1.1 413"
    assert raw(link, pem, begin.encode() + end + bytes(STRANGERS_BODY + 1)) == b"HTTP/1.1 401"


def test_an_object_may_be_longer_but_not_a_strangers(link: SuperLink, pem: Certificates, key: NodeKey) -> None:
    longer = PushObjectRequest(object_content=bytes(SMALL_BODY)).SerializeToString()
    assert post(link.address, pem, PUSH_OBJECT, longer, headers(key)) == 401  # Flower's: no node of this key asks
    assert post(link.address, pem, FLEET + "get-run", longer, headers(key)) == 413
    thief, garbled = make_node_key(), PROTOBUF | {"flwr-public-key": "!"}
    for claims in (PROTOBUF, headers(thief), headers(thief, claimed=key), garbled):
        assert post(link.address, pem, PUSH_OBJECT, longer, claims) == 401


def test_a_node_cannot_speak_for_another_nor_ask_another(link: SuperLink, pem: Certificates) -> None:
    key = make_node_key()
    run_id, own, other = 0, link.register(key.public_openssh), link.register(make_node_key().public_openssh)

    def push(src: int, reply_to: str, copies: int = 1) -> tuple[int, int]:
        """What the tenants' listener says to a push, and what all of Flower would."""
        request = PushMessagesRequest(node=Node(node_id=own))
        for _ in range(copies):
            message = request.messages_list.add(content={})
            message.metadata.MergeFrom(Metadata(src_node_id=src, dst_node_id=other, reply_to_message_id=reply_to))
            message.metadata.MergeFrom(Metadata(run_id=run_id, message_id="m", ttl=60.0))
            message.metadata.MergeFrom(Metadata(message_type="query.contribution", created_at=time.time()))
            request.message_object_trees.add(object_id="m")
        content = request.SerializeToString()
        with operator(link) as client:
            flower = client.post(FLEET + "push-messages", content=content, headers=headers(key))
        return post(link.address, pem, FLEET + "push-messages", content, headers(key)), flower.status_code

    app = ServerApp()

    @app.main()
    def main(_grid: Grid, context: Context) -> None:
        nonlocal run_id
        run_id = context.run_id
        assert push(other, "id") == (403, 200)
        assert push(own, "") == (403, 200)
        assert push(1, "") == (403, 200)  # as the SuperLink itself
        assert push(own, "id", copies=2) == (403, 200)
        assert push(own, "id") == (200, 200)

    link.run(app)


def test_the_operator_has_all_of_flower_and_our_routes_at_the_unix_socket(link: SuperLink) -> None:
    with operator(link) as client:
        assert client.get("/pharoah/week").text == "/pharoah/week"
        assert client.get("/health").status_code == 200
        assert client.get("/docs").status_code == 200
        register = RegisterNodeFleetRequest(public_key=b"x").SerializeToString()
        assert client.post(FLEET + "register-node", content=register, headers=PROTOBUF).status_code == 401
        stranger = make_node_key()
        register = RegisterNodeFleetRequest(public_key=public_pem(stranger)).SerializeToString()
        assert client.post(FLEET + "register-node", content=register, headers=headers(stranger)).status_code == 412


def test_the_unix_socket_is_its_owners_and_goes_with_the_superlink(pem: Certificates, tmp_path: Path) -> None:
    files = pem.settings(tmp_path / "link.sqlite")
    before = os.umask(0)
    try:
        with SuperLink(files) as running:
            assert stat.S_IMODE(files.control.stat().st_mode) == 0o600
            with pytest.raises(CannotListen, match="another process listens"):
                SuperLink(files)
            assert running.nodes() == ()  # the second one took nothing away from the first
    finally:
        os.umask(before)
    assert not files.control.exists()


def test_what_a_killed_provider_left_behind_is_replaced_and_nothing_else_is(pem: Certificates, tmp_path: Path) -> None:
    files = pem.settings(tmp_path / "link.sqlite")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(files.control))
    with SuperLink(files) as running:
        assert running.nodes() == ()
    files.control.write_text("something of the operator's")
    with pytest.raises(OSError, match="in use"):
        SuperLink(files)
    assert files.control.read_text() == "something of the operator's"


# ---- who comes back


@pytest.fixture
def port() -> Iterator[int]:
    """One that a provider may take again when it has restarted."""
    with free_ports(HOST, 1) as (held,):
        yield held


@pytest.mark.nightly
def test_nodes_come_back_by_themselves_when_the_provider_restarts(pem: Certificates, tmp_path: Path, port: int) -> None:
    with ExitStack() as stack:
        files = pem.settings(tmp_path / "link.sqlite", port=port)
        with SuperLink(files) as first:
            nodes = [joined(stack, first, pem, make_node_key()) for _ in range(2)]
            assert len(asked(first, 2)) == 2
        for _, served in nodes:
            served.wait_for(Link.AWAY)
        with SuperLink(files) as second:
            assert [served.wait_for(Link.CONNECTED, count=2) for _, served in nodes] == [
                node_id for node_id, _ in nodes
            ]
            assert asked(second, 2) == [b"contribution:plan"] * 2


PROVIDER = """
import sys, time
from pathlib import Path
from federation.protocol.queries import Query
from provider_server.rounds.network.flower_app import server_app
from provider_server.rounds.network.superlink import SuperLink, SuperLinkSettings

state, socket_, certificate, key = map(Path, sys.argv[1:5])
link = SuperLink(SuperLinkSettings(state, socket_, certificate, key, "127.0.0.1", int(sys.argv[5])))
print(link.address, flush=True)

def run(tenants):
    print(len(list(tenants.ask(Query.REGISTRATIONS, b""))), flush=True)
    list(tenants.ask(Query.CONTRIBUTION, b"wait"))

for public in sys.stdin.readline().split(","):
    link.register(public)
link.run(server_app(run, wanted=2))
"""


@pytest.mark.nightly
@pytest.mark.nightly  # Flower waits five seconds for a lock
def test_a_database_that_stays_locked_fails_a_run_and_ends_no_program(pem: Certificates, tmp_path: Path) -> None:
    state = tmp_path / "link.sqlite"
    app = server_app(lambda tenants: None, wanted=0)
    with SuperLink(pem.settings(state)) as link, closing(sqlite3.connect(state, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunFailed, match="500"):
            link.run(app)
        other.execute("ROLLBACK")
        link.run(app)


@pytest.mark.nightly
def test_nodes_come_back_after_the_provider_was_killed_in_the_middle_of_a_run(
    pem: Certificates, tmp_path: Path, port: int
) -> None:
    state, keys = tmp_path / "link.sqlite", [make_node_key(), make_node_key()]
    begun, go_on = threading.Semaphore(0), threading.Event()

    def answer(verb: Query, payload: bytes) -> bytes:
        if payload == b"wait":
            begun.release()
            go_on.wait(PATIENCE_S)
        return echo(verb, payload)

    files = state, state.with_name("control.sock"), pem.certificate, pem.key
    command = [sys.executable, "-c", PROVIDER, *map(str, files), str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, **pipes) as provider, ExitStack() as stack:  # type: ignore[call-overload]
        address = provider.stdout.readline().strip()
        provider.stdin.write(",".join(key.public_openssh for key in keys) + "\n")
        provider.stdin.flush()
        served = [
            stack.enter_context(serving(answer, NodeSettings(address, pem.authority, key.private_pem))) for key in keys
        ]
        ids = [one.wait_for(Link.CONNECTED) for one in served]
        assert provider.stdout.readline() == "2\n"
        assert begun.acquire(timeout=PATIENCE_S)
        provider.send_signal(signal.SIGKILL)
        provider.wait()
        go_on.set()
        for one in served:
            one.wait_for(Link.AWAY)
        with SuperLink(pem.settings(state, port=port)) as second:
            assert [one.wait_for(Link.CONNECTED, count=2) for one in served] == ids
            assert asked(second, 2) == [b"contribution:plan"] * 2
            with client_at(second.control) as control:
                runs = call(control, CONTROL + "list-runs", ListRunsRequest(), ListRunsResponse).run_dict.values()
            assert sorted(run.status.sub_status for run in runs) == ["completed", "stopped"]


NODE = """
import sys, threading, time
from pathlib import Path

from tenant_client.rounds.network.flower_node import NodeSettings, serve

def answer(verb, payload):
    print("asked", flush=True)
    time.sleep(float(takes_s))
    return b"answer"

address, authority, key, takes_s = sys.argv[1:]
settings = NodeSettings(address, Path(authority), Path(key).read_bytes(), busy_poll_s=0.1, idle_poll_s=0.2)
serve(answer, settings, stop=threading.Event())
"""


@pytest.fixture
def node_in_a_process(link: SuperLink, pem: Certificates, tmp_path: Path) -> Callable[[float], subprocess.Popen[str]]:
    """Starts the same registered node, which takes so many seconds to answer."""
    key, file = make_node_key(), tmp_path / "node.key"
    file.write_bytes(key.private_pem)
    link.register(key.public_openssh)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}

    def start(takes_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", NODE, link.address, str(pem.authority), str(file), str(takes_s)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start


def killed_when_asked(node: subprocess.Popen[str], link: SuperLink) -> float:
    """Kills a node that was asked; the seconds until it is missed."""
    assert node.stdout is not None
    assert node.stdout.readline() == "asked\n"
    node.kill()
    killed_s = time.monotonic()
    until(lambda: not any(one.online for one in link.nodes()), "the node is missed")
    return time.monotonic() - killed_s


@pytest.mark.nightly
def test_a_node_that_is_killed_while_it_answers_is_missed_within_seconds(
    link: SuperLink, node_in_a_process: Callable[[float], subprocess.Popen[str]]
) -> None:
    """The deadline is ten minutes, and its next heartbeats would be due after ten and twenty seconds."""
    silences: list[Silence] = []

    def run(tenants: Tenants) -> None:
        assert list(tenants.ask(Query.CONTRIBUTION, b"plan")) == []
        assert isinstance(tenants, GridTenants)
        silences.extend(tenants.silences)

    with node_in_a_process(600.0) as node, ThreadPoolExecutor(1) as worker:
        running = worker.submit(link.run, server_app(run, wanted=1))
        assert killed_when_asked(node, link) < 5
        missed_s = time.monotonic()
        running.result(PATIENCE_S)
        waited_s = time.monotonic() - missed_s
    assert [(silence.why, silence.detail) for silence in silences] == [(Why.FAILED, "NODE_UNAVAILABLE")]
    assert RETURN_S / 2 < waited_s < 3 * RETURN_S


@pytest.mark.nightly
def test_a_node_that_is_killed_while_it_answers_and_started_again_answers_in_the_same_round(
    link: SuperLink, node_in_a_process: Callable[[float], subprocess.Popen[str]]
) -> None:
    answers: list[bytes] = []
    app = server_app(lambda tenants: answers.extend(tenants.ask(Query.CONTRIBUTION, b"plan")), wanted=1)
    with node_in_a_process(600.0) as node, ThreadPoolExecutor(1) as worker:
        running = worker.submit(link.run, app)
        killed_when_asked(node, link)
        with node_in_a_process(0.0) as again:
            running.result(PATIENCE_S)
            again.kill()
    assert answers == [b"answer"]


def test_an_answer_that_is_announced_and_never_uploaded_holds_up_nobody(
    link: SuperLink, pem: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(self: FleetNode, run_id: int, object_id: str, content: bytes, session_id: str) -> None:
        if b"never" not in content:
            as_it_is(self, run_id, object_id, content, session_id)

    def run(tenants: Tenants) -> None:
        answers = iter(tenants.ask(Query.CONTRIBUTION, b"plan"))
        came.append(next(answers))
        came.extend(answers)
        assert isinstance(tenants, GridTenants)
        silences.extend(tenants.silences)

    came: list[bytes] = []
    silences: list[Silence] = []
    as_it_is = FleetNode._upload
    monkeypatch.setattr(FleetNode, "_upload", upload)
    with ExitStack() as stack:
        for answer in (echo, lambda _verb, _payload: b"never"):
            key = make_node_key()
            link.register(key.public_openssh)
            stack.enter_context(serving(answer, settings(link, pem, key))).wait_for(Link.CONNECTED)
        link.run(server_app(run, wanted=2, deadline_s=5.0))
    assert came == [b"contribution:plan"]
    assert [silence.why for silence in silences] == [Why.LATE]


def test_a_second_program_with_the_key_of_a_node_that_is_connected_is_refused(
    link: SuperLink, pem: Certificates
) -> None:
    key = make_node_key()
    with ExitStack() as stack:
        node_id, _ = joined(stack, link, pem, key)
        second = stack.enter_context(serving(echo, settings(link, pem, key)))
        second.wait_for(Link.REFUSED)
        assert [node.node_id for node in link.nodes() if node.online] == [node_id]
        assert (Link.CONNECTED, node_id) not in second.heard


# ---- pacing


def test_a_reply_leaves_a_whole_number_of_ticks_after_its_question() -> None:
    for elapsed_s in (0.0, 0.1, 9.99, 10.0, 10.01, 29.9, 1e6 + 0.3):
        after_s = elapsed_s + until_tick(elapsed_s, 10.0)
        assert after_s == pytest.approx(10.0 * round(after_s / 10.0))
        assert 0 < after_s - elapsed_s <= 10.0


@pytest.mark.nightly
@pytest.mark.parametrize(("counting_s", "tick_s", "left_s"), [(0.3, 10, 10), (7.0, 10, 10), (13, 10, 20), (7, 0, 7)])
def test_the_time_of_a_reply_does_not_tell_how_long_counting_took(
    link: SuperLink, pem: Certificates, key: NodeKey, counting_s: float, tick_s: float, left_s: float
) -> None:
    """Counting takes time on a clock that moves only for it and for waiting until the tick."""
    now = 1000.0
    slept: list[float] = []

    def answer(_verb: Query, _payload: bytes) -> bytes:
        nonlocal now
        now += counting_s
        return b"counted"

    def sleep(seconds: float) -> None:
        nonlocal now
        if seconds > 0.5:  # polling goes on by the real clock
            slept.append(seconds)
            now += seconds
        else:
            time.sleep(seconds)

    with serving(answer, settings(link, pem, key, tick_s=tick_s), clock=lambda: now, sleep=sleep) as served:
        served.wait_for(Link.CONNECTED)
        assert asked(link, 1) == [b"counted"]
    assert now == pytest.approx(1000.0 + left_s)
    assert sum(slept) == pytest.approx(left_s - counting_s)


# ---- nothing is sent elsewhere

ALONE = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo") and arguments[event == "socket.connect"] is not None:
        target = arguments[1] if event == "socket.connect" else arguments
        if isinstance(target, tuple) and "127.0.0.1" not in str(target[0]):  # a path is a Unix socket of its own
            print("to", target, flush=True)
    if event == "subprocess.Popen":
        print("starts", arguments[1], flush=True)
sys.addaudithook(watch)
from pathlib import Path
from provider_server.rounds.network.flower_app import server_app
from provider_server.rounds.network.superlink import SuperLink, SuperLinkSettings
with SuperLink(SuperLinkSettings(*map(Path, sys.argv[1:5]), "127.0.0.1")) as link:
    link.run(server_app(lambda tenants: print("ran"), wanted=0))
"""


@pytest.mark.nightly
def test_a_provider_calls_nobody_and_starts_nothing_whatever_the_environment_says(
    pem: Certificates, tmp_path: Path
) -> None:
    told = {
        "FLWR_TELEMETRY_ENABLED": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "0",
        "FLWR_DATABASE": str(tmp_path / "another"),
        "FLWR_INTERNAL_GRPC_FLEET_API": "1",
        "FLWR_INTERNAL_GRPC_CONTROL_API": "1",
        "HTTP_PROXY": "http://192.0.2.1:3128",
        "ALL_PROXY": "http://192.0.2.1:3128",
        "PYTHONPATH": str(REPOSITORY),
        "FLWR_HOME": str(tmp_path / "home"),
    }
    clean = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    files = tmp_path / "state", tmp_path / "control.sock", pem.certificate, pem.key
    command = [sys.executable, "-c", ALONE, *map(str, files)]
    done = subprocess.run(command, env=clean | told, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["ran", ""]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_a_path_that_is_too_long_for_a_socket_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / ("a home with a long name " * 5) / "control.sock"
    with pytest.raises(CannotListen, match="no Unix socket has a path of more than 107 bytes") as refusal:
        private_socket(path)
    assert str(path) in refusal.value.what
    assert refusal.value.hint == "choose a home with a shorter path"
