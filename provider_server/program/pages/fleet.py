"""The map of the fleet: nodes by hardware group, each with its wear level and the hazard that goes with both.

The hazard of a node is what the newest bundle says of its context at its level, as the mean over age bands, against
the middle node of the fleet. Where no bundle says anything, it is the rate of the context in the provider's own
telemetry, so that the map is there before the first round. It says nothing about one node by itself.

A node is raised if it is worn, and its hazard above the usual or unknown: what all of a group share is the group's.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from provider_server.fleet.analysis.contexts import Context
from provider_server.fleet.learning.hardware import Kept
from provider_server.program.pages.hazards import UNKNOWN, is_known
from provider_server.program.pages.snapshot import ContextPlace, Snapshot, natural

MOST_NODES = 400  # of a context: the worst are shown, the rest is counted
_ABOVE = 1.25  # from which a hazard is above usual
STEPS = ((0.5, "far below usual"), (0.8, "below usual"), (_ABOVE, "usual"), (2.0, "above usual"))
HIGHEST = "far above usual"
HAZARDS = (*(name for _, name in STEPS), HIGHEST, UNKNOWN)


@dataclass(frozen=True)
class NodeView:
    """A node. `ratio` is its hazard over that of the middle node, None where nothing is known; `hazard` says it."""

    name: str
    level: int
    ratio: float | None
    hazard: str
    raised: bool

    @property
    def step(self) -> int:
        """The place of `hazard` among `HAZARDS`, for a colour."""
        return HAZARDS.index(self.hazard)


@dataclass(frozen=True)
class ContextView:
    """A hardware group with its rate in telemetry, per 1,000 node-hours, and its nodes, the worst first.

    `ratio` is the hazard of its nodes without wear over that of the middle node, None where it is not known. Number 0
    is for nodes that telemetry names and no group has yet. `nodes_left_out` are those that are not listed.
    """

    number: int
    name: str
    description: str
    rate: float | None
    low: float | None
    high: float | None
    ratio: float | None
    nodes_by_level: tuple[int, ...]
    raised: int
    nodes: tuple[NodeView, ...]
    nodes_left_out: int

    @property
    def stands_out(self) -> bool:
        """Whether all of the group is far above the usual."""
        return self.ratio is not None and self.ratio >= STEPS[-1][0]


def fleet(seen: Snapshot) -> tuple[ContextView, ...]:
    """All groups, by number; empty before the first `pharoah-provider nodes contexts`."""
    if seen.kept is None:
        return ()
    contexts = seen.kept.contexts.contexts
    rates = _rates(seen, seen.kept)
    known = [rates[place] for context in contexts for place in _places(seen.kept, context)]
    usual = median(rate for rate in known if rate is not None) if any(rate is not None for rate in known) else None
    groups = [_context(seen, seen.kept, context, rates, usual) for context in contexts]
    placed = {node for context in contexts for node in context.nodes}
    if others := [_node(one.node, one.level, None, usual) for one in seen.reports if one.node not in placed]:
        groups.append(_group(0, "Nodes without a hardware group", "", (None, None, None), None, others))
    return tuple(groups)


def shown(groups: Sequence[ContextView], text: str, *, raised: bool) -> tuple[ContextView, ...]:
    """Groups with those of their nodes whose names, or whose group's, contain `text`; groups without any are left out.

    Where `raised`, only nodes that are. Those that are listed no more are no longer counted.
    """
    wanted, found = text.strip().lower(), []
    for one in groups:
        of_group = wanted in one.name.lower()
        nodes = [
            node for node in one.nodes if (of_group or wanted in node.name.lower()) and (node.raised or not raised)
        ]
        if nodes:
            found.append(replace(one, nodes=tuple(nodes), nodes_left_out=0 if wanted or raised else one.nodes_left_out))
    return tuple(found)


def _places(kept: Kept, context: Context) -> list[ContextPlace]:
    return [ContextPlace(context.number, kept.levels.get(node, 0)) for node in context.nodes]


def _rates(seen: Snapshot, kept: Kept) -> dict[ContextPlace, float | None]:
    """Hazard by context and level: all from the newest bundle, or, if it names none, all from telemetry."""
    said: defaultdict[ContextPlace, list[float]] = defaultdict(list)
    for entry in seen.learnt[-1].hazards if seen.learnt else ():
        place = seen.places.get(str(entry.context_level))
        if place is not None and is_known(entry):
            said[place].append(entry.rate)
    rates: dict[ContextPlace, float | None] = {}
    for context in kept.contexts.contexts:
        for place in _places(kept, context):
            bands = said.get(place)
            rates[place] = (fmean(bands) if bands else None) if said else context.failures_per_1000_node_hours
    return rates


def _context(
    seen: Snapshot, kept: Kept, context: Context, rates: dict[ContextPlace, float | None], usual: float | None
) -> ContextView:
    placed = zip(context.nodes, _places(kept, context), strict=True)
    nodes = [_node(name, place.level or 0, rates[place], usual) for name, place in placed]
    unworn = next((node.ratio for node in nodes if not node.level), None)
    rate = context.failures_per_1000_node_hours, context.low, context.high
    return _group(context.number, seen.group_name(context.number), context.description, rate, unworn, nodes)


def _group(
    number: int,
    name: str,
    description: str,
    rate: tuple[float | None, float | None, float | None],
    ratio: float | None,
    nodes: Sequence[NodeView],
) -> ContextView:
    worst_first = sorted(nodes, key=lambda node: (-(node.ratio or 0.0), -node.level, natural(node.name)))
    levels = [node.level for node in nodes]
    return ContextView(
        number,
        name,
        description,
        *rate,
        ratio,
        tuple(levels.count(level) for level in range(max([3, *levels]) + 1)),
        sum(node.raised for node in nodes),
        tuple(worst_first[:MOST_NODES]),
        max(0, len(nodes) - MOST_NODES),
    )


def _node(name: str, level: int, rate: float | None, usual: float | None) -> NodeView:
    if rate is None or not usual:
        return NodeView(name, level, None, UNKNOWN, level > 0)
    ratio = rate / usual
    hazard = next((said for limit, said in STEPS if ratio < limit), HIGHEST)
    return NodeView(name, level, ratio, hazard, level > 0 and ratio >= _ABOVE)
