"""The observer's side of the socket: takes the ranks' cells and asks the ranks.

Only processes of the same user are heard. What a rank tells is data of a job that may be broken: a page that is no cell
of a fixed size is refused, an answer is capped, and a rank that does not answer in time is left out.
"""

import fcntl
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tenant_client.doctor.run.hook.answers import SOCKET, address
from tenant_client.doctor.run.hook.cell import SIZE, CellState, answer_to, ask, decode

_LOOK_S = 0.02
_BACKLOG = 128
_TRIES = 3


@dataclass
class _Rank:
    """`ended` is readable once its process has ended."""

    pid: int
    ended: int
    page: mmap.mmap

    def state(self) -> CellState | None:
        return next((found for _ in range(_TRIES) if (found := decode(self.page)) is not None), None)

    def close(self) -> None:
        os.close(self.ended)
        self.page.close()


class Ranks:
    """The ranks that have handed over their cells; `states` drops those whose process is gone."""

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
        self._hear()
        for rank, one in list(self._ranks.items()):
            if select.select([one.ended], [], [], 0.0)[0]:
                self._ranks.pop(rank).close()
        found = {rank: state for rank, one in self._ranks.items() if (state := one.state()) is not None}
        newest = max((state.who.restart for state in found.values()), default=0)
        return {rank: state for rank, state in sorted(found.items()) if state.who.restart == newest}

    def ask(self, what: bytes, ranks: Iterable[int], timeout_s: float) -> dict[int, bytes]:
        """The answers of those that answer in time."""
        asked = [rank for rank in ranks if rank in self._ranks]
        for rank in asked:
            ask(self._ranks[rank].page, what)
        answers: dict[int, bytes] = {}
        until_s = time.monotonic() + timeout_s
        while len(answers) < len(asked) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
            found = {rank: answer_to(self._ranks[rank].page, what) for rank in asked if rank not in answers}
            answers |= {rank: answer for rank, answer in found.items() if answer is not None}
        return answers

    def close(self) -> None:
        """Hears nobody any more; the ranks go on."""
        for guest in self._guests:
            guest.close()
        for one in self._ranks.values():
            one.close()
        self._ranks.clear()
        self._listener.close()

    def _hear(self) -> None:
        """Takes the cells that were handed over meanwhile."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                self._guests.append(connection)
        for guest in self._guests[:]:
            with suppress(BlockingIOError):
                pid, descriptors = _peer(guest), _received(guest)
                guest.close()
                self._guests.remove(guest)
                if descriptors:
                    self._welcome(pid, descriptors)

    def _welcome(self, pid: int, descriptors: list[int]) -> None:
        """Takes the page of one who has just come, unless it is no cell, or its process is gone or elsewhere."""
        page = _page(descriptors)
        state = decode(page) if page is not None else None
        if page is not None and state is not None:
            with suppress(OSError):
                one = _Rank(pid, os.pidfd_open(pid), page)
                if state.who.rank in self._ranks:
                    self._ranks[state.who.rank].close()
                self._ranks[state.who.rank] = one


def _peer(connection: socket.socket) -> int:
    """The process that connected; 0 if it is another user's, or of a namespace that is not ours."""
    connection.settimeout(0.0)
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid) if user == os.getuid() else 0


def _received(connection: socket.socket) -> list[int]:
    """The descriptors that have come; BlockingIOError if nothing has."""
    try:
        return socket.recv_fds(connection, 1, 1)[1]
    except BlockingIOError:
        raise
    except OSError:
        return []


def _page(descriptors: list[int]) -> mmap.mmap | None:
    """The page behind the first descriptor, which are closed here; None if it is not as it should be."""
    try:
        if os.fstat(descriptors[0]).st_size != SIZE:
            return None
        if not fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        return mmap.mmap(descriptors[0], SIZE)
    except OSError:
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
