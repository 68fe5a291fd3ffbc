"""The fabric as votes see it, and contexts by pace, from sums with noise over all tenants.

The graph is that of `[telemetry] fabric`: on each rail, leaves with their nodes, and spines as one. A leaf without a
count is one that no lease of the release used, or that too few tenants hold.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from federation.protocol.subjects import Subject
from provider_server.fleet.analysis.slow_contexts import slow_contexts
from provider_server.fleet.learning.votes import SuspectedPart
from provider_server.fleet.release import Release
from provider_server.program.pages.snapshot import Votes, natural, newest_with

MOST_NODES, MOST_SUSPECTS = 4, 12
SUSPECTED, NOT_SUSPECTED, NO_COUNT = "suspected", "not suspected", "no count"
STANDINGS = {NOT_SUSPECTED: 0, SUSPECTED: 4, NO_COUNT: 5}  # with the colour of each


@dataclass(frozen=True)
class PartView:
    """A leaf, or the spines of a rail (`switch` is empty): the votes it explains, None without a count.

    `jobs` ran over it: what a fault there can take down.
    """

    rail: int
    switch: str
    standing: str
    votes: float | None
    error: float | None
    p_value: float | None
    nodes: tuple[str, ...]
    nodes_left_out: int
    jobs: int = 0

    @property
    def step(self) -> int:
        """The number of its colour."""
        return STANDINGS[self.standing]


@dataclass(frozen=True)
class RailView:
    """A rail: its spines, and its leaves in the order of units."""

    rail: int
    spines: PartView
    leaves: tuple[PartView, ...]


@dataclass(frozen=True)
class FabricView:
    """The fabric, and parts in order of suspicion. Hours are those counted, None before the first release with votes.

    `noise_sd` is that of a row's total, in votes.
    """

    start_hour: int | None
    end_hour: int | None
    noise_sd: float
    suspects: tuple[PartView, ...]
    rails: tuple[RailView, ...]


@dataclass(frozen=True)
class PaceView:
    """A context: noisy leases that were slow, of those watched, and whether it is named as slow."""

    name: str
    slow: float
    watched: float
    p_value: float
    named: bool

    @property
    def step(self) -> int:
        """The number of its colour."""
        return STANDINGS[SUSPECTED if self.named else NOT_SUSPECTED]


@dataclass(frozen=True)
class SpeedView:
    """Contexts, the slowest first, over the hours counted; `noise_sd` is that of a count."""

    start_hour: int
    end_hour: int
    noise_sd: float
    contexts: tuple[PaceView, ...]


def fabric(seen: Votes | None) -> FabricView | None:
    """None without a fabric."""
    if seen is None:
        return None
    plan = seen.release.plan if seen.release else None
    told = {(one.rail, one.switch): one for one in seen.suspects}
    below: dict[int, list[str]] = defaultdict(list)
    for node, unit in seen.parts.unit_of.items():
        below[unit].append(node)

    def leaf(place: int, rail: int, unit: int) -> PartView:
        switch = seen.parts.leaves[unit][place]
        return _part(rail, switch, told.get((rail, switch)), below[unit])

    units = range(len(seen.parts.leaves))
    rails = [
        RailView(rail, _part(rail, "", told.get((rail, "")), ()), tuple(leaf(place, rail, unit) for unit in units))
        for place, rail in enumerate(seen.parts.rails)
    ]
    return FabricView(
        seen.release.first_hour if seen.release else None,
        plan.end_hour if plan else None,
        seen.suspects[0].noise_sd if seen.suspects else 0.0,
        tuple(_part(one.rail, one.switch, one, ()) for one in seen.suspects[:MOST_SUSPECTS]),
        tuple(rails),
    )


def _part(rail: int, switch: str, one: SuspectedPart | None, nodes: Sequence[str]) -> PartView:
    shown, left = tuple(sorted(nodes, key=natural)[:MOST_NODES]), max(0, len(nodes) - MOST_NODES)
    if one is None:
        return PartView(rail, switch, NO_COUNT, None, None, None, shown, left)
    standing = SUSPECTED if one.is_named else NOT_SUSPECTED
    return PartView(rail, switch, standing, one.votes, one.error, one.p_value, shown, left, one.jobs)


def speed(releases: Sequence[Release], name: Callable[[str], str]) -> SpeedView | None:
    """From the newest release that counts slow leases; None without one. `name` says what a token stands for."""
    newest = newest_with(Subject.SPEED, releases)
    if newest is None:
        return None
    table = newest.table(Subject.SPEED)
    slow, usual = table.at("pace", "slow"), table.at("pace", "usual")
    found = slow_contexts(table.levels("context"), slow.events, usual.events, slow.noise_variance)
    contexts = tuple(PaceView(name(one.context), one.slow, one.watched, one.p_value, one.is_named) for one in found)
    return SpeedView(newest.first_hour, newest.plan.end_hour, float(table.noise_variance.max() ** 0.5), contexts)
