"""A TCP balancer for tests: each new connection goes to the next server that takes it, byte for byte, TLS unopened.

What nginx's `stream` module does with `proxy_pass` to an `upstream` of several servers.
"""

import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

BLOCK_BYTES = 2**16
HOST = "127.0.0.1"


class Balancer(socketserver.ThreadingTCPServer):
    """Relays to some ports of this machine, in turn."""

    daemon_threads = True

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__((HOST, 0), Relay)
        self._ports = ports
        self._turn = count()

    def server(self) -> socket.socket | None:
        """A connection to the next server that takes one."""
        first = next(self._turn)
        for at in range(len(self._ports)):
            with suppress(OSError):
                return socket.create_connection((HOST, self._ports[(first + at) % len(self._ports)]))
        return None


class Relay(socketserver.BaseRequestHandler):
    """One connection."""

    server: Balancer

    def handle(self) -> None:
        there = self.server.server()
        if there is None:
            return
        with there:
            back = threading.Thread(target=_pump, args=(there, self.request), daemon=True)
            back.start()
            _pump(self.request, there)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one of them ends; then both do."""
    with suppress(OSError):
        while block := source.recv(BLOCK_BYTES):
            sink.sendall(block)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def balancing(ports: Sequence[int]) -> Iterator[int]:
    """Relays to these ports while the block runs; yields its own. Its callers have gone when the block ends."""
    with Balancer(ports) as balancer:
        thread = threading.Thread(target=balancer.serve_forever, daemon=True)
        thread.start()
        try:
            yield balancer.server_address[1]
        finally:
            balancer.shutdown()
            thread.join()
