"""What single nodes are like by their own failures: by how much each fails more often than its context does.

    outages ─ analysis.probation ─▶ failures K and expected H of every node, kept in the home by `nodes hazard --keep`
    K, H, contexts, repairs ─ NodeOffsets.by_node ─▶ (a + K) / (a + H ρ)

A gamma frailty of mean 1 and variance 1/a, as in `analysis.probation`: a node that failed as often as its context does
has the offset 1, and so has one that is not known. ρ is how often the context's nodes failed over what was expected of
them in the fleet, as bundles' rates have that already. K and H fade, since parts are replaced; after a repair that was
told, what the node did before says nothing.

Not promised: which of a context's nodes a bundle's rate was learnt from. Nodes that have no outage in the file and were
not named beside it count as unknown.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from federation.base import json_files
from provider_server.fleet.learning.hardware import Repair

STATE = "node_offsets.json"
WORTH = 1.0  # failures by which a context's ρ is drawn to one


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's failures, faded, and how many a usual node would have had; the hours of its newest outage.

    `back_h` is null where it never went down, or is not back; `down_h` is null where it is up.
    """

    failures: float
    expected: float
    back_h: float | None = None
    down_h: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.failures < np.inf and 0 <= self.expected < np.inf):
            raise ValueError("failures and expected must be finite and not negative")


class NodeOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a fleet whose nodes have frailties of that variance, as of an hour since 1970; both fade within `memory_h`."""

    until_h: float
    frailty_variance: float
    memory_h: float
    nodes: Mapping[str, History]

    def __post_init__(self) -> None:
        if not (self.frailty_variance > 0 and self.memory_h > 0):
            raise ValueError("frailty_variance and memory_h must be positive")

    def by_node(
        self, context_of: Callable[[str], int | None], repairs: Iterable[Repair], at_h: float
    ) -> dict[str, float]:
        """The offset of each node at a time that is not before `until_h`."""
        shape = 1.0 / self.frailty_variance
        known = self.histories(context_of, repairs, at_h)
        return {node: (shape + own.failures) / (shape + own.expected) for node, own in known.items()}

    def histories(
        self, context_of: Callable[[str], int | None], repairs: Iterable[Repair], at_h: float
    ) -> dict[str, History]:
        """The faded histories of all nodes but those repaired since; `expected` is by the rates of their contexts."""
        repaired = {one.node for one in repairs if self.until_h < one.from_hour <= at_h}
        fading = float(np.exp(-max(at_h - self.until_h, 0.0) / self.memory_h))
        ratio = _ratios(self.nodes, context_of)
        return {
            node: History(
                fading * own.failures, fading * own.expected * ratio[context_of(node)], own.back_h, own.down_h
            )
            for node, own in self.nodes.items()
            if node not in repaired
        }


NOTHING_KNOWN = NodeOffsets(0.0, 1.0, 1.0, {})


def _ratios(nodes: Mapping[str, History], context_of: Callable[[str], int | None]) -> Mapping[int | None, float]:
    """ρ by context."""
    of_context: defaultdict[int | None, list[History]] = defaultdict(list)
    for node, own in nodes.items():
        of_context[context_of(node)].append(own)
    return {
        context: (WORTH + sum(one.failures for one in own)) / (WORTH + sum(one.expected for one in own))
        for context, own in of_context.items()
    }


def of_histories(histories: pl.DataFrame, frailty_variance: float, memory_h: float, until_h: float) -> NodeOffsets:
    """From what `analysis.probation.histories` says of all nodes: node, failures, expected; also back_h and down_h."""
    rows = histories.select("node", *(name for name in History.__struct_fields__ if name in histories.columns))
    nodes = {row.pop("node"): History(**row) for row in rows.iter_rows(named=True)}
    return NodeOffsets(until_h, frailty_variance, memory_h, nodes)


def keep(home: Path, offsets: NodeOffsets) -> None:
    """Puts them into the home, whole or not at all."""
    json_files.keep(home / STATE, offsets)


def load(home: Path) -> NodeOffsets:
    """What the home knows, perhaps nothing; DecodeError for damage."""
    return json_files.load(home / STATE, NodeOffsets, NOTHING_KNOWN)
