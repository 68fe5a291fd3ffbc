"""Makes the tables of an empty database, or takes those of an earlier release to this version, in one transaction.

A file of SQLite is copied before that, beside itself; who uses PostgreSQL keeps a copy with `pg_dump`. Refused,
unchanged, are tables of a newer version, of one that no step leads from, and of something else.

Releases, bundles, entries of the directory, and the request of a round once a trustee has answered it are final: the
database itself refuses to change, replace or remove one. Whoever may drop a trigger or a table can still do so. The
triggers hold against mistakes and against the rights that a provider's processes need.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import sqlalchemy as sa

from crypto.errors import Refusal
from federation.base.sqlite import keep_copy
from provider_server.rounds.store.rows import writing
from provider_server.rounds.store.tables import metadata

VERSION = "0015"
STEPS: Mapping[str, Sequence[str]] = MappingProxyType({})  # statements to the next version, by the one they lead from
_version_table = sa.Table(
    "alembic_version",  # the name that stores have had since a tool of that name made them
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), primary_key=True),
)
_LOCK = 0x50484152  # of no meaning but to be the same for every opener

# An INSERT OR REPLACE of SQLite runs no trigger on the row that it removes; those before an INSERT stand in its way.
_SQLITE_FINAL = (
    "CREATE TRIGGER {table}_are_final BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, '{what} are final'); END",
    "CREATE TRIGGER {table}_stay BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, '{what} are final'); END",
    "CREATE TRIGGER {table}_are_not_replaced BEFORE INSERT ON {table}"
    " WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN SELECT RAISE(ABORT, '{what} are final'); END",
)
_SQLITE = (
    *(
        each.format(table="releases", what="releases", same="number = NEW.number OR round_id = NEW.round_id")
        for each in _SQLITE_FINAL
    ),
    *(each.format(table="bundles", what="bundles", same="number = NEW.number") for each in _SQLITE_FINAL),
    *(
        each.format(table="directory", what="entries of the directory", same="number = NEW.number")
        for each in _SQLITE_FINAL
    ),
    "CREATE TRIGGER requests_are_final BEFORE UPDATE ON rounds"
    " WHEN OLD.request IS NOT NULL AND NEW.request IS NOT OLD.request"
    " AND (NEW.request IS NULL OR EXISTS (SELECT 1 FROM answers WHERE round_id = OLD.round_id))"
    " BEGIN SELECT RAISE(ABORT, 'requests are final'); END",
    "CREATE TRIGGER requests_stay BEFORE DELETE ON rounds WHEN OLD.request IS NOT NULL"
    " BEGIN SELECT RAISE(ABORT, 'requests are final'); END",
    "CREATE TRIGGER requests_are_not_replaced BEFORE INSERT ON rounds"
    " WHEN EXISTS (SELECT 1 FROM rounds WHERE number = NEW.number OR round_id = NEW.round_id)"
    " BEGIN SELECT RAISE(ABORT, 'requests are final'); END",
)
_POSTGRESQL = (
    "CREATE FUNCTION pharoah_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " RAISE EXCEPTION '% are final', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; END $$",
    "CREATE FUNCTION pharoah_request_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " IF NEW.request IS NULL OR EXISTS (SELECT 1 FROM answers WHERE round_id = OLD.round_id) THEN"
    " RAISE EXCEPTION 'requests are final' USING ERRCODE = 'integrity_constraint_violation'; END IF;"
    " RETURN NEW; END $$",
    *(
        f"CREATE TRIGGER {table}_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION pharoah_final()"
        for table in ("releases", "bundles", "directory")
    ),
    "CREATE TRIGGER requests_are_final BEFORE UPDATE ON rounds FOR EACH ROW"
    " WHEN (OLD.request IS NOT NULL AND NEW.request IS DISTINCT FROM OLD.request)"
    " EXECUTE FUNCTION pharoah_request_final()",
    "CREATE TRIGGER requests_stay BEFORE DELETE ON rounds FOR EACH ROW"
    " WHEN (OLD.request IS NOT NULL) EXECUTE FUNCTION pharoah_final()",
    "CREATE TRIGGER requests_stay_all BEFORE TRUNCATE ON rounds FOR EACH STATEMENT EXECUTE FUNCTION pharoah_final()",
)


class NewerDatabase(Refusal):
    """The database has a version that this program does not know."""

    default_hint = "nothing was changed; install the version of Pharoah that last wrote it, or a newer one"


class ForeignDatabase(Refusal):
    """The database holds tables, and not those of a store."""

    default_hint = "nothing was changed; use a separate database or schema for the store"


class NoStore(Refusal):
    """The database is empty, and no new store was requested."""

    default_hint = "pass the database that the provider uses"


class OlderRounds(Refusal):
    """The database is of an earlier version, which this program does not read."""

    default_hint = "nothing was changed; keep it with the version that wrote it, and found a new federation"


def prepare(engine: sa.Engine, *, create: bool) -> None:
    """Makes the tables in an empty database, NoStore unless `create`; an earlier version is taken to this one."""
    with engine.connect() as connection:
        before = _version(connection)
    if before == VERSION:
        return
    if before is not None and engine.dialect.name == "sqlite" and engine.url.database:
        keep_copy(Path(engine.url.database), before)
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        now = _version(connection)
        if now is not None:
            _upgrade(connection, now)
            return
        if not create:
            raise NoStore("the database is empty")
        metadata.create_all(connection)
        for trigger in _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE:
            connection.execute(sa.text(trigger))
        _version_table.create(connection)
        connection.execute(sa.insert(_version_table).values(version_num=VERSION))


def _upgrade(connection: sa.Connection, version: str) -> None:
    """Takes the steps that are left; another process may have taken some meanwhile."""
    while version != VERSION:
        for statement in STEPS[version]:
            connection.execute(sa.text(statement))
        version = f"{int(version) + 1:04d}"
    connection.execute(sa.update(_version_table).values(version_num=VERSION))


def _version(connection: sa.Connection) -> str | None:
    """The version of the tables, None if there are none; a refusal for any that no step leads from."""
    tables = sa.inspect(connection).get_table_names()
    version = connection.scalar(sa.select(_version_table)) if _version_table.name in tables else None
    if version is None and tables:
        raise ForeignDatabase("the database contains tables of another program")
    if version is not None and version > VERSION:
        raise NewerDatabase(f"the database has version {version!r}, this program knows up to {VERSION!r}")
    if version is not None and version < VERSION and version not in STEPS:
        raise OlderRounds(f"the database has version {version!r}, which this program ({VERSION!r}) does not read")
    return version
