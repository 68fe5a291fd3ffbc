"""The claim on the rounds of a store: one process at a time holds a round, and another is told which one does.

It is a lock that ends with its process, however that ends: of a file beside a SQLite store, of a session of PostgreSQL.
So there is no claim of a dead process, and no clock that says so. A note in the store names the holder to others.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import sqlalchemy as sa

from crypto.errors import Refusal
from provider_server.rounds.store import tables
from provider_server.rounds.store.rows import Rows, put

NOTE = "holder"
_LOCK = 0x50484153  # of no meaning but to be the same for every holder


class RoundsHeld(Refusal):
    """Another process holds a round on this store."""

    default_hint = (
        "stop one of the two: only one `pharoah-provider serve` may hold rounds on a store, and others run"
        " `pharoah-provider serve --online-only`; a claim ends with its process"
    )


class RoundClaim(Rows):
    """The claim of one store. Threads and processes share it."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it this process holds the claim; RoundsHeld where another one does."""
        of_backend = self._session if self._engine.name == "postgresql" else self._file
        with of_backend() as is_ours:
            if not is_ours:
                raise RoundsHeld(f"another process holds a round on this store: {self._holder()}")
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            note = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since})
            with self._engine.begin() as connection:
                put(connection, tables.notes, {"name": NOTE}, note=note)
            yield

    def _holder(self) -> str:
        note = self._scalar(sa.select(tables.notes.c.note).where(tables.notes.c.name == NOTE))
        return "process {pid} on {host}, since {since}".format(**json.loads(note)) if note else "it begins just now"

    @contextmanager
    def _file(self) -> Iterator[bool]:
        descriptor = os.open(f"{self._engine.url.database}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _is_locked(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _session(self) -> Iterator[bool]:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            is_ours = bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(_LOCK))).scalar())
            try:
                yield is_ours
            finally:
                connection.invalidate()  # the session ends, and the lock with it


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
