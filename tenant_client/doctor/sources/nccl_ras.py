"""Answers of NCCL's RAS: which ranks each communicator of a job has, and how many collectives each of them launched.

Guarantees: whatever is damaged, hostile or of another shape ends in a SourceError with file and position. Sizes and
numbers of ranks that an answer tells of itself are not believed; its ranks are counted.

Does not promise that the counts of an answer are of one moment: a healthy job launches collectives while RAS asks its
ranks. Only two answers, some time apart, tell a rank that stands still. Collectives of a captured CUDA graph, sends and
receives are not counted by NCCL. A file may hold several answers: `ncclras -f json >> ras.json`.

Source: NCCL 2.30.7, `rasDumpCommsToJSON` in `src/ras/client_support.cc` (JSON from 2.28.7 on), and
`docs/userguide/source/troubleshooting/ras.rst`. The text is read by `nccl_ras_text`.

>>> answer = b'{"nccl_version": "2.29.1", "timestamp": "2025-12-19 13:06:53", "communicators": []}'
>>> [one.at_s for one in decode(answer, "ras.json")]
[1766149613.0]
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError

SOURCE = "nccl_ras"
_ANSWER_BYTES = 1 << 27
_PROTOCOL = re.compile(rb"^(?:OK|SERVER PROTOCOL \d{1,9})\r?$", re.MULTILINE)  # what a raw connection says before
_NEXT = re.compile(rb"^(?=\{)", re.MULTILINE)

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Position = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]
Name = Annotated[str, msgspec.Meta(max_length=256)]


class Status(msgspec.Struct, frozen=True, gc=False):
    """How a rank stands: `init_state` and `async_error` are codes of `ncclResult_t`."""

    init_state: Number = 0
    async_error: Number = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class Absence(msgspec.Struct, frozen=True, gc=False):
    """Why a rank gave no data: its process does not answer; neither, where it just is not in the communicator."""

    unresponsive: bool = False
    considered_dead: bool = False


class Rank(msgspec.Struct, frozen=True, gc=False):
    """A rank by its position in the communicator, and the collectives of each kind that it launched there."""

    rank: Position
    host: Name
    pid: Number
    cuda_dev: Number
    nvml_dev: Number
    status: Status
    collective_counts: Annotated[dict[Name, Count], msgspec.Meta(max_length=64)]


class MissingRank(msgspec.Struct, frozen=True, gc=False):
    """A rank of whom RAS has no data."""

    rank: Position
    host: Name
    pid: Number
    cuda_dev: Number
    nvml_dev: Number
    status: Absence


class Communicator(msgspec.Struct, frozen=True):
    """A communicator; the two hashes together are its name."""

    hash: Name
    secondary_hash: Name = ""
    ranks: tuple[Rank, ...] = ()
    missing_ranks: tuple[MissingRank, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """What RAS said at one time, in seconds on the clock of the host that was asked, as if it were UTC."""

    nccl_version: Name
    timestamp: Name
    communicators: tuple[Communicator, ...]
    file: str = ""
    at_s: float = 0.0


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so holds answers of RAS."""
    return b'"nccl_version"' in head and b'"communicators"' in head and _NEXT.search(head) is not None


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> list[Answer]:
    """All answers of a file, in its order."""
    most = min(_ANSWER_BYTES, limits.total_bytes)
    data = reader.read(most)
    if reader.read(1):
        raise SourceError(reader.file, reader.position, f"answers of more than {most} bytes")
    return list(decode(data, reader.file))


def decode(data: bytes, file: str) -> Iterator[Answer]:
    """The answers in `data`; SourceError names `file`."""
    for number, part in enumerate(_NEXT.split(_PROTOCOL.sub(b"", data))):
        if number or part.strip():
            yield _answer(part, f"answer {max(1, number)}", file)


def _answer(data: bytes, position: str, file: str) -> Answer:
    try:
        answer = msgspec.json.decode(data, type=Answer)
        at_s = datetime.strptime(answer.timestamp, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise SourceError(file, position, f"not an answer of NCCL's RAS: {error}") from error
    for comm in answer.communicators:
        ranks = [one.rank for one in comm.ranks] + [one.rank for one in comm.missing_ranks]
        if len(set(ranks)) < len(ranks):
            raise SourceError(file, position, f"communicator {comm.hash} has a rank twice")
    return msgspec.structs.replace(answer, file=file, at_s=at_s)
