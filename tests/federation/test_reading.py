"""Foreign files: the same bytes whatever they are packed in, and one named error for what is broken or too large."""

import bz2
import codecs
import gzip
import io
import lzma
import random
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from crypto.errors import PharoahError
from federation.base.reading import (
    CappedReader,
    ReadLimits,
    SourceError,
    form_of,
    lines,
    of_form,
    open_inputs,
    shape_of,
)

RANKS = ("rank0.json", b'{"a": 1}' * 500), ("rank1.json", b'{"b": 2}' * 700)
HEADER, BLOCK = 512, 512
SECOND = HEADER + 8 * BLOCK  # where the second member of RANKS begins


def archive(members: Sequence[tuple[str, bytes]] = RANKS, **options: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), options
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def contents(path: Path, limits: ReadLimits | None = None) -> dict[str, bytes]:
    with open_inputs(path, limits or ReadLimits()) as readers:
        return {reader.file.removeprefix(f"{path}"): reader.read() for reader in readers}


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def reader(data: bytes, cap: int = 1 << 30) -> CappedReader:
    return CappedReader(io.BytesIO(data), "f", cap)


# ---- what is opened ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "gzipped without saying so"])
def test_a_file_is_unpacked_by_what_it_is_and_not_by_its_name(tmp_path: Path, name: str) -> None:
    assert contents(written(tmp_path, name, b"plain")) == {"": b"plain"}
    assert contents(written(tmp_path, name, gzip.compress(b"packed"))) == {"": b"packed"}


@pytest.mark.parametrize("name", ["job.tar", "job.tar.gz", "job.tgz"])
def test_an_archive_gives_each_of_its_files_in_order(tmp_path: Path, name: str) -> None:
    data = archive() if name == "job.tar" else gzip.compress(archive())
    assert list(contents(written(tmp_path, name, data)).items()) == [(f":{name}", data) for name, data in RANKS]


def test_gzipped_files_in_an_archive_are_unpacked(tmp_path: Path) -> None:
    members = [(f"{name}.gz", gzip.compress(data)) for name, data in RANKS]
    found = contents(written(tmp_path, "job.tar", archive(members)))
    assert list(found.values()) == [data for _, data in RANKS]


def test_folders_and_links_of_an_archive_are_passed_over(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/hostname"
            tar.addfile(info)
    assert contents(written(tmp_path, "job.tar", out.getvalue())) == {}


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.json"
    with pytest.raises(SourceError) as failure, open_inputs(path):
        pass
    assert failure.value.file == str(path)
    assert failure.value.diagnostics().startswith(f"{path}: ")
    assert "\nhint: " in failure.value.diagnostics()


TEXT = "rank 0: größer\r\n"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.log.bz2", bz2.compress(TEXT.encode())),
        ("a.log.xz", lzma.compress(TEXT.encode())),
        ("twice", gzip.compress(bz2.compress(TEXT.encode()), mtime=0)),
        ("a mark of its bytes", codecs.BOM_UTF8 + TEXT.encode()),
        ("of Windows", TEXT.encode("utf-16")),
        ("its other order", codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be")),
        ("without a mark", TEXT.encode("utf-16-le")),
        ("packed.gz", gzip.compress(TEXT.encode("utf-16"), mtime=0)),
    ],
)
def test_a_reader_sees_the_same_text_however_it_was_packed(tmp_path: Path, name: str, data: bytes) -> None:
    path = written(tmp_path, name, data)
    assert contents(path) == {"": TEXT.encode()}
    with open_inputs(path) as readers:
        assert b"".join(iter(partial(next(readers).read, 1), b"")) == TEXT.encode()
    with open_inputs(path) as readers:
        assert next(readers).plain is None


def test_a_folder_and_a_zip_give_each_of_their_files_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "traces" / "deeper"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "job", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("empty") if hasattr(packed, "mkdir") else packed.writestr("empty/", b"")
        for name, data in RANKS:
            packed.writestr(name, data)
            written(folder, f"{name}.gz", gzip.compress(data))
    (folder / "link").symlink_to(tmp_path / "job")
    assert contents(tmp_path / "job") == {f":{name}": data for name, data in RANKS}
    assert contents(folder.parent) == {f"/deeper/{name}.gz": data for name, data in RANKS}
    assert "more than 1 members" in refusal(tmp_path / "job", ReadLimits(archive_members=1)).what


def test_a_library_may_open_only_what_is_plain(tmp_path: Path) -> None:
    path = written(tmp_path, "table", b"a,b")
    with open_inputs(path) as readers:
        assert [reader.plain for reader in readers] == [path]
    with open_inputs(written(tmp_path, "table.gz", gzip.compress(b"a,b"))) as readers:
        assert [reader.plain for reader in readers] == [None]


def test_a_packed_archive_that_nothing_here_unpacks_is_told_by_its_form(tmp_path: Path) -> None:
    (head,) = contents(written(tmp_path, "job.tar.lz4", b"\x04\x22\x4d\x18" + bytes(2000))).values()
    assert form_of(head) == "an lz4 file; unpack it with `lz4 -d`"


def test_a_file_that_unpacks_to_itself_ends(tmp_path: Path) -> None:
    data = b"text"
    for _ in range(40):
        data = gzip.compress(data)
    found = contents(written(tmp_path, "deep", data))[""]
    assert found[:2] == b"\x1f\x8b"
    assert form_of(found) == "an archive inside another one; unpack it"


@pytest.mark.parametrize("cut", [10, 60, 200, 1050])
def test_a_zip_that_is_cut_off_or_locked_is_refused(tmp_path: Path, cut: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("a", random.Random(1).randbytes(1000))
    whole = out.getvalue()
    assert "broken archive" in refusal(written(tmp_path, "cut", whole[:cut])).what
    locked = bytearray(whole)
    locked[6] = locked[whole.rindex(b"PK\1\2") + 8] = 1
    assert "encrypted" in refusal(written(tmp_path, "locked", bytes(locked))).what


# ---- which of them is meant ----------------------------------------------------------------------------------------


def meant(path: Path) -> tuple[list[str], list[str]]:
    said: list[str] = []
    with open_inputs(path) as readers:
        found = [one.file for one in of_form(readers, lambda head: head[:1] == b"{", "a trace", said.append)]
    return found, said


def test_zstd_is_unpacked_where_python_can_and_else_named(tmp_path: Path) -> None:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # from Python 3.14 on
    except ImportError:
        (head,) = contents(written(tmp_path, "job.log.zst", b"\x28\xb5\x2f\xfd\x04")).values()
        assert form_of(head) == "a zstd file; unpack it with `zstd -d`"
    else:
        assert [*contents(written(tmp_path, "job.log.zst", zstd.compress(b"words"))).values()] == [b"words"]


def test_the_shape_of_a_file_names_its_keys_or_columns() -> None:
    assert shape_of(b'{"a": {"x": 1}, "b": [{"y": 2}], "c\\"": "{", ') == 'JSON with the keys a, b, c\\"'
    assert shape_of(b'[{"a": 1, "b": 2}, {"z": 1}]') == "JSON with the keys a, b"
    assert shape_of(b"a,b,c,d\n1,2,3,4\n") == "a table with the columns a, b, c, d"
    assert shape_of(b"words") == "text"
    assert shape_of(b"[" * 5000) == "JSON"


def test_what_stands_beside_the_wanted_files_is_named_and_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "et.tar", archive([("notes.md", b"# text"), *RANKS, ("code.py", b"import os")]))
    found, said = meant(path)
    assert found == [f"{path}:{name}" for name, _ in RANKS]
    assert said == [f"left out: {path}:notes.md, and 1 further file: not a trace"]


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"", "an empty file"),
        (b"\x04\x22\x4d\x18\x04", "an lz4 file; unpack it with `lz4 -d`"),
        (b"\x80\x04\x95", "a pickle; refused by design"),
        (b"%PDF-1.7\n% text", "a PDF"),
        (b"PAR1\x15", "a Parquet file"),
        (b"<!DOCTYPE html>", "a web page"),
        (b'[{"a": 1}]', "other JSON"),
        (b"plain words", "text"),
        (b"\x01\x02\x03", "a binary file of no known form"),
    ],
)
def test_what_is_not_meant_is_refused_by_its_form(tmp_path: Path, data: bytes, form: str) -> None:
    for path in (written(tmp_path, "alone", data), written(tmp_path, "several.tar", archive([("one", data)]))):
        with pytest.raises(SourceError) as failure:
            meant(path)
        assert f"byte 0: not a trace: {form}" in failure.value.what


# ---- caps ----------------------------------------------------------------------------------------------------------


def refusal(path: Path, limits: ReadLimits | None = None) -> SourceError:
    with pytest.raises(SourceError) as failure:
        contents(path, limits)
    assert failure.value.file.startswith(str(path))
    assert isinstance(failure.value, PharoahError)
    return failure.value


def test_a_file_may_have_as_many_bytes_as_the_cap_and_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, "trace.json", b"x" * 1000)
    assert contents(path, ReadLimits(total_bytes=1000)) == {"": b"x" * 1000}
    assert refusal(path, ReadLimits(total_bytes=999)).what == f"{path}, byte 1000: unpacks to more than 999 bytes"


@pytest.mark.parametrize("size", [-1, 1 << 40])
def test_a_bomb_is_unpacked_to_the_cap_and_no_further(tmp_path: Path, size: int) -> None:
    bomb = gzip.compress(bytes(1 << 26))
    assert len(bomb) < 1 << 17
    with gzip.open(written(tmp_path, "bomb.json.gz", bomb)) as unpacked:
        with pytest.raises(SourceError, match="byte 100001: unpacks to more than 100000 bytes"):
            CappedReader(unpacked, "bomb.json.gz", 100_000).read(size)
        assert unpacked.tell() < 200_000


def test_a_bomb_in_an_archive_is_named_with_its_archive(tmp_path: Path) -> None:
    path = written(tmp_path, "job.tar", archive([RANKS[0], ("bomb.gz", gzip.compress(bytes(1 << 20)))]))
    found = refusal(path, ReadLimits(total_bytes=1 << 16))
    assert (found.file, found.position) == (f"{path}:bomb.gz", (1 << 16) + 1)


def test_an_archive_may_have_as_many_members_as_the_cap_and_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, "job.tar", archive([(str(number), b"") for number in range(5)]))
    assert len(contents(path, ReadLimits(archive_members=5))) == 5
    assert refusal(path, ReadLimits(archive_members=4)).what == f"{path}, 4: more than 4 members"


def test_a_header_does_not_fill_the_memory(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, "job.tar", archive(comment="x" * 100_000)))
    assert "a header's extension of 100016 bytes" in found.what
    assert contents(written(tmp_path, "job.tar", archive(comment="x" * 1000)))


# ---- broken files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_gzipped_file_that_is_cut_off_is_refused(tmp_path: Path, kept: float) -> None:
    data = gzip.compress(bytes(range(256)) * 400)
    found = refusal(written(tmp_path, "trace.json.gz", data[: int(kept * len(data))]))
    assert "cannot be unpacked or read further" in found.what


def test_a_gzipped_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(bytes(range(256)) * 400))
    data[-6] ^= 1  # in the checksum
    assert "CRC check failed" in refusal(written(tmp_path, "trace.json.gz", bytes(data))).what


@pytest.mark.parametrize("cut", [0, 100, HEADER + 1, SECOND - BLOCK, SECOND + 100, SECOND + HEADER + 1])
@pytest.mark.parametrize("name", ["job.tar", "job.tar.gz"])
def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path, cut: int, name: str) -> None:
    data = archive()[:cut]
    refusal(written(tmp_path, name, gzip.compress(data) if name.endswith("gz") else data))


def test_a_packed_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(2000)
    data = gzip.compress(archive([("rank0.json", noise), ("rank1.json", noise[::-1])]))
    for cut in range(20, len(data) - 100, 37):  # the last hundred bytes are the end of the archive and the checksum
        refusal(written(tmp_path, "job.tar.gz", data[:cut]))


def test_a_damaged_header_is_an_error_and_not_the_end_of_the_archive(tmp_path: Path) -> None:
    data = bytearray(archive())
    data[SECOND + 10] ^= 1
    found = refusal(written(tmp_path, "job.tar", bytes(data)))
    assert (found.position, found.what[-12:]) == (SECOND, "bad checksum")


@given(damage=st.dictionaries(st.integers(0, 2 * HEADER + 9 * BLOCK), st.integers(0, 255), max_size=6))
@settings(max_examples=200)
def test_any_archive_gives_files_or_a_source_error(
    tmp_path_factory: pytest.TempPathFactory, damage: dict[int, int]
) -> None:
    data = bytearray(archive(comment="a note"))
    for place, value in damage.items():
        data[place] = value
    for start in range(0, len(data) - HEADER, HEADER):  # headers with a valid sum, so that more than it is looked at
        if data[start + 257 : start + 262] == b"ustar":
            data[start + 148 : start + 156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + HEADER])
    path = written(tmp_path_factory.getbasetemp(), "fuzzed.tar", bytes(data))
    said, sizes = "", []
    try:
        sizes = [len(unpacked) for unpacked in contents(path).values()]
    except SourceError as error:
        said = error.what
    assert str(path) in said or sum(sizes) <= len(data)


# ---- reading -------------------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=300_000), sizes=st.lists(st.integers(0, 200_000), max_size=5), peeks=st.integers(0, 2))
@settings(max_examples=60)
def test_peeking_changes_no_byte_that_is_read(data: bytes, sizes: list[int], peeks: int) -> None:
    one = reader(data)
    for _ in range(peeks):
        assert one.peek() == data[: 1 << 16]
        assert one.position == 0
    read = b""
    for size in sizes:
        block = one.read(size)
        assert block == data[len(read) : len(read) + size]
        read += block
        assert one.position == len(read)
    assert read + one.read() == data
    assert one.read(1) == b""


def test_a_block_is_short_only_at_the_end_however_the_bytes_arrive() -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(3, size if size and size > 0 else 3))

        read1 = read

    one = CappedReader(Trickle(b"0123456789"), "f", 100)
    assert [one.read(4), one.read(4), one.read(4), one.read(4)] == [b"0123", b"4567", b"89", b""]


def test_a_fault_below_is_told_with_its_position() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 5:
                raise zlib.error("bad block")
            return super().read(size)

        read1 = read

    one = CappedReader(Failing(b"0123456789"), "f", 100)
    one.read(5)
    with pytest.raises(SourceError, match="f, byte 5: cannot be unpacked or read further: bad block"):
        one.read(5)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, partial(lzma.compress, preset=0)])
def test_of_a_packed_file_that_is_cut_off_all_that_there_is_can_be_read(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(1_200_000).hex().encode()
    whole, file = pack(data), tmp_path / "a.log"
    file.write_bytes(whole[: len(whole) // 2])
    with open_inputs(file, ReadLimits(up_to_cut=True)) as inputs:
        (one,) = inputs
        read = one.read()
        assert one.is_cut
    assert data.startswith(read)
    assert len(read) > len(data) // 3
    with open_inputs(file) as inputs, pytest.raises(SourceError, match="cannot be unpacked or read further"):
        next(inputs).read()
    file.write_bytes(whole)
    with open_inputs(file, ReadLimits(up_to_cut=True)) as inputs:
        (one,) = inputs
        assert (one.read(), one.is_cut) == (data, False)


def test_a_cut_is_told_through_a_recoding(tmp_path: Path) -> None:
    whole = gzip.compress("one line\n".encode("utf-16") * 9_000)
    (tmp_path / "a.log").write_bytes(whole[:-40])
    with open_inputs(tmp_path / "a.log", ReadLimits(up_to_cut=True)) as inputs:
        (one,) = inputs
        assert one.read().startswith(b"one line\n")
        assert one.is_cut


# ---- lines ---------------------------------------------------------------------------------------------------------


def numbered(data: bytes, line_bytes: int = 1 << 16) -> list[tuple[int, bytes]]:
    return list(lines(reader(data), ReadLimits(line_bytes=line_bytes)))


def test_lines_are_counted_from_one_and_lose_their_ends() -> None:
    assert numbered(b"one\r\n\ntwo\n three") == [(1, b"one"), (2, b""), (3, b"two"), (4, b" three")]
    assert numbered(b"one\n") == [(1, b"one")]
    assert numbered(b"") == []


@pytest.mark.parametrize("offset", range(-4, 5))
def test_lines_do_not_depend_on_where_a_block_ends(offset: int) -> None:
    first = b"a" * ((1 << 20) + offset)
    assert numbered(first + b"\r\nsecond\r\n" + first, 1 << 21) == [(1, first), (2, b"second"), (3, first)]


@pytest.mark.parametrize("length", [10, 11, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_long_line_is_cut_and_the_next_one_is_whole(length: int) -> None:
    found = numbered(b"x" * length + b"\nnext\n" + b"y" * length, 10)
    assert found == [(1, b"x" * 10), (2, b"next"), (3, b"y" * 10)]


@given(kept=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=20))
def test_lines_are_those_of_python(kept: list[bytes]) -> None:
    data = b"\n".join(kept)
    expected = [(number, line.rstrip(b"\r")) for number, line in enumerate(io.BytesIO(data).read().split(b"\n"), 1)]
    assert numbered(data) == (expected[:-1] if not data or data.endswith(b"\n") else expected)
