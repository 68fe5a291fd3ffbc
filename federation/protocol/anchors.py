"""Anchors: trustees sign once a week what a tenant's journal came to, so that nobody can write it anew later.

tenant → trustee    Signed(AnchorRequest)   the head of the journal's chain, as the tenant's anchor of this number
trustee → tenant    Signed(Anchor)          when this trustee saw it, and which anchor of the tenant it follows
tenant → anybody    Signed(ClaimDigest)     that a claim, a file, is the tenant's

- A head is a salted hash (`tenant_client.program.anchors.chain`): a trustee learns that the tenant's service runs,
  but no content and no length.
- A trustee gives a tenant one line of anchors, 1, 2, 3, …, each naming the one before. Two journals cannot both be
  anchored, and one that was written anew does not fit the heads of before.
"""

from collections.abc import Iterator
from typing import TypedDict

from crypto.codec import Count, Message
from crypto.ids import Digest, TenantId
from federation.protocol.directory import Chain

NOTHING_BEFORE = Digest(bytes(32))


class AnchorRequest(Message, frozen=True, tag="pharoah/anchor-request/1"):
    """Signed by the tenant, for one trustee."""

    tenant: TenantId
    trustee: Count
    number: Count
    head: Digest

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError("anchors are numbered from 1 on")


class Anchor(Message, frozen=True, tag="pharoah/anchor/1"):
    """Signed by the trustee: it saw `head` at `at_s` (seconds since 1970) after the anchor `before`."""

    trustee: Count
    tenant: TenantId
    number: Count
    head: Digest
    before: Digest
    at_s: Count


class ClaimDigest(Message, frozen=True, tag="pharoah/claim/1"):
    """Signed by the tenant whose claim has this SHA-256 (`pharoah_claims.packet`)."""

    tenant: TenantId
    claim: Digest


class VerificationKeys(TypedDict):
    """What a verifier of claims trusts: keys as hex; `trustees` are pairs of seat and key, former holders included.

    `quorum` is how many of them must have seen an entry: of two quorums, one honest trustee is in both.
    """

    version: int
    provider: str
    quorum: int
    trustees: list[tuple[int, str]]


def verification_keys(chain: Chain) -> VerificationKeys:
    """The keys by which whoever has this directory verifies a claim."""
    newest = chain.directory
    holders = dict.fromkeys(_holders(chain))
    return {
        "version": 1,
        "provider": newest.provider.hex(),
        "quorum": newest.quorum,
        "trustees": [(seat, key) for seat, key in holders],
    }


def _holders(chain: Chain) -> Iterator[tuple[int, str]]:
    for directory in chain.directories:
        for trustee in directory.trustees:
            yield trustee.index, trustee.verify_key.hex()
