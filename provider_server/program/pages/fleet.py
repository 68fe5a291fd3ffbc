"""The map of the fleet: nodes by context, each with its build-up level and the hazard that goes with both.

The hazard of a node is what the newest bundle says of its context at its level, as the mean over age bands, against
the middle node of the fleet. Where no bundle says anything, it is the rate of the context in the provider's own
telemetry, so that the map is there before the first round. It says nothing about one node by itself.
"""

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median

from provider_server.fleet.analysis.contexts import Context
from provider_server.fleet.learning.hardware import Kept
from provider_server.program.pages.hazards import UNKNOWN, is_known
from provider_server.program.pages.snapshot import ContextPlace, Snapshot, natural

MOST_NODES = 400  # of a context: the worst are shown, the rest is counted
STEPS = ((0.5, "far below usual"), (0.8, "below usual"), (1.25, "usual"), (2.0, "above usual"))
HIGHEST = "far above usual"
HAZARDS = (*(name for _, name in STEPS), HIGHEST, UNKNOWN)


@dataclass(frozen=True)
class NodeView:
    """A node. `ratio` is its hazard over that of the middle node, None where nothing is known; `hazard` says it."""

    name: str
    level: int
    ratio: float | None
    hazard: str

    @property
    def step(self) -> int:
        """The place of `hazard` among `HAZARDS`, for a colour."""
        return HAZARDS.index(self.hazard)


@dataclass(frozen=True)
class ContextView:
    """A context with its rate in telemetry, per 1,000 node-hours, and its nodes, the worst first."""

    number: int
    description: str
    rate: float
    low: float
    high: float
    nodes_by_level: tuple[int, ...]
    nodes: tuple[NodeView, ...]
    nodes_left_out: int


def fleet(seen: Snapshot) -> tuple[ContextView, ...]:
    """All contexts, by number; empty before the first `pharoah-provider nodes contexts`."""
    if seen.kept is None:
        return ()
    rates = _rates(seen, seen.kept)
    known = [rates[place] for context in seen.kept.contexts.contexts for place in _places(seen.kept, context)]
    usual = median(rate for rate in known if rate is not None) if any(rate is not None for rate in known) else None
    return tuple(_context(seen.kept, context, rates, usual) for context in seen.kept.contexts.contexts)


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


def _context(kept: Kept, context: Context, rates: dict[ContextPlace, float | None], usual: float | None) -> ContextView:
    placed = zip(context.nodes, _places(kept, context), strict=True)
    nodes = [_node(name, place, rates[place], usual) for name, place in placed]
    nodes.sort(key=lambda node: (-(node.ratio or 0.0), -node.level, natural(node.name)))
    levels = [node.level for node in nodes]
    return ContextView(
        context.number,
        context.description,
        context.failures_per_1000_node_hours,
        context.low,
        context.high,
        tuple(levels.count(level) for level in range(max([3, *levels]) + 1)),
        tuple(nodes[:MOST_NODES]),
        max(0, len(nodes) - MOST_NODES),
    )


def _node(name: str, place: ContextPlace, rate: float | None, usual: float | None) -> NodeView:
    level = place.level or 0
    if rate is None or not usual:
        return NodeView(name, level, None, UNKNOWN)
    ratio = rate / usual
    return NodeView(name, level, ratio, next((said for limit, said in STEPS if ratio < limit), HIGHEST))
