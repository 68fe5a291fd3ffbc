"""Connections to the tenants' port: who is silent or slow is cut off, and shuts out nobody who says what it wants.

A real SuperLink over TLS, real connections; what they do stands in `tests.support.slow_callers`. There are as many
of them as fill the places.
"""

import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node

from federation.transport.flower_wire import FLEET
from provider_server.rounds.network.connections import ConnectionLimits, Share, Stage
from provider_server.rounds.network.listeners import PUSH_OBJECT
from provider_server.rounds.network.superlink import SuperLink
from tenant_client.rounds.network.flower_node import NodeKey, make_node_key
from tests.support.changing import replace
from tests.support.slow_callers import WAYS, holding
from tests.support.superlink import HOST, Certificates, activation, certificates, headers, post

pytestmark = pytest.mark.xdist_group("superlink")

LIMITS = ConnectionLimits(strangers=60, of_one_address=30, known=40, of_one_key=4, lasts_s=0.2, begin_s=3.0)
MANY = 90
CALLS = 20
ELSEWHERE = "127.0.0.2"
PULL = FLEET + "pull-messages"
SLACK_S = 30.0  # what a busy machine may add to a deadline


@dataclass
class Port:
    """The tenants' port of a SuperLink, and a node that may call there."""

    link: SuperLink
    pem: Certificates
    key: NodeKey
    body: bytes

    def call(self) -> int:
        """One call of the node, over a connection of its own."""
        return post(self.link.address, self.pem, PULL, self.body, headers(self.key))

    def calls(self, many: int = CALLS) -> list[int]:
        """Calls side by side."""
        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(lambda _: self.call(), range(many)))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    home = tmp_path_factory.mktemp("port")
    pem, key = certificates(home / "tls"), make_node_key()
    with SuperLink(replace(pem.settings(home / "link.sqlite"), limits=LIMITS)) as link:
        node_id = link.register(key.public_openssh)
        assert post(link.address, pem, FLEET + "activate-node", activation(key), headers(key)) == 200
        yield Port(link, pem, key, PullMessagesRequest(node=Node(node_id=node_id)).SerializeToString())


# ---- attacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("source", [pytest.param(ELSEWHERE, marks=pytest.mark.nightly), HOST])
@pytest.mark.parametrize("way", WAYS)
def test_silent_and_slow_connections_shut_out_nobody_and_are_cut_off(port: Port, way: str, source: str) -> None:
    """Also where the honest node calls from the same address, as behind one NAT."""
    with holding(port.link.address, way, MANY, source) as attack:
        assert attack.wait_until(lambda: attack.cut >= MANY - LIMITS.of_one_address, SLACK_S)  # all have arrived
        time.sleep(2 * LIMITS.lasts_s)
        assert port.calls() == [200] * CALLS
        assert attack.wait_until(lambda: attack.cut == MANY, LIMITS.begin_s + SLACK_S)


def test_who_comes_again_as_soon_as_it_is_cut_off_shuts_out_nobody_elsewhere(port: Port) -> None:
    with holding(port.link.address, "half a header", MANY, ELSEWHERE, again=True) as attack:
        assert port.calls() == [200] * CALLS
    assert attack.cut > MANY


def test_a_name_of_a_registered_key_without_its_signature_gives_no_place(port: Port) -> None:
    """Whoever knows a node's public key takes none of the places of nodes with it."""
    thief = make_node_key()
    for claims in (headers(thief, claimed=port.key), headers(thief), headers(port.key, ahead_s=-400.0), {}):
        assert post(port.link.address, port.pem, PULL, port.body, claims) == 401
    assert port.call() == 200


def test_a_stranger_is_refused_before_its_body_is_read(port: Port) -> None:
    with tls_client(port) as client:
        begun = threading.Event()

        def endless() -> Iterator[bytes]:
            while not begun.wait(0.01):
                yield bytes(1024)

        try:
            assert client.post(PULL, content=endless(), headers=headers(make_node_key())).status_code == 401
        finally:
            begun.set()


def tls_client(port: Port) -> httpx.Client:
    context = ssl.create_default_context(cafile=port.pem.authority)
    return httpx.Client(base_url=f"https://{port.link.address}", verify=context, trust_env=False, timeout=SLACK_S)


def test_a_node_that_sends_too_slowly_is_cut_off_and_one_that_is_merely_slow_is_not(port: Port) -> None:
    """At least so many bytes a second, after the time in which every body may come."""
    content = PushObjectRequest(object_content=bytes(10 * LIMITS.least_bytes_per_s)).SerializeToString()

    def at(bytes_per_s: float) -> Iterator[bytes]:
        piece = int(bytes_per_s / 10)
        for start in range(0, len(content), piece):
            yield content[start : start + piece]
            time.sleep(0.1)

    with tls_client(port) as client:
        merely_slow = client.post(PUSH_OBJECT, content=at(2 * LIMITS.least_bytes_per_s), headers=headers(port.key))
        assert merely_slow.status_code in (400, 401, 403)  # Flower's answer to an object that nobody asked for
        began_s = time.monotonic()
        with pytest.raises(httpx.TransportError):
            client.post(PUSH_OBJECT, content=at(LIMITS.least_bytes_per_s / 20), headers=headers(port.key))
        assert LIMITS.begin_s <= time.monotonic() - began_s < LIMITS.begin_s + SLACK_S


def test_connections_of_one_node_push_out_one_another(port: Port) -> None:
    """A registered node that hoards connections has its few places and takes none of others."""
    context = ssl.create_default_context(cafile=port.pem.authority)
    clients = [httpx.Client(verify=context, trust_env=False) for _ in range(3 * LIMITS.of_one_key)]
    try:
        url = f"https://{port.link.address}{PULL}"
        answers = [client.post(url, content=port.body, headers=headers(port.key)).status_code for client in clients]
        assert answers == [200] * len(clients)
        again = [reused(client, url, port) for client in reversed(clients)]
        assert 0 < sum(again) <= LIMITS.of_one_key
    finally:
        for client in clients:
            client.close()


def reused(client: httpx.Client, url: str, port: Port) -> bool:
    """Whether a client's connection is still the one that it had."""
    seen: list[str] = []

    def trace(name: str, _info: object) -> None:
        seen.append(name)

    client.post(url, content=port.body, headers=headers(port.key), extensions={"trace": trace})
    return not any(name.startswith("connection.connect_tcp") for name in seen)


# ---- an honest connection --------------------------------------------------------------------------------------------


def test_a_connection_that_is_used_now_and_then_lasts_longer_than_its_deadlines(port: Port) -> None:
    with tls_client(port) as client:
        url = f"https://{port.link.address}{PULL}"
        assert client.post(url, content=port.body, headers=headers(port.key)).status_code == 200
        for pause_s in (0.5, 0.0, 4.5):  # httpx lets go of a connection after 5 s
            time.sleep(pause_s)
            assert reused(client, url, port)


def test_half_a_second_request_is_cut_off_like_the_first(port: Port) -> None:
    with tls_client(port) as client:
        client.post(PULL, content=port.body, headers=headers(port.key))
        (line,) = client._transport._pool._connections  # type: ignore[attr-defined]
        stream = line._connection._network_stream
        stream.write(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        assert stream.read(1, timeout=LIMITS.begin_s + SLACK_S) == b""


def test_a_server_ends_though_connections_are_in_the_middle_of_something(tmp_path: Path) -> None:
    pem = certificates(tmp_path / "tls")
    link = SuperLink(replace(pem.settings(tmp_path / "link.sqlite"), limits=LIMITS))
    with (
        holding(link.address, "half a handshake", 5, ELSEWHERE),
        holding(link.address, "half a header", 5, ELSEWHERE),
        holding(link.address, "half a body", 5, ELSEWHERE),
    ):
        began_s = time.monotonic()
        link.close()
        assert time.monotonic() - began_s < SLACK_S


# ---- places, by themselves -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Fake:
    """A connection of which only the stage matters."""

    share: Share
    owner: str
    stage: Stage = Stage.HANDSHAKE
    since_s: float = 0.0
    was_cut: bool = False

    def cut(self) -> None:
        self.was_cut = True
        self.share.give_back(self.owner, self)  # type: ignore[arg-type]


@dataclass
class Row:
    """Connections to one share, in the order in which they came."""

    share: Share
    came: list[Fake] = field(default_factory=list)

    def take(self, owner: str, stage: Stage = Stage.HANDSHAKE, since_s: float = 0.0) -> Fake:
        one = Fake(self.share, owner, stage, since_s)
        self.came.append(one)
        self.share.take(owner, one)  # type: ignore[arg-type]
        return one

    @property
    def cut(self) -> list[int]:
        return [at for at, one in enumerate(self.came) if one.was_cut]


def test_of_one_owner_the_oldest_goes_that_is_not_being_answered() -> None:
    row = Row(Share(most=10, of_one=3))
    for stage in (Stage.ANSWER, Stage.HEADER, Stage.HANDSHAKE, Stage.BODY):
        row.take("a", stage)
    assert row.cut == [1]
    row.take("a")
    assert row.cut == [1, 2]
    assert len(row.share) == 3


def test_a_newcomer_is_let_in_where_all_others_are_being_answered() -> None:
    row = Row(Share(most=10, of_one=2))
    for _ in range(2):
        row.take("a", Stage.ANSWER)
    assert not row.take("a").was_cut
    assert row.cut == [0]


def test_where_all_places_are_taken_whoever_has_most_gives_up_one() -> None:
    row = Row(Share(most=4, of_one=3))
    for owner in "baaac":
        row.take(owner)
    assert row.cut == [1]
    row.take("d")
    assert row.cut == [1, 2]
    row.take("e")
    assert row.cut == [0, 1, 2]


def test_a_place_lasts_a_while_however_many_come() -> None:
    row = Row(Share(most=10, of_one=2, lasts_s=1.0))
    for since_s in (0.0, 0.5, 0.9, 1.0, 1.2, 1.5):
        row.take("a", since_s=since_s)
    assert row.cut == [0, 1, 2, 4]  # of those that came too soon the third and the fifth, of the others the oldest
    assert not row.take("b", since_s=1.2).was_cut


def test_a_place_is_given_back_once() -> None:
    row = Row(Share(most=4, of_one=2))
    one: Any = row.take("a")
    for _ in range(2):
        row.share.give_back("a", one)
    assert len(row.share) == 0
    row.share.give_back("stranger", one)
    assert len(row.share) == 0
