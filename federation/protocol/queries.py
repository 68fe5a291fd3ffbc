"""The provider's queries to a tenant in a federated week, and the record in which queries and answers travel.

- The transport carries one blob per message; the message types of this package define its content.
- Before a blob stands what its sender speaks (`federation.protocol.versions`).
- Blobs are padded to whole units, so that a size reveals only the number of units.
- `unwrap` returns both or raises `DecodeError`, for any object.
- `Fault` numbers a tenant's errors.

Not promised: the sender. Only a signature inside the blob authenticates it.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum

from crypto.errors import DecodeError, PeerFault, PharoahError, Refusal
from federation.protocol.versions import HELLO_BYTES, OWN, Hello

RECORD = "pharoah"
BLOB = "blob"
PADDING_UNIT = 2**14
_LENGTH_BYTES = 4
_HEAD_BYTES = HELLO_BYTES + _LENGTH_BYTES
# Of the app bundle that every run brings: without code, since only what a tenant has installed may run there.
ROUND_BUNDLE_SHA256 = "1a80d3fad4d1cb2004189f2e3ec4f5e3026612852cba4c80f2c8b7132699b559"


class Query(StrEnum):
    """The queries, in the order of a week."""

    DIRECTORY = "directory"
    ENDED = "ended"
    REGISTRATIONS = "registrations"
    CONTRIBUTION = "contribution"
    RECORD = "record"
    BUNDLE = "bundle"


Answer = Callable[[Query, bytes], bytes]


class Fault(IntEnum):
    """Error codes of Pharoah beside those of Flower, which are below 1000."""

    OTHER = 1000
    DECODE = 1001
    PEER = 1002
    REFUSAL = 1003
    BUG = 1099

    @classmethod
    def of(cls, error: PharoahError) -> "Fault":
        """The family of an error; its own class travels by name."""
        families = ((DecodeError, cls.DECODE), (PeerFault, cls.PEER), (Refusal, cls.REFUSAL))
        return next((fault for family, fault in families if isinstance(error, family)), cls.OTHER)


def wrap(blob: bytes, hello: Hello = OWN) -> bytes:
    """The blob behind a hello and its length and in front of zeros, in as few units as it takes."""
    length = len(blob).to_bytes(_LENGTH_BYTES, "big")
    return hello.to_bytes() + length + blob + bytes(-(len(blob) + _HEAD_BYTES) % PADDING_UNIT)


def _unpadded(padded: bytes) -> tuple[Hello, bytes]:
    hello = Hello.from_bytes(padded[:HELLO_BYTES])
    blob = padded[_HEAD_BYTES : _HEAD_BYTES + int.from_bytes(padded[HELLO_BYTES:_HEAD_BYTES], "big")]
    if wrap(blob, hello) != padded:
        raise DecodeError(f"the value {BLOB!r} is not padded as agreed")
    return hello, blob


def unwrap(content: object) -> tuple[Hello, bytes]:
    """What the sender speaks, and the blob, when `content` is one record with one value, both named as agreed.

    DecodeError for anything else.
    """
    record = _only(content, RECORD)
    blob = _only(record, BLOB)
    if type(blob) is not bytes:
        raise DecodeError(f"the value {BLOB!r} is not bytes")
    return _unpadded(blob)


def _only(mapping: object, key: str) -> object:
    if not isinstance(mapping, Mapping) or list(mapping) != [key]:
        raise DecodeError(f"expected {key!r} and nothing else")
    return mapping[key]
