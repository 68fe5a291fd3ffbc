"""Silent, slow and greedy callers from the address of honest ones: each attack beside honest calls that are answered.

Every server here has the limits of a real trustee or provider; callers that attack speak HTTP/2 by hand.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache

import pytest
from grpc_health.v1 import health_pb2

from benchmarks.hostile_peer import HostilePeer, grpc_message
from transport.certificates import Certificate, make_certificate
from transport.client import Peer
from transport.server import Server, serve

HOST = "127.0.0.1"
PATH, QUICK = "/pharoah.Test/Ask", "/pharoah.Test/AskQuickly"
MIB = 2**20
MANY = 300
HONEST = 100
SOON_S = 10.0

Attack = Callable[[HostilePeer], object]


@cache
def own() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


@pytest.fixture
def server() -> Iterator[Server]:
    """Two methods that say how much they were sent, under the limits of a real trustee."""

    def length(request: bytes) -> bytes:
        return str(len(request)).encode()

    pem = own().certificate_pem, own().key_pem
    with serve("pharoah.Test", {PATH: length}, f"{HOST}:0", *pem, quick={QUICK: length}) as served:
        yield served


def honest_calls(server: Server, calls: int = HONEST) -> list[bytes]:
    """What honest callers hear, each on a connection of its own."""

    def one(number: int) -> bytes:
        with Peer(f"{HOST}:{server.port}", own().certificate_pem, deadline_s=SOON_S) as peer:
            return peer.call((PATH, QUICK)[number % 2], bytes(number))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(calls)))


def health_watch() -> bytes:
    return grpc_message(health_pb2.HealthCheckRequest(service="").SerializeToString())


def silent(peer: HostilePeer) -> object:
    return peer.begin(PATH)


def half_a_message(peer: HostilePeer) -> object:
    return peer.begin(PATH, grpc_message(bytes(10), announced=60_000))


def half_a_question(peer: HostilePeer) -> object:
    return peer.begin(PATH, grpc_message((100).to_bytes(8) + bytes(10)))


def watching_the_health(peer: HostilePeer) -> object:
    return peer.begin("/grpc.health.v1.Health/Watch", health_watch())


def never_reading_the_answer(peer: HostilePeer) -> object:
    return peer.begin(QUICK, grpc_message(bytes(8)))


ATTACKS: tuple[Attack, ...] = (
    silent,
    half_a_message,
    half_a_question,
    watching_the_health,
    never_reading_the_answer,
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_streams_on_a_few_connections_shut_nobody_out(server: Server, attack: Attack) -> None:
    with ExitStack() as peers:
        for _ in range(8):
            hostile = peers.enter_context(HostilePeer(server.port)).greet(window=0)
            for _ in range(MANY // 8):
                attack(hostile)
        assert honest_calls(server) == [str(number).encode() for number in range(HONEST)]


@pytest.mark.parametrize("attack", ATTACKS)
def test_streams_on_connections_of_their_own_shut_nobody_out(server: Server, attack: Attack) -> None:
    with ExitStack() as peers:
        for _ in range(MANY):
            attack(peers.enter_context(HostilePeer(server.port)).greet(window=0))
        assert honest_calls(server) == [str(number).encode() for number in range(HONEST)]
