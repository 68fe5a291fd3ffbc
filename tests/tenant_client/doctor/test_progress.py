"""One rank's progress record: any bytes are a record or None, and the file is never half of one for long."""

import math
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tenant_client.doctor.run.hook.progress import PHASES, SIZE, Progress, Writer, decode, encode, file_name, read

SOME = Progress(rank=3, pid=4711, step=120, updated_at_s=1.7e9, phase="train", loss=2.25, restart=1)

records = st.builds(
    Progress,
    rank=st.integers(0, 2**32 - 1),
    pid=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**64 - 1),
    updated_at_s=st.floats(0, 1e11),
    phase=st.sampled_from(PHASES),
    loss=st.none() | st.floats(allow_nan=False),
    restart=st.integers(0, 2**32 - 1),
    evaluations=st.integers(0, 2**32 - 1),
)


@given(records)
def test_a_record_comes_back_as_it_was(progress: Progress) -> None:
    assert len(encode(progress)) == SIZE
    assert decode(encode(progress)) == progress


def test_a_loss_that_is_not_a_number_is_not_the_same_as_no_loss() -> None:
    seen = decode(encode(replace(SOME, loss=math.nan)))
    assert seen is not None
    assert seen.loss is not None
    assert math.isnan(seen.loss)


@given(st.binary(max_size=2 * SIZE))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    assert decode(data) is None or encode(decode(data) or SOME) == data


@pytest.mark.parametrize("position", range(SIZE))
def test_every_altered_byte_is_noticed(position: int) -> None:
    data = bytearray(encode(SOME))
    data[position] ^= 0x10
    assert decode(bytes(data)) is None


def test_half_of_a_newer_record_over_an_older_one_is_noticed() -> None:
    older, newer = encode(SOME), encode(replace(SOME, step=2**40 + 121, updated_at_s=1.8e9))
    assert all(decode(newer[:cut] + older[cut:]) is None for cut in range(25, SIZE))


def test_a_record_of_another_version_is_none() -> None:
    import zlib

    body = b"pharoah\x01" + encode(SOME)[8:-4]
    assert decode(body + struct.pack("<I", zlib.crc32(body))) is None


def test_a_writer_overwrites_its_record_and_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / file_name(3)
    writer = Writer(tmp_path, SOME)
    assert read(path) == SOME
    writer.update(121, "eval", None, 1.7e9 + 1, 2)
    assert read(path) == replace(SOME, step=121, phase="eval", loss=None, updated_at_s=1.7e9 + 1, evaluations=2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == SIZE


def test_the_next_attempt_takes_the_file_over_whatever_is_in_it(tmp_path: Path) -> None:
    (tmp_path / file_name(3)).write_bytes(b"x" * 1000)
    assert read(tmp_path / file_name(3)) is None
    Writer(tmp_path, SOME)
    assert read(tmp_path / file_name(3)) == SOME


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / file_name(3)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        Writer(tmp_path, SOME)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_cannot_be_read_is_none(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / name) is None
