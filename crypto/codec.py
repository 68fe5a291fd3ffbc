"""The one strict codec: any bytes become a valid message, or `DecodeError`, and nothing else ever.

A message is a frozen dataclass with a `LABEL`. On the wire it is the msgpack array `[LABEL, field, field, …]` in field
order. Types come from the annotations; a message checks its own ranges in `__post_init__` by raising ValueError.
Decoding is canonical: what decodes also encodes to the very same bytes, so a digest names one message and a signature
covers exactly what was read. No pickling, no extension types, no maps, no NaN, nothing left over.

The bytes are read against the annotations, front to back, and the first value that does not fit ends it. So hostile
bytes are never built into something that is refused only afterwards, and the error names the field. It never quotes
what was sent.

    >>> from crypto.messages import UnmaskShare
    >>> decode(UnmaskShare, b"garbage")
    Traceback (most recent call last):
    ...
    crypto.errors.DecodeError: not a valid UnmaskShare: it is not labelled 'pharoah/unmask-share/2'
"""

import hashlib
import math
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from crypto.errors import DecodeError
from crypto.ids import Digest, Id

MAX_MESSAGE_BYTES = 64 * 2**20
MAX_TEXT_CHARACTERS = 4096
INTEGER_END = 2**63  # what SQLite and int64 arrays hold


class Message(Protocol):
    """A frozen dataclass that names its wire format, version included."""

    LABEL: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


M = TypeVar("M", bound=Message)


class _Mismatch(ValueError):
    """The bytes do not fit the annotations; the text says where."""


def encode(message: Message) -> bytes:
    """Canonical bytes of `message`."""
    packed: bytes = msgpack.packb([message.LABEL, *_fields_to_wire(message)], use_bin_type=True)
    return packed


def decode(kind: type[M], data: bytes) -> M:
    """The message of type `kind` that `data` encodes; DecodeError for every other byte string."""
    try:
        message = _read(kind, data)
    except _Mismatch as error:
        raise DecodeError(f"not a valid {kind.__name__}: {error}") from error
    if encode(message) != data:
        raise DecodeError(f"not a valid {kind.__name__}: the encoding is not canonical")
    return message


def digest(data: bytes) -> Digest:
    """SHA-256 of an encoded message: its name in other messages."""
    return Digest(hashlib.sha256(data).digest())


def _fields_to_wire(record: Any) -> list[Any]:
    return [_to_wire(getattr(record, field.name)) for field in fields(record)]


def _to_wire(value: Any) -> Any:
    if isinstance(value, Id):
        return bytes(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float):
        return value + 0.0  # minus zero equals zero, so both must have one encoding
    if isinstance(value, tuple):
        return [_to_wire(item) for item in value]
    if is_dataclass(value):
        return _fields_to_wire(value)
    return value


# What the first byte of a msgpack value says about it; maps, extension types and the unused byte are not listed.
_FIRST_BYTES: dict[type, tuple[int, ...]] = {
    type(None): (0xC0,),
    bool: (0xC2, 0xC3),
    int: (*range(0x80), *range(0xCC, 0xD4), *range(0xE0, 0x100)),
    float: (0xCA, 0xCB),
    str: (*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB),
    bytes: (0xC4, 0xC5, 0xC6),
    tuple: (*range(0x90, 0xA0), 0xDC, 0xDD),
}
_KIND_OF = {first: kind for kind, firsts in _FIRST_BYTES.items() for first in firsts}


class _Wire:
    """Encoded bytes, read front to back, one value of an expected kind at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._unpacker = msgpack.Unpacker(raw=False, max_buffer_size=max(1, len(data)))
        self._unpacker.feed(data)

    def next_kind(self) -> type | None:
        """The type of the next value; None at the end and for what never travels."""
        at = self._unpacker.tell()
        return _KIND_OF.get(self._data[at]) if at < len(self._data) else None

    def scalar(self, kind: type, where: str) -> Any:
        """The next value, which must be of `kind`."""
        return self._take(self._unpacker.unpack, kind, where)

    def length(self, where: str) -> int:
        """The number of items that the next value, which must be a list, claims to have."""
        items: int = self._take(self._unpacker.read_array_header, tuple, where)
        return items

    def _take(self, read: Callable[[], Any], kind: type, where: str) -> Any:
        if self.next_kind() is not kind:
            raise _Mismatch(f"{where} must be a {'list' if kind is tuple else kind.__name__}")
        try:
            return read()
        except (ValueError, msgpack.OutOfData) as error:
            raise _Mismatch(f"{where} is cut short or not UTF-8") from error


def _read(kind: type[M], data: bytes) -> M:
    if len(data) > MAX_MESSAGE_BYTES:
        raise _Mismatch(f"{len(data)} bytes are more than the limit of {MAX_MESSAGE_BYTES}")
    wire = _Wire(data)
    unlabelled = f"it is not labelled {kind.LABEL!r}"
    if wire.next_kind() is not tuple:
        raise _Mismatch(unlabelled)
    items = wire.length(kind.__name__)
    if wire.next_kind() is not str or wire.scalar(str, "its label") != kind.LABEL:
        raise _Mismatch(unlabelled)
    message: M = _record(kind, wire, items - 1, kind.__name__)
    return message


@cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _record(kind: Any, wire: _Wire, items: int, where: str) -> Any:
    expected = _hints(kind)
    if items != len(expected):
        raise _Mismatch(f"{where} needs {len(expected)} fields")
    values = [_value(hint, wire, f"{where}.{name}") for name, hint in expected]
    try:
        return kind(*values)
    except ValueError as error:
        raise _Mismatch(f"{where}: {error}") from error


def _value(hint: Any, wire: _Wire, where: str) -> Any:
    origin = get_origin(hint)
    if origin is tuple:
        return _sequence(hint, wire, where)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in get_args(hint) if argument is not type(None))
        return wire.scalar(type(None), where) if wire.next_kind() is type(None) else _value(inner, wire, where)
    if is_dataclass(hint):
        return _record(hint, wire, wire.length(where), where)
    if issubclass(hint, Id):
        return _identifier(hint, wire.scalar(bytes, where), where)
    if issubclass(hint, StrEnum):
        return _choice(hint, wire.scalar(str, where), where)
    return _in_range(hint, wire.scalar(hint, where), where)


def _sequence(hint: Any, wire: _Wire, where: str) -> tuple[Any, ...]:
    item, ellipsis = get_args(hint)
    if ellipsis is not Ellipsis:
        raise TypeError(f"{where}: only homogeneous tuples travel")
    return tuple(_value(item, wire, f"{where}[{position}]") for position in range(wire.length(where)))


def _identifier(kind: type[Id], value: bytes, where: str) -> Id:
    if len(value) != kind.length:
        raise _Mismatch(f"{where} must have {kind.length} bytes, not {len(value)}")
    return kind(value)


def _choice(kind: type[StrEnum], value: str, where: str) -> StrEnum:
    for choice in kind:
        if choice.value == value:
            return choice
    raise _Mismatch(f"{where} must be one of {', '.join(kind)}")


_RANGES: dict[type, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: 0 <= value < INTEGER_END, "lie in [0, 2^63)"),
    float: (math.isfinite, "be finite"),
    str: (lambda value: len(value) <= MAX_TEXT_CHARACTERS, f"have at most {MAX_TEXT_CHARACTERS} characters"),
}


def _in_range(kind: type, value: Any, where: str) -> Any:
    within, rule = _RANGES.get(kind, (None, ""))
    if within is not None and not within(value):
        raise _Mismatch(f"{where} must {rule}")
    return value
