"""Logs of NCCL's Inspector plugin: how long each collective took on each rank, as one JSON object a line.

Guarantees: a line that is damaged, hostile or of another shape ends in a SourceError with file and line, but for the
last one of a file, which a job that ended may have left half written. Of a record only what the analysis needs is kept.

Does not promise that every collective is there: Inspector leaves out messages below 8 KiB
(`NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES`) and what its ring had no room for. Records of sends and receives are skipped, and
so are times that the host measured around the call (`collective_cpu`): they contain no waiting.

Source: NCCL 2.30.7, `plugins/profiler/inspector/inspector_json.cc`, output format v4.0, which NCCL 2.28.3 has too
(`ext-profiler/inspector/inspector.cc`; there without `comm_name`).

>>> line = (b'{"header":{"id":"0x1","rank":2,"n_ranks":8},"metadata":{"hostname":"gpu-a","pid":7},"coll_perf":'
...         b'{"coll":"AllReduce","coll_sn":14,"coll_msg_size_bytes":1024,"coll_exec_time_us":61}}')
>>> record = decode(line, "gpu-a-pid7.log", 1)
>>> record.header.rank, record.coll_perf.coll_exec_time_us
(2, 61)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError, lines, open_inputs

_MOST_RECORDS = 20_000_000
_HOST_TIME = "collective_cpu"

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Position = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Name = Annotated[str, msgspec.Meta(max_length=1024)]


class Header(msgspec.Struct, frozen=True, gc=False):
    """A rank of a communicator."""

    id: Name
    rank: Position
    n_ranks: Position
    nnodes: Position = 0
    comm_name: Name = ""


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """The process that wrote the line, and when."""

    hostname: Name
    pid: Count
    inspector_output_format_version: Name = ""
    dump_timestamp_us: Count = 0


class Collective(msgspec.Struct, frozen=True, gc=False):
    """One completed collective; `coll_sn` counts those of its kind in its communicator.

    The time begins when the rank's kernel does, so it contains the wait for ranks that come later. NCCL writes
    bandwidths of no number as a string.
    """

    coll: Name
    coll_sn: Count
    coll_msg_size_bytes: Count
    coll_exec_time_us: Time
    coll_timing_source: Name = ""
    coll_algobw_gbs: float | str = 0.0
    coll_busbw_gbs: float | str = 0.0


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line; without `coll_perf` it is one of a send or a receive."""

    header: Header
    metadata: Metadata
    coll_perf: Collective | None = None


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is a log of Inspector."""
    first = head.lstrip()[:4096]
    return (
        first.startswith(b'{"header"')
        and b'"metadata"' in first
        and (b'"coll_perf"' in first or b'"p2p_perf"' in first)
    )


def holds_logs(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> bool:
    """Whether this is a log of Inspector, or a folder or an archive with one in it."""
    return any(looks_like(reader.peek()) for reader in _readers(path, limits))


def read_logs(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Record]:
    """The collectives in a folder's logs, in those of an archive, or in one file. What is no such log is skipped."""
    count, most = 0, min(_MOST_RECORDS, limits.records)
    for reader in _readers(path, limits):
        if looks_like(reader.peek()):
            for record in read(reader, limits):
                count += 1
                if count > most:
                    raise SourceError(reader.file, reader.position, f"more than {most} records")
                yield record


def _readers(path: Path, limits: ReadLimits) -> Iterator[CappedReader]:
    with open_inputs(path, limits) as readers:
        yield from readers


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Record]:
    """The collectives of one log in its order."""
    broken: SourceError | None = None
    for number, line in lines(reader, limits):
        if broken is not None:
            raise broken
        try:
            record = decode(line, reader.file, number)
        except SourceError as error:
            broken = error  # forgiven if nothing follows
            continue
        if record.coll_perf is not None and record.coll_perf.coll_timing_source != _HOST_TIME:
            yield record


def decode(line: bytes, file: str, number: int) -> Record:
    """The record of one line."""
    try:
        record = msgspec.json.decode(line, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(file, f"line {number}", f"not a record of NCCL's Inspector: {error}") from error
    if record.header.rank >= record.header.n_ranks:
        raise SourceError(file, f"line {number}", f"rank {record.header.rank} of {record.header.n_ranks}")
    return record
