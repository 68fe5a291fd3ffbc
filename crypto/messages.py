"""The messages of one week, in the order in which they travel.

    tenant → trustee    Signed(EvaluationRequest)    blinded elements to evaluate
    trustee → tenant    EvaluationResponse           evaluated elements and a proof
    tenant → provider   Signed(Registration)         which lease carries which tokens
    provider → tenant   Signed(Plan)
    tenant → provider   Signed(Contribution)         a masked, noisy table
    provider → trustee  Signed(UnmaskRequest)        the set of contributions to unmask
    trustee → provider  UnmaskShare                  the sum of its masks over that set
    provider → tenant   Signed(Bundle)               what was learnt (`crypto.bundle`)

`Plan` has a module of its own, `crypto.plan`.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from crypto.errors import BadSignature
from crypto.ids import Digest, EncodedElement, EncodedProof, LeaseId, MaskPublicKey, RoundId, TenantId, Token, VerifyKey
from crypto.signing import tenant_id
from crypto.voprf import MAX_BATCH


@dataclass(frozen=True)
class Member:
    """A tenant's public keys."""

    verify_key: VerifyKey
    mask_key: MaskPublicKey

    @property
    def tenant(self) -> TenantId:
        """The id, which follows from the signing key."""
        return tenant_id(self.verify_key)


@dataclass(frozen=True)
class TrusteeRecord:
    """A trustee's public keys: its share of the signature key and its mask key. Index counts from 1."""

    index: int
    share_key: EncodedElement
    mask_key: MaskPublicKey


class SignedByTenant(Protocol):
    """A message that names the tenant that signed it."""

    @property
    def tenant(self) -> TenantId:
        """The sender."""


@dataclass(frozen=True)
class Directory:
    """Who takes part, and with which keys; every party pins one. Nobody is in it twice, by number or by key."""

    LABEL: ClassVar[str] = "pharoah/directory/1"
    provider: VerifyKey
    threshold: int
    group_key: EncodedElement
    trustees: tuple[TrusteeRecord, ...]
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if sorted(trustee.index for trustee in self.trustees) != list(range(1, len(self.trustees) + 1)):
            raise ValueError("trustees are numbered from 1, each number once")
        if not 1 <= self.threshold <= len(self.trustees):
            raise ValueError("the threshold must lie between 1 and the number of trustees")
        # One mask key under two names would make one mask stream pass for two.
        _require_distinct("a trustee", [trustee.mask_key for trustee in self.trustees])
        _require_distinct("a member", [member.mask_key for member in self.members])
        _require_distinct("a member", [member.verify_key for member in self.members])

    def member(self, tenant: TenantId) -> Member:
        """The keys of `tenant`; BadSignature for a stranger, since nothing that it signs can be checked."""
        found = self._by_id.get(tenant)
        if found is None:
            raise BadSignature(f"tenant {tenant.hex()[:12]}… is not in the directory", hint="enrol it first")
        return found

    def verify_key(self, message: "SignedByTenant") -> VerifyKey:
        """The pinned key of the tenant that a message names as its sender."""
        return self.member(message.tenant).verify_key

    @cached_property
    def _by_id(self) -> dict[TenantId, Member]:
        return {member.tenant: member for member in self.members}


def _require_distinct(owner: str, keys: Sequence[bytes]) -> None:
    if len(set(keys)) != len(keys):
        raise ValueError(f"two entries have the same key of {owner}")


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
class Registration:
    """What runs on the sender's leases."""

    LABEL: ClassVar[str] = "pharoah/registration/2"
    tenant: TenantId
    epoch: int
    workloads: tuple[RegisteredWorkload, ...]


@dataclass(frozen=True)
class RegistrationRequest:
    """The provider's question: what runs on your leases that began in [start_hour, end_hour)? It may ask again."""

    LABEL: ClassVar[str] = "pharoah/registration-request/1"
    epoch: int
    start_hour: int
    end_hour: int


@dataclass(frozen=True)
class Contribution:
    """A tenant's answer to a plan: its cells plus noise plus one mask per trustee, little-endian, mod 2^64."""

    LABEL: ClassVar[str] = "pharoah/contribution/1"
    tenant: TenantId
    round_id: RoundId
    plan: Digest
    cells: bytes

    def __post_init__(self) -> None:
        if len(self.cells) % 8:
            raise ValueError("cells are 64-bit words")


@dataclass(frozen=True)
class UnmaskRequest:
    """The one set of contributions whose masks a trustee may sum for a round.

    It carries the plan itself: masks are bound to the plan's digest, so a trustee can hold the provider to the cohort
    minimum that the tenants saw.
    """

    LABEL: ClassVar[str] = "pharoah/unmask-request/2"
    plan: bytes
    contributors: tuple[TenantId, ...]

    def __post_init__(self) -> None:
        if list(self.contributors) != sorted(set(self.contributors)):
            raise ValueError("contributors are sorted and each is named once")


@dataclass(frozen=True)
class UnmaskShare:
    """The sum of one trustee's masks over the requested set, little-endian, mod 2^64."""

    LABEL: ClassVar[str] = "pharoah/unmask-share/1"
    trustee: int
    round_id: RoundId
    mask_sum: bytes


@dataclass(frozen=True)
class Receipt:
    """A tenant's acknowledgement that it holds a bundle."""

    LABEL: ClassVar[str] = "pharoah/receipt/1"
    bundle: Digest
