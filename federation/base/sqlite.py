"""A SQLite file that keeps what it committed: write-ahead log, full synchronisation, readable by its owner only.

A committed transaction survives a killed process and a power cut. Threads may share a connection and processes the
file: see `transaction`. A disk that is full or broken is nobody's bug: where answers are made, `reporting` turns it
into `StorageFailed`.

A file says of which version its tables are, in `PRAGMA user_version`; 0 stands for the first. An older one is copied
and then brought to this version, once; a newer one is refused, and stays as it is.
"""

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from crypto.errors import PharoahError, Refusal

TIMEOUT_S = 30.0
_MADE = re.compile(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX|TRIGGER|VIEW) IF NOT EXISTS (\w+)")


class StorageFailed(PharoahError):
    """The database cannot be read or written now; what was under way has left nothing behind."""

    default_hint = "free space on its disk or repair it, then try again: nothing was sent that is not stored"


class NewerHome(Refusal):
    """The database of a home was written by a newer program."""

    default_hint = (
        "nothing was changed; install that version or a newer one, or put back the copy from before the upgrade"
    )


@contextmanager
def reporting() -> Iterator[None]:
    """Raises StorageFailed for what a disk does to a database; what a bug does to it stays as it is."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError):
            raise
        raise StorageFailed(f"the database failed: {error}") from error


class Connection(sqlite3.Connection):
    """A connection that several threads may use; `lock` is held for as long as one of them is in a transaction."""

    def __init__(self, database: str, *, timeout_s: float = TIMEOUT_S, uri: bool = False) -> None:
        super().__init__(database, timeout=timeout_s, isolation_level=None, check_same_thread=False, uri=uri)
        self.lock = threading.RLock()


class Rows:
    """Reads and writes some tables of a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK when the block raises. Other threads and other processes wait."""
    with connection.lock:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def create_file(path: Path) -> None:
    """An empty file with mode 0600, unless there is one; one that is there is not touched.

    To close any descriptor of an open database drops the locks that this process holds on it. Another process then
    takes its write-ahead log for abandoned and deletes it (sqlite.org/howtocorrupt.html, section 2.2).
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _keep_a_log(connection: Connection) -> None:
    """Asks for the write-ahead log; SQLite refuses this, and does not wait, while another one does the same."""
    until = time.monotonic() + TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def open_database(path: Path, schema: str, steps: Sequence[str] = ()) -> Connection:
    """The database at `path`, created if absent with mode 0600. Every write outside a transaction commits by itself.

    `schema` makes the tables of the newest version, where they are missing; `steps` lead to it, the first one from
    version 1 to 2. NewerHome for a file of a version after that.
    """
    create_file(path)
    connection = Connection(str(path))
    _keep_a_log(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    made = _made(connection)
    if made:
        upgrade(connection, path, steps)
    if not made >= set(_MADE.findall(schema)):  # at once, since others may be about to make the same
        version = f"PRAGMA user_version = {len(steps) + 1};"
        connection.executescript(f"BEGIN IMMEDIATE; {schema}; {version} COMMIT")
    return connection


def upgrade(connection: Connection, path: Path, steps: Sequence[str]) -> None:
    """Takes the steps that a database with tables lacks, after a copy beside it; NewerHome where it is past them."""
    found, version = _version(connection), len(steps) + 1
    if found == version:
        return
    if found > version:
        connection.close()
        raise NewerHome(f"{path} has version {found}, this program knows up to {version}")
    keep_copy(path, str(found))
    with transaction(connection):
        for step in steps[_version(connection) - 1 :]:  # another process may have taken them meanwhile
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")


def keep_copy(path: Path, version: str) -> None:
    """A copy of a database beside it, as `NAME.version-VERSION`, unless there is one. It is whole or not there."""
    copy = path.with_name(f"{path.name}.version-{version}")
    if not copy.exists():
        part = copy.with_name(f"{copy.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        create_file(part)
        with closing(Connection(str(path))) as connection:
            connection.execute("VACUUM INTO ?", (str(part),))
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(copy)


def _made(connection: Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _version(connection: Connection) -> int:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return max(1, int(found))
