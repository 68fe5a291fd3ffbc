"""What is known of each of the provider's own nodes after an hour of telemetry, for other programs of the operator.

    levels of BuildUp, contexts ─ reports ─▶ NodeReport × nodes ─ keep ─▶ nodes.json in the home
                                                                └─▶ sinks: metrics, NVSentinel (`outputs`)

Only the provider's own telemetry goes in: no release, lease, tenant or token. So these reports need no federation.

>>> report = NodeReport("n1", 480_000, level=2, is_heard=True, suspicion="memory", context=4, description="H100")
>>> report.standing(least_level=1), report.line(least_level=1)
(<NodeStanding.RAISED: 'raised'>, 'n1: raised: wear level 2, suspected: memory (hardware group 4: H100)')
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crypto.errors import PharoahError
from federation.base import json_files

if TYPE_CHECKING:  # prologs read reports on each node: no learning is loaded for it
    from provider_server.fleet.analysis.buildup import Shift
    from provider_server.fleet.hints.node_hazard import NodeState
    from provider_server.fleet.learning.hardware import Kept

FILE, SHIFTS = "nodes.json", "shifts.json"
STALE_H = 3  # an older report says nothing of a node


class NoNodes(PharoahError):
    """No hour of telemetry was reported yet."""

    default_hint = "run `pharoah-provider nodes watch` or `serve`, with telemetry, for an hour"


class OutputFailed(Exception):
    """A receiver did not take reports; what is worth repeating is sent again after the next hour."""


class NodeStanding(StrEnum):
    """Whether a node shows signs of a failure."""

    OK = "ok"
    RAISED = "raised"
    UNKNOWN = "unknown"


class NodeReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node at the end of an hour; `failures_per_1000_node_hours` is its context's rate."""

    node: str
    hour: int
    level: int
    is_heard: bool
    suspicion: str
    context: int | None = None
    description: str = ""
    failures_per_1000_node_hours: float | None = None

    def standing(self, least_level: int) -> NodeStanding:
        """Raised from this level on; unknown if the node is silent."""
        if not self.is_heard:
            return NodeStanding.UNKNOWN
        return NodeStanding.RAISED if self.level >= least_level else NodeStanding.OK

    def line(self, least_level: int) -> str:
        """For a log."""
        place = "no hardware group" if self.context is None else f"hardware group {self.context}: {self.description}"
        suspected = f", suspected: {self.suspicion}" if self.suspicion else ""
        heard = f"wear level {self.level}{suspected}" if self.is_heard else "no telemetry in the newest hour"
        return f"{self.node}: {self.standing(least_level)}: {heard} ({place})"


def reports(kept: "Kept", states: "Mapping[str, NodeState]", hour: int) -> list[NodeReport]:
    """Every node that telemetry names, by name."""
    by_number = {context.number: context for context in kept.contexts.contexts}
    found = []
    for node, state in sorted(states.items()):
        context = by_number.get(number) if (number := kept.contexts.of(node)) is not None else None
        found.append(
            NodeReport(
                node,
                hour,
                state.level,
                state.is_heard,
                state.suspicion.value,
                context.number if context else None,
                context.description if context else "",
                context.failures_per_1000_node_hours if context else None,
            )
        )
    return found


def keep(home: Path, found: Sequence[NodeReport]) -> None:
    """Replaces the file in one step."""
    json_files.keep(home / FILE, found, indent=-1)


def load(file: Path) -> list[NodeReport]:
    """The newest reports; none before the first. DecodeError for a damaged file."""
    return json_files.load(file, list[NodeReport], [], hint="delete it; it is written after the next hour")


def newest(home: Path) -> list[NodeReport]:
    """The newest reports; before the first, every node of the contexts, with the level that was found with them."""
    found = load(home / FILE)
    if found:
        return found
    from provider_server.fleet.learning import hardware

    kept = hardware.load(home)
    if kept is None:
        return []
    return [
        NodeReport(
            node,
            kept.until_hour,
            kept.levels.get(node, 0),
            is_heard=True,
            suspicion="",
            context=one.number,
            description=one.description,
            failures_per_1000_node_hours=one.failures_per_1000_node_hours,
        )
        for one in kept.contexts.contexts
        for node in one.nodes
    ]


def keep_shifts(home: Path, found: "Sequence[Shift]") -> None:
    """Replaces what is known of groups that have moved as a whole."""
    json_files.keep(home / SHIFTS, found)


def load_shifts(home: Path) -> "list[Shift]":
    """The newest; DecodeError for a damaged file."""
    from provider_server.fleet.analysis.buildup import Shift

    return json_files.load(home / SHIFTS, list[Shift], [], hint="delete it; it is written after the next hour")


def known(home: Path, file: Path | None = None) -> list[NodeReport]:
    """Those of a file, or else the newest of a home; NoNodes where there are none yet."""
    found = load(file) if file else newest(home)
    if not found:
        raise NoNodes(f"no node is known in {file or home}")
    return found
