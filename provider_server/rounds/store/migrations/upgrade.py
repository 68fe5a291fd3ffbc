"""Takes a database to the newest version of the schema, in one transaction, or refuses it and changes nothing.

An empty database gets every step. A store from before there were migrations is recognised by its tables and columns,
keeps its rows and gets the steps that it lacks. Anything else without a version, and any version that this program
does not know, is refused.
"""

import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from crypto.errors import Refusal

if TYPE_CHECKING:  # a fifth of a second, for the one start in many that takes a step
    from alembic.config import Config

VERSION_TABLE = "alembic_version"
_FIRST = "0001"
_FIRST_COLUMNS = {
    "leases": ["lease", "tenant", "nodes", "start_h", "end_h", "contexts", "ladder"],
    "releases": ["number", "round_id", "release"],
    "bundles": ["number", "bundle"],
}
_LOCK = 0x50484152  # of no meaning but to be the same for every opener
_one_at_a_time = threading.Lock()  # Alembic keeps the connection of the steps in a global variable


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
    """The database holds rounds that this program does not read."""

    default_hint = "nothing was changed; keep it with the version that wrote it, and found a new federation"


def upgrade(engine: sa.Engine, *, create: bool) -> None:
    """Takes every step that the database lacks; NoStore for an empty one unless `create`."""
    with engine.connect() as connection:
        if _version(connection) == newest_version():
            return
    with (
        _one_at_a_time,
        engine.connect().execution_options(pharoah_begin="IMMEDIATE") as connection,
        connection.begin(),
    ):
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        _take_steps(connection, create=create)


def newest_version() -> str:
    """The version that this program writes."""
    return _steps()[-1]


@lru_cache(maxsize=1)
def _steps() -> list[str]:
    """The versions that this program knows, by the names of the steps' files: v0001_tables.py is 0001."""
    return sorted(file.name[1:5] for file in (Path(__file__).parent / "versions").glob("v[0-9]*.py"))


def _take_steps(connection: sa.Connection, *, create: bool) -> None:
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    version = _version(connection)
    if version is None and _is_first(connection, create=create):
        command.stamp(config, _FIRST)
    elif version is not None and version not in _steps():
        raise NewerDatabase(f"the database has version {version!r}, this program knows up to {newest_version()!r}")
    command.upgrade(config, "head")


def _version(connection: sa.Connection) -> str | None:
    """The stored schema version, or None."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    versions = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars()  # noqa: S608  # ours
    return ", ".join(versions) or None


def _is_first(connection: sa.Connection, *, create: bool) -> bool:
    """Whether a database without a version holds the tables of the first step rather than nothing."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names()) - {VERSION_TABLE}
    if not tables:
        if not create:
            raise NoStore("the database is empty")
        return False
    columns = {table: [column["name"] for column in inspector.get_columns(table)] for table in tables}
    if columns != _FIRST_COLUMNS:
        raise ForeignDatabase("the database contains tables of another program")
    return True


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "provider_server.rounds.store:migrations")
    return config
