"""The one strict codec: any bytes become a valid message, or `DecodeError`, and nothing else ever.

A message is a frozen dataclass with a `LABEL`. On the wire it is the msgpack array `[LABEL, field, field, …]` in field
order. Types come from the annotations; a message checks its own ranges in `__post_init__` by raising ValueError.
Decoding is canonical: what decodes also encodes to the very same bytes, so a digest names one message and a signature
covers exactly what was read. No pickling, no extension types, no maps, no NaN, nothing left over.

    >>> from crypto.messages import UnmaskShare
    >>> decode(UnmaskShare, b"garbage")
    Traceback (most recent call last):
    ...
    crypto.errors.DecodeError: not an UnmaskShare: ...
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
UINT64_END = 2**64


class Message(Protocol):
    """A frozen dataclass that names its wire format, version included."""

    LABEL: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


M = TypeVar("M", bound=Message)
T = TypeVar("T")


class _Mismatch(ValueError):
    """A value does not fit its annotation; the text says where."""


def encode(message: Message) -> bytes:
    """Canonical bytes of `message`."""
    packed: bytes = msgpack.packb([message.LABEL, *_fields_to_wire(message)], use_bin_type=True)
    return packed


def decode(kind: type[M], data: bytes) -> M:
    """The message of type `kind` that `data` encodes; DecodeError for every other byte string."""
    try:
        message = _read(kind, data)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise DecodeError(f"not a valid {kind.__name__}: {error}") from error
    if encode(message) != data:
        raise DecodeError(f"not a valid {kind.__name__}: the encoding is not canonical")
    return message


def digest(data: bytes) -> Digest:
    """SHA-256 of an encoded message: its name in other messages."""
    return Digest(hashlib.sha256(data).digest())


def _read(kind: type[M], data: bytes) -> M:
    if len(data) > MAX_MESSAGE_BYTES:
        raise _Mismatch(f"{len(data)} bytes are more than the limit of {MAX_MESSAGE_BYTES}")
    wire = msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=True)
    if not isinstance(wire, tuple) or not wire or wire[0] != kind.LABEL:
        raise _Mismatch(f"it is not labelled {kind.LABEL!r}")
    return _fields_from_wire(kind, wire[1:], kind.__name__)


def _fields_to_wire(record: Any) -> list[Any]:
    return [_to_wire(getattr(record, field.name)) for field in fields(record)]


def _to_wire(value: Any) -> Any:
    if isinstance(value, Id):
        return bytes(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_to_wire(item) for item in value]
    if is_dataclass(value):
        return _fields_to_wire(value)
    return value


@cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _fields_from_wire(kind: type[T], wire: Any, where: str) -> T:
    expected = _hints(kind)
    if not isinstance(wire, tuple) or len(wire) != len(expected):
        raise _Mismatch(f"{where} needs {len(expected)} fields")
    return kind(*(_from_wire(hint, value, f"{where}.{name}") for (name, hint), value in zip(expected, wire, strict=True)))


def _from_wire(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin is tuple:
        return _sequence(get_args(hint), value, where)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in get_args(hint) if argument is not type(None))
        return None if value is None else _from_wire(inner, value, where)
    if is_dataclass(hint):
        return _fields_from_wire(hint, value, where)
    if issubclass(hint, Id | StrEnum):
        return hint(_scalar(bytes if issubclass(hint, Id) else str, value, where))
    return _scalar(hint, value, where)


def _sequence(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise _Mismatch(f"{where} must be a list")
    item, ellipsis = arguments
    if ellipsis is not Ellipsis:
        raise TypeError(f"{where}: only homogeneous tuples travel")
    return tuple(_from_wire(item, element, f"{where}[{position}]") for position, element in enumerate(value))


_IN_RANGE: dict[type, Callable[[Any], bool]] = {
    bool: lambda value: True,
    int: lambda value: 0 <= value < UINT64_END,
    float: math.isfinite,
    str: lambda value: len(value) <= MAX_TEXT_CHARACTERS,
    bytes: lambda value: True,
}


def _scalar(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind or not _IN_RANGE[kind](value):
        raise _Mismatch(f"{where} must be a {kind.__name__} in range")
    return value
