"""Connections of a server, which gRPC neither counts by address nor closes for us: found among this process's files.

gRPC for Python cannot end a call whose caller does not take what it is told, nor limit the connections from one
address. But a connection is a file of this process, and its peer is named alike by gRPC and by the system. So one can
be cut, with all calls on it, by shutting down its socket, which gRPC notices as if the peer had gone.

Promised: where more than `CROWDED` of the connections that a server bears are open, those without any call are cut
until there are no more than that, the oldest first of the address that has the most. So one address cannot keep another
out with connections that it does not use. Nothing is looked at before that.

Not promised: to cut at once; it takes up to `EVERY_S`, and a hundredth of a millisecond for each open file.
"""

import asyncio
import heapq
import logging
import os
import socket
import stat
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv6Address

from federation.transport.places import host_and_port, subscriber

logger = logging.getLogger(__name__)

EVERY_S = 1.0
CROWDED = 0.75
FILES = "/dev/fd"

Peer = tuple[str, int]


class Connections:
    """Those of one server. Used on its loop."""

    def __init__(self, most: int) -> None:
        self._crowd = int(CROWDED * most)
        self._calls: Counter[str] = Counter()
        self._to_cut: set[Peer] = set()
        self._since: dict[Peer, int] = {}

    def begin(self, peer: str) -> None:
        """A call from a peer, as gRPC names it."""
        self._calls[peer] += 1

    def end(self, peer: str) -> None:
        """The call is over."""
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer]

    def cut(self, peer: str) -> None:
        """Ends the connection of a peer, soon."""
        self._to_cut.add(host_and_port(peer))

    async def watch_over(self, port: int) -> None:
        """Cuts what is to be cut at the server's port, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self._look(port)
            except OSError as error:
                logger.warning("connections cannot be looked through: %s", error)

    async def _look(self, port: int) -> None:
        if sum(1 for _ in os.scandir(FILES)) > self._crowd:
            self._to_cut |= self._superfluous(await asyncio.to_thread(connected, port))
        if self._to_cut:
            cutting, self._to_cut = self._to_cut, set()
            await asyncio.to_thread(shut, port, cutting)
            logger.info("%d connections are cut", len(cutting))

    def _superfluous(self, peers: Collection[Peer]) -> set[Peer]:
        """Of these the ones without a call that are too many. A peer is as old as the look that saw it first."""
        look = max(self._since.values(), default=0) + 1
        self._since = {peer: self._since.get(peer, look) for peer in peers}
        busy = {host_and_port(peer) for peer in self._calls}
        idle = sorted((peer for peer in peers if peer not in busy), key=self._since.__getitem__)
        return set(from_the_fullest(idle, len(peers) - self._crowd))


def from_the_fullest(peers: Sequence[Peer], many: int) -> Iterator[Peer]:
    """So many of them, one at a time from the address that has most left, oldest first."""
    by_address: dict[str, deque[Peer]] = defaultdict(deque)
    for peer in peers:
        by_address[subscriber(peer[0])].append(peer)
    fullest = [(-len(theirs), name) for name, theirs in by_address.items()]
    heapq.heapify(fullest)
    for _ in range(min(many, len(peers))):
        left, name = fullest[0]
        heapq.heapreplace(fullest, (left + 1, name))
        yield by_address[name].popleft()


def connected(port: int) -> list[Peer]:
    """Who is connected to this process at a port."""
    return [peer for peer, _ in _accepted(port)]


def shut(port: int, cutting: Collection[Peer]) -> None:
    """Ends the connections of these peers to a port."""
    for peer, line in _accepted(port):
        if peer in cutting:
            with suppress(OSError):  # it ended by itself
                line.shutdown(socket.SHUT_RDWR)


def _accepted(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """The sockets of a port, each under a second number for as long as it is looked at, so that it stays itself."""
    for file in list(os.scandir(FILES)):
        with suppress(OSError):  # closed meanwhile, or no connection
            if not stat.S_ISSOCK(os.fstat(int(file.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(file.name))) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6) and line.getsockname()[1] == port:
                    yield _plain(*line.getpeername()[:2]), line


def _plain(host: str, port: int) -> Peer:
    """As gRPC names it: an address of IPv4 as such."""
    mapped = IPv6Address(host.partition("%")[0]).ipv4_mapped if ":" in host else None
    return (str(mapped) if mapped else host.partition("%")[0]), port
