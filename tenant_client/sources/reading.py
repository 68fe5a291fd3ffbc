"""Opening what somebody else's program wrote: plain, gzipped or in a tar archive, never more of it than the caps allow.

Every reader of foreign files takes its bytes from here, so that a file that unpacks to a terabyte, a line of a
gigabyte or a truncated archive ends in one `SourceError` and not in a killed process.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from crypto.errors import PharoahError

_GZIP = b"\x1f\x8b"
_PEEKED, _PART = 1 << 16, 1 << 22
_EXTENSIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class SourceError(PharoahError):
    """An input that cannot be used. The text names the file and the position in it."""

    default_hint = "export it again, or leave it out"

    def __init__(self, file: str, position: int | str, what: str, *, hint: str | None = None) -> None:
        super().__init__(f"{file}, {f'byte {position}' if isinstance(position, int) else position}: {what}", hint=hint)
        self.file = file
        self.position = position


@dataclass(frozen=True)
class ReadLimits:
    """Caps on one input: bytes after unpacking, bytes of one line, files in one archive, records."""

    total_bytes: int = 64 << 30
    line_bytes: int = 64 << 10
    archive_members: int = 4096
    records: int = 100_000_000


DEFAULT_LIMITS = ReadLimits()


class Readable(Protocol):
    """Bytes from somewhere."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, all of them for -1, b"" at the end."""


class CappedReader:
    """Bytes of one input, counted; SourceError where the file is broken or longer than the cap."""

    def __init__(self, inner: Readable, file: str, cap_bytes: int) -> None:
        self._inner = inner
        self.file = file
        self.position = 0
        self._cap_bytes = cap_bytes
        self._peeked = b""

    def peek(self) -> bytes:
        """The first bytes, to be read again; only before the first `read`."""
        self._peeked = self._peeked or self.read(_PEEKED)
        self.position = 0
        return self._peeked

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        peeked, self._peeked = self._peeked, b""
        if peeked and 0 <= size <= len(peeked):
            self._peeked = peeked[size:]
            self.position += size
            return peeked[:size]
        room = self._cap_bytes - self.position + 1  # never unpack more than shows that there is too much
        data = peeked + self._read_on((min(size, room) if size >= 0 else room) - len(peeked))
        self.position += len(data)
        if self.position > self._cap_bytes:
            raise SourceError(
                self.file, self.position, f"unpacks to more than {self._cap_bytes} bytes", hint="raise the cap"
            )
        return data

    def _read_on(self, size: int) -> bytes:
        """Asks for some megabytes at a time: a buffered reader sets aside what it is asked for."""
        parts = []
        while size > 0 and (part := self._unpacked(min(size, _PART))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _unpacked(self, size: int) -> bytes:
        try:
            return self._inner.read(size)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise SourceError(self.file, self.position, f"cannot be unpacked or read further: {error}") from error


@contextmanager
def open_inputs(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Iterator[CappedReader]]:
    """The files that `path` holds: itself, unpacked if gzipped, or each regular member of a tar archive in its order.

    A member must be read before the next one is asked for.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise SourceError(str(path), 0, error.strerror or "cannot be opened") from error
    with stream:
        unpacked = gzip.GzipFile(fileobj=stream) if stream.peek(2)[:2] == _GZIP else stream
        yield (
            _members(unpacked, path, limits)
            if ".tar" in path.suffixes or path.suffix == ".tgz"
            else iter([CappedReader(unpacked, str(path), limits.total_bytes)])
        )


class _Header(tarfile.TarInfo):
    """A member's header; a damaged one is an error here, where tarfile takes it for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header in `buf`; ReadError also for a name or an extension that would fill the memory."""
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):  # zeros or nothing: this is the end
                raise
            raise tarfile.ReadError(str(error)) from error
        if header.type in _EXTENSIONS and header.size > _PEEKED:
            raise tarfile.ReadError(f"a header's extension of {header.size} bytes")
        return header


def _members(stream: gzip.GzipFile | io.BufferedReader, path: Path, limits: ReadLimits) -> Iterator[CappedReader]:
    at = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
            for count, member in enumerate(archive):
                if count >= limits.archive_members:
                    raise SourceError(str(path), member.name, f"more than {limits.archive_members} members")
                inner = archive.extractfile(member) if member.isfile() else None
                if inner is not None:
                    name = f"{path}:{member.name}"
                    plain: Readable = gzip.GzipFile(fileobj=inner) if member.name.endswith(".gz") else inner
                    yield CappedReader(plain, name, limits.total_bytes)
                at = archive.offset
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise SourceError(str(path), at, f"broken archive: {error}") from error


def lines(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[tuple[int, bytes]]:
    """Numbered lines without their ends, counted from 1; a line beyond the cap is cut, never refused."""
    number, kept, too_long = 0, b"", False
    while block := reader.read(1 << 20):
        *complete, rest = block.split(b"\n")
        if complete:
            complete[0] = kept + complete[0]
            kept = b""
            for line in complete:
                number += 1
                yield number, line[: limits.line_bytes].rstrip(b"\r")
            too_long = False
        if not too_long:
            kept = (kept + rest)[: limits.line_bytes]
            too_long = len(kept) == limits.line_bytes
    if kept:
        yield number + 1, kept.rstrip(b"\r")
