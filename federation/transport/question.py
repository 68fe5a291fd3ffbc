"""A question travels in parts, its length first, so that a server refuses by length before it reads.

    8 bytes, big endian: the length of the question     then up to `PART_BYTES` of it     the first part
    exactly `PART_BYTES` of it, the last part what is left                               each further part

A part is one gRPC message, so gRPC itself takes no message above `MESSAGE_BYTES`: it refuses by the five bytes before
a message (as grpcio 1.85 does; a test holds it to that). A question of one part, as nearly all are, is one message.

Promised to whoever reads with `Arriving`: a length above the ceiling is a DecodeError before anything is kept; never
more is kept than was announced and has come; parts of another size than theirs are a DecodeError, so a question cannot
be cut into crumbs that cost more than it. What comes after the last byte that was announced is not read.

    >>> [len(part) for part in in_parts(bytes(100_000))]
    [65544, 34464]
"""

from mmap import mmap

from crypto.errors import DecodeError

PART_BYTES = 65_536
LENGTH_BYTES = 8
MESSAGE_BYTES = LENGTH_BYTES + PART_BYTES


def in_parts(question: bytes) -> list[bytes]:
    """The parts in which `question` travels."""
    first = len(question).to_bytes(LENGTH_BYTES) + question[:PART_BYTES]
    return [first, *(question[start : start + PART_BYTES] for start in range(PART_BYTES, len(question), PART_BYTES))]


def of_one_part(first: bytes, ceiling: int) -> bytes | None:
    """The question, if its first part is all of it; None if more is to come. DecodeError as above."""
    announced = int.from_bytes(first[:LENGTH_BYTES])
    if len(first) < LENGTH_BYTES:
        raise DecodeError(f"a question begins with its length in {LENGTH_BYTES} bytes")
    if announced > ceiling:
        raise DecodeError(
            f"a question of {announced} bytes was announced, {ceiling} are taken here",
            hint="send less at a time; if the size is right, compare the versions of caller and server",
        )
    if len(first) - LENGTH_BYTES != min(announced, PART_BYTES):
        raise DecodeError("the first part of a question is shorter or longer than its announced length demands")
    return first[LENGTH_BYTES:] if announced <= PART_BYTES else None


class Arriving:
    """A question of several parts that is on its way; begins with a first part that `of_one_part` has let pass."""

    def __init__(self, first: bytes) -> None:
        announced = int.from_bytes(first[:LENGTH_BYTES])
        self._body = mmap(-1, announced)  # pages that take memory when they are written to, and are given back at once
        self._body.write(first[LENGTH_BYTES:])

    @property
    def missing(self) -> int:
        """How many bytes are still to come."""
        return len(self._body) - self._body.tell()

    def add(self, part: bytes) -> None:
        """Takes the next part; DecodeError if it is not of its size."""
        if len(part) != min(PART_BYTES, self.missing):
            raise DecodeError("a part of a question is shorter or longer than its announced length demands")
        self._body.write(part)

    def whole(self) -> bytes:
        """The question, once nothing is missing; then nothing of it is kept here."""
        with self._body:
            return self._body[:]
