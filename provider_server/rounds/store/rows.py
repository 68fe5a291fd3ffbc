"""What the rooms of the store share: a query's rows, and statements in a transaction of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa

T = TypeVar("T")


class Rows:
    """Some tables of a store. Threads and processes share them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    def _scalars(self, query: sa.Select[T]) -> list[T]:
        with self._engine.connect() as connection:
            return list(connection.scalars(query))

    def _scalar(self, query: sa.Select[T]) -> T | None:
        with self._engine.connect() as connection:
            return connection.scalar(query)

    def _write(self, *statements: sa.Executable) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that writes from its beginning: SQLite refuses a writer whose view is older than a write."""
    with engine.connect().execution_options(pharoah_begin="IMMEDIATE") as connection, connection.begin():
        yield connection


def put(connection: sa.Connection, table: sa.Table, key: dict[str, Any], **values: Any) -> None:
    """Writes the row of this key, in place of the one before."""
    connection.execute(sa.delete(table).filter_by(**key))
    connection.execute(sa.insert(table).values(**key, **values))
