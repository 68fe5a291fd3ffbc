"""Silent, slow and greedy callers from the address of honest ones: each attack beside honest calls that are answered.

Callers that attack speak HTTP/2 by hand. Unless a test says otherwise, servers have the limits of a real trustee.
"""

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest
from grpc_health.v1 import health_pb2

from crypto.errors import DecodeError, Unreachable
from crypto.signing import SigningKey
from federation.protocol.services import CEILINGS
from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.introductions import METADATA_KEY, Introducing, server_digest
from federation.transport.question import LENGTH_BYTES, MESSAGE_BYTES, PART_BYTES, in_parts
from federation.transport.server import DEFAULT_LIMITS, Server, ServerLimits, serve
from tests.support.hostile_peer import (
    HEADERS,
    HTTP2_WINDOW,
    PREFACE,
    SETTINGS,
    HostilePeer,
    frame,
    grpc_message,
    header_block,
)

HOST = "127.0.0.1"
PATH, QUICK, LONG = "/pharoah.Test/Ask", "/pharoah.Test/AskQuickly", "/pharoah.Test/AskAtLength"
CEILING = max(CEILINGS.values())
MANY, HONEST, PEERS = 300, 100, 10
SOON_S, LONG_S = 30.0, 60.0
HASTY = replace(DEFAULT_LIMITS, begin_s=1.0, receive_s=2.0, deadline_s=2.0, idle_s=1.0)
MEMBER = SigningKey(bytes([7] * 32))
REPOSITORY = Path(__file__).resolve().parents[2]

Attack = Callable[[HostilePeer], int]
_Send: TypeAlias = "grpc.StreamUnaryMultiCallable[bytes, bytes]"


@cache
def own() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


def length(request: bytes) -> bytes:
    return str(len(request)).encode()


@dataclass
class Blocking:
    """A method that ends when it may."""

    may_end: threading.Event = field(default_factory=threading.Event)
    running: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, request: bytes) -> bytes:
        self.running.release()
        assert self.may_end.wait(LONG_S)
        return length(request)


def serving(
    opened: ExitStack, limits: ServerLimits = DEFAULT_LIMITS, method: Callable[[bytes], bytes] = length
) -> Server:
    """Methods that say how much they were sent, for whom `MEMBER` is known."""
    return opened.enter_context(
        serve(
            "pharoah.Test",
            {PATH: method, LONG: length},
            f"{HOST}:0",
            own().certificate_pem,
            own().key_pem,
            limits,
            quick={QUICK: length},
            known=lambda key: key == MEMBER.public,
            ceilings={LONG: CEILING},
        )
    )


@pytest.fixture
def server(opened: ExitStack) -> Server:
    return serving(opened)


def peer_of(opened: ExitStack, server: Server, *, is_known: bool = False) -> Peer:
    introducing = Introducing(MEMBER, time.time) if is_known else None
    at = f"{HOST}:{server.port}"
    return opened.enter_context(Peer(at, own().certificate_pem, deadline_s=SOON_S, introducing=introducing))


def hostile_to(opened: ExitStack, server: Server, window: int | None = None) -> HostilePeer:
    return opened.enter_context(HostilePeer(server.port)).greet(window)


def honest_calls(opened: ExitStack, server: Server) -> list[bytes]:
    """What honest callers hear, who are strangers like the attackers."""
    peers = [peer_of(opened, server) for _ in range(PEERS)]

    def one(number: int) -> bytes:
        return peers[number % PEERS].call((PATH, QUICK, LONG)[number % 3], bytes(number))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(HONEST)))


ANSWERED = [length(bytes(number)) for number in range(HONEST)]


# ---- silent and slow -------------------------------------------------------------------------------------------------


def silent(peer: HostilePeer) -> int:
    return peer.begin(PATH)


def half_a_message(peer: HostilePeer) -> int:
    return peer.begin(PATH, grpc_message(bytes(10), announced=PART_BYTES))


def half_a_question(peer: HostilePeer) -> int:
    return peer.begin(LONG, grpc_message(in_parts(bytes(PART_BYTES + 1))[0])[:HTTP2_WINDOW])


def watching_the_health(peer: HostilePeer) -> int:
    return peer.begin("/grpc.health.v1.Health/Watch", grpc_message(health_pb2.HealthCheckRequest().SerializeToString()))


def never_reading_the_answer(peer: HostilePeer) -> int:
    return peer.begin(QUICK, grpc_message(in_parts(b"")[0]))


ATTACKS: tuple[Attack, ...] = (
    silent,
    half_a_message,
    half_a_question,
    watching_the_health,
    never_reading_the_answer,
)


@pytest.mark.nightly
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("connections", [8, MANY])
def test_silent_and_slow_streams_shut_nobody_out(
    opened: ExitStack, server: Server, attack: Attack, connections: int
) -> None:
    for _ in range(connections):
        hostile = hostile_to(opened, server, window=0)
        for _ in range(MANY // connections):
            attack(hostile)
    assert honest_calls(opened, server) == ANSWERED


@pytest.mark.parametrize("attack", ATTACKS)
def test_whoever_is_silent_or_slow_is_cut_off(opened: ExitStack, attack: Attack) -> None:
    hostile, began_s = hostile_to(opened, serving(opened, HASTY), window=0), time.monotonic()
    stream = attack(hostile)
    with suppress(EOFError, ConnectionError):  # if gRPC cannot end the call, its connection is cut
        assert b"after 1 s among the silent" in hostile.until_ended(stream)
    assert 0.9 < time.monotonic() - began_s < SOON_S


def test_the_connections_of_those_who_say_nothing_are_closed(opened: ExitStack) -> None:
    server = serving(opened, HASTY)
    for begun in (b"", b"\x16\x03\x01"):
        line = opened.enter_context(socket.create_connection((HOST, server.port), timeout=SOON_S))
        line.sendall(begun)
        with suppress(ConnectionError):
            assert line.recv(1) == b""
    half_a_call = frame(HEADERS, 0, 1, header_block(PATH)[:60])
    for said in (b"", PREFACE, PREFACE + frame(SETTINGS, 0, 0), PREFACE + frame(SETTINGS, 0, 0) + half_a_call):
        hostile = opened.enter_context(HostilePeer(server.port))
        hostile.line.sendall(said)
        assert hostile.is_cut_off(SOON_S)
    assert honest_calls(opened, server) == ANSWERED


def test_a_connection_has_so_many_calls_at_a_time(opened: ExitStack) -> None:
    """gRPC itself ends what goes beyond; an honest caller waits with them."""
    server = serving(opened, replace(HASTY, streams=4, silent=100))
    hostile = hostile_to(opened, server)
    hostile.listen(0.5)
    streams = [hostile.begin(PATH) for _ in range(8)]
    hostile.listen(0.5)
    assert sorted(hostile.ended) == streams[4:]
    peer = peer_of(opened, server)
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda number: peer.call(PATH, bytes(number)), range(40))) == ANSWERED[:40]


# ---- lengths ---------------------------------------------------------------------------------------------------------


def test_a_question_is_refused_by_its_length_before_it_is_read(opened: ExitStack, server: Server) -> None:
    hostile = hostile_to(opened, server)
    announced = (CEILING + 1).to_bytes(LENGTH_BYTES)
    for stream in (hostile.begin(LONG, grpc_message(announced)), hostile.begin(QUICK, grpc_message(announced))):
        assert b"DecodeError" in hostile.until_ended(stream, SOON_S)
    for announced_message in (MESSAGE_BYTES + 1, 2**32 - 1):  # one message is refused by gRPC, after five bytes of it
        stream = hostile.begin(LONG, grpc_message(b"", announced_message))
        assert b"larger than max" in hostile.until_ended(stream, SOON_S)


def test_each_method_has_its_own_ceiling(opened: ExitStack, server: Server) -> None:
    peer = peer_of(opened, server)
    assert peer.call(LONG, bytes(CEILING)) == str(CEILING).encode()
    assert peer.call(PATH, bytes(PART_BYTES)) == str(PART_BYTES).encode()
    for path, most in ((LONG, CEILING), (PATH, PART_BYTES), (QUICK, PART_BYTES)):
        with pytest.raises(DecodeError, match=f"{most + 1} bytes was announced, {most} are taken here"):
            peer.call(path, bytes(most + 1))


def test_nothing_is_unpacked(opened: ExitStack, server: Server) -> None:
    """A small message that a header calls compressed might unpack to a thousand times its size."""
    with grpc.secure_channel(
        f"{HOST}:{server.port}", grpc.ssl_channel_credentials(own().certificate_pem), compression=grpc.Compression.Gzip
    ) as channel:
        send: _Send = channel.stream_unary(QUICK)
        with pytest.raises(grpc.RpcError) as refused:
            send(iter(in_parts(bytes(PART_BYTES))), timeout=SOON_S)
    assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)


def test_a_caller_cannot_fill_the_memory_with_what_nobody_reads(opened: ExitStack) -> None:
    method = Blocking()
    server = serving(opened, method=method)
    opened.callback(method.may_end.set)
    hostile = hostile_to(opened, server)
    stream = hostile.begin(PATH, grpc_message(in_parts(b"")[0]))
    assert method.running.acquire(timeout=LONG_S)
    assert hostile.send(stream, bytes(CEILING), within_s=2.0) <= 2 * MESSAGE_BYTES


# ---- places that are kept --------------------------------------------------------------------------------------------


def test_strangers_do_not_take_the_workers_that_are_kept_for_members(opened: ExitStack) -> None:
    method = Blocking()
    server = serving(opened, ServerLimits(workers=2, waiting=2), method)
    opened.callback(method.may_end.set)
    pool = opened.enter_context(ThreadPoolExecutor(4))
    stranger, member = peer_of(opened, server), peer_of(opened, server, is_known=True)
    calls = [pool.submit(stranger.call, PATH, b"") for _ in range(4)]
    assert method.running.acquire(timeout=LONG_S)
    turned_away = [call for call in calls if isinstance(call.exception(SOON_S) if call.done() else None, Unreachable)]
    while len(turned_away) < 2:
        time.sleep(0.01)
        turned_away = [call for call in calls if call.done() and isinstance(call.exception(), Unreachable)]
    assert member.call(LONG, bytes(CEILING)) == str(CEILING).encode()
    method.may_end.set()
    assert [call.result(SOON_S) for call in calls if call not in turned_away] == [b"0", b"0"]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_member_that_sends_slowly_keeps_its_place(opened: ExitStack, *, is_known: bool) -> None:
    """Strangers who send faster push out one another, and slower strangers."""
    server = serving(opened, replace(DEFAULT_LIMITS, begin_s=LONG_S, receive_s=LONG_S))
    introduced = Introducing(MEMBER, time.time).to(server_digest(own().certificate_pem))
    parts = in_parts(bytes(3 * PART_BYTES))
    begun, rest = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        yield from parts[:2]
        begun.set()
        rest.wait(LONG_S)
        yield from parts[2:]

    credentials = grpc.ssl_channel_credentials(own().certificate_pem)
    channel = opened.enter_context(grpc.secure_channel(f"{HOST}:{server.port}", credentials))
    send: _Send = channel.stream_unary(LONG)
    metadata = ((METADATA_KEY, introduced),) if is_known else ()
    slow = send.future(slowly(), timeout=LONG_S, metadata=metadata)
    opened.callback(rest.set)
    assert begun.wait(LONG_S)
    time.sleep(1.5)  # from its first second on its speed counts
    first = grpc_message(in_parts(bytes(CEILING))[0])
    for _ in range(4 * DEFAULT_LIMITS.large):
        stranger = hostile_to(opened, server)
        stream = stranger.begin(LONG, first[:HTTP2_WINDOW])  # one byte more might break the flow control of HTTP/2
        stranger.send(stream, first[HTTP2_WINDOW:] + grpc_message(bytes(PART_BYTES)))
    rest.set()
    if is_known:
        assert slow.result(LONG_S) == str(3 * PART_BYTES).encode()
    else:
        with pytest.raises(grpc.RpcError) as lost:
            slow.result(LONG_S)
        assert "the slowest" in str(lost.value.details())


# ---- files -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import logging, resource, sys
from datetime import UTC, datetime
from federation.transport.certificates import make_certificate
from federation.transport.server import ServerLimits, serve
logging.basicConfig()
own = make_certificate(["127.0.0.1"], datetime.now(UTC))
serve("pharoah.Test", {}, "127.0.0.1:0", own.certificate_pem, own.key_pem, ServerLimits(connections=1000)).stop()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("hard", "allowed", "complaint"), [(4096, 2024, ""), (1500, 1500, "only 476 connections")])
def test_a_server_allows_itself_the_files_for_its_connections(hard: int, allowed: int, complaint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)),
    )
    assert int(done.stdout) == allowed
    assert complaint in done.stderr
    assert bool(complaint) is bool(done.stderr)
