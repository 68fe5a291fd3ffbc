"""The messages of one week, in the order in which they travel.

provider → tenant   DirectoryUpdate              newer entries of the directory (`crypto.directory`)
tenant → provider   Signed(LeaseRequest)         which leases are mine?
provider → tenant   Signed(LeaseGrants)          leases with their context tokens
tenant → trustee    Signed(EvaluationRequest)    blinded elements to evaluate
trustee → tenant    EvaluationResponse           evaluated elements and a proof
tenant → provider   Signed(Registration)         which lease carries which tokens
provider → tenant   Signed(Plan)                 what to count (`crypto.plan`)
tenant → provider   Signed(Contribution)         a masked, noisy table
provider → trustee  Signed(UnmaskRequest)        the set of contributions to unmask
trustee → provider  Signed(Endorsement)          this set, and no other of this round
provider → trustee  UnmaskCall                   the request with the endorsements of all mask trustees
trustee → provider  Signed(UnmaskShare)          the sums of its masks over that set
provider → tenant   Signed(Bundle)               what was learnt (`crypto.bundle`)
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from crypto.ids import Digest, EncodedElement, EncodedProof, LeaseId, RoundId, TenantId, Token
from crypto.voprf import MAX_BATCH


@dataclass(frozen=True)
class DirectoryUpdate:
    """Signed entries of the directory, oldest first."""

    LABEL: ClassVar[str] = "pharoah/directory-update/1"
    entries: tuple[bytes, ...]


@dataclass(frozen=True)
class LeaseRequest:
    """A tenant's question: which of my leases began in [start_hour, end_hour)?"""

    LABEL: ClassVar[str] = "pharoah/lease-request/1"
    tenant: TenantId
    start_hour: int
    end_hour: int


@dataclass(frozen=True)
class GrantedLease:
    """A lease of the asking tenant, and the context tokens that go with it."""

    lease: LeaseId
    epoch: int
    start_h: float
    context: Token
    context_level: Token

    @classmethod
    def of(cls, lease: LeaseId, epoch: int, start_h: float, labels: Mapping[str, str]) -> "GrantedLease":
        """The lease with the context tokens among `labels`."""
        context, level = (Token(bytes.fromhex(labels[name])) for name in ("context", "context_level"))
        return cls(lease, epoch, start_h, context, level)

    @property
    def labels(self) -> dict[str, str]:
        """The tokens by name, in hexadecimal, as a unit carries them."""
        return {"context": str(self.context), "context_level": str(self.context_level)}


@dataclass(frozen=True)
class LeaseGrants:
    """The provider's answer to the tenant that asked."""

    LABEL: ClassVar[str] = "pharoah/lease-grants/1"
    tenant: TenantId
    leases: tuple[GrantedLease, ...]


@dataclass(frozen=True)
class EvaluationRequest:
    """Blinded elements that a tenant wants evaluated under the epoch's key; one proof answers them all."""

    LABEL: ClassVar[str] = "pharoah/evaluation-request/1"
    tenant: TenantId
    epoch: int
    elements: tuple[EncodedElement, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.elements) <= MAX_BATCH:
            raise ValueError(f"a request holds 1 to {MAX_BATCH} elements")


@dataclass(frozen=True)
class EvaluationResponse:
    """A trustee's evaluation of every element, with one DLEQ proof over the batch."""

    LABEL: ClassVar[str] = "pharoah/evaluation-response/1"
    trustee: int
    elements: tuple[EncodedElement, ...]
    proof: EncodedProof


LADDER_LABELS = ("subarchetype", "archetype", "family")


def finest_row(labels: Mapping[str, str], rows: Container[str]) -> str:
    """The finest rung, among `labels` by rung name, that has a row of its own; "" if none has.

    Tenants place counts by it and the provider places exposure by it, so both fall back to coarser rungs alike.
    """
    return next((labels[rung] for rung in LADDER_LABELS if labels.get(rung) in rows), "")


@dataclass(frozen=True)
class Ladder:
    """The tokens of one workload, coarse to fine, and its MinHash bands; equal inputs have equal tokens."""

    LABEL: ClassVar[str] = "pharoah/ladder/1"
    family: Token
    archetype: Token
    subarchetype: Token
    exact: Token
    bands: tuple[Token, ...]

    @property
    def labels(self) -> dict[str, str]:
        """The rungs that can have rows, by name, in hexadecimal."""
        return {rung: str(getattr(self, rung)) for rung in LADDER_LABELS}


@dataclass(frozen=True)
class RegisteredWorkload:
    """A workload, known only by its tokens, and the sender's leases that it runs on."""

    ladder: Ladder
    leases: tuple[LeaseId, ...]


@dataclass(frozen=True)
class Ownership:
    """The tokens of which the sender holds at least one lease in the epoch, in order; signed, trustees count owners.

    A row stands only when enough tenants have said so themselves: the provider's word is not taken for it.
    """

    LABEL: ClassVar[str] = "pharoah/ownership/1"
    tenant: TenantId
    epoch: int
    tokens: tuple[Token, ...]

    def __post_init__(self) -> None:
        if list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError("tokens are sorted and each is named once")


@dataclass(frozen=True)
class Registration:
    """What runs on the sender's leases. `ownership` is the signed `Ownership` of all that it has told in the epoch."""

    LABEL: ClassVar[str] = "pharoah/registration/3"
    tenant: TenantId
    epoch: int
    workloads: tuple[RegisteredWorkload, ...]
    ownership: bytes


@dataclass(frozen=True)
class RegistrationRequest:
    """The provider's question: what runs on your leases that began in [start_hour, end_hour)? It may ask again."""

    LABEL: ClassVar[str] = "pharoah/registration-request/1"
    epoch: int
    start_hour: int
    end_hour: int


@dataclass(frozen=True)
class Contribution:
    """A tenant's answer to a plan: its cells plus noise plus one mask per trustee, little-endian, mod 2^64.

    In a series the cells come first, the noise after them, both under masks and neither without them. They count
    failures from `start_hour` to the end of the plan's window: earlier than its beginning where weeks were missed.
    """

    LABEL: ClassVar[str] = "pharoah/contribution/2"
    tenant: TenantId
    round_id: RoundId
    plan: Digest
    start_hour: int
    cells: bytes

    def __post_init__(self) -> None:
        if len(self.cells) % 8:
            raise ValueError("cells are 64-bit words")


@dataclass(frozen=True)
class GroupOfRound:
    """A group of contributions of an earlier round of a series, which was found to be poisoned."""

    position: int
    group: int


@dataclass(frozen=True)
class UnmaskRequest:
    """The one set of contributions, in groups, whose masks a trustee may sum for a round.

    It carries the plan itself: masks are bound to the plan's digest, so a trustee can hold the provider to the cohort
    minimum that the tenants saw. `after` is the digest of the request that opened the round before in the series;
    `left_out` names groups of earlier rounds that no longer count. `ownerships` are signed by tenants and show that
    every row has owners enough.
    """

    LABEL: ClassVar[str] = "pharoah/unmask-request/3"
    plan: bytes
    groups: tuple[tuple[TenantId, ...], ...]
    after: Digest | None
    left_out: tuple[GroupOfRound, ...]
    ownerships: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not self.groups or any(list(group) != sorted(group) for group in self.groups):
            raise ValueError("there is a group at least, and the contributors of a group are sorted")
        if len(set(self.contributors)) != len(self.contributors):
            raise ValueError("each contributor is named once")

    @property
    def contributors(self) -> tuple[TenantId, ...]:
        """Everybody in any group."""
        return tuple(chain.from_iterable(self.groups))


@dataclass(frozen=True)
class Endorsement:
    """A trustee's word that it will unmask this request in this round, and no other."""

    LABEL: ClassVar[str] = "pharoah/endorsement/1"
    trustee: int
    round_id: RoundId
    request: Digest


@dataclass(frozen=True)
class UnmaskCall:
    """A signed request with the signed endorsements of all mask trustees: all were asked for the same set."""

    LABEL: ClassVar[str] = "pharoah/unmask-call/1"
    request: bytes
    endorsements: tuple[bytes, ...]


@dataclass(frozen=True)
class UnmaskShare:
    """The sum of one trustee's masks over each group of the request, little-endian, mod 2^64."""

    LABEL: ClassVar[str] = "pharoah/unmask-share/2"
    trustee: int
    round_id: RoundId
    request: Digest
    mask_sums: tuple[bytes, ...]


@dataclass(frozen=True)
class Receipt:
    """An acknowledgement: the digest of the bundle, or the head of the directory, that is held now."""

    LABEL: ClassVar[str] = "pharoah/receipt/2"
    held: Digest
