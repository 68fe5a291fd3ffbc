"""Databases that meet trouble: after so many writes their program dies, or their disk is full, all in one process.

A program that dies at a write writes nothing from then on: `Killed` passes everything that catches errors, and its open
transaction is rolled back. (`tests/support/deaths.py` kills real processes with SIGKILL.)
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from federation.base import sqlite
from provider_server.rounds.provider import Provider
from tests.support.deaths import WRITE


class Killed(BaseException):
    """A program ended at a write: nothing of it goes on, so nothing may catch it."""


@dataclass
class Trouble:
    """What a database meets after so many writes: the death of its program, or a full disk. `kind` is for its maker."""

    kind: str
    writes_left: int
    is_death: bool
    met: bool = False

    def meet(self, statement: str) -> None:
        """Passes one point of a statement, or ends there."""
        if not WRITE.match(statement):
            if self.met and self.is_death and statement != "ROLLBACK":
                raise Killed
            return
        self.writes_left -= 1
        self.met = self.met or self.writes_left <= 0
        if self.met and self.is_death:
            raise Killed
        if self.met:
            raise sqlite3.OperationalError("database or disk is full")


class Disks:
    """The troubles that databases are in, by path."""

    def __init__(self) -> None:
        self.troubles: dict[Path, Trouble] = {}

    def meet(self, path: Path, statement: str) -> None:
        if path in self.troubles:
            self.troubles[path].meet(statement)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, databases of tenants and trustees that are opened meet their troubles at every write."""
        disks = self

        class Mortal(sqlite.Connection):
            def __init__(self, path: str, **options: Any) -> None:
                super().__init__(path, **options)
                self._path = Path(path)

            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._met(statement, lambda: super(Mortal, self).execute(statement, *values))

            def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return self._met(statement, lambda: super(Mortal, self).executemany(statement, *values))

            def _met(self, statement: str, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
                disks.meet(self._path, statement)
                done = run()
                if (trouble := disks.troubles.get(self._path)) and trouble.is_death:
                    trouble.meet(statement)
                return done

        real = sqlite.Connection
        vars(sqlite)["Connection"] = Mortal
        try:
            yield
        finally:
            vars(sqlite)["Connection"] = real

    def watch(self, provider: Provider, path: Path) -> None:
        """The same for the provider's database."""
        engine = provider.store._engine
        commit = engine.dialect.do_commit

        def meeting(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            self.meet(path, statement)

        def do_commit(connection: Any) -> None:
            self.meet(path, "COMMIT")
            commit(connection)
            if (trouble := self.troubles.get(path)) and trouble.is_death:
                trouble.meet("COMMIT")

        sa.event.listen(engine, "before_cursor_execute", meeting)
        vars(engine.dialect)["do_commit"] = do_commit
