"""A real PostgreSQL for tests: a server of our own, on a Unix socket in a directory of its own, gone afterwards.

Tests ask for it by the fixture `postgresql`, which tests/conftest.py hands on, and their file marks them
with `xdist_group("postgresql")`, so that one worker starts one server. Without PostgreSQL's programs they are skipped.
"""

import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from tests import needs
from tests.support.waiting import until

USER = "provider"
DATABASE = "postgres"
PASSWORD = "canary-9f2c"
STOP_S = 10.0
# Nothing here outlives the test, so nothing waits for a disk.
SETTINGS = {"listen_addresses": "", "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
_numbers = count()


@dataclass(frozen=True)
class Server:
    """A running server whose one user needs a password."""

    sockets: Path
    password: str = PASSWORD

    def url(self, *, password: str = PASSWORD, schema: str = "public") -> str:
        """The URL of a schema, as a person would write it."""
        query = {"host": str(self.sockets), "options": f"-csearch_path={schema}"}
        url = sa.URL.create("postgresql", USER, password, database=DATABASE, query=query)
        return url.render_as_string(hide_password=False)

    def new_place(self) -> str:
        """The URL of a new and empty schema; a database of its own would cost each test megabytes to write."""
        name = f"store_{next(_numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return self.url(schema=name)

    def execute(self, statement: str) -> None:
        """Runs one statement outside a transaction."""
        host = str(self.sockets)
        with psycopg.connect(host=host, user=USER, password=PASSWORD, dbname=DATABASE, autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """The server of this test session; the test is skipped where PostgreSQL is not installed."""
    with running(needs.program("postgres").parent) as server:
        yield server


@contextmanager
def running(programs: Path) -> Iterator[Server]:
    """A server in a new directory, under an account without rights where we are root."""
    with tempfile.TemporaryDirectory(prefix="pg") as name:  # short: the path of a socket has room for 107 bytes
        home, account = Path(name), _account(Path(name))
        secret = home / "password"
        secret.write_text(PASSWORD)
        options = ["--username", USER, "--auth", "scram-sha-256", "--pwfile", str(secret), "--encoding", "UTF8"]
        command = [str(programs / "initdb"), "--pgdata", str(home / "data"), "--locale", "C", "--no-sync", *options]
        subprocess.run(command, check=True, capture_output=True, cwd=home, **account)
        with _postgres(programs, home, account):
            yield Server(home)


def _account(home: Path) -> dict[str, Any]:
    """PostgreSQL does not run as root; root lends it another account and gives `home` to it."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def _postgres(programs: Path, home: Path, account: dict[str, Any]) -> Iterator[None]:
    settings = [f"--{key}={value}" for key, value in SETTINGS.items()]
    command = [str(programs / "postgres"), "-D", str(home / "data"), "-k", str(home), *settings]
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=home, **account)
    with process:
        try:
            _wait(Server(home), process, log)
            yield
        finally:
            _stop(process)


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    until(answers, "PostgreSQL answers")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The fast shutdown: connections that a test left open do not hold it up."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
