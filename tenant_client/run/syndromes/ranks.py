"""The observer's side of the socket: takes the ranks' cells and asks the ranks.

Only processes of the same user are heard. What a rank sends is data of a job that may be broken: a page that is no cell
of a fixed size is refused, an answer is capped, and a rank that does not answer in time is left out.
"""

import fcntl
import mmap
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tenant_client.run.hook.answers import HEAD, SOCKET, address
from tenant_client.run.hook.cell import SIZE, CellState, decode

_MOST_BYTES = 64 << 20
_BACKLOG = 128
_TRIES = 3


@dataclass
class _Rank:
    connection: socket.socket
    page: mmap.mmap

    def state(self) -> CellState | None:
        return next((found for _ in range(_TRIES) if (found := decode(self.page)) is not None), None)


class Ranks:
    """The ranks that have connected; `states` drops those whose process is gone."""

    def __init__(self, run_dir: Path) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._guests: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        descriptor, name = address(run_dir)
        try:
            (run_dir / SOCKET).unlink(missing_ok=True)
            self._listener.bind(name)
            self._listener.listen(_BACKLOG)
        finally:
            os.close(descriptor)

    def states(self) -> dict[int, CellState]:
        """What the cells say now, of the newest restart only."""
        self._take()
        found = {rank: state for rank, one in self._ranks.items() if (state := one.state()) is not None}
        newest = max((state.who.restart for state in found.values()), default=0)
        return {rank: state for rank, state in sorted(found.items()) if state.who.restart == newest}

    def ask(self, what: bytes, ranks: Iterable[int], timeout_s: float) -> dict[int, bytes]:
        """The answers of those that answer in time."""
        asked = {rank: self._ranks[rank].connection for rank in ranks if rank in self._ranks}
        parts: dict[int, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for rank, connection in asked.items():
                with suppress(OSError):
                    _empty(connection)
                    connection.send(what, socket.MSG_DONTWAIT)
                    selector.register(connection, selectors.EVENT_READ, rank)
                    parts[rank] = b""
            until_s = time.monotonic() + timeout_s
            while selector.get_map() and (left_s := until_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    data = _received(asked[key.data])
                    parts[key.data] += data
                    if not data or _whole(parts[key.data]) or len(parts[key.data]) > _MOST_BYTES:
                        selector.unregister(key.fileobj)
        return {rank: part[HEAD.size :] for rank, part in parts.items() if part[:1] == what and _whole(part)}

    def close(self) -> None:
        """Hears nobody any more; the ranks go on."""
        for connection in (*self._guests, *(one.connection for one in self._ranks.values())):
            connection.close()
        self._listener.close()

    def _take(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                self._guests.append(connection)
        for connection in self._guests[:]:
            with suppress(BlockingIOError):
                page = _page(connection)
                self._guests.remove(connection)
                state = decode(page) if page is not None else None
                if page is None or state is None:
                    connection.close()
                    continue
                if state.who.rank in self._ranks:
                    self._ranks[state.who.rank].connection.close()
                self._ranks[state.who.rank] = _Rank(connection, page)
        for rank, one in list(self._ranks.items()):
            if _gone(one.connection):
                one.connection.close()
                del self._ranks[rank]


def _page(connection: socket.socket) -> mmap.mmap | None:
    """The page of one who has just come; None for a stranger."""
    connection.settimeout(0.0)
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    try:
        if user != os.getuid() or not descriptors or os.fstat(descriptors[0]).st_size != SIZE:
            return None
        if not fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        return mmap.mmap(descriptors[0], SIZE, prot=mmap.PROT_READ)
    except OSError:
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _empty(connection: socket.socket) -> None:
    """Forgets what came too late."""
    with suppress(BlockingIOError):
        while connection.recv(1 << 16, socket.MSG_DONTWAIT):
            pass


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20, socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _whole(part: bytes) -> bool:
    return len(part) >= HEAD.size and len(part) >= HEAD.size + HEAD.unpack_from(part)[1]
