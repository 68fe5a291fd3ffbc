"""Questions in parts: they come out as they went in, and whatever else is sent is refused without being kept."""

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from crypto.errors import DecodeError
from federation.transport.question import LENGTH_BYTES, MESSAGE_BYTES, PART_BYTES, Arriving, in_parts, of_one_part

CEILING = 5 * PART_BYTES
EDGES = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 2 * PART_BYTES + 1, CEILING]
lengths = st.sampled_from(EDGES) | st.integers(0, CEILING)


def read(parts: list[bytes], ceiling: int = CEILING) -> bytes:
    """The question, as a server reads it; what it needs not, it leaves."""
    first, *rest = parts
    question = of_one_part(first, ceiling)
    if question is not None:
        return question
    arriving = Arriving(first)
    for part in rest:
        if not arriving.missing:
            break
        arriving.add(part)
    if arriving.missing:
        raise DecodeError("it ended")
    return arriving.whole()


@given(lengths)
def test_a_question_comes_out_as_it_went_in(length: int) -> None:
    question = bytes(number % 251 for number in range(length))
    parts = in_parts(question)
    assert read(parts) == question
    assert all(len(part) <= MESSAGE_BYTES for part in parts)
    assert len(parts) == 1 + max(0, -(-length // PART_BYTES) - 1)


@given(lengths, st.integers(0, CEILING))
def test_the_ceiling_is_the_longest_that_is_taken(length: int, ceiling: int) -> None:
    parts = in_parts(bytes(length))
    if length <= ceiling:
        assert len(read(parts, ceiling)) == length
    else:
        with pytest.raises(DecodeError, match=f"{length} bytes was announced, {ceiling} are taken here"):
            of_one_part(parts[0][: LENGTH_BYTES + 1], ceiling)  # nothing but the length is looked at


@given(st.lists(st.binary(max_size=40) | st.integers(0, 70_000).map(bytes), min_size=1, max_size=8))
def test_whatever_is_sent_is_read_as_announced_or_refused(parts: list[bytes]) -> None:
    try:
        question = read(parts)
    except DecodeError:
        return
    assert parts[: len(in_parts(question))] == in_parts(question)  # there is one way to send it


@given(lengths.filter(lambda length: length > PART_BYTES), st.data())
def test_a_part_of_another_size_is_refused(length: int, data: st.DataObject) -> None:
    parts = in_parts(bytes(length))
    wrong = data.draw(st.integers(0, len(parts) - 1))
    size = data.draw(st.integers(0, MESSAGE_BYTES).filter(lambda size: size != len(parts[wrong])))
    parts[wrong] = parts[wrong][:LENGTH_BYTES].ljust(size, b"\0")[:size]
    with pytest.raises(DecodeError):
        read(parts)


def test_a_length_alone_takes_no_memory() -> None:
    """Of 4 GiB that a thousand first parts announce, only what came is resident."""
    announced = 4 * 2**20
    first = announced.to_bytes(LENGTH_BYTES) + bytes(PART_BYTES)
    before = resident_bytes()
    arriving = [Arriving(first) for _ in range(1000)]
    assert {one.missing for one in arriving} == {announced - PART_BYTES}
    assert resident_bytes() - before < 1000 * 2 * PART_BYTES


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_handed_on_is_kept_no_longer() -> None:
    arriving = Arriving(in_parts(bytes(PART_BYTES + 1))[0])
    arriving.add(b"\0")
    assert arriving.whole() == bytes(PART_BYTES + 1)
    with pytest.raises(ValueError, match="closed"):
        arriving.whole()
