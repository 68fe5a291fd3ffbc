"""Finding the few lines of a large log that matter: one compiled alternation of words over whole blocks.

Most lines differ from earlier ones in numbers alone. In such a block the words are looked for once in each kind of
line, without digits, and then only in the lines of kinds that may hold one.

A block ends at a line end, so a word is never cut by a block's edge. A carriage return ends a piece of a line, as in
progress bars, and keeps its line's number. Of a line beyond the cap the reader sees pieces that overlap by `_OVERLAP`
bytes, more than any word has; of a long piece it sees the beginning and a window around the word.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate

from federation.base.reading import CappedReader, ReadLimits

_BLOCK = 1 << 20
_OVERLAP = 256
_HEAD = 320
_WINDOW = 4096
_TAIL = 16 << 10
_SAMPLE = 64 << 10
_MOST_KINDS, _MOST_BYTES_OF_KINDS = 1 << 14, 8 << 20
DIGITS = b"0123456789"
_ENDS = bytes.maketrans(b"\r", b"\n")
_COLOUR = re.compile(rb"\x1b\[[\d;]*m|\[(?:0|[01];\d\d|38;5;\d{1,3}(?:;\d\d?)?|\d\d(?:;\d\d?)*)m")


@dataclass(frozen=True)
class Line:
    """A line, or a piece of one that carriage returns separate; numbers count line feeds from 1."""

    number: int
    text: str


@dataclass(frozen=True, eq=False)
class Gate:
    """A pattern for some words, and one for the same words without their digits."""

    words: re.Pattern[bytes]
    bare: re.Pattern[bytes]


def gate_of(words: Collection[str]) -> Gate:
    """The gate of these words, plain text without line ends."""
    pattern, bare = alternation(words), alternation(word.translate(dict.fromkeys(DIGITS)) for word in words)
    return Gate(re.compile(pattern.encode()), re.compile(bare.encode()))


def alternation(words: Iterable[str]) -> str:
    """A pattern for all words by their first letters: a place is tried once per letter, not per word."""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[:1], []).append(re.escape(word[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in groups.items())


class _Kinds:
    """Kinds of lines, that is lines without digits, that hold no word of a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._silent: set[bytes] = set()
        self._bytes = 0

    def places(self, block: bytes, at: int) -> list[tuple[int, int]]:
        """Beginnings and ends of what may hold a word from `at` on, the last first; all of it where kinds are many."""
        sample = _bare(block[at : at + _SAMPLE])
        if 2 * len(self._fresh(sample)) > len(sample):
            return [(at, len(block))]
        kinds = _bare(block[at:])
        loud = {kind for kind in self._fresh(kinds) if self._speaks(kind)}
        if not loud:
            return []
        rest = block[at:].translate(_ENDS).split(b"\n")
        ends = accumulate((len(piece) + 1 for piece in rest), initial=at)
        pieces = zip(kinds, rest, ends, strict=False)
        return [(start, start + len(piece)) for kind, piece, start in pieces if kind in loud][::-1]

    def _fresh(self, kinds: Iterable[bytes]) -> set[bytes]:
        return set(kinds) - self._silent

    def _speaks(self, kind: bytes) -> bool:
        if self._gate.bare.search(kind):
            return True
        if len(self._silent) >= _MOST_KINDS or self._bytes > _MOST_BYTES_OF_KINDS:
            self._silent.clear()
            self._bytes = 0
        self._silent.add(kind)
        self._bytes += len(kind)
        return False


def _bare(block: bytes) -> list[bytes]:
    return block.translate(_ENDS, DIGITS).split(b"\n")


class Scanner:
    """Walks a log once, forwards: to the next line that holds a word, or just to the next line."""

    def __init__(self, reader: CappedReader, gate: Gate, limits: ReadLimits) -> None:
        self._reader = reader
        self._gate = gate
        self._kinds: dict[Gate, _Kinds] = {}
        self._sought: Gate | None = None  # the gate of the places
        self._places: list[tuple[int, int]] = []
        self._cap = max(limits.line_bytes, 2 * _OVERLAP)
        self._before = self._block = self._rest = b""
        self._at = self._began = 0
        self._number = 1

    def hit(self, gate: Gate | None = None) -> Line | None:
        """The next line with a word of the gate, or of another gate; None at the end."""
        searched = gate or self._gate
        while True:
            found = self._found(searched)
            if found:
                return self._cut(found.start())
            if not self._next_block():
                return None

    def _found(self, gate: Gate) -> re.Match[bytes] | None:
        if gate is not self._sought:
            kinds = self._kinds.setdefault(gate, _Kinds(gate))
            self._sought, self._places = gate, kinds.places(self._block, self._at)
        while self._places:
            start, end = self._places[-1]
            found = gate.words.search(self._block, max(start, self._at), end) if end > self._at else None
            if found:
                return found
            self._places.pop()
        return None

    def line(self) -> Line | None:
        """The next line whatever it holds; None at the end."""
        while self._at >= len(self._block):
            if not self._next_block():
                return None
        return self._cut(self._at)

    def previous(self) -> str:
        """The line before the one that was handed out last."""
        block, end = (self._block, self._began) if self._began else (self._before, len(self._before))
        while end and block[end - 1] in b"\r\n":
            end -= 1
        return _text(block[block.rfind(b"\n", 0, end) + 1 : end][:_WINDOW])

    def tail(self) -> list[Line]:
        """The last lines, once the end is reached."""
        kept = (self._before + self._block)[-_TAIL:]
        first = self._number - kept.count(b"\n")
        whole = kept if len(kept) < _TAIL else kept[kept.find(b"\n") + 1 :]
        lines = enumerate(whole.split(b"\n"), first + (whole is not kept))
        pieces = ((number, piece) for number, line in lines for piece in line.split(b"\r"))
        return [Line(number, _text(piece[:_WINDOW])) for number, piece in pieces if piece.strip()]

    def _cut(self, position: int) -> Line:
        block = self._block
        start = max(self._at, block.rfind(b"\n", self._at, position) + 1)
        start = max(start, block.rfind(b"\r", start, position) + 1)
        feed = block.find(b"\n", position)
        feed = len(block) if feed < 0 else feed
        carriage = block.find(b"\r", position, feed)
        end = feed if carriage < 0 else carriage
        number = self._number + block.count(b"\n", self._at, start)
        self._number = number + (end == feed < len(block))
        self._at, self._began = end + 1, start
        return Line(number, _text(_window(block, start, position, end)))

    def _next_block(self) -> bool:
        self._number += self._block.count(b"\n", self._at)
        data = self._reader.read(_BLOCK)
        while data:
            data = self._rest + data
            cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if not cut and len(data) > self._cap:
                cut = len(data) - _OVERLAP
            if cut:
                self._start(data[:cut], data[cut:])
                return True
            self._rest = data
            data = self._reader.read(_BLOCK)
        at_end = not self._rest
        self._start(self._rest or self._block, b"")
        self._at = len(self._block) if at_end else 0
        return not at_end

    def _start(self, block: bytes, rest: bytes) -> None:
        self._before = self._block if self._block is not block else self._before
        self._block, self._rest, self._at, self._sought = block, rest, 0, None


def _window(block: bytes, start: int, position: int, end: int) -> bytes:
    if position - start <= _WINDOW // 2:
        return block[start : min(end, start + _WINDOW)]
    around = max(start + _HEAD, position - _WINDOW // 4)
    return block[start : start + _HEAD] + b" ... " + block[around : min(end, position + _WINDOW // 2)]


def _text(piece: bytes) -> str:
    """As text without colours, which some who copy a log lose the escape of."""
    return (_COLOUR.sub(b"", piece) if b"m" in piece and b"[" in piece else piece).decode("utf-8", "replace")
