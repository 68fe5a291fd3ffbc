"""The claim on the rounds of a store: one process at a time holds a round, and another is told which one does.

The holder renews its note while it works. Another process takes the claim over where the holder has ended, on the same
machine, or where the note has stood still for `EXPIRE_S` by the monotonic clock of who waits: no clocks of two machines
are compared.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec
import sqlalchemy as sa

from crypto.errors import Refusal
from provider_server.store import tables

NOTE = "rounds are held by"
BEAT_S, EXPIRE_S = 10.0, 50.0
_NAMED = tables.notes.c.name == NOTE


class RoundsHeld(Refusal):
    """Another process holds a round on this store."""

    default_hint = (
        "stop one of the two: only one `pharoah-provider serve` may hold rounds on a store (others may run"
        " `pharoah-provider online`); the claim of one that has ended is taken over within a minute"
    )


class Holder(msgspec.Struct, frozen=True):
    """A process that holds a round. `machine` and `started` tell it from another of the same number."""

    host: str
    pid: int
    since: datetime
    machine: str
    started: str
    claim: str
    beat: int = 0

    @classmethod
    def here(cls) -> "Holder":
        """This process, with a claim of its own."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, datetime.now(UTC), _machine(), _started(pid), secrets.token_hex(8))

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended: only of processes that can be seen from here."""
        return self.machine == _machine() != "" and self.started != _started(self.pid)


class RoundClaim:
    """The claim of one store, as one process sees it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._seen: tuple[Holder | None, float] = None, 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it this process holds the claim; RoundsHeld where another one does."""
        own, stop = self._take(), threading.Event()
        renewing = threading.Thread(target=self._renew, args=(own, stop), name="pharoah-claim", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            stop.set()
            renewing.join()
            with self._alone() as connection:
                if (found := _holder(connection)) is not None and found.claim == own.claim:
                    connection.execute(sa.delete(tables.notes).where(_NAMED))

    def _take(self) -> Holder:
        own = Holder.here()
        with self._alone() as connection:
            other = _holder(connection)
            if other is not None and not (other.has_ended or self._stands_still(other)):
                raise RoundsHeld(
                    f"process {other.pid} on {other.host} holds a round on this store"
                    f" since {other.since:%Y-%m-%d %H:%M} UTC"
                )
            connection.execute(sa.delete(tables.notes).where(_NAMED))
            connection.execute(sa.insert(tables.notes).values(name=NOTE, note=_text(own)))
        return own

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        with self._engine.connect().execution_options(pharoah_begin="IMMEDIATE") as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("LOCK TABLE notes IN EXCLUSIVE MODE"))
            yield connection

    def _stands_still(self, other: Holder) -> bool:
        before, since_s = self._seen
        if other != before:
            self._seen = other, time.monotonic()
            return False
        return time.monotonic() - since_s > EXPIRE_S

    def _renew(self, own: Holder, stop: threading.Event) -> None:
        while not stop.wait(BEAT_S):
            new = msgspec.structs.replace(own, beat=own.beat + 1)
            change = sa.update(tables.notes).where(_NAMED, tables.notes.c.note == _text(own)).values(note=_text(new))
            try:
                with self._engine.begin() as connection:
                    connection.execute(change)
            except sa.exc.OperationalError:
                continue  # the round itself meets the failure of the store, and tells of it
            own = new


def _holder(connection: sa.Connection) -> Holder | None:
    note = connection.execute(sa.select(tables.notes.c.note).where(_NAMED)).scalar()
    return None if note is None else msgspec.json.decode(note, type=Holder)


def _text(holder: Holder) -> str:
    return msgspec.json.encode(holder).decode()


@cache
def _machine() -> str:
    """This boot, and where process numbers count; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return f"{boot.strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in the system's ticks; empty for none that runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
