"""Stores the pinned directory of a tenant or trustee in its database: signed entries, append only.

The owner pins the first entry at enrolment, after comparing the head with others; later entries must continue it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from crypto.errors import PharoahError
from crypto.signing import reopened
from federation.base.sqlite import Connection, transaction

if TYPE_CHECKING:
    from federation.protocol.directory import Chain


class NotEnrolled(PharoahError):
    """No directory is pinned yet."""

    default_hint = "join with `pharoah-tenant join`; run, jobs, show and diagnose work without"


NOT_JOINED = "this home has not joined a federation"


def pin(connection: Connection, entries: Iterable[bytes]) -> "Chain":
    """Pins `entries`, which begin with the first of a directory or lead on from what is pinned, and keeps them.

    Raises Fork, TrustChanged or BadSignature, and changes nothing, where they do neither.
    """
    with transaction(connection):
        kept = _kept(connection)
        entries = list(entries)
        chain = _chain([*kept, *entries]) if kept or entries else None
        if chain is None:
            raise NotEnrolled("there is no directory to pin")
        rows = list(enumerate(chain.entries))[len(kept) :]
        connection.executemany("INSERT INTO directory VALUES (?, ?)", rows)
    return chain


def pinned(connection: Connection) -> "Chain":
    """The pinned chain; NotEnrolled before there is one."""
    if not is_pinned(connection):
        raise NotEnrolled(NOT_JOINED)
    return _chain(_kept(connection))


def is_pinned(connection: Connection) -> bool:
    """Whether a directory is pinned. Works without the extra `federation`."""
    return connection.execute("SELECT 1 FROM directory").fetchone() is not None


def _kept(connection: Connection) -> list[bytes]:
    return [bytes(entry) for (entry,) in connection.execute("SELECT entry FROM directory ORDER BY number")]


def _chain(entries: list[bytes]) -> "Chain":
    from federation.protocol.directory import Chain, DirectoryEntry

    founding = reopened(DirectoryEntry, entries[0])
    return Chain.begin(entries[0], founding.provider).extended(entries[1:])
