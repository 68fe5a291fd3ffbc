"""The provider's memory: leases, releases and bundles in SQL. SQLite by default, PostgreSQL by URL.

A release is written once and never changed; a second one for the same round is an error of the database, and so is
every change of a release or a bundle, whoever tries. What was committed survives a killed process and a power cut:
SQLite runs with a write-ahead log and full synchronisation. Neither errors nor logs tell the password of a URL or the
values of a row.

The schema comes from `provider_server.migrations`, which bring a database up to date when it is opened.
"""

import json
import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from crypto.errors import PharoahError, Refusal
from crypto.ids import LeaseId, RoundId, TenantId
from crypto.messages import Registration
from provider_server.leases import Lease
from provider_server.migrations.upgrade import upgrade

BUSY_TIMEOUT_S = 30.0
ROWS_AT_ONCE = 1000
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}

_metadata = sa.MetaData()

_leases = sa.Table(
    "leases",
    _metadata,
    sa.Column("lease", sa.LargeBinary, primary_key=True),
    sa.Column("tenant", sa.LargeBinary, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("start_h", sa.Float, nullable=False, index=True),
    sa.Column("end_h", sa.Float, nullable=False, index=True),
    sa.Column("contexts", sa.Text, nullable=False),
    sa.Column("ladder", sa.Text, nullable=True),
)
_releases = sa.Table(
    "releases",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("round_id", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("release", sa.LargeBinary, nullable=False),
)
_bundles = sa.Table(
    "bundles",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("bundle", sa.LargeBinary, nullable=False),
)


class BadDatabase(PharoahError):
    """The store cannot be opened: its URL is wrong, or nothing that can be used is there."""

    default_hint = "a database is named like sqlite:///provider.db or postgresql://user:password@host/name"


class StoreNotEmpty(Refusal):
    """Rows would be mixed with others that are there already."""

    default_hint = "name a new store; nothing was changed"


class Store:
    """Typed access to the provider's tables. Methods commit before they return.

    A path names a SQLite file, a string is an SQLAlchemy URL. What is missing is made, unless `create` is false.
    """

    def __init__(self, where: Path | str, *, create: bool = True) -> None:
        url = _url(where)
        self._engine = _engine(url, create=create)
        try:
            upgrade(self._engine, create=create)
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            self.close()
            # No `from error`: what a driver says may quote what it was given.
            raise BadDatabase(f"{_shown(url)} cannot be opened: {_said(error, url)}", hint="") from None
        except Refusal as refusal:
            self.close()
            raise type(refusal)(f"{_shown(url)}: {refusal.what}") from refusal

    def close(self) -> None:
        """Releases the connections."""
        self._engine.dispose()

    def add_leases(self, leases: Iterable[Lease]) -> None:
        """Appends leases; IntegrityError if one exists."""
        rows = [
            {
                "lease": bytes(lease.lease),
                "tenant": bytes(lease.tenant),
                "nodes": lease.nodes,
                "start_h": lease.start_h,
                "end_h": lease.end_h,
                "contexts": json.dumps(dict(lease.labels), sort_keys=True),
            }
            for lease in leases
        ]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(_leases), rows)

    def register(self, registration: Registration) -> None:
        """Attaches workload tokens to the sender's own leases; those of others, or of nobody, are left alone."""
        change = (
            sa.update(_leases)
            .where(_leases.c.lease == sa.bindparam("of_lease"), _leases.c.tenant == bytes(registration.tenant))
            .values(ladder=sa.bindparam("tokens"))
        )
        rows = [
            {"of_lease": bytes(lease), "tokens": json.dumps(workload.ladder.labels)}
            for workload in registration.workloads
            for lease in workload.leases
        ]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(change, rows)

    def leases(self, start_hour: float, end_hour: float) -> list[Lease]:
        """Leases that overlap [start_hour, end_hour), in order of start."""
        query = (
            sa.select(_leases)
            .where(_leases.c.start_h < end_hour, _leases.c.end_h > start_hour)
            .order_by(_leases.c.start_h, _leases.c.lease)
        )
        with self._engine.connect() as connection:
            return [_lease(row) for row in connection.execute(query)]

    def add_release(self, round_id: RoundId, release: bytes) -> None:
        """Keeps a release for good; IntegrityError for a second one of the same round."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_releases).values(round_id=bytes(round_id), release=release))

    def releases(self) -> Sequence[bytes]:
        """All releases, oldest first."""
        with self._engine.connect() as connection:
            return [row.release for row in connection.execute(sa.select(_releases).order_by(_releases.c.number))]

    def add_bundle(self, number: int, bundle: bytes) -> None:
        """Keeps a signed bundle."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_bundles).values(number=number, bundle=bundle))

    def newest_bundle(self) -> tuple[int, bytes] | None:
        """Number and bytes of the newest bundle, None before the first."""
        query = sa.select(_bundles).order_by(_bundles.c.number.desc()).limit(1)
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row.number, row.bundle)

    def rows(self) -> Generator[tuple[str, Mapping[str, Any]], None, None]:
        """Every row with the name of its table, all as of one moment; others may write meanwhile."""
        options = {"isolation_level": "REPEATABLE READ"} if self._engine.name == "postgresql" else {}
        with self._engine.connect().execution_options(**options) as connection:
            for table in _metadata.sorted_tables:
                query = sa.select(table).order_by(*table.primary_key)
                result = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
                yield from ((table.name, dict(row)) for row in result.mappings())

    def fill(self, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Takes rows as `rows` gives them: all or, whatever is raised, none. StoreNotEmpty if any row is here."""
        with self._alone() as connection:
            tables = _metadata.sorted_tables
            if any(connection.execute(sa.select(table).limit(1)).first() for table in tables):
                raise StoreNotEmpty("this store is not empty")
            for name, batch in _batches(rows):
                connection.execute(sa.insert(_metadata.tables[name]), batch)
            if connection.dialect.name == "postgresql":
                connection.execute(_GO_ON_COUNTING)

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        """A transaction beside which nobody else writes."""
        with (
            self._engine.connect().execution_options(pharoah_begin="IMMEDIATE") as connection,
            connection.begin(),
        ):
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("LOCK TABLE leases, releases, bundles IN EXCLUSIVE MODE"))
            yield connection


# Numbers that were given with their rows move no sequence of PostgreSQL.
_GO_ON_COUNTING = sa.text(
    "SELECT setval(pg_get_serial_sequence('releases', 'number'), max(number)) FROM releases HAVING count(*) > 0"
)


def _batches(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Neighbours of one table together, a bounded number at once."""
    batch: list[Mapping[str, Any]] = []
    of = ""
    for name, row in rows:
        if batch and (name != of or len(batch) == ROWS_AT_ONCE):
            yield of, batch
            batch = []
        of = name
        batch.append(row)
    if batch:
        yield of, batch


def _url(where: Path | str) -> sa.URL:
    """The URL with the driver that is used; BadDatabase, which quotes nothing of it, for what names no store."""
    if isinstance(where, Path):
        return sa.URL.create("sqlite+pysqlite", database=str(where))
    try:
        url = sa.make_url(where)
    except (sa.exc.ArgumentError, ValueError):
        raise BadDatabase("this is not the URL of a database") from None  # the cause may quote a password
    if "@" in f"{url.host}{url.database}":
        raise BadDatabase("the URL of the database holds an @ too many", hint="write an @ of a password as %40")
    if url.drivername not in _DRIVERS:
        raise BadDatabase("the URL of the database is neither SQLite's nor PostgreSQL's")
    if url.get_backend_name() == "sqlite" and (url.database or ":memory:").startswith((":memory:", "file:")):
        raise BadDatabase("a SQLite store needs the path of a file")
    return url.set(drivername=_DRIVERS[url.drivername])


def _shown(url: sa.URL) -> str:
    """The URL for a person: without password, and without options, which may hold one."""
    return url.set(query={}).render_as_string(hide_password=True)


def _said(error: sa.exc.DBAPIError | sqlite3.Error, url: sa.URL) -> str:
    """The first line of what a driver says, without the secrets that it was given."""
    said = str(error.orig if isinstance(error, sa.exc.DBAPIError) else error).partition("\n")[0]
    for secret in (url.password, url.query.get("password"), url.query.get("sslpassword")):
        said = said.replace(str(secret), "***") if secret else said
    return said


def _engine(url: sa.URL, *, create: bool) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, create=create)
    try:
        return sa.create_engine(url, hide_parameters=True, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise BadDatabase("the driver of PostgreSQL is missing", hint="pip install 'pharoah[postgresql]'") from error


def _sqlite(url: sa.URL, *, create: bool) -> sa.Engine:
    path = Path(url.database or "")
    try:
        os.close(os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600))
    except OSError as error:
        reason = (error.strerror or "it cannot be opened").lower()
        raise BadDatabase(f"{path}: {reason}", hint="name a file that is there, or that can be made") from error
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, so that they hold changes of the schema too
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('pharoah_begin', 'DEFERRED')}")


def _lease(row: sa.Row[tuple[bytes, bytes, int, float, float, str, str | None]]) -> Lease:
    labels = _labels(row.contexts, row.ladder)
    return Lease(LeaseId(row.lease), TenantId(row.tenant), row.nodes, row.start_h, row.end_h, labels)


@lru_cache(maxsize=4096)
def _labels(contexts: str, ladder: str | None) -> Mapping[str, str]:
    """The labels of a lease; few distinct ones stand behind very many leases, so they are shared."""
    return MappingProxyType(json.loads(contexts) | (json.loads(ladder) if ladder else {}))
