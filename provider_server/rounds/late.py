"""Contributions that were charged and did not arrive in time: what is missing, and what has come since.

A tenant names in the header of each contribution the one before it in the series, so the provider sees what it has not
heard and asks for it. What comes after its round was over is stored, and the next request of the series lists it under
its own plan: its counts are opened with those of that round, its noise never.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain

import numpy as np

from crypto.codec import decode, digest
from crypto.ids import Digest, TenantId
from crypto.signing import reopened
from federation.protocol.life_table import LifeTable, embed
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Contribution, ContributionHeader, UnmaskRequest
from provider_server.fleet.exposure import Slices, expose
from provider_server.fleet.leases import Lease
from provider_server.rounds.ceilings import Ceiling, job_weeks
from provider_server.rounds.release import LateAnswer
from provider_server.store.round_store import KeptRound, RoundState, RoundStore

Late = tuple[Plan, tuple[ContributionHeader, ...]]


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
        if is_over(kept) and (earlier.end_hour <= plan.start_hour or earlier.position < plan.position)
    ]
    return tuple(sorted((late for late in found if late.tenants), key=lambda late: late.plan.round_id))


def unheard(store: RoundStore, plan: Plan) -> frozenset[Digest]:
    """What those who answered this round sent to earlier ones of its series, by digest of the header, and is not here.

    Everything is here that a request names or that is stored.
    """
    present = _answered(store, plan)
    heard, named = set(), set()
    for kept, _ in _series(store, plan):
        for signed in _headers(store, kept):
            header = reopened(ContributionHeader, signed)
            heard.add(digest(signed))
            if header.after is not None and header.tenant in present:
                named.add(header.after)
    return frozenset(named - heard)


def is_opened_again(store: RoundStore, last: Plan, members: Set[TenantId]) -> bool:
    """Whether the series of `last` has a second opening of its last week to come, and an answer is still missing.

    That is one of `members` to `last`, or of anybody to a round before it. False once it was held or given up.
    """
    if last.series is None or last.series.openings[last.position + 1 :] != last.series.openings[-1:]:
        return False
    if last.series.openings[last.position] != last.series.openings[-1]:
        return False
    if any(plan.position > last.position for _, plan in _series(store, last)):
        return False
    answered, arrived = _answered(store, last), store.contributors(last.round_id)
    return bool(members - answered or arrived - answered or unheard(store, last))


def _answered(store: RoundStore, plan: Plan) -> set[TenantId]:
    """Who is in the set of a round, or will be once it is fixed."""
    request = store.get(plan.round_id).request
    return set(reopened(UnmaskRequest, request).contributors) if request else store.contributors(plan.round_id)


# ---- what they count -------------------------------------------------------------------------------------------------


def late_answers(late: Iterable[Late]) -> list[LateAnswer]:
    """The hours that they count, by tenant."""
    return [LateAnswer(header.tenant, header.start_hour, plan.end_hour) for plan, headers in late for header in headers]


def with_exposure_of(
    late: Iterable[Late], exposed: tuple[LifeTable, ...], leases: Sequence[Lease]
) -> tuple[LifeTable, ...]:
    """Tables with the exposure of late contributions added, by the rows of their own plans."""
    for plan, headers in late:
        slices = Slices.by_week(_since(headers), leases, plan.end_hour, plan.band_edges_hours)
        exposed = tuple(
            table + own.aligned(table.dimensions) for table, own in zip(exposed, expose(plan, slices), strict=True)
        )
    return exposed


def ceiling_of(late: Iterable[Late], plan: Plan, leases: Sequence[Lease]) -> Ceiling | None:
    """What they can count at most, by the rows of their own plans, laid out as in `plan`; None for none."""
    total: Ceiling | None = None
    ends = np.cumsum([table.events.size for table in plan.tables])[:-1]
    for before, headers in late:
        held = job_weeks(before, leases, _since(headers), before.end_hour)
        own = held.ceiling(held.tenants)
        flat = embed(before.tables, plan.tables, np.concatenate([cells.reshape(-1) for cells in own.cells]))
        placed = (part.reshape(table.shape) for part, table in zip(np.split(flat, ends), plan.tables, strict=True))
        total = Ceiling(tuple(placed), own.totals) + total
    return total


def _since(headers: Iterable[ContributionHeader]) -> dict[TenantId, float]:
    return {header.tenant: float(header.start_hour) for header in headers}


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
