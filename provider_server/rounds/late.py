"""Contributions that were charged and did not arrive in time: what is missing, and what has come since.

A tenant names in the header of each contribution the one before it in the series, so the provider sees what it has not
heard and asks for it. What comes after its round was over is stored, and the next request of the series lists it under
its own plan: its counts are opened with those of that round, its noise never.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from crypto.codec import decode, digest
from crypto.ids import Digest, TenantId
from crypto.signing import reopened
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Contribution, ContributionHeader, UnmaskRequest
from provider_server.store.round_store import KeptRound, RoundState, RoundStore


@dataclass(frozen=True)
class LateRound:
    """An earlier round of a series, and the tenants whose contributions to it wait to be counted, sorted."""

    signed_plan: bytes
    plan: Plan
    tenants: tuple[TenantId, ...]


def is_over(kept: KeptRound) -> bool:
    """Whether a later round of the series may count what comes for this one: no set of it is under way."""
    return kept.state == RoundState.RELEASED or (kept.state == RoundState.REFUSED and kept.request is None)


def late_rounds(store: RoundStore, plan: Plan) -> tuple[LateRound, ...]:
    """The earlier rounds of the plan's series with contributions that no release counts yet, by their names."""
    found = [
        LateRound(kept.signed_plan, earlier, tuple(sorted(store.contributors(kept.round_id))))
        for kept, earlier in _series(store, plan)
        if is_over(kept) and earlier.end_hour <= plan.start_hour
    ]
    return tuple(sorted((late for late in found if late.tenants), key=lambda late: late.plan.round_id))


def unheard(store: RoundStore, plan: Plan) -> frozenset[Digest]:
    """What those who answered this round sent to earlier ones of its series, by digest of the header, and is not here.

    Everything is here that a request names or that is stored.
    """
    present = store.contributors(plan.round_id)
    heard, named = set(), set()
    for kept, _ in _series(store, plan):
        for signed in _headers(store, kept):
            header = reopened(ContributionHeader, signed)
            heard.add(digest(signed))
            if header.after is not None and header.tenant in present:
                named.add(header.after)
    return frozenset(named - heard)


def _headers(store: RoundStore, kept: KeptRound) -> Iterator[bytes]:
    if kept.request is not None:
        asked = reopened(UnmaskRequest, kept.request)
        yield from chain.from_iterable(asked.groups)
        yield from chain.from_iterable(late.contributions for late in asked.late)
    for tenant in store.contributors(kept.round_id):
        yield decode(Contribution, store.contribution(kept.round_id, tenant)).header


def _series(store: RoundStore, plan: Plan) -> Iterator[tuple[KeptRound, Plan]]:
    for kept in store.rounds() if plan.series else ():
        other = reopened(Plan, kept.signed_plan)
        if plan.series and other.series and other.series.name == plan.series.name:
            yield kept, other
