"""A plain mutator, for where atheris is not installed and for the tests: no coverage, no dependency, repeatable.

It takes seeds apart and puts them together again: bits flipped, bytes overwritten, pieces cut out, repeated, moved,
taken from another seed, numbers replaced by odd ones and edges of their range. A decoder gets what almost fits.
"""

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence

MOST_BYTES = 1 << 16
EDGES = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 400,
    b"[" * 400,
    b"\n",
    b'"',
    b"\x80",
)
NUMBERS = (
    *("²".encode(), b"--5", b"-1", b"0", b"9" * 11, b"9" * 5000, b"300000000000", b"253402300801", b"1e400"),
    *(b"4294967295", b"9223372036854775808", b"0-9999999999", b"0001-01-01T00:00:00", b"9999-12-31T23:59:59-12:00"),
)
_NUMBER = re.compile(rb"-?\d+")


def inputs(seeds: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """The seeds themselves, then mutations of them without end; the same ones for the same `seed`."""
    draw = random.Random(seed)  # noqa: S311  # repeatable on purpose
    known = list(seeds) or [b""]
    yield from known
    while True:
        data = draw.choice(known)
        for _ in range(draw.choice((1, 1, 2, 4, 8))):
            data = _mutated(data, known, draw)[:MOST_BYTES]
        yield data


def _mutated(data: bytes, known: Sequence[bytes], draw: random.Random) -> bytes:
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    before, piece, after = data[:begin], data[begin:end], data[end:]
    other = draw.choice(known)
    at = draw.randrange(len(other) + 1)
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: _flipped(data, draw),
        lambda: before + after,
        lambda: data[:begin] + piece[:64] + data[begin:],
        lambda: before + draw.randbytes(draw.randrange(1, 9)) + data[min(begin + 1, len(data)) :],
        lambda: before + draw.choice(EDGES) + data[min(begin + draw.randrange(9), len(data)) :],
        lambda: before + other[at : at + len(piece)] + after,
        lambda: data[:begin] + other[at:],
        lambda: after + piece + before,
        lambda: _renumbered(data, draw),
        lambda: _renumbered(data, draw),
    )
    return draw.choice(choices)()


def _renumbered(data: bytes, draw: random.Random) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    one = draw.choice(found)
    return data[: one.start()] + draw.choice(NUMBERS) + data[one.end() :]


def _flipped(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def until_broken(
    check: Callable[[bytes], None], seeds: Sequence[bytes], seconds: float, seed: int
) -> tuple[int, tuple[bytes, Exception] | None]:
    """How many inputs were tried within `seconds`, and the first one that broke the invariant, with what it raised."""
    end = time.monotonic() + seconds
    for count, data in enumerate(inputs(seeds, seed), start=1):
        try:
            check(data)
        except Exception as error:  # noqa: BLE001  # whatever a target raises is the finding
            return count, (data, error)
        if time.monotonic() > end:
            return count, None
    raise AssertionError("mutations do not end")
