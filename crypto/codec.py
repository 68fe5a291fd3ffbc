"""The strict codec: any bytes decode to a valid message or raise `DecodeError`.

- A message is a frozen struct with a `LABEL`. On the wire it is the msgpack array `[LABEL, field, field, …]` in field
  order; a `Record` within it is an array of its fields.
- Annotations state types, lengths and ranges; msgspec checks the bytes against them in C, front to back, and stops at
  the first invalid value, before hostile bytes are built into objects. Rules across fields are checked in
  `__post_init__` by ValueError.
- Decoding is canonical: a decoded message encodes to the same bytes, so a digest names one message and a signature
  covers exactly what was read. Only minus zero, which equals zero, has other bytes. No maps, extension types, NaN or
  trailing bytes.

The error names the field; it never
quotes what was sent. The last field of a message may be a `memoryview`: that much is neither copied nor encoded again.

    >>> from federation.protocol.round_messages import UnmaskShare
    >>> decode(UnmaskShare, b"garbage")
    Traceback (most recent call last):
    ...
    crypto.errors.DecodeError: not a valid UnmaskShare: it is not labelled 'pharoah/unmask-share/2'
"""

import hashlib
import operator
import re
import sys
import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from crypto.errors import DecodeError
from crypto.ids import Digest, Id

MAX_MESSAGE_BYTES = 64 * 2**20
MAX_TEXT_CHARACTERS = 4096
INTEGER_END = 2**63  # what SQLite and int64 arrays hold

T = TypeVar("T")
Count = Annotated[int, Meta(ge=0, le=INTEGER_END - 1)]
Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # finite; NaN lies in no range
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)]
Few = Annotated[tuple[T, ...], Meta(max_length=255)]  # of what people set up by hand: trustees, tables, dimensions
Many = Annotated[tuple[T, ...], Meta(max_length=2**22)]  # of the rest; a message's own ceiling comes before that
Bytes = bytes | bytearray | memoryview
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Label:
    def __get__(self, message: object, kind: type[msgspec.Struct]) -> str:
        return str(kind.__struct_config__.tag)


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A part of a message, without a label of its own. It holds no cycles, and a directory holds thousands of it."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message that is sent or stored; the `tag` of a subclass is its wire format with the version."""

    LABEL: ClassVar[str] = _Label()  # type: ignore[assignment]  # a property of the class


class Secret(Message, frozen=True):
    """A message whose repr shows no values."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


M = TypeVar("M", bound=Message)

# The only type that msgspec does not know is an Id. Both ways are a call in C: a directory holds thousands of them.
_identifier = operator.call  # of the type, with what came; a type refuses what are not its bytes
_encoder = msgspec.msgpack.Encoder(enc_hook=bytes.__bytes__)  # TypeError for what are no bytes


def encode(message: Message) -> bytes:
    """Canonical bytes of `message`."""
    return _encoder.encode(message)


def decode(kind: type[M], data: Bytes) -> M:
    """The message of type `kind` that `data` encodes; DecodeError for every other byte string."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise _refusal(kind, f"{len(data)} bytes are more than the limit of {MAX_MESSAGE_BYTES}")
    try:
        message: M = _decoder(kind).decode(data)
    except UNREADABLE as error:
        raise _refused(kind, data, error) from None  # msgspec's own words may quote what was sent
    if not _is_canonical(message, data):
        raise _refusal(kind, "the encoding is not canonical")
    return message


def first_field(kind: type[M], data: Bytes) -> Any:
    """The first field of a message, usually its sender, without decoding the rest."""
    try:
        (first,) = msgspec.structs.astuple(_head_decoder(kind).decode(data))
    except UNREADABLE as error:
        raise _refused(kind, data, error) from None
    return first


def digest(data: Bytes) -> Digest:
    """SHA-256 of an encoded message: its name in other messages."""
    return Digest(hashlib.sha256(data).digest())


# ---- reading -------------------------------------------------------------------------------------------------------


@cache
def _decoder(kind: type[M]) -> "msgspec.msgpack.Decoder[M]":
    return msgspec.msgpack.Decoder(kind, dec_hook=_identifier)


@cache
def _head_decoder(kind: type[Message]) -> "msgspec.msgpack.Decoder[Any]":
    """Reads the label and the first field, and skips whatever follows."""
    first = msgspec.structs.fields(kind)[0]
    head = msgspec.defstruct(f"{kind.__name__}Head", [(first.name, first.type)], array_like=True, tag=kind.LABEL)
    return msgspec.msgpack.Decoder(head, dec_hook=_identifier)


def _is_canonical(message: Message, data: Bytes) -> bool:
    tail = _bulk(type(message))
    if tail is None:
        return bool(encode(message) == data)
    *before, bulk = msgspec.structs.astuple(message)
    head = _encoder.encode([message.LABEL, *before, b""])[:-2] + _bulk_header(len(bulk))
    return len(head) + len(bulk) == len(data) and memoryview(data)[: len(head)] == head


@cache
def _bulk(kind: type[Message]) -> str | None:
    """The name of the last field, if it is one that is not copied."""
    last = msgspec.structs.fields(kind)[-1]
    return last.name if last.type is memoryview else None


def _bulk_header(length: int) -> bytes:
    """How msgpack begins a byte string of this length, in the shortest of its three ways."""
    first, size = next((first, size) for first, size in ((0xC4, 1), (0xC5, 2), (0xC6, 4)) if length < 256**size)
    return bytes([first]) + length.to_bytes(size)


# ---- refusing ------------------------------------------------------------------------------------------------------


def _refused(kind: type[Message], data: Bytes, error: Exception) -> DecodeError:
    """What is wrong, with the names of fields for their places, and without any value that was sent."""
    if not is_labelled(kind, data):
        return _refusal(kind, f"it is not labelled {kind.LABEL!r}")
    if not isinstance(error, msgspec.ValidationError):
        return _refusal(kind, "it is cut short, malformed, or not UTF-8")
    fact, _, path = str(error).partition(" - at `$")
    where, hint = _place(kind, [int(step) for step in re.findall(r"\[(\d+)\]", path)])
    if fact.startswith("Invalid enum value"):
        return _refusal(kind, f"{where} must be one of {', '.join(hint)}")
    if isinstance(hint, type) and issubclass(hint, Id) and not fact.startswith("a "):
        return _refusal(kind, f"{where} must be {hint.length} bytes")
    if fact.startswith("Invalid value"):
        return _refusal(kind, f"{where} has another label")
    if fact.startswith("Expected"):
        return _refusal(kind, f"{where} must be{fact.removeprefix('Expected').replace('`', '')}")
    return _refusal(kind, f"{where}: {fact}")


def _refusal(kind: type[Message], why: str) -> DecodeError:
    return DecodeError(f"not a valid {kind.__name__}: {why}")


def is_labelled(kind: type[Message], data: Bytes) -> bool:
    """Whether `data` has the label of `kind`, before the rest of it is read."""
    label = msgspec.msgpack.encode(kind.LABEL)
    at = {0xDC: 3, 0xDD: 5}.get(data[0], 1) if data else 0
    return bytes(data[at : at + len(label)]) == label


def _place(kind: type[msgspec.Struct], steps: Sequence[int]) -> tuple[str, Any]:
    """The name of the value that lies at `steps` within a message, and its type."""
    name, hint = kind.__name__, kind
    for step in steps:
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            field = msgspec.structs.fields(hint)[step - issubclass(hint, Message)]
            name, hint = f"{name}.{field.name}", _plain(field.type)
        else:
            name, hint = f"{name}[{step}]", _plain(get_args(hint)[0])
    return name, hint


def _plain(hint: Any) -> Any:
    """A type without its constraints, and without the None that may stand for it."""
    while get_origin(hint) in (Annotated, Union, types.UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return hint
