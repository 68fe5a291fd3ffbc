"""The wire: messages, signatures, group elements."""

import atexit
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from msgspec.structs import fields, replace

from crypto import masking, possession, signing
from crypto.codec import Message, Secret, decode, encode
from crypto.errors import BadSignature, DecodeError, PharoahError
from crypto.ids import Digest, EncodedElement, EncodedProof, LeaseId, Nonce, RoundId, TenantId, Token
from crypto.masking import MaskKey
from crypto.ristretto import IDENTITY, Element, Scalar, mul, mul_base
from crypto.signing import SigningKey, open_signed, open_signed_by
from crypto.threshold import KeyShare
from crypto.voprf import Proof
from federation.protocol import (
    bundle,
    ceremony,
    directory,
    endorsed,
    enrolment,
    evidence,
    invitation,
    pass_messages,
    plan,
    round_messages,
    seats,
    service_messages,
)
from federation.protocol.bundle import SKETCH_BYTES, Catalogue, CatalogueEntry
from federation.protocol.directory import NOTHING_BEFORE, Chain, DirectoryEntry, Fork, Member, TrustChanged, next_entry
from federation.protocol.plan import Marginal, MaskTrustee, Mechanism, Plan, PlanDimension
from federation.protocol.round_messages import (
    Contribution,
    DirectoryUpdate,
    Endorsement,
    GrantedLease,
    LeaseGrants,
    LeaseRequest,
    Ownership,
    Receipt,
    RegistrationRequest,
    UnmaskCall,
    UnmaskRequest,
    opened_contribution,
)
from federation.protocol.seats import TrusteeRecord
from fuzz.targets.target import require, target
from trustee.trustee import Trustee

KEY = SigningKey(bytes(range(32)))
MASK_KEY = MaskKey(bytes(range(32)))
MESSAGES: tuple[Any, ...] = tuple(
    dict.fromkeys(
        kind
        for module in (
            directory,
            round_messages,
            plan,
            bundle,
            signing,
            enrolment,
            ceremony,
            invitation,
            service_messages,
            pass_messages,
            masking,
            possession,
            seats,
            endorsed,
        )
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind not in (Message, Secret)
    )
)


def a_plan() -> Plan:
    """A small plan, of the second window of its epoch."""
    dimensions = PlanDimension("workload", ("a", "b"), (7, 8)), PlanDimension("band", ("0",), ())
    marginal = Marginal("pairs", ("workload", "band"), (), 3.0)
    trustees = (MaskTrustee(1, MASK_KEY.public),)
    start = RoundId(bytes(16)), Digest(bytes(32)), 0, 168, 336, (0, 168, 336), dimensions, (0.0, 9.0), (marginal,)
    return Plan(*start, 1, Mechanism.DISCRETE_LAPLACE, 1.0, 0.0, 5, 10, 5, trustees)


def a_member() -> Member:
    """The owner of `KEY`."""
    return Member.of(KEY, MASK_KEY, 0)


def a_founding_entry() -> DirectoryEntry:
    """One trustee, nobody else."""
    share_key = EncodedElement(mul_base(Scalar.from_int(3)).encoded)
    trustee = TrusteeRecord.of(1, KEY, MASK_KEY, share_key, made_hour=0, address="trustee.example:7100")
    return DirectoryEntry(0, NOTHING_BEFORE, KEY.public, 1, share_key, (trustee,), 13, (), ())


def some_entries() -> Iterator[DirectoryEntry]:
    """Somebody joins and leaves again; after the first entry, and each as it would have to be after the one before."""
    yield a_founding_entry()
    first = Chain.begin(KEY.sign(a_founding_entry()), KEY.public)
    joined = next_entry(first.directory, joined=[a_member()])
    yield joined
    yield next_entry(first.extended([KEY.sign(joined)]).directory, left=[a_member().tenant])


def some_messages() -> list[Any]:
    """A few valid messages of different shapes."""
    member = a_member()
    round_id, named, token = RoundId(bytes(16)), Digest(bytes(32)), Token(bytes(16))
    owned = Ownership(member.tenant, 0, 0, 168, (token, Token(b"\1" * 16)))
    header = round_messages.ContributionHeader(member.tenant, round_id, named, 0, Nonce(bytes(16)), named)
    groups = ((KEY.sign(header),), (KEY.sign(replace(header, tenant=TenantId(b"\1" * 16))),))
    asked = UnmaskRequest(KEY.sign(a_plan()), groups, (KEY.sign(owned),))
    told = endorsed.EndorsedSet.of(a_plan(), asked)
    word = Endorsement(1, round_id, named, told.name)
    return [
        a_plan(),
        Contribution(KEY.sign(header), memoryview(bytes(16))),
        header,
        *some_entries(),
        DirectoryUpdate(tuple(map(KEY.sign, some_entries()))),
        possession.MaskKeyClaim(member.verify_key, member.mask_key, 0),
        LeaseRequest(member.tenant, 0, 168),
        LeaseGrants(member.tenant, (GrantedLease(LeaseId(bytes(16)), 0, 1.5, token, token, 4),)),
        owned,
        asked,
        UnmaskRequest(KEY.sign(a_plan()), (), ()),
        word,
        told,
        endorsed.EndedRounds((endorsed.EndedRound(told, (KEY.sign(word),)),)),
        UnmaskCall(KEY.sign(asked), (KEY.sign(word),)),
        round_messages.UnmaskShare(1, round_id, named, (bytes(8), bytes(8))),
        RegistrationRequest(0, 0, 168),
        Receipt(Digest(bytes(32))),
        Catalogue((CatalogueEntry("resnet", bytes(SKETCH_BYTES)),)),
        bundle.Bundle(1, 0, 168, (), (), (), bundle.Statement(1.0, 0.0, "discrete_laplace", 1, 3)),
        a_bundle_with_evidence(token),
        *some_online_messages(member.tenant, token),
        *some_pass_messages(token),
    ]


def some_pass_messages(token: Token) -> Iterator[Any]:
    """What is said of passes; the entry would follow the first of a directory."""
    elements = tuple(
        EncodedElement(mul_base(Scalar.from_int(3 + number)).encoded) for number in range(pass_messages.BATCH)
    )
    first = Chain.begin(KEY.sign(a_founding_entry()), KEY.public).directory
    row = bundle.MismatchEntry(token, token, 0.9, 4.0, 2.0, 8.0, 12.0, bundle.PairJudgement.WORSE, ())
    yield directory.pass_keys(first, 2965, 2, [mul_base(Scalar.from_int(3)), mul_base(Scalar.from_int(4))])
    yield pass_messages.PassRequest(bytes(service_messages.SESSION_BYTES), 2965, elements)
    yield pass_messages.PassAnswer(elements, EncodedProof(bytes(64)))
    yield pass_messages.AnonymousCheck(2965, pass_messages.Pass(bytes(pass_messages.Pass.length)), token, token)
    yield pass_messages.ContextPage(1, (row,), (Token(b"\1" * 16),), (bundle.HazardEntry(token, "0", 1.0, 0.5, 2.0),))


def a_bundle_with_evidence(token: Token) -> bundle.Bundle:
    """What a tenant joins with its own history."""
    pair = bundle.MismatchEntry(token, token, 0.9, 4.0, 2.0, 8.0, 12.0, bundle.PairJudgement.WORSE, ())
    hazard = bundle.HazardEntry(token, "0", 1.0, 0.5, 2.0)
    behind = evidence.PairEvidence(1.5, 0.2, 4.0, bytes(evidence.LEVELS), bytes(evidence.LEVELS))
    known = evidence.Evidence((RoundId(bytes(16)),), (0.0,) * evidence.LEVELS, 0.0, (1.0,), (behind,))
    return bundle.Bundle(1, 0, 168, (), (pair,), (hazard,), None, evidence=known)


def some_online_messages(tenant: TenantId, token: Token) -> Iterator[Any]:
    """What a tenant says to the online service and hears from it."""
    session, lease = bytes(service_messages.SESSION_BYTES), LeaseId(bytes(16))
    evidence = bundle.MismatchEntry(token, token, 0.9, 4.0, 2.0, 8.0, 12.0, bundle.PairJudgement.WORSE, (token,))
    yield service_messages.SignIn(tenant, 1_800_000_000)
    yield service_messages.Session(session, 1_800_003_600)
    yield service_messages.CheckRequest(session, (token, token, token), token, token)
    yield service_messages.CheckAnswer(1, 2, evidence, (bundle.HazardEntry(token, "0", 1.0, 0.5, 2.0),))
    yield service_messages.WatchRequest(session, 0)
    suspected = service_messages.HintState.RAISED, service_messages.Suspicion.MEMORY, 4.0, 2.0, 8.0, 0.3, 72.0
    yield service_messages.Hint(1, 500_000.5, lease, *suspected, service_messages.Action.CONFIRM, 1)
    yield service_messages.LeaseEnd(2, 500_000.5, lease, service_messages.LeaseChange.REQUEUED, 500_000.0, 500_024.0)
    yield service_messages.Outcome(session, 1, lease, service_messages.Suspicion.MEMORY, True, 12.5)  # noqa: FBT003  # a field


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
    with suppress(DecodeError, BadSignature):
        require("a plan", holds=type(open_signed(Plan, data, KEY.public)) is Plan)
    with suppress(DecodeError, BadSignature):
        said = open_signed_by(Ownership, data, lambda _tenant: KEY.public)
        require("an ownership", holds=type(said) is Ownership)
    with suppress(DecodeError, BadSignature):
        header, _contribution = opened_contribution(data, lambda _tenant: KEY.public)
        require("a contribution", holds=type(header) is round_messages.ContributionHeader)


@target(
    "entry",
    "any bytes extend a chain by one entry or are one of its four errors, and the chain is as it was",
    lambda: map(KEY.sign, some_entries()),
)
def check_entry(data: bytes) -> None:
    """Signed by a stranger, and as the body of an entry that the provider signed."""
    before = Chain.begin(KEY.sign(a_founding_entry()), KEY.public)
    for shown in (data, *resigned(data)):
        with suppress(DecodeError, BadSignature, Fork, TrustChanged):
            Chain.begin(shown, KEY.public)
        with suppress(DecodeError, BadSignature, Fork, TrustChanged):
            after = before.extended([shown])
            require("the past stays", holds=after.entries[:1] == before.entries)
            require("the old head is known", holds=after.at(before.directory.head) is before.directory)
    require("a chain never changes", holds=before.directory.number == 0 and len(before.entries) == 1)


def resigned(data: bytes) -> Iterator[bytes]:
    """The body of a signed entry, or bytes that are one, signed by the right key."""
    for body in (data, *bodies(data)):
        for kind in (DirectoryEntry, pass_messages.PassKeys):
            with suppress(DecodeError):
                yield KEY.sign(decode(kind, body))


def bodies(data: bytes) -> Iterator[bytes]:
    """What is signed, if anything is."""
    with suppress(DecodeError):
        yield bytes(decode(signing.Signed, data).body)


@target(
    "directory-update",
    "any bytes are an update whose entries extend a chain, or a PharoahError, and the chain is as it was",
    lambda: [encode(DirectoryUpdate(tuple(map(KEY.sign, some_entries())))), encode(DirectoryUpdate(()))],
)
def check_directory_update(data: bytes) -> None:
    """As a tenant and a trustee take it: all of it or nothing."""
    before = Chain.begin(KEY.sign(a_founding_entry()), KEY.public)
    with suppress(DecodeError, BadSignature, Fork, TrustChanged):
        entries = decode(DirectoryUpdate, data).entries
        after = before.extended(entries)
        require("all of it", holds=set(entries) <= set(after.entries))
        require("nothing twice", holds=before.extended((*entries, *entries)).entries == after.entries)


SENDERS: tuple[Any, ...] = (LeaseRequest, Ownership)
FROM_PROVIDER: tuple[Any, ...] = (LeaseGrants, UnmaskRequest, RegistrationRequest)


@target(
    "opened",
    "any bytes are one message of the pinned sender, or DecodeError, or BadSignature",
    lambda: map(KEY.sign, some_messages()),
)
def check_opened(data: bytes) -> None:
    """What tenants send about themselves, and what the provider answers and asks."""
    opened: list[Any] = []
    for kind in SENDERS:
        with suppress(DecodeError, BadSignature):
            opened.append(open_signed_by(kind, data, lambda _sender: KEY.public))
    for kind in FROM_PROVIDER:
        with suppress(DecodeError, BadSignature):
            opened.append(open_signed(kind, data, KEY.public))
    require("one kind", holds=len(opened) <= 1)
    for message in opened:
        if isinstance(message, LeaseGrants):
            require("labels", holds=all(set(one.labels) == {"context", "context_level"} for one in message.leases))
        if isinstance(message, UnmaskRequest):
            require("nobody twice", holds=len(set(message.contributors)) == sum(map(len, message.groups)))


@target(
    "unmask-call",
    "any bytes are a call with a signed request and endorsements, or DecodeError, or BadSignature",
    lambda: (encode(message) for message in some_messages() if isinstance(message, UnmaskCall | Endorsement)),
)
def check_unmask_call(data: bytes) -> None:
    """As a trustee opens it, in that order."""
    with suppress(DecodeError, BadSignature):
        call = decode(UnmaskCall, data)
        asked = open_signed(UnmaskRequest, call.request, KEY.public)
        require("a plan", holds=type(open_signed(Plan, asked.plan, KEY.public)) is Plan)
        for signed in call.endorsements:
            require("a number", holds=open_signed(Endorsement, signed, KEY.public).trustee >= 0)
    with suppress(DecodeError):
        require("a number", holds=decode(Endorsement, data).trustee >= 0)


@target(
    "trustee",
    "whatever a trustee is asked, it answers or raises a PharoahError",
    lambda: (encode(message) for message in some_messages()),
)
def check_trustee(data: bytes) -> None:
    """Every question of the wire, as bytes and as what the provider or a member has signed."""
    trustee = a_trustee()
    signed = [KEY.sign(decode(kind, data)) for kind in (*FROM_PROVIDER, *SENDERS, UnmaskCall) if is_one(kind, data)]
    for shown in (data, *signed):
        for answer in (trustee.follow, trustee.evaluate, trustee.endorse, trustee.unmask):
            with suppress(PharoahError):
                require("bytes", holds=type(answer(shown)) is bytes)


def is_one(kind: Any, data: bytes) -> bool:
    """Whether it decodes."""
    try:
        return bool(decode(kind, data))
    except DecodeError:
        return False


@cache
def a_trustee() -> Trustee:
    """The one of `a_founding_entry`, with a memory that is not kept."""
    founding = [KEY.sign(a_founding_entry())]
    share = KeyShare(1, Scalar.from_int(3))
    folder = mkdtemp(prefix="pharoah-fuzz-")
    atexit.register(rmtree, folder, ignore_errors=True)
    return Trustee(share, KEY, MASK_KEY, founding, Path(folder, "trustee.db"), os.urandom)


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
