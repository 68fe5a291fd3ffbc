"""The hazard of a lease that runs now: from build-up levels of its nodes and the rates of the newest bundle.

    levels of BuildUp ─ node_states ─▶ NodeState ─┬─ judge ─▶ a LeaseHazard, or why there is none
    bundle ─ Rates ────────────────────────────────┘

Pure. Unknown hazards neither raise nor clear a hint: a node without a context or a rate is left out, and a lease of
only such nodes is not judged. Nor is a lease with a node that fell silent at a level above 0, since its state is
unknown. A node that is silent at level 0 counts as usual.

A node's suspicion is the kind of hardware of the signal with the highest score (`SUSPICIONS`), `UNCLEAR` where signals
of two kinds share that score or none stands out. A node's usual rate is that of level 0 on its context, at the same age
of the lease; where the bundle has no rate of a level, that of the nearest level below it counts. Ratios of a level to
level 0 are pooled over contexts (`level_ratios`), since noise hides those of one. Where a node's own
failures are known, all its rates are multiplied by its offset (`learning.node_offsets`), its usual rate too: a lemon
fails more often than its context, but not more often than itself.

Not promised: that a context's rate, learnt from jobs, holds for each of its nodes of which nothing else is known.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from types import MappingProxyType

import numpy as np
import polars as pl

from crypto.ids import LeaseId
from federation.protocol.bundle import Bundle, HazardEntry
from federation.protocol.life_table import PER_NODE_HOURS
from federation.protocol.service_messages import Suspicion
from provider_server.fleet.analysis.buildup import LEVELS, SILENT, UNKNOWN
from provider_server.fleet.hints.episodes import LeaseHazard, NodeHazard, lease_hazard
from provider_server.fleet.hints.level_ratios import NORMAL_95, Ratios, pooled

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
        "hccs_crc_errors": Suspicion.INTERCONNECT,
        "device_link_ups": Suspicion.INTERCONNECT,
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
        "tcp_retransmits": Suspicion.INTERCONNECT,
        "tcp_errors": Suspicion.INTERCONNECT,
    }
)

UNCLEAR = Suspicion.UNCLEAR
ContextToken = Callable[[int, int], str]  # of a context's number and a build-up level
Cell = tuple[int, int, str]  # context, build-up level, age band
TINY, LEAST_SD = 1e-12, 1e-3  # of rates and of their logarithms' errors, where an entry has none


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

    def __init__(self, bundle: Bundle, token: ContextToken, contexts: Iterable[int]) -> None:
        self._edges = bundle.band_edges_hours
        entries = {(str(entry.context_level), entry.band): entry for entry in bundle.hazards}
        cells = product(contexts, range(LEVELS), sorted({band for _, band in entries}))
        named = {cell: entries.get((token(cell[0], cell[1]), cell[2])) for cell in cells}
        self._found = with_pooled_ratios({cell: entry for cell, entry in named.items() if entry is not None})

    def of(self, context: int, state: NodeState, age_h: float) -> NodeHazard | None:
        """The hazard of a node in a lease of that age; None where the bundle has no rate at level 0."""
        band = str(max(0, min(sum(edge <= age_h for edge in self._edges), len(self._edges) - 1) - 1))
        found = [self._found.get((context, level, band)) for level in range(state.level + 1)]
        if found[0] is None:
            return None
        now = [hazard for hazard in found if hazard is not None][-1]
        return replace(now, suspicion=state.suspicion, level=state.level)


def with_pooled_ratios(entries: Mapping[Cell, HazardEntry]) -> dict[Cell, NodeHazard]:
    """Hazards by context, level and band, where level 0 is known; those above it are `pooled` ratios to it."""
    usual = {(one, band): entry for (one, level, band), entry in entries.items() if level == 0 and entry.rate > 0}
    found = {(one, 0, band): _hazard(entry) for (one, band), entry in usual.items()}
    for level, band in sorted({cell[1:] for cell in entries if cell[1] > 0}):
        contexts = [one for one, at in usual if at == band and (one, level, band) in entries]
        pairs = [(_hazard(entries[one, level, band]), found[one, 0, band]) for one in contexts]
        log, log_sd = pooled(_ratios(pairs))
        for context, middle, width in zip(contexts, log, NORMAL_95 * log_sd, strict=True):
            base = found[context, 0, band].usual
            low, rate, high = (base * math.exp(middle + side) for side in (-width, 0.0, width))
            found[context, level, band] = NodeHazard(rate, low, high, base, UNCLEAR, level)
    return found


def _hazard(entry: HazardEntry) -> NodeHazard:
    """Of an entry by itself."""
    rate, low, high = (value / PER_NODE_HOURS for value in (entry.rate, entry.rate_low, entry.rate_high))
    return NodeHazard(rate, low, high, rate, UNCLEAR, 0)


def _ratios(pairs: Sequence[tuple[NodeHazard, NodeHazard]]) -> Ratios:
    """Of hazards to the usual ones; both errors count."""
    log = np.log([[max(one.rate, TINY) for one in pair] for pair in pairs]).reshape(-1, 2)
    width = np.log([[max(one.rate_high, TINY) / max(one.rate_low, TINY) for one in pair] for pair in pairs])
    log_sd = np.hypot(*(width.reshape(-1, 2).T / (2.0 * NORMAL_95)))
    return Ratios(log[:, 0] - log[:, 1], np.maximum(log_sd, LEAST_SD))


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

    def granted(self, lease: LeaseId, nodes: Sequence[str], level: int) -> LeaseHazard | None:
        """The hazard as the lease was granted, with all nodes at this level; None where it cannot be known."""
        states = dict.fromkeys(nodes, NodeState(level, UNCLEAR, is_heard=True))
        return replace(self, states=states).judge(lease, nodes, 0.0)[1]

    def _hazard(self, node: str, context: int | None, state: NodeState | None, age_h: float) -> NodeHazard | None:
        if context is None or state is None or (usual := self.rates.of(context, state, age_h)) is None:
            return None
        return usual.times(self.offsets.get(node, 1.0))

    def unheard(self, nodes: Sequence[str]) -> int:
        """How many of the nodes sent no telemetry."""
        return sum(node not in self.states or not self.states[node].is_heard for node in nodes)
