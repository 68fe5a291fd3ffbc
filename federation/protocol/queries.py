"""The provider's queries to a tenant in a federated week, and the record in which queries and answers travel.

- The transport carries one blob per message; the message types of this package define its content.
- Blobs are padded to whole units, so that a size reveals only the number of units.
- `unwrap` returns the blob or raises `DecodeError`, for any object.
- `Fault` numbers a tenant's errors.

Not promised: the sender. Only a signature inside the blob authenticates it.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum

from crypto.errors import DecodeError, PeerFault, PharoahError, Refusal

RECORD = "pharoah"
BLOB = "blob"
PADDING_UNIT = 2**14
_LENGTH_BYTES = 4
# Of the app bundle that every run brings: without code, since only what a tenant has installed may run there.
ROUND_BUNDLE_SHA256 = "1a80d3fad4d1cb2004189f2e3ec4f5e3026612852cba4c80f2c8b7132699b559"


class Query(StrEnum):
    """The queries, in the order of a week."""

    DIRECTORY = "directory"
    ENDED = "ended"
    REGISTRATIONS = "registrations"
    CONTRIBUTION = "contribution"
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


def wrap(blob: bytes) -> bytes:
    """The blob behind its length and in front of zeros, in as few units as it takes."""
    length = len(blob).to_bytes(_LENGTH_BYTES, "big")
    return length + blob + bytes(-(len(blob) + _LENGTH_BYTES) % PADDING_UNIT)


def _unpadded(padded: bytes) -> bytes:
    blob = padded[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(padded[:_LENGTH_BYTES], "big")]
    if wrap(blob) != padded:
        raise DecodeError(f"the value {BLOB!r} is not padded as agreed")
    return blob


def unwrap(content: object) -> bytes:
    """The blob, when `content` is one record of the agreed name with one value of the agreed name; else DecodeError."""
    record = _only(content, RECORD)
    blob = _only(record, BLOB)
    if type(blob) is not bytes:
        raise DecodeError(f"the value {BLOB!r} is not bytes")
    return _unpadded(blob)


def _only(mapping: object, key: str) -> object:
    if not isinstance(mapping, Mapping) or list(mapping) != [key]:
        raise DecodeError(f"expected {key!r} and nothing else")
    return mapping[key]
