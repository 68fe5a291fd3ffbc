"""Which runs were started where, and what became of them: `benchmarks.db` of the home, written before a run starts."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from federation.base.sqlite import Connection, open_database, reporting

FILE = "benchmarks.db"
SCHEMA = """CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, job TEXT NOT NULL, node TEXT NOT NULL, context NOT NULL, stands_for TEXT NOT NULL,
    planned_s REAL NOT NULL, started_s REAL NOT NULL, seen_s REAL NOT NULL,
    outcome TEXT NOT NULL, said TEXT NOT NULL)"""


class Run(msgspec.Struct, frozen=True):
    """A run; times in seconds since 1970. It has ended where it has an outcome; `seen_s` is when it was last seen.

    The outcome is one of `benchmark_jobs`, or `displaced`, `stopped` or `cannot run`.
    """

    run: str
    job: str
    node: str
    context: int | str
    stands_for: str
    planned_s: float
    started_s: float
    seen_s: float
    outcome: str = ""
    said: str = ""

    @property
    def archetype(self) -> str:
        """What it stands for: a workload of tenants, else the job itself, whatever another home would call it."""
        return self.stands_for or self.job

    @property
    def node_hours(self) -> float:
        """What it cost so far."""
        return (self.seen_s - self.started_s) / 3600


class Book:
    """The runs of a home; StorageFailed where its file cannot be used."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self, run: Run) -> None:
        """Keeps a run that is about to start."""
        self._write("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *msgspec.structs.astuple(run))

    def see(self, run: str, now_s: float) -> None:
        """Keeps that a run still runs."""
        self._write("UPDATE runs SET seen_s = ? WHERE run = ?", now_s, run)

    def end(self, run: str, outcome: str, said: str) -> None:
        """Keeps what became of a run."""
        self._write("UPDATE runs SET outcome = ?, said = ? WHERE run = ?", outcome, said, run)

    def all(self) -> list[Run]:
        """All runs, in the order in which they were started."""
        return self._read("SELECT * FROM runs ORDER BY started_s, run")

    def open(self) -> list[Run]:
        """Those that have not ended."""
        return self._read("SELECT * FROM runs WHERE outcome = '' ORDER BY started_s, run")

    def _read(self, statement: str) -> list[Run]:
        with reporting():
            return [Run(*row) for row in self._connection.execute(statement)]

    def _write(self, statement: str, *values: object) -> None:
        with reporting():
            self._connection.execute(statement, values)


@contextmanager
def opened(home: Path) -> Iterator[Book]:
    """The book of a home."""
    with reporting(), closing(open_database(home / FILE, SCHEMA)) as connection:
        yield Book(connection)
