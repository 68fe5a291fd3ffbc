"""Carries what was learnt over a change of epoch: old tokens are renamed to what they are now.

- Workloads: as tenants say whose policy allows it (`link_epochs`). A link holds once `owners_minimum` tenants say the
  same, each of tokens that it holds, and nobody as many say otherwise; one old token becomes one new token.
- Contexts: their tokens are the provider's own, and it knows both.
- Releases and leases of older epochs are renamed, and nothing in them changes: so tables add up over epochs, and so do
  the variances of their noise. What has no link keeps its old token, and its findings stay with it.

Not promised: that a link is true. As many colluding tenants as a row needs can rename a row that all of them hold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from crypto.ids import TenantId
from federation.protocol.life_table import Dimension, LifeTable
from federation.protocol.plan import Plan
from federation.protocol.round_messages import TokenLink
from federation.protocol.subjects import TOKEN_DIMENSIONS
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release

Names = Mapping[str, str]


def agreed(statements: Iterable[tuple[TenantId, TokenLink]], owners_minimum: int) -> Names:
    """The new token of each old one, in hexadecimal, where tenants enough say the same and the answer is unique."""
    votes = Counter((link.before, link.now) for _, link in set(statements))
    found: dict[str, str] = {}
    for (before, now), many in votes.items():
        others = [n for (old, new), n in votes.items() if (old == before) != (new == now)]
        if many >= owners_minimum and all(n < many for n in others):
            found[str(before)] = str(now)
    return found


def renamed(releases: Sequence[Release], leases: Sequence[Lease], names: Names) -> tuple[list[Release], list[Lease]]:
    """Releases and leases with the tokens of today, where `names` has them; over several epochs, step by step."""
    today = {old: _today(old, names) for old in names}
    if not today:
        return list(releases), list(leases)
    return [_release(made, today) for made in releases], [_lease(lease, today) for lease in leases]


def _today(token: str, names: Names) -> str:
    seen = {token}
    while (token := names.get(token, token)) not in seen:
        seen.add(token)
    return token


def _lease(lease: Lease, today: Names) -> Lease:
    if not today.keys() & lease.labels.values():
        return lease
    return replace(lease, labels={name: today.get(token, token) for name, token in lease.labels.items()})


def _release(made: Release, today: Names) -> Release:
    return replace(made, plan=_plan(made.plan, today), tables=tuple(_table(table, today) for table in made.tables))


def _plan(plan: Plan, today: Names) -> Plan:
    dimensions = tuple(
        msgspec.structs.replace(dimension, levels=_levels(dimension.name, dimension.levels, today))
        for dimension in plan.dimensions
    )
    return msgspec.structs.replace(plan, dimensions=dimensions)


def _table(table: LifeTable, today: Names) -> LifeTable:
    dimensions = (Dimension(of.name, _levels(of.name, of.levels, today)) for of in table.dimensions)
    return replace(table, dimensions=tuple(dimensions))


def _levels(name: str, levels: tuple[str, ...], today: Names) -> tuple[str, ...]:
    return tuple(today.get(level, level) for level in levels) if name in TOKEN_DIMENSIONS else levels
