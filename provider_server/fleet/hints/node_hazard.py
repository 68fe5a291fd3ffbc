"""The hazard of a lease that runs now: from build-up levels of its nodes and the rates of the newest bundle.

    levels of BuildUp ─ node_states ─▶ NodeState ─┬─ judge ─▶ a LeaseHazard, or why there is none
    bundle ─ Rates ────────────────────────────────┘

Pure. Unknown hazards neither raise nor clear a hint: a node without a context or a rate is left out, and a lease of
only such nodes is not judged. Nor is a lease with a node that fell silent at a level above 0, since its state is
unknown. A node that is silent at level 0 counts as usual.

A node's suspicion is the kind of hardware of the signal with the highest score (`SUSPICIONS`), `UNCLEAR` where signals
of two kinds share that score or none stands out. A node's usual rate is that of level 0 on its context, at the same age
of the lease; where the bundle has no rate of a level, that of the nearest level below it counts. Where a node's own
failures are known, all its rates are multiplied by its offset (`learning.node_offsets`), its usual rate too: a lemon
fails more often than its context, but not more often than itself.

Not promised: that a context's rate, learnt from jobs, holds for each of its nodes of which nothing else is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

import polars as pl

from crypto.ids import LeaseId
from federation.protocol.bundle import Bundle
from federation.protocol.life_table import PER_NODE_HOURS
from federation.protocol.service_messages import Suspicion
from provider_server.fleet.analysis.buildup import SILENT, UNKNOWN
from provider_server.fleet.hints.episodes import LeaseHazard, NodeHazard, lease_hazard

# By signal of `analysis/buildup.toml`: the test that would confirm it. Heat throttles before it breaks: compute.
SUSPICIONS: Mapping[str, Suspicion] = MappingProxyType(
    {
        "ecc_corrected": Suspicion.MEMORY,
        "rows_remapped_correctable": Suspicion.MEMORY,
        "rows_remapped_uncorrectable": Suspicion.MEMORY,
        "memory_temperature": Suspicion.MEMORY,
        "pcie_replays": Suspicion.HOST_LINK,
        "nvlink_crc_flit_errors": Suspicion.INTERCONNECT,
        "nvlink_replays": Suspicion.INTERCONNECT,
        "nvlink_recoveries": Suspicion.INTERCONNECT,
        "ib_link_downed": Suspicion.INTERCONNECT,
        "ib_link_recoveries": Suspicion.INTERCONNECT,
        "ib_symbol_errors": Suspicion.INTERCONNECT,
        "ib_receive_errors": Suspicion.INTERCONNECT,
        "ib_transmit_discards": Suspicion.INTERCONNECT,
        "thermal_violation": Suspicion.COMPUTE,
        "power_violation": Suspicion.COMPUTE,
        "gpu_temperature": Suspicion.COMPUTE,
        "edac_corrected": Suspicion.HOST,
        "cpu_throttles": Suspicion.HOST,
        "disk_media_errors": Suspicion.STORAGE,
        "nfs_retransmissions": Suspicion.STORAGE,
    }
)

UNCLEAR = Suspicion.UNCLEAR
ContextToken = Callable[[int, int], str]  # of a context's number and a build-up level


class Standing(StrEnum):
    """Whether a lease could be judged: `UNKNOWN` has no node with context and rates, `SILENT` one that fell silent."""

    WATCHED = "watched"
    UNKNOWN = "unknown"
    SILENT = "silent"


@dataclass(frozen=True)
class NodeState:
    """A node's state in one hour, from telemetry."""

    level: int
    suspicion: Suspicion
    is_heard: bool


def node_states(levels: pl.DataFrame) -> dict[str, NodeState]:
    """Every node of one hour, from what `BuildUp.add` gives."""
    signals = [name for name in levels.columns if name in SUSPICIONS]
    rows = levels.select("node", "level", pl.col("status").cast(pl.String), *signals).iter_rows(named=True)
    return {
        row["node"]: NodeState(
            row["level"],
            _suspicion({name: row[name] for name in signals if row[name] is not None}),
            row["status"] not in (SILENT, UNKNOWN),
        )
        for row in rows
    }


def held_up(states: Mapping[str, NodeState], least: Mapping[str, int]) -> dict[str, NodeState]:
    """With levels no lower than these, for nodes that are heard. Nothing is suspected where no signal raised them."""
    raised = {
        node: replace(states[node], level=level, suspicion=states[node].suspicion if states[node].level else UNCLEAR)
        for node, level in least.items()
        if node in states and states[node].is_heard and states[node].level < level
    }
    return {**states, **raised}


def _suspicion(scores: Mapping[str, float]) -> Suspicion:
    highest = max(scores.values(), default=0.0)
    kinds = {SUSPICIONS[name] for name, score in scores.items() if score == highest}
    return kinds.pop() if highest > 0 and len(kinds) == 1 else Suspicion.UNCLEAR


class Rates:
    """A bundle's infrastructure failures per node-hour, by context, build-up level and age of the lease."""

    def __init__(self, bundle: Bundle, token: ContextToken) -> None:
        self._token = token
        self._edges = bundle.band_edges_hours
        self._found = {(str(entry.context_level), entry.band): entry for entry in bundle.hazards}

    def of(self, context: int, state: NodeState, age_h: float) -> NodeHazard | None:
        """The hazard of a node in a lease of that age; None where the bundle has no rate at level 0."""
        band = str(max(0, min(sum(edge <= age_h for edge in self._edges), len(self._edges) - 1) - 1))
        by_level = [self._found.get((self._token(context, level), band)) for level in range(state.level + 1)]
        if by_level[0] is None or by_level[0].rate <= 0:
            return None
        now = [entry for entry in by_level if entry is not None][-1]
        rate, low, high = (value / PER_NODE_HOURS for value in (now.rate, now.rate_low, now.rate_high))
        return NodeHazard(rate, low, high, by_level[0].rate / PER_NODE_HOURS, state.suspicion, state.level)


@dataclass(frozen=True)
class View:
    """The data by which leases are judged at one moment; a node that has no offset has that of an average one, 1."""

    states: Mapping[str, NodeState]
    context_of: Callable[[str], int | None]
    rates: Rates
    within_hours: float
    offsets: Mapping[str, float] = field(default_factory=dict)

    def judge(self, lease: LeaseId, nodes: Sequence[str], age_h: float) -> tuple[Standing, LeaseHazard | None]:
        """The hazard of a lease on these nodes, or None and the reason."""
        states = [(self.context_of(node), self.states.get(node)) for node in nodes]
        if any(state is not None and not state.is_heard and state.level > 0 for _, state in states):
            return Standing.SILENT, None
        hazards = [self._hazard(node, *place, age_h) for node, place in zip(nodes, states, strict=True)]
        found = [hazard for hazard in hazards if hazard is not None]
        if not found:
            return Standing.UNKNOWN, None
        return Standing.WATCHED, lease_hazard(lease, found, self.within_hours)

    def _hazard(self, node: str, context: int | None, state: NodeState | None, age_h: float) -> NodeHazard | None:
        if context is None or state is None or (usual := self.rates.of(context, state, age_h)) is None:
            return None
        return usual.times(self.offsets.get(node, 1.0))

    def unheard(self, nodes: Sequence[str]) -> int:
        """How many of the nodes sent no telemetry."""
        return sum(node not in self.states or not self.states[node].is_heard for node in nodes)
