"""PyTorch's flight recorder: one dump per rank of the collectives that the rank enqueued last.

Guarantees: whatever is damaged, hostile or of another shape ends in a SourceError with file and position. Of a record
only what the analysis needs is kept, in columns: some 50 bytes.

Does not promise that a dump tells the truth, nor that it is complete: the buffer is a ring, and some launchers write
only the unfinished records. `Dump.complete` says when every record since the start is there.

Gloo: `pg_config` has an empty name and `state` stays "scheduled" when the work is done, so `retired` is what counts.

>>> rank_in_name("nccl_trace_rank_3"), rank_in_name("_dump_12.json.gz"), rank_in_name("fault_injection.log")
(3, 12, None)
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError, open_inputs
from tenant_client.doctor.sources.flight_recorder_file import Count, DumpStatus, Entry, File, Frame, decode

# Whose `state` never leaves "scheduled"; the others retire a work that timed out, which is not completion.
_BACKENDS_THAT_ONLY_RETIRE = ("gloo:", "mpi:", "ucc:")
_DUMP_BYTES = 1 << 30
_NUMBER = re.compile(r"\d{1,9}")
_ENDS = re.compile(r"(\d{1,7})(->|<-)(\d{1,7})")
_RANK = re.compile(r"(?:^|[_.\-])(?:rank)?(\d{1,7})(?:\.(?:json|pkl|pickle|bin|gz))*$")


class CollectiveState(IntEnum):
    """How far a rank saw its own work get."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2


_STATES = {state.name.lower(): state for state in CollectiveState}


@dataclass(frozen=True)
class Operation:
    """What a record calls, without where and when: `kind` as the recorder writes it, sizes and types of its tensors."""

    backend: str
    kind: str
    peers: tuple[int, int] | None  # source and destination of a send or receive, as positions in the group
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """A process group; `ranks` in the group's order, None where the dump does not say."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class Records:
    """One row per record in the order of `record_id`; group, operation and place are positions in the dump's tables."""

    record_id: NDArray[np.int64]
    group: NDArray[np.int32]
    seq: NDArray[np.int64]
    operation: NDArray[np.int32]
    place: NDArray[np.int32]
    state: NDArray[np.int8]
    p2p: NDArray[np.bool_]
    created_ns: NDArray[np.int64]


@dataclass(frozen=True)
class Dump:
    """One rank's dump. `places` are source lines, the first of them "" for not recorded.

    `status` maps a rank-local group number to the last enqueued and the last completed sequence number; `numbers` are
    those group numbers by position in `groups`, -1 where no record tells.
    """

    rank: int
    file: str
    groups: tuple[Group, ...]
    operations: tuple[Operation, ...]
    places: tuple[str, ...]
    records: Records
    status: Mapping[int, tuple[int, int]]
    numbers: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every record since the start of the process is in the dump."""
        ids = self.records.record_id
        return len(ids) > 0 and int(ids[0]) == 0 and int(ids[-1]) == len(ids) - 1


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name ends in, None where it names none."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def looks_like(head: bytes, name: str) -> bool:
    """Whether a file of that name that begins so is a dump: JSON, or a pickle whose name ends in a rank."""
    is_pickle = head.startswith(b"\x80") and rank_in_name(name) is not None
    is_json = head.lstrip().startswith(b"{")
    named = b'"version"' if is_json else b"version"
    return (is_pickle or is_json) and named in head and (b"pg_config" in head or b"entries" in head)


def read_dumps(
    path: Path, limits: ReadLimits = DEFAULT_LIMITS, *, refused: Callable[[SourceError], None] | None = None
) -> Iterator[Dump]:
    """The dumps of a folder (the files whose name ends in a rank), of an archive, or of one file.

    A broken dump raises SourceError, or goes to `refused` where that is given and the rest is still read.
    """
    files = sorted(file for file in path.iterdir() if rank_in_name(file.name) is not None) if path.is_dir() else [path]
    for file in files:
        with open_inputs(file, limits) as readers:
            for reader in readers:
                dump = _read_unless_refused(reader, limits, refused)
                if dump:
                    yield dump


def _read_unless_refused(
    reader: CappedReader, limits: ReadLimits, refused: Callable[[SourceError], None] | None
) -> Dump | None:
    try:
        return read_dump(reader, limits)
    except SourceError as error:
        if refused is None:
            raise
        refused(error)
        return None


def read_dump(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Dump:
    """One dump; its rank is what it says itself, or what its name ends in."""
    data = reader.read(_DUMP_BYTES)
    if reader.read(1):
        raise SourceError(reader.file, reader.position, f"a dump of more than {_DUMP_BYTES} bytes")
    raw = decode(data, reader.file)
    if not raw.version.startswith("2."):
        raise SourceError(reader.file, "version", f"{raw.version[:20]!r} is not a 2.x dump of the flight recorder")
    if len(raw.entries) > limits.records:
        raise SourceError(reader.file, "entries", f"more than {limits.records} records")
    rank = rank_in_name(Path(reader.file).name) if raw.rank is None else raw.rank
    if rank is None or rank < 0:
        raise SourceError(reader.file, "name", "no rank, neither at the end of the name nor inside")
    return _dump(raw, rank, reader.file)


# ---- columns -------------------------------------------------------------------------------------------------------


class Positions(dict[Any, int]):
    """Distinct values in the order of their first use, each with its position."""

    def __missing__(self, key: Any) -> int:
        position = self[key] = len(self)
        return position


def _dump(raw: File, rank: int, file: str) -> Dump:
    members = {ranks: _members(ranks, file) for ranks in {config.ranks for config in raw.pg_config.values()}}
    configs = {(config.name, config.desc): members[config.ranks] for config in raw.pg_config.values()}
    raw.entries.sort(key=lambda entry: entry.record_id)
    groups, operations, places = Positions(), Positions(), Positions({"": 0})
    for key in configs:
        groups[key]
    records = _records(raw.entries, groups, operations, places, file)
    used, first = np.unique(records.group, return_index=True)
    numbers = {int(group): raw.entries[row].pg_id for group, row in zip(used, first, strict=True)}
    return Dump(
        rank,
        file,
        tuple(Group(name, text, _configured((name, text), configs)) for name, text in groups),
        tuple(_operation(*key, file=file) for key in operations),
        tuple(places),
        records,
        {int(number): _status(status, file) for number, status in raw.pg_status.items() if _NUMBER.fullmatch(number)},
        tuple(numbers.get(position, -1) for position in range(len(groups))),
    )


def _records(entries: list[Entry], groups: Positions, operations: Positions, places: Positions, file: str) -> Records:
    return Records(
        np.array([entry.record_id for entry in entries], np.int64),
        np.array([groups[entry.process_group] for entry in entries], np.int32),
        np.array([entry.collective_seq_id for entry in entries], np.int64),
        np.array([operations[_call(entry)] for entry in entries], np.int32),
        np.array([_place(entry.frames, places) for entry in entries], np.int32),
        np.array([_state(entry, file) for entry in entries], np.int8),
        np.array([entry.is_p2p for entry in entries], np.bool_),
        np.array([entry.time_created_ns for entry in entries], np.int64),
    )


def _call(entry: Entry) -> tuple[Any, ...]:
    return entry.profiling_name, entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes


def _state(entry: Entry, file: str) -> CollectiveState:
    if entry.retired and entry.profiling_name.startswith(_BACKENDS_THAT_ONLY_RETIRE):
        return CollectiveState.COMPLETED
    state = _STATES.get(entry.state)
    if state is None:
        raise SourceError(file, f"record {entry.record_id}", f"state {entry.state[:40]!r}")
    return state


def _place(frames: tuple[Frame, ...], places: Positions) -> int:
    """The innermost line that is not PyTorch's own."""
    for frame in frames:
        if "/torch/" not in frame.filename:
            return places[f"{frame.filename}:{frame.line} in {frame.name}"]
    return 0


def _operation(
    name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...], *types: tuple[str, ...], file: str
) -> Operation:
    backend, _, call = name.rpartition(":")
    kind, _, ends = call.partition(" ")
    return Operation(backend, kind, _peers(ends, file) if ends else None, inputs, outputs, *types)


def _peers(ends: str, file: str) -> tuple[int, int]:
    """Source and target of "1->2" or "2<-1"."""
    found = _ENDS.fullmatch(ends)
    if found is None:
        raise SourceError(file, "profiling_name", f"{ends[:80]!r} are not two ends")
    here, there = int(found[1]), int(found[3])
    return (here, there) if found[2] == "->" else (there, here)


def _members(ranks: str | tuple[int, ...], file: str) -> tuple[int, ...] | None:
    if not isinstance(ranks, str):
        return ranks or None
    if not ranks:
        return None
    try:
        return msgspec.json.decode(ranks, type=tuple[Count, ...])
    except msgspec.MsgspecError as error:
        raise SourceError(file, "pg_config", f"ranks {ranks[:40]!r} are not a list of numbers") from error


def _configured(
    key: tuple[str, str], configs: Mapping[tuple[str, str], tuple[int, ...] | None]
) -> tuple[int, ...] | None:
    """The ranks of a group; Gloo configures the default group only, without a name."""
    return configs.get(key) or (configs.get(("", "")) if key[1] == "default_pg" else None)


def _status(status: DumpStatus, file: str) -> tuple[int, int]:
    told = status.last_enqueued_collective, status.last_completed_collective
    try:
        return msgspec.convert(told, tuple[Count, Count], strict=False)  # a number, or one in a string
    except msgspec.MsgspecError as error:
        raise SourceError(file, "pg_status", "a sequence number that is none") from error
