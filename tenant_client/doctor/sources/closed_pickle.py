"""Pickles of somebody else's: data out of them, and nothing in them that could run or explode.

Guarantees: `load` returns None, booleans, numbers, strings, lists, tuples and dicts, or raises SourceError with the
position; nothing that a file says is run, and memory stays in proportion to its length. Bytes are first checked opcode
by opcode against the few that PyTorch's own writer uses, and only then loaded by an Unpickler that can find no class
and no persistent object. Any other pickle goes through a builder in Python that knows data alone, and is far slower.

Does not promise that lists and dicts are apart: one may be in several places, lists and tuples so often that
`MOST_REPEATED` values are in them.

Source: PyTorch 2.13, `torch/csrc/jit/serialization/pickler.cpp` (opcodes).

>>> import pickle
>>> load(pickle.dumps({"a": [1, ("b", 2.5)]}), "file")
{'a': [1, ('b', 2.5)]}
>>> load(pickle.dumps(print), "file")
Traceback (most recent call last):
...
federation.base.reading.SourceError: file, byte ...: broken or refused: ...
"""

import io
import pickle
import pickletools
import re
from typing import Any, ClassVar, TypeVar

from federation.base.reading import SourceError

_Item = TypeVar("_Item")
MOST_REPEATED = 1 << 23  # values of lists and tuples in a second place or a later one
_BROKEN = (
    RecursionError,
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    AttributeError,
    MemoryError,
    OverflowError,
    AssertionError,
)


def load(data: bytes, file: str) -> object:
    """What `data` holds; SourceError names `file`."""
    return _loaded(data, file) if is_of_pytorch(data) else build(data, file)


# ---- the fast way: opcodes checked by patterns, then Python's own Unpickler ----------------------------------------

# PyTorch memoises strings and dicts (a stack frame that several records share), which no file can nest into something
# exponential, and its one kind of tuple is a pair whose second part is a string and whose first is no pair. A memo of
# up to a million places is 16 MB.
_PUT = rb"(?:q.|r..[\x00-\x0f]\x00)?"
_GET = rb"(?:h.|j.{4})"
_PAIR = re.compile(_GET + rb"\x86", re.DOTALL)
_AFTER_STRING = re.compile(_PUT, re.DOTALL)
_MAY_CLOSE_PAIR = rb"(?:\x86(?!" + _GET + rb"\x86))?"
_BETWEEN_STRINGS = (  # the most frequent first
    rb"h." + _MAY_CLOSE_PAIR,
    rb"u" + _PUT,  # the end of a dict
    rb"[}\](Nesa\x88\x89]",  # begin and end of lists and dicts, None, booleans
    rb"K.|M..|J.{4}|\x8a\x08.{8}",  # integers of 1, 2, 4 and 8 bytes
    rb"j.{4}" + _MAY_CLOSE_PAIR,
    rb"G.{8}",  # a float
)
_RUN = re.compile(rb"(?:" + rb"|".join(_BETWEEN_STRINGS) + rb")*+", re.DOTALL)


def is_of_pytorch(data: bytes) -> bool:
    """Whether the whole of `data` is such opcodes as PyTorch writes, which need no memory beyond its own length."""
    position, last_is_pair = 2, False
    if data[:2] != b"\x80\x02":
        return False
    while True:
        begin, position = position, _end(_RUN, data, position)
        last_is_pair = data[position - 1] == 0x86 if position > begin else last_is_pair
        if data[position : position + 1] != b"X":
            return data[position:] == b"."
        position += 5 + int.from_bytes(data[position + 1 : position + 5], "little")
        position = _end(_AFTER_STRING, data, position)
        closes_pair = data[position : position + 1] == b"\x86"
        if closes_pair and (last_is_pair or _PAIR.match(data, position + 1)):
            return False
        position += closes_pair
        last_is_pair = closes_pair


def _end(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    found = pattern.match(data, position)
    return found.end() if found else position


class Closed(pickle.Unpickler):
    """Finds no class and no persistent object."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Refuses."""
        raise pickle.UnpicklingError(f"refers to {module[:80]}.{name[:80]}")

    def persistent_load(self, pid: Any, /) -> Any:
        """Refuses."""
        raise pickle.UnpicklingError("refers to a persistent object")


def _loaded(data: bytes, file: str) -> object:
    # A buffer, from which the Unpickler reads ahead; from bytes alone it reads each opcode with a call.
    source = io.BufferedReader(io.BytesIO(data), 1 << 16)
    try:
        return Closed(source).load()
    except _BROKEN as error:
        raise SourceError(file, "pickle", f"broken or refused: {error!r}") from error


# ---- the slow way: the pickle machine, reduced to data -------------------------------------------------------------


def build(data: bytes, file: str) -> object:
    """Any pickle of numbers, strings, lists, tuples and dicts.

    A list or tuple in several places may not grow any more, and counts with all that it holds wherever it is: a file
    cannot nest it into more than `MOST_REPEATED` values.
    """
    builder = _Builder()
    position = 0
    try:
        for opcode, argument, at in pickletools.genops(data):
            position = at or 0
            builder.step(opcode.name, argument)
        return builder.stack[-1]
    except _BROKEN as error:
        raise SourceError(file, position, f"broken or refused: {error}") from error


class _Builder:
    """A stack, its marks and a memo."""

    _CONSTANTS: ClassVar[dict[str, object]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
    _EMPTY: ClassVar[dict[str, type]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
    _TUPLES: ClassVar[dict[str, int]] = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
    _LITERALS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"})

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self._shared: dict[int, tuple[object, int]] = {}  # by identity, with how many values it holds
        self._repeated = 0

    def step(self, name: str, argument: Any) -> None:
        """One opcode; raises for those that a dump has no need of."""
        if name in self._LITERALS:
            self.stack.append(argument)
        elif name in self._CONSTANTS:
            self.stack.append(self._CONSTANTS[name])
        elif name in self._EMPTY:
            self.stack.append(self._EMPTY[name]())
        elif name in self._TUPLES:
            self._close_tuple(len(self.stack) - self._TUPLES[name])
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name not in {"PROTO", "FRAME", "STOP"}:
            self._combine(name, argument)

    def _combine(self, name: str, argument: Any) -> None:
        match name:
            case "APPEND":
                self._extend(len(self.stack) - 1)
            case "APPENDS":
                self._extend(self.marks.pop())
            case "SETITEM":
                self._update(len(self.stack) - 2)
            case "SETITEMS":
                self._update(self.marks.pop())
            case "TUPLE":
                self._close_tuple(self.marks.pop())
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self._shareable(self.memo[argument]))
            case _:
                raise pickle.UnpicklingError(f"opcode {name}, which a dump has no need of")

    def _close_tuple(self, start: int) -> None:
        self.stack[start:] = [tuple(self.stack[start:])]

    def _extend(self, start: int) -> None:
        self._under(start, list).extend(self.stack[start:])
        del self.stack[start:]

    def _update(self, start: int) -> None:
        keys, values = map(self._string, self.stack[start::2]), self.stack[start + 1 :: 2]
        self._under(start, dict).update(zip(keys, values, strict=True))
        del self.stack[start:]

    def _under(self, start: int, kind: type[_Item]) -> _Item:
        target = self.stack[start - 1] if start > 0 else None
        if not isinstance(target, kind):
            raise pickle.UnpicklingError(f"items for a {kind.__name__} that is not there")
        if id(target) in self._shared:
            raise pickle.UnpicklingError(f"a {kind.__name__} that grows after it was put in a second place")
        return target

    def _shareable(self, value: object) -> object:
        self._repeated += self._size(value) if isinstance(value, list | tuple) else 0
        if self._repeated > MOST_REPEATED:
            raise pickle.UnpicklingError("lists or tuples in too many places")
        return value

    def _size(self, value: object) -> int:
        """How many values it holds, itself among them, a dict as one; from now on it may not grow."""
        if not isinstance(value, list | tuple):
            return 1
        if id(value) not in self._shared:
            self._shared[id(value)] = value, 1
            self._shared[id(value)] = value, 1 + sum(map(self._size, value))
        return self._shared[id(value)][1]

    @staticmethod
    def _string(value: object) -> str:
        if not isinstance(value, str):
            raise pickle.UnpicklingError("a key is not a string")
        return value
