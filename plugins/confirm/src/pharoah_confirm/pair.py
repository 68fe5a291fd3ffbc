"""Benchmark of a network link: an all-reduce between two ranks over TCP, on two machines or on one.

- Each rank sends half of its buffer, receives the other half, adds, and sends the sums back, like a ring of two.
- Only test patterns travel. On one machine (`loopback`) this tests the network stack, not a cable.
- `confirm answer` accepts one connection at a time and allocates at most `MOST_BYTES`. It has no encryption and no
  authentication.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federation.base.addresses import host_and_port
from federation.protocol.service_messages import Suspicion
from pharoah_confirm.cpu import rate
from pharoah_confirm.sample import Benchmark, CannotMeasure, Once, WrongResult

WORDS = 1 << 20
MOST_BYTES = 64 << 20
GREETING = struct.Struct("!8sI")
MAGIC = b"pharoah1"
TIMEOUT_S = 30.0
LOOPBACK = "loopback"
Words = NDArray[np.float32]


@contextmanager
def exchange(device: str) -> Iterator[Once]:
    """All-reduces with the partner at `device` (host:port, or `loopback`), in MB of a rank's buffer per second."""
    if device != LOOPBACK:
        with _connected(device) as connection:
            yield initiate(connection)
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        partner = threading.Thread(target=answer, args=(listening,), daemon=True)
        partner.start()
        with _connected(f"127.0.0.1:{listening.getsockname()[1]}") as connection:
            yield initiate(connection)
        partner.join()


def initiate(connection: socket.socket) -> Once:
    """The first rank: greets, and returns the function that does one all-reduce and checks the sum."""
    connection.sendall(GREETING.pack(MAGIC, WORDS))
    own = np.arange(WORDS, dtype=np.float32)

    def once() -> float:
        buffer = own.copy()
        began = time.perf_counter()
        try:
            all_reduce(connection, buffer, rank=0)
        except OSError as error:
            raise CannotMeasure(
                f"the partner closed the connection: {error}", hint="restart `confirm answer` there, then this test"
            ) from error
        took = time.perf_counter() - began
        if not np.array_equal(buffer, own + own):
            raise WrongResult("an all-reduce of two ranks returned a wrong sum")
        return rate(1e-6 * buffer.nbytes, took)

    return once


def answer(listening: socket.socket) -> None:
    """The second rank, for whoever connects next."""
    connection, _ = listening.accept()
    follow(connection)


def follow(connection: socket.socket) -> None:
    """The second rank, until its partner closes the connection. CannotMeasure or OSError for any other visitor."""
    with closing(connection):
        _prepare(connection)
        greeting = bytearray(GREETING.size)
        _receive(connection, memoryview(greeting))
        magic, words = GREETING.unpack(greeting)
        if magic != MAGIC or not 0 < 4 * words <= MOST_BYTES or words % 2:
            raise CannotMeasure("a client does not speak the test's protocol")
        own = np.arange(words, dtype=np.float32)
        buffer = own.copy()
        try:
            while True:
                all_reduce(connection, buffer, rank=1)
                buffer[:] = own
        except OSError:
            return  # the first rank has finished


def serve(listen: str, seconds: float) -> int:
    """Answers one partner after the other for so long; how many there were. CannotMeasure if it cannot listen there."""
    host, port = _address(listen)
    until, served = time.monotonic() + seconds, 0
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise CannotMeasure(f"cannot listen at {listen}: {error}", hint="pass another port with --listen") from error
    with listening:
        while (left := until - time.monotonic()) > 0:
            listening.settimeout(left)
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                break
            try:
                follow(connection)
            except (CannotMeasure, OSError):
                continue  # a visitor that is no partner
            served += 1
    return served


def all_reduce(connection: socket.socket, buffer: Words, rank: int) -> None:
    """Sums the buffers of two ranks in both. ConnectionError where the other one is gone."""
    halves = buffer[: len(buffer) // 2], buffer[len(buffer) // 2 :]
    mine, theirs = halves[rank], halves[1 - rank]
    received = np.empty_like(mine)
    _swap(connection, theirs, received)
    mine += received
    _swap(connection, mine, theirs)


def _swap(connection: socket.socket, out: Words, into: Words) -> None:
    """Sends and receives at once: a link is used both ways, and neither rank waits for the other one's buffers."""
    failed: list[OSError] = []

    def send() -> None:
        try:
            connection.sendall(_view(out))
        except OSError as error:
            failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        _receive(connection, _view(into))
    finally:
        sender.join()
    if failed:
        raise failed[0]


def _view(words: Words) -> Any:
    return words.view(np.uint8).data


def _receive(connection: socket.socket, into: "memoryview[int]") -> None:
    while into:
        number = connection.recv_into(into)
        if not number:
            raise ConnectionError("the other rank closed the connection")
        into = into[number:]


@contextmanager
def _connected(address: str) -> Iterator[socket.socket]:
    try:
        connection = socket.create_connection(_address(address), TIMEOUT_S)
    except OSError as error:
        raise CannotMeasure(f"no partner at {address}: {error}", hint="start `confirm answer` there first") from error
    with closing(connection):
        _prepare(connection)
        yield connection


def _address(text: str) -> tuple[str, int]:
    address = host_and_port(text)
    if address is None:
        raise CannotMeasure(f"{text!r} is not host:port", hint="write it like 10.0.0.7:7300")
    return address


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


BENCHMARKS = (Benchmark(f"all-reduce-tcp-{4 * WORDS >> 20}MiB", Suspicion.INTERCONNECT, "MB/s", exchange),)
