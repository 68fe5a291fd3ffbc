"""Secrets that never leave the tenant's database."""

from typing import TYPE_CHECKING

from federation.base.sqlite import Connection, transaction

if TYPE_CHECKING:
    from crypto.ristretto import RandomBytes  # loads what only a federation needs


def selection_key(connection: Connection, random_bytes: "RandomBytes") -> bytes:
    """The secret that decides which failures count; drawn once per database."""
    return _secret(connection, "selection", random_bytes)


def digest_key(connection: Connection, random_bytes: "RandomBytes") -> bytes:
    """The key of the digests that stand for secret-looking values in the journal; drawn once per database."""
    return _secret(connection, "digests", random_bytes)


def _secret(connection: Connection, name: str, random_bytes: "RandomBytes") -> bytes:
    with transaction(connection):
        connection.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, random_bytes(32)))
    row = connection.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
    return bytes(row[0])
