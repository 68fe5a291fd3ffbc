"""The messages of anonymous checks, and passes as bytes.

provider → all      Signed(PassKeys)   an entry of the directory: public keys of the weeks to come, one for everybody
tenant → provider   PassRequest        a batch of blinded elements, in a session: by name, metered, for the week after
provider → tenant   PassAnswer         the evaluated elements, and one proof
tenant → provider   AnonymousCheck     one pass and the context that is asked about, on a connection of its own
provider → tenant   ContextPage        all that the newest bundle says of that context

- An `AnonymousCheck` names no tenant, session, lease or workload. All of one week have the same length.
- A page holds every row of its context, so the question need not say which workload it is about. Pages of one bundle
  have the same length (`padded`).
"""

from typing import Annotated

from msgspec import Meta

from crypto.codec import Count, Few, Many, Message, Secret, decode, encode
from crypto.errors import DecodeError
from crypto.ids import MAX_BATCH, Digest, EncodedElement, EncodedProof, Id, Token
from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry
from federation.protocol.versions import OLDEST

BATCH = MAX_BATCH
NONCE_BYTES, DIGEST_BYTES, AUTHENTICATOR_BYTES = 32, 32, 64
PAGE_UNIT = 4096
_LENGTH_BYTES = 4

Batches = Annotated[int, Meta(ge=1, le=64)]
Batch = Annotated[tuple[EncodedElement, ...], Meta(min_length=BATCH, max_length=BATCH)]


class PassNonce(Id):
    """What a pass is remembered by once it is spent."""

    length = NONCE_BYTES


class Pass(Id):
    """A pass as the struct `Token` of RFC 9577 §2.2: type, nonce, challenge digest, key id, authenticator. A secret.

    Whoever has it may spend it, so it shows in no log.
    """

    length = 2 + NONCE_BYTES + 2 * DIGEST_BYTES + AUTHENTICATOR_BYTES

    def __repr__(self) -> str:
        return "Pass(…)"

    __str__ = __repr__

    @property
    def nonce(self) -> PassNonce:
        """The random part that names it."""
        return PassNonce(self[2 : 2 + NONCE_BYTES])


class PassKeys(Message, frozen=True, tag="pharoah/pass-keys/1"):
    """An entry of the directory: keys of `first_week` and of the weeks after it, and the `batches` that members get."""

    number: Count
    previous: Digest
    first_week: Count
    batches: Batches
    keys: Few[EncodedElement]

    def __post_init__(self) -> None:
        if not self.keys or len(set(self.keys)) != len(self.keys):
            raise ValueError("every week has a key of its own, and there is at least one week")


class PassRequest(Secret, frozen=True, tag="pharoah/pass-request/1"):
    """A whole batch for `week`, blinded. Sent twice it is charged once."""

    session: bytes
    week: Count
    elements: Batch


class PassAnswer(Message, frozen=True, tag="pharoah/pass-answer/1"):
    """The batch under the key of its week, in order, and the proof for all of it."""

    elements: Batch
    proof: EncodedProof


class AnonymousCheck(Secret, frozen=True, tag="pharoah/anonymous-check/1"):
    """What is known of this context? The pass is spent by it, whatever the answer is."""

    week: Count
    shown: Pass
    context: Token
    context_level: Token


class ContextPage(Message, frozen=True, tag="pharoah/context-page/1"):
    """Of bundle `bundle`: the rows of one context, the hazards of one of its levels.

    `elsewhere` are the workloads that have rows, but none here: without them a check would take a coarser row.
    """

    bundle: Count
    mismatches: Many[MismatchEntry]
    elsewhere: Many[Token]
    hazards: Many[HazardEntry]

    def __post_init__(self) -> None:
        if len({entry.context for entry in self.mismatches}) > 1:
            raise ValueError("a page is about one context")
        if len({entry.context_level for entry in self.hazards}) > 1:
            raise ValueError("hazards are of one level")

    @property
    def rows(self) -> set[str]:
        """The workloads that have a row anywhere."""
        return {str(entry.workload) for entry in self.mismatches} | {str(token) for token in self.elsewhere}


def page_of(bundle: Bundle, context: Token, level: Token) -> ContextPage:
    """What a bundle says of a context."""
    rows = tuple(entry for entry in bundle.mismatches if entry.context == context)
    here = {entry.workload for entry in rows}
    elsewhere = {entry.workload for entry in bundle.mismatches} - here
    hazards = tuple(entry for entry in bundle.hazards if entry.context_level == level)
    return ContextPage(bundle.number, rows, tuple(sorted(elsewhere)), hazards)


def padded(page: ContextPage, length: int) -> bytes:
    """The page behind its length and before zeros, `length` bytes in all; ValueError if it is longer."""
    encoded = encode(page, OLDEST)
    if len(encoded) + _LENGTH_BYTES > length:
        raise ValueError("the page is longer than it may be")
    return (len(encoded).to_bytes(_LENGTH_BYTES) + encoded).ljust(length, b"\0")


def padded_length(page_bytes: int) -> int:
    """How long pages are of which the longest has so many bytes: whole units, so that a size tells as little."""
    return -(-(page_bytes + _LENGTH_BYTES) // PAGE_UNIT) * PAGE_UNIT


def unpadded(data: bytes) -> ContextPage:
    """The page in `data`; DecodeError for anything that `padded` does not make."""
    length = int.from_bytes(data[:_LENGTH_BYTES])
    encoded, rest = data[_LENGTH_BYTES : _LENGTH_BYTES + length], data[_LENGTH_BYTES + length :]
    if len(encoded) != length or len(data) % PAGE_UNIT or rest.strip(b"\0"):
        raise DecodeError("a page is not padded as agreed")
    return decode(ContextPage, encoded)
