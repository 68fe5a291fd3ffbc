"""Who is logged in to the page: a file in the home that all processes of the page share, so that one may die.

Only digests are kept: of a session's name, and of the verifier of the password that opened it. A session ends after
`IDLE_S` without a request, after `LONGEST_S` in any case, with its password, and when the clock is set back before it.
That it is in use is written at most once in `SEEN_EVERY_S`.
"""

import hashlib
from pathlib import Path

from federation.base.sqlite import open_database, transaction

FILE = "page.sessions"
IDLE_S, LONGEST_S, MOST_SESSIONS = 1800.0, 43_200.0, 64
SEEN_EVERY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    name BLOB PRIMARY KEY, password BLOB NOT NULL, began_s REAL NOT NULL, seen_s REAL NOT NULL
) STRICT
"""


class Sessions:
    """The sessions in a file. Times are in seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self._connection = open_database(path, _SCHEMA)

    def close(self) -> None:
        """Closes the file; the sessions stay open."""
        self._connection.close()

    def begin(self, name: str, password_line: bytes, now_s: float) -> None:
        """Opens a session, and ends those that began first if there are too many."""
        oldest = "SELECT name FROM sessions ORDER BY began_s DESC, rowid DESC LIMIT -1 OFFSET ?"
        with transaction(self._connection):
            row = _digest(name.encode()), _digest(password_line), now_s, now_s
            self._connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", row)
            self._connection.execute(f"DELETE FROM sessions WHERE name IN ({oldest})", (MOST_SESSIONS,))  # noqa: S608

    def is_open(self, name: str, password_line: bytes, now_s: float) -> bool:
        """Whether a session of this name is open; asking keeps it open."""
        key = _digest(name.encode())
        with self._connection.lock:
            query = "SELECT password, began_s, seen_s FROM sessions WHERE name = ?"
            row = self._connection.execute(query, (key,)).fetchone()
            if row is None:
                return False
            password, began_s, seen_s = row
            lasts = 0 <= now_s - began_s <= LONGEST_S and now_s - seen_s <= IDLE_S
            if not lasts or password != _digest(password_line):
                self._connection.execute("DELETE FROM sessions WHERE name = ?", (key,))
                return False
            if now_s - seen_s >= SEEN_EVERY_S:
                self._connection.execute("UPDATE sessions SET seen_s = ? WHERE name = ?", (now_s, key))
        return True

    def end(self, name: str) -> None:
        """Ends a session."""
        with self._connection.lock:
            self._connection.execute("DELETE FROM sessions WHERE name = ?", (_digest(name.encode()),))


def _digest(what: bytes) -> bytes:
    return hashlib.sha256(what).digest()
