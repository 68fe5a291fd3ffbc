"""The wire: messages, signatures, group elements."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any

from crypto import bundle, messages, plan, signing
from crypto.bundle import SKETCH_BYTES, Catalogue, CatalogueEntry
from crypto.codec import decode, encode
from crypto.errors import BadSignature, DecodeError
from crypto.ids import Digest, EncodedElement, MaskPublicKey, RoundId, TenantId
from crypto.messages import Contribution, Directory, Member, Receipt, RegistrationRequest, TrusteeRecord, UnmaskRequest
from crypto.plan import Marginal, MaskTrustee, Mechanism, Plan, PlanDimension
from crypto.ristretto import IDENTITY, Element, Scalar, mul, mul_base
from crypto.signing import SigningKey, open_signed, open_signed_by
from crypto.voprf import Proof
from fuzz.targets.target import require, target

KEY = SigningKey(bytes(range(32)))
MESSAGES: tuple[Any, ...] = tuple(
    dict.fromkeys(
        kind
        for module in (messages, plan, bundle, signing)
        for kind in vars(module).values()
        if isinstance(kind, type) and "LABEL" in vars(kind)
    )
)


def a_plan() -> Plan:
    """A small plan."""
    dimensions = PlanDimension("workload", ("a", "b"), (7, 8)), PlanDimension("band", ("0",), ())
    marginal = Marginal("pairs", ("workload", "band"), (), 3.0)
    trustees = (MaskTrustee(1, MaskPublicKey(bytes(32))),)
    start = RoundId(bytes(16)), 0, 0, 168, dimensions, (0.0, 9.0), (marginal,), 1, Mechanism.DISCRETE_GAUSSIAN
    return Plan(*start, 1.0, 1e-8, 5, 10, 8, trustees)


def some_messages() -> list[Any]:
    """A few valid messages of different shapes."""
    member = Member(KEY.public, MaskPublicKey(bytes(32)))
    trustee = TrusteeRecord(1, EncodedElement(bytes(32)), MaskPublicKey(bytes(32)))
    said = Contribution(member.tenant, RoundId(bytes(16)), Digest(bytes(32)), bytes(16))
    return [
        a_plan(),
        said,
        Directory(KEY.public, 1, EncodedElement(bytes(32)), (trustee,), (member,)),
        UnmaskRequest(KEY.sign(a_plan()), (TenantId(bytes(16)), member.tenant)),
        RegistrationRequest(0, 0, 168),
        Receipt(Digest(bytes(32))),
        Catalogue((CatalogueEntry("resnet", bytes(SKETCH_BYTES)),)),
        bundle.Bundle(1, 0, 168, (), (), (), bundle.Statement(1.0, 0.0, "discrete_laplace", 1, 3)),
    ]


def encoded_messages() -> Iterator[bytes]:
    """Those, and for every kind of message its label with nothing behind it."""
    yield from map(encode, some_messages())
    for kind in MESSAGES:
        yield bytes([0x91 + len(fields(kind))]) + b"\xd9" + bytes([len(kind.LABEL)]) + kind.LABEL.encode()


@target(
    "message", "any bytes are a valid message of one kind, whose encoding they are, or DecodeError", encoded_messages
)
def check_message(data: bytes) -> None:
    """Every kind of the wire is asked: at most one takes the bytes."""
    taken = []
    for kind in MESSAGES:
        with suppress(DecodeError):
            message = decode(kind, data)
            require("what decodes encodes to the same bytes", holds=encode(message) == data and type(message) is kind)
            taken.append(kind)
    require("bytes are one message", holds=len(taken) <= 1)


@target(
    "signed",
    "any bytes are a message that the pinned key signed, or DecodeError, or BadSignature",
    lambda: map(KEY.sign, some_messages()),
)
def check_signed(data: bytes) -> None:
    """As a tenant and as the provider opens it."""
    member = Member(KEY.public, MaskPublicKey(bytes(32)))
    with suppress(DecodeError, BadSignature):
        require("a plan", holds=type(open_signed(Plan, data, KEY.public)) is Plan)
    with suppress(DecodeError, BadSignature):
        said = open_signed_by(
            Contribution, data, lambda message: {member.tenant: KEY.public}.get(message.tenant, KEY.public)
        )
        require("a contribution", holds=type(said) is Contribution)


def scalars_and_elements() -> Iterator[bytes]:
    """Valid encodings and their neighbours."""
    three = Scalar.from_int(3)
    yield from (mul_base(three).encoded, three.encoded, three.encoded * 2, bytes(32), b"\xff" * 32, b"\xff" * 64)


@target(
    "ristretto",
    "any bytes are an element, a scalar or a proof that encodes to them, or DecodeError",
    scalars_and_elements,
)
def check_ristretto(data: bytes) -> None:
    """Arithmetic on what decodes is total."""
    with suppress(DecodeError):
        element = Element.decode(data)
        require("an element", holds=element.encoded == data and element != IDENTITY)
        Element.decode(mul(Scalar.from_int(3), element + element).encoded)
    with suppress(DecodeError):
        scalar = Scalar.decode(data)
        require("a scalar", holds=scalar.encoded == data and mul_base(scalar).encoded is not None)
    with suppress(DecodeError):
        require("a proof", holds=Proof.decode(data).encode() == data)
