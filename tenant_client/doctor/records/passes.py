"""Passes for anonymous checks, by week, in the tenant's database: each is taken out before it is shown to anybody."""

from collections.abc import Sequence

from federation.base.sqlite import Connection, transaction
from federation.protocol.pass_messages import Pass

_TAKE = (
    "DELETE FROM passes WHERE (week, pass) ="
    " (SELECT week, pass FROM passes WHERE week = ? ORDER BY random() LIMIT 1) RETURNING pass"
)


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
    stay nobody's business.
    """
    with connection.lock:
        rows = connection.execute(_TAKE, (week,)).fetchall()  # to its end, which commits
    return Pass(rows[0][0]) if rows else None


def hurry(connection: Connection) -> None:
    """Lets this connection's writes not wait for the disk.

    After a power cut in that moment a pass that was taken may be here again; shown again, it is refused.
    """
    connection.execute("PRAGMA synchronous=NORMAL")
