"""One fixed valid message of every kind: what the codec's tests spoil, and what the vectors of a release hold."""

import types
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

import msgpack
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import fields

from crypto import masking, possession, signing
from crypto.codec import (
    Message,
    Secret,
    encode,
)
from crypto.ids import (
    Digest,
    EncodedElement,
    Id,
    Nonce,
    RoundId,
    Signature,
    TenantId,
)
from federation.protocol import (
    anchors,
    bundle,
    ceremony,
    directory,
    endorsed,
    enrolment,
    invitation,
    pass_messages,
    plan,
    round_messages,
    round_record,
    seats as seats_module,
    service_messages,
)
from federation.protocol.bundle import (
    SKETCH_BYTES,
    MismatchEntry,
    Statement,
)
from federation.protocol.causes import Domain
from federation.protocol.directory import DirectoryEntry
from federation.protocol.enrolment import SEALED_BYTES
from federation.protocol.evidence import LEVELS, Evidence, PairEvidence
from federation.protocol.plan import (
    Marginal,
    Mechanism,
    Plan,
    PlanDimension,
)
from federation.protocol.round_messages import Ownership, UnmaskRequest
from federation.protocol.seats import TrusteeRecord
from federation.protocol.service_messages import SESSION_BYTES, Hint
from provider_server.fleet import release

Tree = Any  # what msgpack makes of a message: nested lists of int, float, str, bytes and None
MODULES = (
    directory,
    round_messages,
    round_record,
    plan,
    bundle,
    signing,
    enrolment,
    ceremony,
    invitation,
    service_messages,
    release,
    masking,
    possession,
    seats_module,
    endorsed,
    anchors,
    pass_messages,
)
MESSAGES: tuple[type[Any], ...] = tuple(
    dict.fromkeys(
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind not in (Message, Secret)
    )
)
# Whoever reads these writes them again, and hashes that: a change of one is a change of what it names.
HASHED_AS_WRITTEN = {
    "pharoah/signed": "its body is hashed where it lies",
    "pharoah/endorsed-set": "trustees sign the digest of the set that each of them makes",
    "pharoah/mask-stream": "both sides derive a mask from it",
    "pharoah/mask-key-claim": "a tenant's proof of possession covers it, and members hold its parts",
    "pharoah/seats": "handovers name it by its digest",
    "pharoah/committee": "trustees compare its digest",
    "pharoah/card-list": "dealings name it by its digest",
    "pharoah/trustee-card": "people compare its digest",
}
ADDRESSES = ("trustee.example:7100", "192.0.2.7:65535", "[2001:db8::7]:1")
NODE_KEY = ec.derive_private_key(7, ec.SECP384R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def a_header(tenant: TenantId) -> bytes:
    said = round_messages.ContributionHeader(
        tenant, RoundId(bytes(16)), Digest(bytes(32)), 1, Nonce(bytes(16)), Digest(bytes(32))
    )
    return encode(signing.Signed(Signature(bytes(64)), memoryview(encode(said))))


def hint_of(kind: type, name: str) -> Any:
    return next(field.type for field in fields(kind) if field.name == name)


def plain(hint: Any) -> Any:
    """A type without its constraints."""
    return plain(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


@cache
def specimen(kind: Any) -> Any:
    """One fixed valid message of `kind` without an empty list, so that every field can be spoilt."""
    later: Any
    for later in MESSAGES:
        if later.EARLIER is kind:
            return specimen(later).lowered()
    if kind is Plan:
        marginal = Marginal("pairs", ("workload", "band"), (Domain.SCRIPT,), 3.0)
        dimensions = PlanDimension("workload", ("a", "b"), (7, 8)), PlanDimension("band", ("0",), ())
        (trustee,) = specimen_of(hint_of(Plan, "trustees"))
        return Plan(
            specimen_of(RoundId), specimen_of(Digest), 1, 5, 840, (5, 840), dimensions, (0.0, 9.0), (marginal,), 1,
            Mechanism.DISCRETE_GAUSSIAN, 1.0, 1e-8, 5, 10, 8, (trustee,),
        )  # fmt: skip
    return kind(*(specimen_of(hint, (kind, name)) for name, hint in field_hints(kind)))


def field_hints(kind: type) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in fields(kind)]


_BATCH = (EncodedElement(bytes(EncodedElement.length)),) * pass_messages.BATCH
IN_RANGE: dict[tuple[type, str], Any] = {
    (PairEvidence, "below"): bytes(LEVELS),
    (PairEvidence, "lent"): bytes(LEVELS),
    (Evidence, "log_prior"): (2.5,) * LEVELS,
    (DirectoryEntry, "threshold"): 1,
    (TrusteeRecord, "index"): 1,
    (MismatchEntry, "probability_worse"): 0.5,
    (Statement, "delta"): 0.5,
    (enrolment.TrusteeCard, "address"): ADDRESSES[0],
    (enrolment.MemberCard, "node_key"): NODE_KEY,
    (ceremony.Dealing, "threshold"): 1,
    (pass_messages.PassRequest, "elements"): _BATCH,
    (pass_messages.PassAnswer, "elements"): _BATCH,
    (ceremony.Dealing, "sealed"): (bytes(SEALED_BYTES),),
    (ceremony.Committee, "threshold"): 1,
    (ceremony.KeptShare, "secret"): bytes(32),
    (invitation.Invitation, "superlink"): ADDRESSES[0],
    (invitation.Invitation, "online"): ADDRESSES[1],
    (service_messages.Session, "token"): bytes(SESSION_BYTES),
    (service_messages.CheckAnswer, "verdict"): 2,
    (Hint, "probability"): 0.5,
    (Ownership, "start_hour"): 4,
    (round_messages.RegistrationRequest, "start_hour"): 4,
    (UnmaskRequest, "groups"): ((a_header(TenantId(bytes(16))),),),
}


def specimen_of(hint: Any, field: tuple[type, str] = (object, "")) -> Any:
    if field in IN_RANGE:
        return IN_RANGE[field]
    if get_origin(hint) is Annotated and get_args(hint)[0] is bytes:
        return bytes(range(get_args(hint)[1].min_length))
    hint = plain(hint)
    if get_origin(hint) is tuple:
        return (specimen_of(get_args(hint)[0]),)
    if get_origin(hint) in (Union, types.UnionType):
        return specimen_of(next(each for each in get_args(hint) if each is not type(None)))
    if issubclass(hint, msgspec.Struct):
        return specimen(hint)
    if issubclass(hint, Id):
        return hint(bytes(range(hint.length)))
    if issubclass(hint, StrEnum):
        return next(iter(hint))
    return {bool: True, int: 5, float: 2.5, str: "text", bytes: bytes(SKETCH_BYTES), memoryview: memoryview(bytes(8))}[
        hint
    ]


def tree_of(message: Any) -> Tree:
    return msgpack.unpackb(encode(message), raw=False)
