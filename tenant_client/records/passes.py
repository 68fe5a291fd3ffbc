"""Passes for anonymous checks, by week, in the tenant's database: each is taken out before it is shown to anybody."""

from collections.abc import Sequence

from federation.protocol.passes import Pass
from federation.runtime.sqlite import Connection, transaction

_ANY = "SELECT pass FROM passes WHERE week = ? ORDER BY random() LIMIT 1"


def keep(connection: Connection, week: int, passes: Sequence[Pass]) -> None:
    """Keeps passes of a week, and lets those of weeks before the last one go."""
    with transaction(connection):
        connection.execute("DELETE FROM passes WHERE week < ?", (week - 1,))
        connection.executemany("INSERT INTO passes VALUES (?, ?)", [(week, bytes(each)) for each in passes])


def kept(connection: Connection, week: int) -> int:
    """How many passes of a week are left."""
    (count,) = connection.execute("SELECT count(*) FROM passes WHERE week = ?", (week,)).fetchone()
    return int(count)


def take(connection: Connection, week: int) -> Pass | None:
    """One pass of a week, at random, which is no longer here then; None if there is none.

    At random, since the order in which they were issued is known to the issuer by blinded elements alone, and is to
    stay nobody's business. After a power cut at this moment a pass may be here again; shown again, it is refused.
    """
    connection.execute("PRAGMA synchronous=NORMAL")  # or each check would wait for the disk
    try:
        with transaction(connection):
            row = connection.execute(_ANY, (week,)).fetchone()
            if row is not None:
                connection.execute("DELETE FROM passes WHERE week = ? AND pass = ?", (week, row[0]))
    finally:
        connection.execute("PRAGMA synchronous=FULL")
    return None if row is None else Pass(row[0])
