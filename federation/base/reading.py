"""Opening what somebody else's program wrote, whatever it is packed in, never more of it than the caps allow.

Every reader of foreign files, of tenants and of the provider, takes its bytes from here: from a file, from standard
input, from each file of a folder or of a tar or zip archive; unpacked from gzip, bzip2 or xz, told by the content and
not by the name; as UTF-8 without a byte order mark. A file that unpacks to a terabyte, a line of a gigabyte or a
truncated archive ends in one `SourceError` and not in a killed process.

    with open_inputs(path) as inputs:
        for reader in of_form(inputs, looks_like_a_trace, "a trace", left_out=warn):
            reader.peek(); reader.read(size); lines(reader)

`of_form` passes over what stands beside the wanted files of a folder or archive, and names it; what was given alone and
is something else, or is packed as nothing here can unpack, is refused by the name of its form. A library that opens
files itself takes `reader.plain or io.BytesIO(reader.read())`.
"""

import codecs
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Protocol, Self, cast

from crypto.errors import PharoahError
from federation.base.visible import counted_as, source_name
from federation.protocol.toml_tables import loads, shipped

try:
    from lzma import LZMAError
except ImportError:  # some builds of Python have none
    LZMAError = OSError  # type: ignore[assignment,misc]
try:
    from compression.zstd import ZstdError  # type: ignore[import-not-found]  # from Python 3.14 on
except ImportError:
    ZstdError = None

_PEEKED, _PART = 1 << 16, 1 << 22
_MOST_FILES = 100_000
_MOST_LAYERS = 6  # gzip files exist that unpack to themselves
_EXTENSIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, OSError, EOFError, ValueError, RuntimeError)
_BROKEN += (ZstdError,) if ZstdError else ()
_PACKED = (
    (re.compile(rb"\x1f\x8b"), "gzip"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bz2"),
    (re.compile(rb"\xfd7zXZ\0"), "lzma"),
    *([(re.compile(rb"\x28\xb5\x2f\xfd"), "compression.zstd")] if ZstdError else []),
)
_TOKEN, _MOST_KEYS = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]'), 8
_DOCUMENT = re.compile(  # a zip archive that is one file to its user, of an office program
    rb"PK\x03\x04.{26}(?:\[Content_Types\]\.xml|_rels/|docProps/|xl/|mimetypeapplication/vnd\.oasis)", re.DOTALL
)
_UTF16 = (
    (re.compile(rb"\xff\xfe(?!\0\0)|(?:[\t\n\r -~]\0){8}"), "utf-16-le"),
    (re.compile(rb"\xfe\xff|(?:\0[\t\n\r -~]){8}"), "utf-16-be"),
)


class SourceError(PharoahError):
    """An input that cannot be used. The text names the file and the position in it."""

    default_hint = "export it again, or leave it out"

    def __init__(self, file: str, position: int | str, what: str, *, hint: str | None = None) -> None:
        where = f", {f'byte {position}' if isinstance(position, int) else position}" if position != "" else ""
        super().__init__(f"{file}{where}: {what}", hint=hint)
        self.file = file
        self.position = position


@dataclass(frozen=True)
class ReadLimits:
    """Caps on one input: bytes after unpacking, bytes of one line, files in one archive, records.

    With `up_to_cut`, of a packed file that is cut off what there is counts; a table of outages would be another one.
    """

    total_bytes: int = 64 << 30
    line_bytes: int = 64 << 10
    archive_members: int = 4096
    records: int = 100_000_000
    up_to_cut: bool = False


DEFAULT_LIMITS = ReadLimits()


class Readable(Protocol):
    """Bytes from somewhere."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, all of them for -1, b"" at the end."""


class CappedReader:
    """Bytes of one input, counted; SourceError where the file is broken or longer than the cap.

    `is_member` says that it is one of a folder or an archive; `plain` is a file that holds just these bytes, or None.
    With `up_to_cut` a packed file that ends before its end is no error, and `is_cut` says so.
    """

    def __init__(
        self,
        inner: Readable,
        file: str,
        cap_bytes: int,
        *,
        is_member: bool = False,
        plain: Path | None = None,
        up_to_cut: bool = False,
    ) -> None:
        self._is_cut = False
        self._up_to_cut = up_to_cut
        self._inner = inner
        self.file = file
        self.is_member = is_member
        self.plain = plain
        self.position = 0
        self._cap_bytes = cap_bytes
        self._peeked = b""

    @property
    def is_cut(self) -> bool:
        """Whether this, or what it is unpacked or recoded from, ended before its end."""
        return self._is_cut or bool(getattr(self._inner, "is_cut", False))

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
        read = getattr(self._inner, "read1", self._inner.read)  # what was unpacked before a cut is not lost by it
        try:
            return cast(bytes, read(size))
        except EOFError as error:
            if not self._up_to_cut:
                raise SourceError(self.file, self.position, f"cannot be unpacked or read further: {error}") from error
            self._is_cut = True
            return b""
        except _BROKEN as error:
            raise SourceError(self.file, self.position, f"cannot be unpacked or read further: {error}") from error


@contextmanager
def open_inputs(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Iterator[CappedReader]]:
    """The inputs that `path` holds, unpacked: itself, or each regular file of a folder or an archive in its order.

    An input must be read before the next one is asked for.
    """
    if path.is_dir():
        yield _of_folder(path, limits)
        return
    with _opened(path) as stream:
        yield _inputs(CappedReader(stream, source_name(path), limits.total_bytes, plain=path), limits, stream)


def of_form(
    inputs: Iterable[CappedReader],
    fits: Callable[[bytes], bool],
    wanted: str,
    left_out: Callable[[str], None] = lambda text: None,
    hint: str | None = None,
) -> Iterator[CappedReader]:
    """The inputs whose first bytes fit. Members that do not are told to `left_out` in one sentence.

    SourceError names the form of an input that is none, and of the first member where no member fits.
    """
    others: list[SourceError] = []
    is_any = False
    for reader in inputs:
        head = reader.peek()
        if fits(head):
            is_any = True
            yield reader
            continue
        others.append(SourceError(reader.file, 0, f"not {wanted}: {form_of(head)}", hint=hint))
        if not reader.is_member:
            raise others[0]
    if others and not is_any:
        raise others[0]
    if others:
        more = f", and {counted_as(len(others) - 1, 'further file')}" if len(others) > 1 else ""
        left_out(f"left out: {others[0].file}{more}: not {wanted}")


def beginning(reader: CappedReader, limits: ReadLimits, most_bytes: int) -> str:
    """At most so many bytes of an input, as text without carriage returns."""
    return reader.read(min(most_bytes, limits.total_bytes)).decode("utf-8", "replace").replace("\r", "")


def form_of(head: bytes) -> str:
    """What a file that begins so is, for a person, with what to do where it is packed."""
    forms = _forms()["text" if is_text(head) or not head else "binary"]
    return next((form for begin, form in forms if begin.match(head)), "a binary file of no known form")


def shape_of(head: bytes) -> str:
    """What a file is that begins so, with its keys where it is JSON and its columns where it is a table.

    >>> shape_of(b'{"status": "success", "data": {"resultType": "matrix"}}')
    "an answer of Prometheus' HTTP API with the keys status, data"
    """
    form, text = form_of(head), head.decode("utf-8", "replace")
    if form.startswith("a table with commas"):
        columns = [cell.strip()[:40] for cell in text.split("\n", 1)[0].split(",")]
        return f"a table with the columns {', '.join(columns[:_MOST_KEYS])}"
    keys = ", ".join(islice(_keys(text), _MOST_KEYS)) if text.lstrip()[:1] in ("{", "[") else ""
    return form.removeprefix("other ") + (f" with the keys {keys}" if keys else "")


def _keys(text: str) -> Iterator[str]:
    """The keys of the first object of a JSON text, which may be cut off."""
    depth = own = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("{", "["):
            depth += 1
            own = own or depth * (token[0] == "{")
        elif token[0] in ("}", "]"):
            depth -= 1
            if depth < own:
                return
        elif token[2] and depth == own:
            yield token[1][:40]


@cache
def _forms() -> dict[str, tuple[tuple[re.Pattern[bytes], str], ...]]:
    table = loads(shipped("federation.base", "forms.toml"), "forms.toml")
    return {kind: tuple((re.compile(begin.encode()), form) for begin, form in of.items()) for kind, of in table.items()}


def is_text(head: bytes) -> bool:
    """Whether this is text: few control bytes, apart from runs of zeros as network file systems leave them.

    UTF-8 may have more of them than other bytes: names that are made to write on a terminal are text, too.
    """
    odd = sum(head.count(bytes([code])) for code in (*range(1, 9), *range(14, 27), *range(28, 32), 127))
    few = odd * (8 if _is_utf8(head) else 50) < len(head)
    return bool(head.strip(b"\0")) and few and head.count(0) * 2 < len(head) and not _is_known(head)


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # its last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def _is_known(head: bytes) -> bool:
    return any(begin.match(head) for begin, _ in _forms()["binary"])


# ---- layers of packing -----------------------------------------------------------------------------------------------


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        hint = "check its name" if isinstance(error, FileNotFoundError) else None
        raise SourceError(source_name(path), "", error.strerror or "cannot be opened", hint=hint) from error


def _of_folder(folder: Path, limits: ReadLimits) -> Iterator[CappedReader]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    if len(files) > _MOST_FILES:
        raise SourceError(str(folder), 0, f"more than {_MOST_FILES} files")
    for file in files:
        with _opened(file) as stream:
            whole = CappedReader(stream, str(file), limits.total_bytes, is_member=True, plain=file)
            yield from _inputs(whole, limits, stream)


def _inputs(
    reader: CappedReader, limits: ReadLimits, seekable: IO[bytes] | None = None, layers: int = 0
) -> Iterator[CappedReader]:
    """What is inside of an input, however it is packed; `seekable` is the file itself, as zip needs it."""
    head, name = reader.peek(), Path(reader.file.rpartition(":")[2])
    module = next((module for begin, module in _PACKED if begin.match(head)), "")
    encoding = next((encoding for begin, encoding in _UTF16 if begin.match(head)), "")
    if layers == _MOST_LAYERS:
        yield reader
    elif module:
        unpacked = import_module(module).open(reader)
        yield from _inputs(_inside(reader, unpacked, limits), limits, layers=layers + 1)
    elif head[257:262] == b"ustar" or ({".tar", ".tgz"} & set(name.suffixes) and not _is_known(head)):
        yield from _members(reader, limits, layers)
    elif seekable is not None and head.startswith(b"PK\x03\x04") and not _DOCUMENT.match(head):
        yield from _zipped(seekable, reader.file, limits)
    elif encoding:
        yield _inside(reader, _Recoded(reader, encoding), limits)
    else:
        if head.startswith(codecs.BOM_UTF8):
            reader.read(len(codecs.BOM_UTF8))
            reader.plain = None
        yield reader


def _inside(reader: CappedReader, inner: Readable, limits: ReadLimits) -> CappedReader:
    up_to_cut = limits.up_to_cut
    return CappedReader(inner, reader.file, limits.total_bytes, is_member=reader.is_member, up_to_cut=up_to_cut)


def _member(outer: str, name: str, inner: IO[bytes], limits: ReadLimits, layers: int) -> Iterator[CappedReader]:
    return _inputs(CappedReader(inner, f"{outer}:{name}", limits.total_bytes, is_member=True), limits, None, layers + 1)


class _Recoded:
    """UTF-16 as UTF-8."""

    def __init__(self, inner: CappedReader, encoding: str) -> None:
        self._inner = inner
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = b""

    @property
    def is_cut(self) -> bool:
        """That of the bytes."""
        return self._inner.is_cut

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        while len(self._ready) < size and (part := self._inner.read(size)):
            self._ready += self._decoder.decode(part).encode().removeprefix(codecs.BOM_UTF8)
        ready, self._ready = self._ready[:size], self._ready[size:]
        return ready


def _zipped(stream: IO[bytes], file: str, limits: ReadLimits) -> Iterator[CappedReader]:
    try:
        with zipfile.ZipFile(stream) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) > limits.archive_members:
                raise SourceError(file, 0, f"more than {limits.archive_members} members")
            for member in members:
                yield from _member(file, member.filename, archive.open(member), limits, 0)
    except _BROKEN as error:
        raise SourceError(file, 0, f"broken archive: {error}") from error


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


def _members(reader: CappedReader, limits: ReadLimits, layers: int) -> Iterator[CappedReader]:
    file, at = reader.file, 0
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|", tarinfo=_Header) as archive:
            for count, member in enumerate(archive):
                if count >= limits.archive_members:
                    raise SourceError(file, member.name, f"more than {limits.archive_members} members")
                inner = archive.extractfile(member) if member.isfile() else None
                if inner is not None:
                    yield from _member(file, member.name, inner, limits, layers)
                at = archive.offset
    except _BROKEN as error:
        raise SourceError(file, at, f"broken archive: {error}") from error


# ---- lines -----------------------------------------------------------------------------------------------------------


class _Joined:
    """Lines as a file."""

    def __init__(self, own: Iterator[bytes]) -> None:
        self._own, self._rest = own, b""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        parts, length = [self._rest], len(self._rest)
        while length < size and (line := next(self._own, None)) is not None:
            parts.append(line + b"\n")
            length += len(line) + 1
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]


def joined(own: Iterator[bytes], reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> CappedReader:
    """What was made of the lines of an input, as an input of that name; each line without its end."""
    return CappedReader(_Joined(own), reader.file, limits.total_bytes)


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
