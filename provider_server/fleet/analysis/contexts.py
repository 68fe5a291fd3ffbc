"""Contexts: groups of nodes with similar hardware and failure rates, with stable numbers and descriptions.

- Groups are formed by selected features (`selection.select`), by failures and by hardware (`partition`). A context has
  at least `LEAST_NODES` nodes, and enough hours for a meaningful rate. Then they are split by measured performance, if
  there is any, and by whatever feature tells it (`measured`); such parts need nodes and no hours.
- Numbers are stable: a refit's groups take over earlier numbers so that as many nodes as possible keep theirs, and only
  where most of the smaller of both groups is in the other. After a split the larger part keeps the number. A number is
  never used again. The order of nodes and columns does not matter; equal inputs give equal maps.

Not promised: contexts that differ only in features that do not predict failures; intervals that account for the use of
the same failures to select features and to form groups.

    >>> from provider_server.fleet.analysis.selection import Selected
    >>> table = NodeTable(
    ...     nodes=tuple(f"n{place}" for place in range(40)),
    ...     numbers={},
    ...     categories={"model": ("A100",) * 20 + ("H100",) * 20},
    ...     failures=np.repeat([0.0, 4.0], 20),
    ...     node_hours=np.full(40, 1000.0),
    ... )
    >>> found = find_contexts(table, [Selected("model", 90.0, 0.005, 4.0)], None, np.random.default_rng(0))
    >>> [(context.number, context.description) for context in found.contexts]
    [(1, 'model A100: 20 nodes'), (2, 'model H100: 20 nodes')]
    >>> found.of("n39")
    2
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment

from crypto.errors import PharoahError
from provider_server.fleet.analysis.measured import told_by_measures
from provider_server.fleet.analysis.partition import MOST, Feature, Fleet, Group, rates, told_by_failures, told_by_look
from provider_server.fleet.analysis.selection import LEAST_FAILURES, NodeTable, Selected

LEAST_NODES = 5
LEVELS_SHOWN = 3
BARELY = 1e-9  # what explains performance alone breaks ties between contexts that fail alike
UNKNOWN = ""


@dataclass(frozen=True)
class Look:
    """What a context's nodes have in one feature. `told`: a cut by it made this context.

    `levels` of a category, "" where unknown; `low` to `high` of a number, None where none is known, with "" in
    `levels` where some are unknown.
    """

    feature: str
    told: bool
    levels: tuple[str, ...]
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Context:
    """A group of similar nodes; `low` and `high` are the 95% interval of their rate."""

    number: int
    description: str
    nodes: tuple[str, ...]
    failures_per_1000_node_hours: float
    low: float
    high: float


@dataclass(frozen=True)
class ContextMap:
    """All contexts, by number. Plain types: it can be stored as JSON.

    `looks` has one entry per context and feature. `weights` are the features' shares of what they explain, `spreads`
    the standard deviations of numbers (0 for categories).
    """

    features: tuple[str, ...]
    contexts: tuple[Context, ...]
    next_number: int
    looks: tuple[tuple[Look, ...], ...]
    weights: tuple[float, ...]
    spreads: tuple[float, ...]

    def of(self, node: str) -> int | None:
        """The number of the node's context; None for a node that was not there when the map was made."""
        return self._numbers.get(node)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {node: context.number for context in self.contexts for node in context.nodes}


class NoNodeHours(PharoahError):
    """Nothing was at risk in the hours that were read."""

    default_hint = "--start and --end choose the hours"


def find_contexts(
    table: NodeTable,
    selected: Sequence[Selected],
    before: ContextMap | None,
    rng: np.random.Generator,
    *,
    most: int = MOST,
    least_nodes: int = LEAST_NODES,
    units: Mapping[str, str] | None = None,
) -> ContextMap:
    """At most `most` contexts over the selected features, numbered after the map `before`.

    `rng` seeds the search for modes. `units` of numbers go into descriptions. NoNodeHours without any.
    """
    ordered = table.at(table.by_name())
    if not ordered.node_hours.sum() > 0.0:
        raise NoNodeHours("no node reported in two consecutive hours of the window: there is nothing to group")
    fleet = Fleet.of(ordered, selected, least_nodes, int(rng.integers(2**31)))
    groups = told_by_look(fleet, told_by_failures(fleet, most), most)
    groups, measured = told_by_measures(ordered, groups, least_nodes, most)
    known = {one.name for one in selected}
    selected = [
        *selected,
        *(Selected(name, BARELY * gain, 1.0, 0.0) for name, gain in measured.items() if name not in known),
    ]
    features = [Feature.of(ordered, one) for one in selected]
    members = [tuple(ordered.nodes[place] for place in group.places) for group in groups]
    numbers, next_number = _numbered(members, before)
    looks = [tuple(_look(feature, group) for feature in features) for group in groups]
    names = _descriptions(looks, members, units or {}, _why_alike(fleet))
    contexts = [Context(*parts) for parts in zip(numbers, names, members, *rates(fleet, groups).tolist(), strict=True)]
    by_number = sorted(range(len(groups)), key=numbers.__getitem__)
    total = sum(one.gain for one in selected)
    return ContextMap(
        features=tuple(one.name for one in selected),
        contexts=tuple(contexts[place] for place in by_number),
        next_number=next_number,
        looks=tuple(looks[place] for place in by_number),
        weights=tuple(one.gain / total for one in selected),
        spreads=tuple(feature.spread for feature in features),
    )


def _numbered(members: Sequence[tuple[str, ...]], before: ContextMap | None) -> tuple[list[int], int]:
    """A number for each group, and the next one that is free."""
    kept: dict[int, int] = {}
    if before is not None:
        shared = np.zeros((len(members), len(before.contexts)))
        place_of = {context.number: place for place, context in enumerate(before.contexts)}
        for group, nodes in enumerate(members):
            for number in filter(None, map(before.of, nodes)):
                shared[group, place_of[number]] += 1.0
        smaller = np.minimum(shared.sum(axis=1, keepdims=True), shared.sum(axis=0))
        mostly = np.where(shared > smaller / 2.0, shared, 0.0)
        pairs = zip(*linear_sum_assignment(mostly, maximize=True), strict=True)
        kept = {int(group): before.contexts[old].number for group, old in pairs if mostly[group, old] > 0.0}
    free = before.next_number if before is not None else 1
    others = sorted(set(range(len(members))) - kept.keys(), key=lambda group: (-len(members[group]), members[group]))
    new = {group: free + place for place, group in enumerate(others)}
    return [{**kept, **new}[group] for group in range(len(members))], free + len(new)


# ---- words ---------------------------------------------------------------------------------------------------------


def _look(feature: Feature, group: Group) -> Look:
    values, told = feature.values[group.places], feature.name in group.told
    if feature.levels:
        levels = tuple(feature.levels[int(code)] for code in np.unique(values))
        return Look(feature.name, told, levels, None, None)
    known = values[np.isfinite(values)]
    unknown = () if len(known) == len(values) else (UNKNOWN,)
    if not len(known):
        return Look(feature.name, told, unknown, None, None)
    return Look(feature.name, told, unknown, float(known.min()), float(known.max()))


def _why_alike(fleet: Fleet) -> str:
    """Why nodes are not told apart, where they are not."""
    failures = float(fleet.failures.sum())
    if failures < LEAST_FAILURES:
        return f"all nodes ({failures:g} failures are too few to tell them apart)"
    return "all nodes (no feature tells their failures apart)"


def _descriptions(
    looks: Sequence[tuple[Look, ...]], members: Sequence[tuple[str, ...]], units: Mapping[str, str], otherwise: str
) -> list[str]:
    """For each group what tells it from others, and its size."""
    levels = {look.feature: set[str]() for look in looks[0]}
    for look in (look for of_group in looks for look in of_group):
        levels[look.feature] |= set(look.levels)
    found = []
    for of_group, nodes in zip(looks, members, strict=True):
        told = [_words(look, levels[look.feature], units.get(look.feature, "")) for look in of_group if look.told]
        found.append(f"{', '.join(told) or otherwise}: {len(nodes):,} node{'s' if len(nodes) > 1 else ''}")
    return found


def _words(look: Look, fleet_levels: set[str], unit: str) -> str:
    """One feature, as "driver 550.x" or "temperature 61–74 °C"."""
    unknown = ["unknown"] if UNKNOWN in look.levels else []
    if look.low is not None and look.high is not None:
        low, high = f"{look.low:.4g}", f"{look.high:.4g}"
        named = [(low if low == high else f"{low}–{high}") + (f" {unit}" if unit else "")]
    else:
        named = _shortened(sorted(set(look.levels) - {UNKNOWN}), fleet_levels)
    *first, last = [*named, *unknown]
    return f"{look.feature} {', '.join(first)} or {last}" if first else f"{look.feature} {last}"


def _shortened(levels: list[str], fleet_levels: set[str]) -> list[str]:
    """Few levels by name; versions by what they and no others begin with; the first of many."""
    if len(levels) <= 1:
        return levels
    parts = [level.split(".") for level in levels]
    alike = next((k for k, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1), 0)
    start = ".".join([*parts[0][:alike], ""])
    if alike and {level for level in fleet_levels if level.startswith(start)} == set(levels):
        return [f"{start}x"]
    if len(levels) <= LEVELS_SHOWN:
        return levels
    return [*levels[: LEVELS_SHOWN - 1], f"{len(levels) - LEVELS_SHOWN + 1} others"]
