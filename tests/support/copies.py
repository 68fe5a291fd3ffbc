"""Copies of a provider's store as docs/operate.md has operators make them, and put them back: by the database's own."""

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from provider_server.rounds.store.store import Store
from provider_server.rounds.store.tables import metadata
from tests import needs


def copy(url: str, file: Path) -> None:
    """What SQLite's `.backup` does, or `pg_dump`; others may write meanwhile."""
    if (database := _sqlite(url)) is None:
        _run("pg_dump", f"--dbname={url}", f"--schema={_schema(url)}", f"--file={file}")
        return
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)


def put_back(file: Path, url: str) -> None:
    """The copy in place of what is there; nobody has the store open."""
    if (database := _sqlite(url)) is None:
        _run("psql", f"--dbname={url}", "--quiet", f"--command=DROP SCHEMA {_schema(url)} CASCADE", f"--file={file}")
        return
    for beside in ("-wal", "-shm"):
        Path(f"{database}{beside}").unlink(missing_ok=True)
    shutil.copyfile(file, database)


def rows(store: Store) -> list[tuple[str, dict[str, Any]]]:
    """Every row with the name of its table."""
    with store._engine.connect() as connection:
        return [
            (table.name, dict(row))
            for table in metadata.sorted_tables
            for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
        ]


def _sqlite(url: str) -> str | None:
    parts = sa.make_url(url)
    return parts.database if parts.get_backend_name() == "sqlite" else None


def _schema(url: str) -> str:
    return str(sa.make_url(url).query["options"]).removeprefix("-csearch_path=")


def _run(name: str, *options: str) -> None:
    command = [str(needs.find("postgres").parent / name), *options]  # type: ignore[union-attr]  # it runs
    subprocess.run(command, check=True, capture_output=True)
