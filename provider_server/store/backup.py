"""Backups of the store: one file, the same for SQLite and PostgreSQL, so that either restores what the other kept.

    pharoah-backup 2 ⏎ | frame | frame | … | 0 | SHA-256 of all bytes before

A frame is a kind (1 byte), a length (4 bytes, big-endian) and one row: a message of `crypto.codec` whose fields are
the columns of a table in their order, typed as in `provider_server.store.tables`. The rows are those of one moment,
whoever writes meanwhile. A file that was cut short or altered anywhere is refused before a row counts.

A round that is under way goes on from a backup as from the store. What happened since is lost: tenants and trustees
remember it, repeat what they answered, and refuse to answer anything else for the same round. A step that the store
took alone (a new round, the one request of a round) and has told to somebody since cannot be taken back: give such a
round up.

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
from typing import Any, BinaryIO, cast

import msgspec
import sqlalchemy as sa

from crypto.codec import MAX_MESSAGE_BYTES, Count, Message, Number, Text, decode, encode
from crypto.errors import DecodeError, PharoahError
from crypto.ids import LeaseId, RoundId, TenantId
from provider_server.store import tables
from provider_server.store.round_store import Answer, RoundState
from provider_server.store.store import Store

MAGIC = b"pharoah-backup 2\n"
_END = b"\0"
_LENGTH = struct.Struct(">I")


class BadBackup(PharoahError):
    """The file cannot be written, or is not a whole and unaltered backup."""

    default_hint = "nothing was changed; use another backup"


class Row(Message, frozen=True, tag="pharoah/backup-row/2"):
    """What the rows of all tables have in common; `ROWS` has the type of each table's rows."""

    def __post_init__(self) -> None:
        for column, kind in _JSON.items():
            text = getattr(self, column, None)
            if text is None:
                continue
            try:
                msgspec.json.decode(text, type=kind)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{column} must be the JSON of a {kind}") from error


_CODEC = {int: Count, float: Number, str: Text}
_JSON = {"contexts": dict[str, str], "ladder": dict[str, str], "note": dict[str, Any], "node_names": list[str]}
# Columns that hold other values than most of their SQL type. JSON has no limit of length but the codec's.
_SPECIAL: dict[str, Any] = {
    **dict.fromkeys(_JSON, str),
    "lease": LeaseId,
    "tenant": TenantId,
    "round_id": RoundId,
    "rounds.state": RoundState,
    "answers.kind": Answer,
}


def _row_type(table: sa.Table) -> type[Row]:
    fields = [(str(column.name), _type(column)) for column in table.columns]
    tag = f"pharoah/backup-{table.name}/2"
    names = {"__doc__": f"A row of `{table.name}`; docs/architecture.md has its columns."}
    kind = msgspec.defstruct(f"{table.name}_row", fields, bases=(Row,), namespace=names, frozen=True, tag=tag)
    return cast(type[Row], kind)


def _type(column: "sa.Column[Any]") -> Any:
    plain = column.type.python_type
    kind = _SPECIAL.get(str(column)) or _SPECIAL.get(column.name) or _CODEC.get(plain, plain)
    return kind | None if column.nullable else kind


# A kind of row is written as the place of its table in `tables.py`: new tables follow the ones that are there.
ROWS: Mapping[str, type[Row]] = {name: _row_type(table) for name, table in tables.metadata.tables.items()}
_BYTE_OF = {table: bytes([number]) for number, table in enumerate(ROWS, start=1)}
_TABLE_OF = {byte: table for table, byte in _BYTE_OF.items()}


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
            store.fill(((table, msgspec.structs.asdict(row)) for table, row in rows), now_s())
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
            body = encode(ROWS[table](**columns))
            put(_BYTE_OF[table] + _LENGTH.pack(len(body)) + body)
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
    table = _TABLE_OF[kind]
    try:
        return table, decode(ROWS[table], reader.take(length))
    except DecodeError as error:
        raise reader.bad(error.what) from error
