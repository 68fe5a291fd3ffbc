"""The provider's store: leases, releases and bundles in SQL. SQLite by default, PostgreSQL by URL.

- A release is written once and never changed: the database refuses a second release of a round, and every change of a
  release or a bundle.
- Committed data survives a killed process and a power cut: SQLite uses a write-ahead log with full synchronisation.
  Only which passes were spent in the last moment survives the first alone (`provider_server.rounds.store.pass_store`).
- Errors and logs contain neither the password of a URL nor the values of a row.

Its tables come from `provider_server.rounds.store.schema`, which refuses a database of another version.
"""

import errno
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from crypto.errors import PharoahError, Refusal
from crypto.ids import LeaseId, TenantId, Token
from federation.base.sqlite import create_file
from federation.protocol.round_messages import Registration, TokenLink, UnitParts
from provider_server.fleet.leases import Lease
from provider_server.rounds.store import tables
from provider_server.rounds.store.claims import RoundClaim
from provider_server.rounds.store.hint_store import HintStore
from provider_server.rounds.store.lease_ends import LeaseEnds
from provider_server.rounds.store.own_store import OwnStore
from provider_server.rounds.store.pass_store import PassStore
from provider_server.rounds.store.revocations import Revocations, revoke
from provider_server.rounds.store.round_store import RoundStore
from provider_server.rounds.store.rows import Rows, put, writing
from provider_server.rounds.store.schema import prepare

if TYPE_CHECKING:
    from provider_server.fleet.release import Release

BUSY_TIMEOUT_S = 30.0
COPIED_AT_ONCE = 1000
_UNITS = "units"  # beside the context tokens: on which parts of the fabric the nodes hang
NOWHERE: Mapping[LeaseId, Sequence[str]] = MappingProxyType({})
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


class BadDatabase(PharoahError):
    """The store cannot be opened: its URL is wrong, or there is no usable database."""

    default_hint = "use a URL such as sqlite:///provider.db or postgresql://user:password@host/name"


class StoreFailed(PharoahError):
    """The database fails: its disk is full, it is locked, or it is unreachable."""

    default_hint = "stored data is intact; fix the cause, and the provider continues where it was"


class StoreNotEmpty(Refusal):
    """The store already contains rows."""

    default_hint = "nothing was changed; choose a new, empty store"


class Store(Rows):
    """Typed access to the provider's tables. Methods commit before they return.

    A path names a SQLite file, a string is an SQLAlchemy URL. What is missing is made, unless `create` is false.
    `now_s` is since 1970, for the numbers of hints.
    """

    def __init__(self, where: Path | str, *, create: bool = True, now_s: Callable[[], float] = time.time) -> None:
        url = _url(where)
        super().__init__(_engine(url, create=create))
        try:
            prepare(self._engine, create=create)
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            self.close()
            # No `from error`: what a driver says may quote what it was given.
            raise BadDatabase(f"{_shown(url)} cannot be opened: {_said(error, url)}", hint="") from None
        except Refusal as refusal:
            self.close()
            raise type(refusal)(f"{_shown(url)}: {refusal.what}") from refusal
        self.rounds = RoundStore(self._engine)
        self.claim = RoundClaim(self._engine)
        self.hints = HintStore(self._engine, now_s)
        self.revocations = Revocations(self._engine)
        self.own = OwnStore(self._engine)
        self.ends = LeaseEnds(self._engine, now_s)
        self.passes = PassStore(self._engine)

    def close(self) -> None:
        """Releases the connections."""
        self._engine.dispose()

    def copy_to(self, other: "Store") -> int:
        """Copies all rows to an empty store in one transaction, and returns how many; StoreNotEmpty if it has any.

        RoundsHeld while a process holds a round on this one.
        """
        copied = 0
        with self.claim.held(), self._engine.connect() as source, writing(other._engine) as target:
            for table in tables.metadata.sorted_tables:
                if target.scalar(sa.select(sa.func.count()).select_from(table)):
                    raise StoreNotEmpty(f"the database contains rows already, of {table.name}")
                for rows in source.execute(sa.select(table)).mappings().partitions(COPIED_AT_ONCE):
                    target.execute(sa.insert(table), [dict(row) for row in rows])
                    copied += len(rows)
                if target.dialect.name == "postgresql" and table.autoincrement_column is not None:
                    last = sa.select(sa.func.max(table.autoincrement_column)).scalar_subquery()
                    counter = sa.func.pg_get_serial_sequence(table.name, table.autoincrement_column.name)
                    target.execute(sa.select(sa.func.setval(counter, last)))
        return copied

    def add_leases(self, leases: Iterable[Lease], node_names: Mapping[LeaseId, Sequence[str]] = NOWHERE) -> None:
        """Appends leases, and the names of their nodes as far as they are told; IntegrityError if one exists."""
        rows = [
            {
                "lease": bytes(lease.lease),
                "tenant": bytes(lease.tenant),
                "nodes": lease.nodes,
                "start_h": lease.start_h,
                "end_h": lease.end_h,
                "contexts": json.dumps(_granted(lease), sort_keys=True),
            }
            for lease in leases
        ]
        places = [{"lease": bytes(lease), "node_names": json.dumps(list(names))} for lease, names in node_names.items()]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(tables.leases), rows)
                if places:
                    connection.execute(sa.insert(tables.placements), places)

    def lease(self, lease: LeaseId) -> Lease | None:
        """One lease by its name."""
        found = self._rows(sa.select(tables.leases).where(tables.leases.c.lease == bytes(lease)))
        return _lease(*found[0]) if found else None

    def placed(self, hour: float, until_hour: float | None = None) -> list[tuple[Lease, tuple[str, ...]]]:
        """Leases of this moment, or up to that hour, whose nodes are known by name, in order of start; and names."""
        column = tables.leases.c
        query = (
            sa.select(tables.leases, tables.placements.c.node_names)
            .join(tables.placements, tables.placements.c.lease == column.lease)
            .where(column.start_h <= (hour if until_hour is None else until_hour), column.end_h > hour)
            .order_by(column.start_h, column.lease)
        )
        return [(_lease(*row), tuple(json.loads(names))) for *row, names in self._rows(query)]

    def leases_of(self, tenant: TenantId, start_hour: float, end_hour: float) -> list[Lease]:
        """A tenant's leases that began in [start_hour, end_hour), in order of start."""
        column = tables.leases.c
        began = sa.and_(column.start_h >= start_hour, column.start_h < end_hour)
        query = sa.select(tables.leases).where(column.tenant == bytes(tenant), began)
        return [_lease(*row) for row in self._rows(query.order_by(column.start_h, column.lease))]

    def register(self, registration: Registration) -> None:
        """Attaches workload tokens to the sender's own leases, and keeps what it says that it owns, and of old tokens.

        Leases of others, or of nobody, are left alone.
        """
        change = (
            sa.update(tables.leases)
            .where(
                tables.leases.c.lease == sa.bindparam("of_lease"), tables.leases.c.tenant == bytes(registration.tenant)
            )
            .values(ladder=sa.bindparam("tokens"))
        )
        rows = [
            {"of_lease": bytes(lease), "tokens": tokens}
            for workload in registration.workloads
            for tokens in [json.dumps(workload.ladder.labels)]
            for lease in workload.leases
        ]
        by = {"tenant": bytes(registration.tenant), "epoch": registration.epoch}
        linked = [
            {**by, "token_before": before, "token_now": bytes(link.now)}
            for before, link in {bytes(link.before): link for link in registration.links}.items()
        ]
        with self._engine.begin() as connection:
            if rows:
                connection.execute(change, rows)
            put(connection, tables.ownerships, by, ownership=registration.ownership)
            connection.execute(sa.delete(tables.links).filter_by(**by))
            if linked:
                connection.execute(sa.insert(tables.links), linked)

    def ownership(self, tenant: TenantId, epoch: int) -> bytes | None:
        """What one tenant last said that it owns in an epoch, signed; None if it said nothing."""
        column = tables.ownerships.c
        return self._scalar(sa.select(column.ownership).where(column.tenant == bytes(tenant), column.epoch == epoch))

    def links(self, until_epoch: int) -> list[tuple[TenantId, TokenLink]]:
        """What each tenant last said of tokens of one epoch in the next, epoch by epoch up to this one."""
        column = tables.links.c
        order = column.epoch, column.tenant, column.token_before
        query = sa.select(tables.links).where(column.epoch <= until_epoch).order_by(*order)
        return [
            (TenantId(row.tenant), TokenLink(Token(row.token_before), Token(row.token_now)))
            for row in self._rows(query)
        ]

    def ownerships(self, epoch: int) -> list[bytes]:
        """What every tenant last said that it owns in an epoch, signed."""
        column = tables.ownerships.c
        return self._scalars(sa.select(column.ownership).where(column.epoch == epoch).order_by(column.tenant))

    def add_node_key(self, tenant: TenantId, node_key: str) -> None:
        """Keeps the key of a tenant's node; the ones before it are retired. Nothing for the one in use."""
        if self.node_keys().get(tenant) == node_key:
            return
        with self._engine.begin() as connection:
            _retire(connection, [tenant])
            connection.execute(
                sa.insert(tables.node_keys).values(node_key=node_key, tenant=bytes(tenant), retired=False)
            )

    def node_keys(self) -> dict[TenantId, str]:
        """The keys of the tenants' nodes that are in use."""
        column = tables.node_keys.c
        query = sa.select(tables.node_keys).where(sa.not_(column.retired)).order_by(column.tenant)
        return {TenantId(row.tenant): row.node_key for row in self._rows(query)}

    def retired_node_keys(self) -> frozenset[str]:
        """Keys that were replaced, or whose tenants have left: none of them comes back."""
        return frozenset(self._scalars(sa.select(tables.node_keys.c.node_key).where(tables.node_keys.c.retired)))

    def add_entry(self, number: int, entry: bytes, left: Sequence[TenantId] = (), now_s: float = 0.0) -> None:
        """Keeps a signed entry of the directory; those who leave by it lose their node keys and their sessions.

        IntegrityError for a second one of its number.
        """
        with self._engine.begin() as connection:
            connection.execute(sa.insert(tables.directory).values(number=number, entry=entry))
            _retire(connection, left)
            revoke(connection, left, now_s)

    def entries(self) -> list[bytes]:
        """The signed entries of the directory, oldest first."""
        return self._scalars(sa.select(tables.directory.c.entry).order_by(tables.directory.c.number))

    def leases(self, start_hour: float, end_hour: float) -> list[Lease]:
        """Leases that overlap [start_hour, end_hour), in order of start."""
        query = (
            sa.select(tables.leases)
            .where(tables.leases.c.start_h < end_hour, tables.leases.c.end_h > start_hour)
            .order_by(tables.leases.c.start_h, tables.leases.c.lease)
        )
        return [_lease(*row) for row in self._rows(query)]

    def releases(self) -> "list[Release]":
        """All releases, oldest first; DecodeError where one is of another form."""
        query = sa.select(tables.releases.c.release).order_by(tables.releases.c.number)
        return [_release(data) for data in self._scalars(query)]

    def newest_release(self) -> "Release | None":
        """The newest release, None before the first; DecodeError where it is of another form."""
        query = sa.select(tables.releases.c.release).order_by(tables.releases.c.number.desc()).limit(1)
        data = self._scalar(query)
        return None if data is None else _release(data)

    def note(self, name: str) -> dict[str, Any]:
        """The note of that name, empty if there is none."""
        query = sa.select(tables.notes.c.note).where(tables.notes.c.name == name)
        with self._engine.connect() as connection:
            found: dict[str, Any] = json.loads(connection.scalar(query) or "{}")
        return found

    def keep_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Keeps a note in place of the one of that name."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(tables.notes).where(tables.notes.c.name == name))
            connection.execute(sa.insert(tables.notes).values(name=name, note=json.dumps(note, sort_keys=True)))

    def add_bundle(self, number: int, bundle: bytes) -> None:
        """Keeps a signed bundle."""
        self._write(sa.insert(tables.bundles).values(number=number, bundle=bundle))

    def bundles(self) -> list[bytes]:
        """All signed bundles, oldest first."""
        return self._scalars(sa.select(tables.bundles.c.bundle).order_by(tables.bundles.c.number))

    def newest_bundle(self) -> tuple[int, bytes] | None:
        """Number and bytes of the newest bundle, None before the first."""
        newest = self._rows(sa.select(tables.bundles).order_by(tables.bundles.c.number.desc()).limit(1))
        return (newest[0].number, newest[0].bundle) if newest else None


def _release(data: bytes) -> "Release":
    from provider_server.fleet.release import from_bytes  # loads numpy, which an intake of leases does not need

    return from_bytes(data)


@contextmanager
def reporting() -> Iterator[None]:
    """What a database fails at becomes StoreFailed, without what it was given."""
    try:
        yield
    except sa.exc.OperationalError as error:
        said = str(error.orig).partition("\n")[0]
        raise StoreFailed(f"the store failed: {said}") from None  # the cause quotes the statement


def _retire(connection: sa.Connection, tenants: Iterable[TenantId]) -> None:
    column = tables.node_keys.c
    of_them = column.tenant.in_([bytes(tenant) for tenant in tenants])
    connection.execute(sa.update(tables.node_keys).where(of_them).values(retired=True))


def _url(where: Path | str) -> sa.URL:
    """The URL with the driver that is used; BadDatabase, which quotes nothing of it, for what names no store."""
    if isinstance(where, Path):
        return sa.URL.create("sqlite+pysqlite", database=str(where))
    try:
        url = sa.make_url(where)
    except (sa.exc.ArgumentError, ValueError):
        raise BadDatabase("not the URL of a database") from None  # the cause may quote a password
    if "@" in f"{url.host}{url.database}":
        raise BadDatabase("the URL of the database has more than one @", hint="write an @ in the password as %40")
    if url.drivername not in _DRIVERS:
        raise BadDatabase("the database must be SQLite or PostgreSQL")
    if url.get_backend_name() == "sqlite" and (url.database or ":memory:").startswith((":memory:", "file:")):
        raise BadDatabase("a SQLite store needs a file path")
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
        hint = "pip install 'pharoah-provider[postgresql]'"
        raise BadDatabase("the PostgreSQL driver is not installed", hint=hint) from error


def _check_file(path: Path) -> None:
    """OSError unless it is a file that may be read and written; it is not opened (`create_file` says why)."""
    if stat.S_ISDIR(path.stat().st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _sqlite(url: sa.URL, *, create: bool) -> sa.Engine:
    path = Path(url.database or "")
    try:
        if create:
            create_file(path)
        _check_file(path)
    except OSError as error:
        reason = (error.strerror or "it cannot be opened").lower()
        raise BadDatabase(f"{reason}: {path}", hint="choose a file that exists or can be created") from error
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, so that they hold changes of the schema too
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _on_begin(connection: sa.Connection) -> None:
    synchronous = connection.get_execution_options().get("pharoah_synchronous", "FULL")
    connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('pharoah_begin', 'DEFERRED')}")


def _lease(  # the columns of the table in their order: rows unpack much faster than they are asked by name
    lease: bytes, tenant: bytes, nodes: int, start_h: float, end_h: float, contexts: str, ladder: str | None
) -> Lease:
    units = _units(contexts)
    parts = tuple(dict.fromkeys(token for unit in units for token in unit.tokens))
    return Lease(LeaseId(lease), _tenant(tenant), nodes, start_h, end_h, _labels(contexts, ladder), units, parts)


def _granted(lease: Lease) -> dict[str, object]:
    units = [
        {"nodes": unit.nodes, "rails": [str(token) for token in unit.rails], "unit": str(unit.unit)}
        for unit in lease.units
    ]
    return {**lease.labels, **({_UNITS: units} if units else {})}


@lru_cache(maxsize=4096)
def _units(contexts: str) -> tuple[UnitParts, ...]:
    return tuple(
        UnitParts(
            tuple(unit["nodes"]),
            tuple(Token(bytes.fromhex(token)) for token in unit["rails"]),
            Token(bytes.fromhex(unit["unit"])),
        )
        for unit in json.loads(contexts).get(_UNITS, ())
    )


@lru_cache(maxsize=4096)
def _tenant(tenant: bytes) -> TenantId:
    return TenantId(tenant)


@lru_cache(maxsize=4096)
def _labels(contexts: str, ladder: str | None) -> Mapping[str, str]:
    """The labels of a lease; few distinct ones stand behind very many leases, so they are shared."""
    granted = {name: token for name, token in json.loads(contexts).items() if name != _UNITS}
    return MappingProxyType(granted | (json.loads(ladder) if ladder else {}))
