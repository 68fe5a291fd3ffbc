"""Secrets that never leave the tenant's database."""

from crypto.ristretto import RandomBytes
from federation.runtime.sqlite import Connection, transaction


def selection_key(connection: Connection, random_bytes: RandomBytes) -> bytes:
    """The secret that decides which failures count; drawn once per database."""
    with transaction(connection):
        connection.execute("INSERT OR IGNORE INTO secrets VALUES ('selection', ?)", (random_bytes(32),))
    row = connection.execute("SELECT value FROM secrets WHERE name = 'selection'").fetchone()
    return bytes(row[0])
