"""The bytes of one flight recorder dump, pickle or JSON, as typed records.

Guarantees: `decode` returns a `File` whose every field is of its declared type, or raises SourceError with file and
position, whatever the bytes are; a pickle goes through `closed_pickle`, so nothing in it is run. Fields that the
analysis does not need are dropped unread.

Source: PyTorch 2.13, `torch/csrc/distributed/c10d/FlightRecorder.hpp` (fields, version 2.x).

>>> decode(b'{"version": "2.10", "entries": []}', "dump_0").version
'2.10'
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from federation.base.reading import SourceError
from tenant_client.doctor.sources import closed_pickle

SOURCE = "flight_recorder"  # as evidence names it

Count = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 62))]


class Frame(msgspec.Struct, gc=False):
    """One line of a call stack, the innermost first."""

    name: str = ""
    filename: str = ""
    line: int = 0


class Entry(msgspec.Struct, gc=False):
    """One record: what a rank enqueued, and how far it got."""

    record_id: Count
    process_group: tuple[str, str]
    collective_seq_id: Count
    profiling_name: str
    state: str
    pg_id: int = -1
    time_created_ns: Count = 0
    input_sizes: tuple[tuple[Count, ...], ...] = ()
    output_sizes: tuple[tuple[Count, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    retired: bool = False
    is_p2p: bool = False
    frames: Annotated[tuple[Frame, ...], msgspec.Meta(max_length=1024)] = ()


class Config(msgspec.Struct):
    """A process group; some writers give its ranks as JSON in a string."""

    name: str = ""
    desc: str = ""
    ranks: str | tuple[Count, ...] = ""


class DumpStatus(msgspec.Struct):
    """Last sequence numbers of a process group, also as strings."""

    last_enqueued_collective: int | str = -1
    last_completed_collective: int | str = -1


class File(msgspec.Struct):
    """A dump."""

    version: str
    entries: list[Entry] = []
    pg_config: dict[str, Config] = {}
    pg_status: dict[str, DumpStatus] = {}
    rank: Count | None = None


def decode(data: bytes, file: str) -> File:
    """The dump in `data`; SourceError names `file`."""
    try:
        with _no_cycle_search():
            if data[:1] == b"\x80":
                return msgspec.convert(_of_unlike_entries(closed_pickle.load(data, file), file), File)
            return msgspec.json.decode(data, type=File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SourceError(file, _position(error), f"not a flight recorder dump: {error}") from error
    except RecursionError as error:
        raise SourceError(file, 0, "nested too deeply for a flight recorder dump") from error


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Loading makes no cycles, and looking for them takes as long as loading."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _of_unlike_entries(raw: object, file: str) -> object:
    """A record that a small pickle repeats a million times would be a large dump."""
    entries = raw.get("entries") if isinstance(raw, dict) else None
    if isinstance(entries, list) and len({id(entry) for entry in entries}) < len(entries):
        raise SourceError(file, "entries", "one record in two places")
    return raw


def _position(error: Exception) -> int | str:
    """The byte, or for a value of the wrong type its path, which msgspec puts at the end of its text."""
    text = str(error)
    byte = re.search(r"\(byte (\d+)\)", text)
    return int(byte[1]) if byte else text.rpartition(" - at ")[2][:80] if " - at " in text else "end"
