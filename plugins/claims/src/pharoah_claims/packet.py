"""A claim: what a tenant shows others of one lease, to be verified offline by `verify_claim.py` beside it.

All entries of the chain are in it, in order: those that the owner chose with salt and fact, all others as commitments.
With them go the anchors, and the tenant's key and signature over the whole.
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import NotRequired, TypedDict

from crypto.errors import PharoahError
from crypto.ids import Digest
from crypto.signing import SigningKey, tenant_id
from federation.protocol.anchors import ClaimDigest
from federation.protocol.versions import OLDEST
from pharoah_claims.verify_claim import canonical
from tenant_client.program.anchors.chain import ChainEntry

SHOWN = frozenset({"lease", "grant", "hint", "end", "attempt"})  # kinds of facts; others are shown if they are added


class NotOfThisLease(PharoahError):
    """An entry that was chosen is about another lease, or there is none of that number."""

    default_hint = "list the entries of the lease with `pharoah-tenant privacy evidence JOB`"


class ShownEntry(TypedDict):
    """An entry that is shown: its salt as hex, and its fact."""

    salt: str
    fact: str


class Claim(TypedDict):
    """The file. `entries` has a commitment (hex) or a shown entry for each; `anchors` a length and a signed Anchor."""

    version: int
    lease: str
    tenant: str
    entries: list[str | ShownEntry]
    anchors: list[tuple[int, str]]
    signed: NotRequired[str]


def kind_of(body: bytes) -> str:
    """The kind of a fact."""
    return str(json.loads(body)["kind"])


def chosen(entries: Iterable[ChainEntry], lease: str, added: Collection[int], *, everything: bool) -> set[int]:
    """The numbers of the entries of a lease that are shown: the usual kinds, and those `added`; or `everything`."""
    own = {entry.number: kind_of(entry.body) for entry in entries if entry.lease == lease}
    if strange := sorted(set(added) - own.keys()):
        raise NotOfThisLease(f"entry {strange[0]} is not about lease {lease}")
    return {number for number, kind in own.items() if everything or kind in SHOWN} | set(added)


def claim(
    signing_key: SigningKey,
    lease: str,
    entries: Iterable[ChainEntry],
    shown: Collection[int],
    anchors: Sequence[tuple[int, bytes]],
) -> Claim:
    """The signed claim about a lease, in which the entries of these numbers are shown."""
    made = Claim(
        version=1,
        lease=lease,
        tenant=signing_key.public.hex(),
        entries=[_shown(entry) if entry.number in shown else entry.commitment.hex() for entry in entries],
        anchors=[(length, base64.b64encode(message).decode()) for length, message in anchors],
    )
    named = Digest(hashlib.sha256(canonical(made)).digest())
    signed = signing_key.sign(ClaimDigest(tenant_id(signing_key.public), named), OLDEST)
    return {**made, "signed": base64.b64encode(signed).decode()}


def _shown(entry: ChainEntry) -> ShownEntry:
    return {"salt": entry.salt.hex(), "fact": entry.body.decode()}
