"""The strict codec: any bytes decode to a valid message or raise `DecodeError`.

- A message is a frozen struct with a `LABEL`. On the wire it is the msgpack array `[LABEL, field, field, …]` in field
  order; a `Record` within it is an array of its fields.
- Annotations state types, lengths and ranges; msgspec checks the bytes against them in C, front to back, and stops at
  the first invalid value, before hostile bytes are built into objects. Rules across fields are checked in
  `__post_init__` by ValueError.
- Decoding is canonical: a decoded message encodes to the same bytes, so a digest names one message and a signature
  covers exactly what was read. Only minus zero, which equals zero, has other bytes. No maps, extension types, NaN or
  trailing bytes.

- A message whose shape changed keeps the one before as a struct of its own, `EARLIER`, with its old label. Either is
  decoded, and `encode` writes the shape that a protocol number asks for (`federation.protocol.versions`):

      class Plan(Message, frozen=True, tag=…):
          SINCE, EARLIER = 2, Plan8  # the protocol that brought this shape, and the shape before

  Fields are carried over by name, and a new one takes its default; `lifted` and `lowered` are there to be overridden.
  A digest or a signature is of the bytes that came (`name_of`), never of what a lifted message encodes to. A field that
  guards something is never dropped for an older peer: `lowered` raises VersionsApart instead. Messages within messages
  are not lifted; whoever holds them changes its own shape too.

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
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from crypto.errors import DecodeError, VersionsApart
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
    SINCE: ClassVar[int] = 1
    EARLIER: "ClassVar[type[Message] | None]" = None

    @classmethod
    def lifted(cls, earlier: "Message") -> Self:
        """What the shape before said, in this one; ValueError where it cannot be said."""
        return cls(**{name: getattr(earlier, name) for name in earlier.__struct_fields__})

    def lowered(self) -> "Message":
        """This message in the shape before; VersionsApart where there was none."""
        if self.EARLIER is None:
            raise VersionsApart(f"a {type(self).__name__} needs protocol {self.SINCE}, and the other side is older")
        return self.EARLIER(**{name: getattr(self, name) for name in self.EARLIER.__struct_fields__})


class Secret(Message, frozen=True):
    """A message whose repr shows no values."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


M = TypeVar("M", bound=Message)

# The only type that msgspec does not know is an Id. Both ways are a call in C: a directory holds thousands of them.
_identifier = operator.call  # of the type, with what came; a type refuses what are not its bytes
_encoder = msgspec.msgpack.Encoder(enc_hook=bytes.__bytes__)  # TypeError for what are no bytes


def encode(message: Message, protocol: int | None = None) -> bytes:
    """Canonical bytes of `message`, in the shape of its class or, for a peer, of the protocol that it reads."""
    while protocol is not None and protocol < message.SINCE:
        message = message.lowered()
    return _encoder.encode(message)


def decode(kind: type[M], data: Bytes) -> M:
    """The message of type `kind` that `data` encodes, in any of its shapes; DecodeError for every other byte string."""
    if (earlier := _earlier(kind, data)) is not None:
        return _lifted(kind, decode(earlier, data))
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
    if (earlier := _earlier(kind, data)) is not None:
        return first_field(earlier, data)
    try:
        (first,) = msgspec.structs.astuple(_head_decoder(kind).decode(data))
    except UNREADABLE as error:
        raise _refused(kind, data, error) from None
    return first


def digest(data: Bytes) -> Digest:
    """SHA-256 of an encoded message: its name in other messages."""
    return Digest(hashlib.sha256(data).digest())


# ---- reading -------------------------------------------------------------------------------------------------------


def _earlier(kind: type[Message], data: Bytes) -> type[Message] | None:
    """The shape before that of `kind`, if `data` is labelled as that, or as one before it."""
    earlier = kind.EARLIER
    return earlier if earlier is not None and is_labelled(earlier, data) else None


def _lifted(kind: type[M], earlier: Message) -> M:
    try:
        return kind.lifted(earlier)
    except ValueError as error:
        raise _refusal(kind, f"as a {earlier.LABEL!r}: {error}") from error


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
    if not _has_label(kind, data):
        return _of_another_version(kind, data) or _refusal(kind, f"it is not labelled {kind.LABEL!r}")
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
    """Whether `data` has the label of `kind`, or of a shape before, before the rest of it is read."""
    return _has_label(kind, data) or _earlier(kind, data) is not None


def _has_label(kind: type[Message], data: Bytes) -> bool:
    return _label(data) == kind.LABEL.encode()


def _label(data: Bytes) -> bytes:
    """The text that stands where a message has its label, if it is shorter than 256 bytes; empty without one."""
    at = {0xDC: 3, 0xDD: 5}.get(data[0], 1) if data else 0
    first, length = (*data[at : at + 2], 0, 0)[:2]
    begin, length = (at + 2, length) if first == 0xD9 else (at + 1, first - 0xA0 if 0xA0 <= first < 0xC0 else 0)
    return bytes(data[begin : begin + length])


def _of_another_version(kind: type[Message], data: Bytes) -> DecodeError | None:
    """What to say of a message whose label has another number than ours; None for a label of another family."""
    family, _, own = kind.LABEL.rpartition("/")
    found = re.fullmatch(re.escape(family.encode()) + rb"/([1-9]\d{0,3})", _label(data))
    if found is None:
        return None
    age = "newer" if int(found[1]) > int(own) else "older"
    what = f"not a valid {kind.__name__}: it is {family}/{int(found[1])}, from {age} software than this ({kind.LABEL})"
    behind = "who reads it" if age == "newer" else "who sent it"
    return DecodeError(what, hint=f"the versions are too far apart: {behind} must upgrade Pharoah")


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
