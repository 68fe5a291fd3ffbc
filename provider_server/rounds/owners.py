"""What tenants say that they own: which rows it supports, and which links between epochs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from crypto.ids import TenantId
from crypto.signing import reopened
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Ownership, Registration
from federation.protocol.subjects import TOKEN_DIMENSIONS
from provider_server.fleet.leases import Lease


def as_owned(lease: Lease, owned: dict[TenantId, set[str]]) -> Lease:
    """The lease with only those of its tokens that its tenant's ownership statement names."""
    held = owned.get(lease.tenant, set())
    labels = {name: token for name, token in lease.labels.items() if token in held}
    return replace(lease, labels=labels, parts=tuple(part for part in lease.parts if part in held))


def evidence(plan: Plan, ownerships: Sequence[tuple[Ownership, bytes]]) -> list[bytes]:
    """Signed ownership statements, as few as prove `owners_minimum` owners for every token row of the plan."""
    rows = {level for dimension in plan.dimensions if dimension.name in TOKEN_DIMENSIONS for level in dimension.levels}
    shown: Counter[str] = Counter()
    chosen = []
    for owned, signed in ownerships:
        held = {str(token) for token in owned.tokens} & rows
        if any(shown[token] < plan.owners_minimum for token in held):
            shown.update(held)
            chosen.append(signed)
    return chosen


def with_held_links(registration: Registration, owned: Ownership, before: bytes | None) -> Registration:
    """The registration with those links whose tokens the tenant owns now, and owned when it last said so `before`."""
    now, then = set(owned.tokens), set(reopened(Ownership, before).tokens) if before else set()
    held = tuple(link for link in registration.links if link.now in now and link.before in then)
    return msgspec.structs.replace(registration, links=held)
