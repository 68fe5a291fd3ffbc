"""The messages of one week, in the order in which they travel.

provider → tenant   DirectoryUpdate              newer entries of the directory (`federation.protocol.directory`)
provider → tenant   EndedRounds                  who was counted in the epoch's rounds (`federation.protocol.endorsed`)
tenant → provider   Signed(LeaseRequest)         which leases are mine?
provider → tenant   Signed(LeaseGrants)          leases with their context tokens
tenant → trustee    Signed(EvaluationRequest)    blinded elements to evaluate
trustee → tenant    EvaluationResponse           evaluated elements and a proof
tenant → provider   Signed(Registration)         which lease carries which tokens
provider → tenant   Signed(Plan)                 what to count (`federation.protocol.plan`)
tenant → provider   Contribution                 a masked, noisy table behind a signed header
provider → trustee  Signed(UnmaskRequest)        the set of contributions to unmask
trustee → provider  Signed(Endorsement)          this set, and no other of this round
provider → trustee  UnmaskCall                   the request with the endorsements of a quorum
trustee → provider  Signed(UnmaskShare)          the sums of its masks over that set
provider → tenant   RoundRecord                  proof of the sum, if it counts warnings (`protocol.round_record`)
provider → tenant   Signed(Bundle)               what was learnt (`federation.protocol.bundle`)
"""

from collections.abc import Callable, Container, Mapping
from functools import cached_property
from itertools import chain
from typing import Annotated

from msgspec import Meta

from crypto.codec import Bytes, Count, Few, Many, Message, Number, Record, Text, decode, digest
from crypto.errors import BadSignature, DecodeError
from crypto.ids import (
    MAX_BATCH,
    Digest,
    EncodedElement,
    EncodedProof,
    LeaseId,
    Nonce,
    RoundId,
    TenantId,
    Token,
    VerifyKey,
)
from crypto.signing import open_signed_by, reopened


class DirectoryUpdate(Message, frozen=True, tag="pharoah/directory-update/1"):
    """Signed entries of the directory, oldest first."""

    entries: Many[bytes]


class LeaseRequest(Message, frozen=True, tag="pharoah/lease-request/1"):
    """A tenant's question: which of my leases began in [start_hour, end_hour)?"""

    tenant: TenantId
    start_hour: Count
    end_hour: Count


class UnitParts(Record, frozen=True):
    """Nodes of a lease that hang on the same leaf switches, by name, and the tokens of these parts of the fabric.

    `rails` has the leaf of each rail, in order; `unit` stands for all of them, for a vote that knows no rail.
    """

    nodes: Many[Text]
    rails: Many[Token]
    unit: Token

    @property
    def tokens(self) -> tuple[str, ...]:
        """All of them in hexadecimal, as levels of the dimension `part`."""
        return tuple(str(token) for token in (*self.rails, self.unit))


class GrantedLease(Record, frozen=True):
    """A lease of the asking tenant, how many nodes it has, and the context tokens that go with it.

    `units` says on which parts of the fabric its nodes hang, where the provider asks for votes (docs/fabric.md).
    """

    lease: LeaseId
    epoch: Count
    start_h: Number
    context: Token
    context_level: Token
    nodes: Count
    units: Many[UnitParts] = ()

    @classmethod
    def of(
        cls,
        lease: LeaseId,
        epoch: int,
        start_h: float,
        labels: Mapping[str, str],
        nodes: int,
        units: tuple[UnitParts, ...] = (),
    ) -> "GrantedLease":
        """The lease with the context tokens among `labels`."""
        context, level = (Token(bytes.fromhex(labels[name])) for name in ("context", "context_level"))
        return cls(lease, epoch, start_h, context, level, nodes, units)

    @property
    def labels(self) -> dict[str, str]:
        """The tokens by name, in hexadecimal, as a unit carries them."""
        return {"context": str(self.context), "context_level": str(self.context_level)}


class LeaseGrants(Message, frozen=True, tag="pharoah/lease-grants/3"):
    """The provider's answer to the tenant that asked."""

    tenant: TenantId
    leases: Many[GrantedLease]


class EvaluationRequest(Message, frozen=True, tag="pharoah/evaluation-request/2"):
    """Blinded elements that a tenant wants evaluated under the epoch's key; one proof answers them all.

    It names the trustee, so that nobody can spend a tenant's quota at another one by repeating it there.
    """

    tenant: TenantId
    trustee: Count
    epoch: Count
    elements: Annotated[tuple[EncodedElement, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class EvaluationResponse(Message, frozen=True, tag="pharoah/evaluation-response/1"):
    """A trustee's evaluation of every element, with one DLEQ proof over the batch."""

    trustee: Count
    elements: Annotated[tuple[EncodedElement, ...], Meta(max_length=MAX_BATCH)]
    proof: EncodedProof


LADDER_LABELS = ("subarchetype", "archetype", "family")


def finest_row(labels: Mapping[str, str], rows: Container[str]) -> str:
    """The finest rung, among `labels` by rung name, that has a row of its own; "" if none has.

    Tenants place counts by it and the provider places exposure by it, so both fall back to coarser rungs alike.
    """
    for rung in LADDER_LABELS:
        if labels.get(rung) in rows:
            return labels[rung]
    return ""


class Ladder(Message, frozen=True, tag="pharoah/ladder/2"):
    """The tokens of one workload, coarse to fine; equal inputs have equal tokens."""

    family: Token
    archetype: Token
    subarchetype: Token
    exact: Token

    @property
    def labels(self) -> dict[str, str]:
        """The rungs that can have rows, by name, in hexadecimal."""
        return {rung: str(getattr(self, rung)) for rung in LADDER_LABELS}


class RegisteredWorkload(Record, frozen=True):
    """A workload, known only by its tokens, and the sender's leases that it runs on."""

    ladder: Ladder
    leases: Many[LeaseId]


class Ownership(Message, frozen=True, tag="pharoah/ownership/3"):
    """The tokens of the sender's leases that began in [start_hour, end_hour) of the epoch, in order.

    It is signed, and trustees count owners: a row stands only when enough tenants have said so themselves, of the hours
    that the round counts. The provider's word is not taken for it.
    """

    tenant: TenantId
    epoch: Count
    start_hour: Count
    end_hour: Count
    tokens: Many[Token]

    def __post_init__(self) -> None:
        if list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError("tokens are sorted and each is named once")
        if self.start_hour >= self.end_hour:
            raise ValueError("the hours of an ownership end after they begin")


class TokenLink(Record, frozen=True):
    """The token of one rung of a workload in the epoch before, and in this one."""

    before: Token
    now: Token


class Registration(Message, frozen=True, tag="pharoah/registration/5"):
    """What runs on the sender's leases. `ownership` is the signed `Ownership` of the hours that were asked about.

    `links` is empty unless the tenant's policy has `link_epochs`: they show which workloads of the epoch before these
    are, whoever else runs them.
    """

    tenant: TenantId
    epoch: Count
    workloads: Many[RegisteredWorkload]
    ownership: bytes
    links: Many[TokenLink] = ()


class RegistrationRequest(Message, frozen=True, tag="pharoah/registration-request/1"):
    """The provider's question: what runs on your leases that began in [start_hour, end_hour)? It may ask again."""

    epoch: Count
    start_hour: Count
    end_hour: Count

    def __post_init__(self) -> None:
        if self.start_hour >= self.end_hour:
            raise ValueError("the hours that are asked about end after they begin")


class ContributionHeader(Message, frozen=True, tag="pharoah/contribution-header/3"):
    """What a tenant signs of its answer to a plan. `cells` is the digest of the cells.

    The answer counts the windows from `start_hour` to the end of the plan's own: earlier ones of the epoch too, if
    endorsed sets show that they were not counted. `nonce` is fresh for each answer and every mask is bound to it: so
    two answers to one plan, of a tenant whose database was set back, have masks of their own, and a trustee takes off
    those of the one that it is shown.
    """

    tenant: TenantId
    round_id: RoundId
    plan: Digest
    start_hour: Count
    nonce: Nonce
    cells: Digest


class Contribution(Message, frozen=True, tag="pharoah/contribution/3"):
    """A tenant's answer to a plan: the signed header, and cells plus noise plus one mask per trustee, mod 2^64.

    Cells are little-endian words.
    """

    header: bytes
    cells: memoryview

    def __post_init__(self) -> None:
        if len(self.cells) % 8:
            raise ValueError("cells are 64-bit words")


def opened_contribution(
    data: Bytes, key_of: Callable[[TenantId], VerifyKey]
) -> tuple[ContributionHeader, Contribution]:
    """A contribution that its tenant signed; DecodeError or BadSignature otherwise."""
    contribution = decode(Contribution, data)
    header = open_signed_by(ContributionHeader, contribution.header, key_of)
    if digest(contribution.cells) != header.cells:
        raise BadSignature(f"tenant {header.tenant.hex()[:12]}… signed other cells than these")
    return header, contribution


class UnmaskRequest(Message, frozen=True, tag="pharoah/unmask-request/6", dict=True):
    """The one set of contributions, in groups, whose masks a trustee may sum for a round.

    A contribution is named by its header, as its tenant signed it. The request carries the plan itself: masks are bound
    to the plan's digest, so a trustee can hold the provider to the cohort minimum that the tenants saw. `ownerships`
    are signed by tenants and show that every row has owners enough. Without groups the round is given up: nothing of it
    is ever unmasked.
    """

    plan: bytes
    groups: Many[tuple[bytes, ...]]
    ownerships: Many[bytes]

    def __post_init__(self) -> None:
        try:
            members = [[header.tenant for header in group] for group in self.headers]
        except DecodeError as error:
            raise ValueError(f"a group names what is {error.what}") from error
        if any(group != sorted(group) for group in members):
            raise ValueError("the contributors of a group are sorted")
        everybody = list(chain.from_iterable(members))
        if len(set(everybody)) != len(everybody):
            raise ValueError("each contributor is named once")

    @cached_property
    def headers(self) -> tuple[tuple[ContributionHeader, ...], ...]:
        """What the groups say, unverified."""
        return tuple(tuple(reopened(ContributionHeader, signed) for signed in group) for group in self.groups)

    @property
    def contributors(self) -> tuple[TenantId, ...]:
        """Everybody in any group."""
        return tuple(header.tenant for header in chain.from_iterable(self.headers))


class Endorsement(Message, frozen=True, tag="pharoah/endorsement/2"):
    """A trustee's word that it will unmask this request in this round, and no other.

    `endorsed` is the digest of the `federation.protocol.endorsed.EndorsedSet` of the request, which tenants get to see.
    """

    trustee: Count
    round_id: RoundId
    request: Digest
    endorsed: Digest


class UnmaskCall(Message, frozen=True, tag="pharoah/unmask-call/1"):
    """A signed request with the signed endorsements of all mask trustees, and of a quorum of all trustees."""

    request: bytes
    endorsements: Few[bytes]


class UnmaskShare(Message, frozen=True, tag="pharoah/unmask-share/2"):
    """The sum of one trustee's masks over each group of the request, little-endian, mod 2^64."""

    trustee: Count
    round_id: RoundId
    request: Digest
    mask_sums: Many[bytes]


class Receipt(Message, frozen=True, tag="pharoah/receipt/2"):
    """An acknowledgement: the digest of the bundle, or the head of the directory, that is held now."""

    held: Digest
