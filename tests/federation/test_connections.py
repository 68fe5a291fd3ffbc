"""Connections are found among the files of a process and cut; where there are too many, those that nobody uses."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache

import pytest

from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.connections import connected, from_the_fullest, shut
from federation.transport.server import ServerLimits, serve
from tests.support.hostile_peer import HostilePeer
from tests.support.waiting import until

HOST, PATH, WATCH = "127.0.0.1", "/pharoah.Test/Ask", "/pharoah.Test/Watch"
SOON_S = 20.0


@cache
def own() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


def pairs(opened: ExitStack, host: str, listening: str, count: int) -> tuple[int, list[socket.socket]]:
    """The port where this process has accepted so many, and their ends of the line."""
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    server = opened.enter_context(socket.create_server((listening, 0), family=family, dualstack_ipv6=listening == "::"))
    theirs = []
    for _ in range(count):
        theirs.append(opened.enter_context(socket.create_connection((host, server.getsockname()[1]), timeout=SOON_S)))
        opened.enter_context(server.accept()[0])
    return server.getsockname()[1], theirs


@pytest.mark.parametrize(("host", "listening"), [(HOST, HOST), (HOST, "::"), ("::1", "::"), ("127.0.0.2", "::")])
def test_who_is_connected_is_found_and_cut_and_nobody_else(opened: ExitStack, host: str, listening: str) -> None:
    port, theirs = pairs(opened, host, listening, 3)
    _, others = pairs(opened, host, listening, 1)
    named = [line.getsockname()[:2] for line in theirs]
    assert sorted(connected(port)) == sorted(named)
    shut(port, {named[1]})
    assert theirs[1].recv(1) == b""
    for line in (theirs[0], theirs[2], others[0]):
        line.settimeout(0.1)
        with pytest.raises(TimeoutError):
            line.recv(1)


def test_files_may_be_opened_and_closed_meanwhile(opened: ExitStack) -> None:
    port, theirs = pairs(opened, HOST, HOST, 1)
    end = threading.Event()

    def churn() -> None:
        while not end.is_set():
            for line in socket.socketpair():
                line.close()

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    found = [connected(port) for _ in range(300)]
    end.set()
    for thread in threads:
        thread.join()
    assert found == [[theirs[0].getsockname()]] * 300


def test_the_fullest_address_gives_up_its_oldest_first() -> None:
    crowd = [("192.0.2.1", port) for port in range(4)] + [("192.0.2.2", port) for port in range(2)]
    assert list(from_the_fullest(crowd, 2)) == [("192.0.2.1", 0), ("192.0.2.1", 1)]
    left = [peer for peer in crowd if peer not in set(from_the_fullest(crowd, 4))]
    assert left == [("192.0.2.1", 3), ("192.0.2.2", 1)]
    assert sorted(from_the_fullest(crowd, 100)) == sorted(crowd)
    assert not list(from_the_fullest(crowd, -3))
    assert not list(from_the_fullest([], 3))


def test_one_subscriber_of_ipv6_is_one_address() -> None:
    crowd = [(f"2001:db8::{number}", 1) for number in range(1, 4)] + [("192.0.2.1", 1), ("192.0.2.1", 2)]
    assert list(from_the_fullest(crowd, 1)) == [("2001:db8::1", 1)]


def test_connections_that_nobody_uses_make_way_and_used_ones_stay(opened: ExitStack) -> None:
    """A server that bears 200 connections; 190 are silent ones of one address, where honest callers are too."""

    async def listen(request: bytes) -> AsyncGenerator[bytes, None]:
        yield request
        await asyncio.sleep(4.0)
        yield request

    pem = own().certificate_pem, own().key_pem
    limits = ServerLimits(connections=200)
    served = serve("pharoah.Test", {PATH: bytes}, f"{HOST}:0", *pem, limits, streams={WATCH: listen})
    server = opened.enter_context(served)

    def caller() -> Peer:
        return opened.enter_context(Peer(f"{HOST}:{server.port}", own().certificate_pem, deadline_s=SOON_S))

    watch = caller().stream(WATCH, b"hello")
    assert next(watch) == b"hello"
    unused = [opened.enter_context(HostilePeer(server.port)).greet() for _ in range(190)]
    time.sleep(3.0)
    assert len(connected(server.port)) <= 150
    until(lambda: sum(peer.is_cut_off(0.01) for peer in unused) >= 40)
    assert [caller().call(PATH, b"hello") for _ in range(20)] == [b"hello"] * 20
    assert next(watch) == b"hello"
