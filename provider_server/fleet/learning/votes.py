"""Suspected parts of the fabric, from a release with votes, the leases it counted, and what its tokens stand for.

    release ─ rows of parts ─┐
    leases ─ units of nodes ─┴▶ analysis.votes.localise ─▶ leaves and spines by name, most suspect first

Leases are those of tenants that answered, in the windows that it counts. Only the provider can do this: only it knows
what a part token stands for (docs/fabric.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from federation.protocol.subjects import Subject
from provider_server.fleet.analysis.votes import HALF, PartName, Spread, localise, patterns
from provider_server.fleet.leases import Lease
from provider_server.fleet.parts import FabricParts
from provider_server.fleet.release import Release


@dataclass(frozen=True)
class SuspectedPart:
    """A leaf, or the spines of a rail (no `switch`): the votes it explains, give or take `error`, and how surely.

    `is_named` parts are faulty at a false discovery rate of 10%; `noise_sd` is that of a row's total, in votes. `jobs`
    ran over it, of those on several nodes that were counted: what a fault there can take down.
    """

    rail: int
    switch: str
    votes: float
    error: float
    p_value: float
    is_named: bool
    noise_sd: float
    jobs: int = 0


def suspected(
    release: Release, leases: Sequence[Lease], parts: FabricParts, tokens: Sequence[Sequence[str]]
) -> tuple[SuspectedPart, ...]:
    """The parts that leases used, most suspect first; none where the release counts no votes.

    `tokens` are those of the rows in the release's epoch: units × (rails, none known).
    """
    if not release.counts(Subject.VOTES):
        return ()
    table = release.table(Subject.VOTES)
    place = {token: number for number, token in enumerate(table.levels("part"))}
    row = np.array([place.get(token, -1) for unit in tokens for token in unit])
    counts = np.where(row < 0, 0.0, HALF * table.events[row])
    variance = np.where(row < 0, np.inf, HALF**2 * table.noise_variance[row])
    unit_of = {token: number for number, unit in enumerate(tokens) for token in unit}
    spreads = _spreads(release, leases, unit_of)
    found = localise(patterns(spreads, len(tokens), len(parts.rails)), counts, variance) if spreads else ()
    noise_sd = HALF * float(np.sqrt(table.noise_variance.max()))
    return tuple(
        SuspectedPart(
            parts.rails[one.part.rail],
            _switch(parts, one.part),
            one.votes,
            one.error,
            one.p_value,
            one.is_named,
            noise_sd,
            sum(_runs_over(spread, one.part) for spread in spreads),
        )
        for one in found
    )


def _runs_over(spread: Spread, part: PartName) -> bool:
    """Through a leaf go jobs with a node below it, through spines those with nodes below several leaves."""
    return len(set(spread.units)) > 1 if part.unit is None else part.unit in spread.units


def _switch(parts: FabricParts, part: PartName) -> str:
    return "" if part.unit is None else parts.leaves[part.unit][part.rail]


def _spreads(release: Release, leases: Sequence[Lease], unit_of: dict[str, int]) -> list[Spread]:
    """Where the leases of those who answered lay, and in how many windows."""
    answered, (first, end) = {one.tenant for one in release.answered}, (release.first_hour, release.plan.end_hour)
    found = []
    for lease in leases:
        units = [unit_of[str(unit.unit)] for unit in lease.units for _ in unit.nodes if str(unit.unit) in unit_of]
        start_h, end_h = max(lease.start_h, first), min(lease.end_h, end)
        if lease.tenant in answered and len(units) > 1 and start_h < end_h:
            last, begun = (release.plan.position_at(hour) for hour in (end_h - 1e-9, start_h))
            found.append(Spread(tuple(units), last - begun + 1))
    return found
