"""Databases that meet trouble: after so many writes their program dies, or their disk is full, all in one process.

A program that dies at a write writes nothing from then on: `Killed` passes everything that catches errors, and its open
transaction is rolled back. (`tests/support/deaths.py` kills real processes with SIGKILL.)
"""

import sqlite3
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from provider_server.rounds.provider import Provider
from tests.support.deaths import WRITE, watch_store, watching


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

    def meet(self, path: Path, moment: str, statement: str) -> None:
        """Before a statement, and after it where a program dies."""
        trouble = self.troubles.get(path)
        if trouble and (moment == "before" or trouble.is_death):
            trouble.meet(statement)

    def watched(self) -> AbstractContextManager[None]:
        """Within it, databases of tenants and trustees that are opened meet their troubles at every write."""
        return watching(self.meet)

    def watch(self, provider: Provider, path: Path) -> None:
        """The same for the provider's database, whose program dies before statements and around commits."""

        def meet(moment: str, statement: str) -> None:
            if moment == "before" or statement == "COMMIT":
                self.meet(path, moment, statement)

        watch_store(provider.store, meet)
