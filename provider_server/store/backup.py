"""Backups of the store: one file, the same for SQLite and PostgreSQL, so that either restores what the other kept.

    pharoah-backup 1 ⏎ | frame | frame | … | 0 | SHA-256 of all bytes before

A frame is a kind (1 byte), a length (4 bytes, big-endian) and one row, encoded by `crypto.codec`. The rows are those
of one moment, whoever writes meanwhile. A file that was cut short or altered anywhere is refused before a row counts.

A round that is under way goes on from a backup as from the store. What happened since is lost: tenants and trustees
remember it, repeat what they answered, and refuse to answer anything else for the same round. A step that the store
took alone (a new round, the one request of a round) and has told to somebody since cannot be taken back: give such a
round up, or the series that it belongs to.

Hints that were made since are lost as well, and their numbers are not given again (`provider_server.store.hint_store`).

The digest protects against accidents, not against people: whoever can write the file can also make a file. It
holds what the store holds, leases by tenant among it, so it is made readable by its owner only.
"""

import hashlib
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import sqlalchemy as sa

from crypto.codec import MAX_MESSAGE_BYTES, Count, Message, Number, Text, decode, encode
from crypto.errors import DecodeError, PharoahError
from crypto.ids import LeaseId, RoundId, TenantId
from provider_server.store.round_store import Answer, RoundState
from provider_server.store.store import Store

MAGIC = b"pharoah-backup 1\n"
_END = b"\0"
_LENGTH = struct.Struct(">I")


class BadBackup(PharoahError):
    """The file cannot be written, or is not a whole and unaltered backup."""

    default_hint = "nothing was changed; use another backup"


class LeaseRow(Message, frozen=True, tag="pharoah/backup-lease/1"):
    """A lease. The JSON of its labels travels as bytes, which have no limit of length but the codec's."""

    lease: LeaseId
    tenant: TenantId
    nodes: Count
    start_h: Number
    end_h: Number
    contexts: bytes
    ladder: bytes | None

    def __post_init__(self) -> None:
        for labels in (self.contexts, b"{}" if self.ladder is None else self.ladder):
            try:
                msgspec.json.decode(labels, type=dict[str, str])
            except msgspec.MsgspecError as error:
                raise ValueError("labels must be a JSON object of strings") from error


class ReleaseRow(Message, frozen=True, tag="pharoah/backup-release/1"):
    """A release."""

    number: Count
    round_id: RoundId
    release: bytes


class BundleRow(Message, frozen=True, tag="pharoah/backup-bundle/1"):
    """A signed bundle."""

    number: Count
    bundle: bytes


class EntryRow(Message, frozen=True, tag="pharoah/backup-entry/1"):
    """A signed entry of the directory."""

    number: Count
    entry: bytes


class OwnershipRow(Message, frozen=True, tag="pharoah/backup-ownership/1"):
    """What a tenant said that it owns in an epoch, signed."""

    tenant: TenantId
    epoch: Count
    ownership: bytes


class RoundRow(Message, frozen=True, tag="pharoah/backup-round/1"):
    """A round, at the state in which it was."""

    number: Count
    round_id: RoundId
    state: RoundState
    signed_plan: bytes
    request: bytes | None


class ContributionRow(Message, frozen=True, tag="pharoah/backup-contribution/1"):
    """A contribution to a round that was not over, as it came."""

    round_id: RoundId
    tenant: TenantId
    message: bytes


class AnswerRow(Message, frozen=True, tag="pharoah/backup-answer/1"):
    """What a trustee answered in a round, as it came."""

    round_id: RoundId
    kind: Answer
    trustee: Count
    message: bytes


class MaskedCountsRow(Message, frozen=True, tag="pharoah/backup-masked-counts/1"):
    """The masked counts of a group of a round, which the weeks to come go on from."""

    round_id: RoundId
    group: Count
    left_out: bool
    words: bytes


class NoteRow(Message, frozen=True, tag="pharoah/backup-note/1"):
    """A note by its name. Its JSON travels as bytes, as labels do."""

    name: Text
    note: bytes

    def __post_init__(self) -> None:
        try:
            msgspec.json.decode(self.note, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ValueError("a note must be a JSON object") from error


class NodeKeyRow(Message, frozen=True, tag="pharoah/backup-node-key/1"):
    """A public key of a tenant's node, in use or retired."""

    node_key: Text
    tenant: TenantId
    retired: bool


class PlacementRow(Message, frozen=True, tag="pharoah/backup-placement/1"):
    """The names of a lease's nodes, as a JSON array."""

    lease: LeaseId
    node_names: bytes

    def __post_init__(self) -> None:
        try:
            msgspec.json.decode(self.node_names, type=list[str])
        except msgspec.MsgspecError as error:
            raise ValueError("names of nodes must be a JSON array of strings") from error


class HintRow(Message, frozen=True, tag="pharoah/backup-hint/1"):
    """A hint to a tenant."""

    tenant: TenantId
    number: Count
    at_h: Number
    hint: bytes


class EpisodesRow(Message, frozen=True, tag="pharoah/backup-episodes/1"):
    """How far the episodes that hints tell of have got."""

    name: Text
    state: bytes


class OutcomeRow(Message, frozen=True, tag="pharoah/backup-outcome/1"):
    """What a tenant's test showed after a hint."""

    tenant: TenantId
    number: Count
    outcome: bytes


class RevokedRow(Message, frozen=True, tag="pharoah/backup-revoked/1"):
    """Up to when sessions of a tenant were called back."""

    tenant: TenantId
    until_s: Count


Row = (
    LeaseRow
    | ReleaseRow
    | BundleRow
    | EntryRow
    | OwnershipRow
    | RoundRow
    | ContributionRow
    | AnswerRow
    | MaskedCountsRow
    | NoteRow
    | NodeKeyRow
    | PlacementRow
    | HintRow
    | EpisodesRow
    | OutcomeRow
    | RevokedRow
)
# A kind is written as its place in this list: it stays, and new ones follow.
KINDS: dict[str, Any] = {
    "leases": LeaseRow,
    "releases": ReleaseRow,
    "bundles": BundleRow,
    "directory": EntryRow,
    "ownerships": OwnershipRow,
    "rounds": RoundRow,
    "contributions": ContributionRow,
    "answers": AnswerRow,
    "masked_counts": MaskedCountsRow,
    "notes": NoteRow,
    "node_keys": NodeKeyRow,
    "placements": PlacementRow,
    "hints": HintRow,
    "episodes": EpisodesRow,
    "outcomes": OutcomeRow,
    "revoked": RevokedRow,
}
_BYTE_OF = {kind: bytes([number]) for number, kind in enumerate(KINDS.values(), start=1)}
_TABLE_OF = {_BYTE_OF[kind]: (table, kind) for table, kind in KINDS.items()}
_TEXTS = ("contexts", "ladder", "note", "node_names")


def backup(store: Store, file: Path) -> Counter[str]:
    """Writes what `store` holds now into a new file and reads it back; returns the number of rows of each table."""
    with _new(file) as opened:
        _write(store, opened)
        return verify(file)


@contextmanager
def _new(file: Path) -> Iterator[BinaryIO]:
    """A file that was not there and, whatever is raised meanwhile, is not there afterwards: half a backup is none."""
    try:
        opened = os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
    except OSError as error:
        raise BadBackup(f"{file} cannot be made: {error.strerror}", hint="name a file that is not there yet") from error
    try:
        with opened:
            yield opened
    except OSError as error:
        file.unlink()
        raise BadBackup(f"{file} cannot be written: {error.strerror}", hint="nothing was kept") from error
    except BaseException:
        file.unlink()
        raise


def verify(file: Path) -> Counter[str]:
    """The number of rows of each table in a whole and unaltered backup; BadBackup for anything else."""
    with closing(_rows(file)) as rows:
        return Counter(table for table, _ in rows)


def restore(file: Path, store: Store, now_s: Callable[[], float] = time.time) -> Counter[str]:
    """Fills an empty store from a backup; StoreNotEmpty or BadBackup change nothing. `now_s` is since 1970."""
    found = verify(file)
    with closing(_rows(file)) as rows:
        try:
            store.fill(((table, _to_columns(row)) for table, row in rows), now_s())
        except (sa.exc.IntegrityError, sa.exc.DataError) as error:
            raise BadBackup(f"{file} holds a row twice, or one that this database cannot hold") from error
    return found


def _write(store: Store, opened: BinaryIO) -> None:
    digest = hashlib.sha256()

    def put(data: bytes) -> None:
        digest.update(data)
        opened.write(data)

    put(MAGIC)
    with closing(store.rows()) as rows:
        for table, columns in rows:
            row = _from_columns(table, columns)
            body = encode(row)
            put(_BYTE_OF[type(row)] + _LENGTH.pack(len(body)) + body)
    put(_END)
    opened.write(digest.digest())
    opened.flush()
    os.fsync(opened.fileno())


class _Reader:
    """A file, digested while it is read."""

    def __init__(self, opened: BinaryIO, name: Path) -> None:
        self.digest = hashlib.sha256()
        self._opened = opened
        self._name = name

    def take(self, size: int) -> bytes:
        data = self._opened.read(size)
        if len(data) != size:
            raise self.bad("it is cut short")
        self.digest.update(data)
        return data

    def bad(self, why: str) -> BadBackup:
        return BadBackup(f"{self._name} is no backup that can be used: {why}")


def _rows(file: Path) -> Generator[tuple[str, Row], None, None]:
    """The rows of a backup; BadBackup as soon as it cannot be one, at the latest after the last row."""
    try:
        opened = file.open("rb")
    except OSError as error:
        raise BadBackup(f"{file} cannot be read: {error.strerror}") from error
    with opened:
        reader = _Reader(opened, file)
        if reader.take(len(MAGIC)) != MAGIC:
            raise reader.bad("it begins otherwise, or is of another version")
        while (kind := reader.take(1)) != _END:
            yield _row(reader, kind)
        expected = reader.digest.digest()
        if reader.take(len(expected)) != expected or opened.read(1):
            raise reader.bad("it was altered")


def _row(reader: _Reader, kind: bytes) -> tuple[str, Row]:
    (length,) = _LENGTH.unpack(reader.take(_LENGTH.size))
    if kind not in _TABLE_OF or length > MAX_MESSAGE_BYTES:
        raise reader.bad("it was altered")
    table, row_type = _TABLE_OF[kind]
    try:
        row: Row = decode(row_type, reader.take(length))
    except DecodeError as error:
        raise reader.bad(error.what) from error
    return table, row


def _from_columns(table: str, columns: Mapping[str, Any]) -> Row:
    values = dict(columns) | {name: columns[name].encode() for name in _TEXTS if columns.get(name) is not None}
    row: Row = KINDS[table](**values)
    return row


def _to_columns(row: Row) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    return values | {name: values[name].decode() for name in _TEXTS if values.get(name) is not None}
