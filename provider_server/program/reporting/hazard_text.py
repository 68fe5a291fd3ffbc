"""Hazards from the provider's own events, as a JSON row with stable keys and as text lines.

Rates are failures per 1,000 node-hours, intervals are 95%, hours count from the window's first. A number that does not
exist is null: the rate of a level without hours at risk, the ratio of a level to itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from federation.base.visible import counted_as
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.buildup import LEVELS
from provider_server.fleet.analysis.fleet_events import QUIET_H, Gathered, LevelFit, count_silent_together
from provider_server.fleet.analysis.fleet_hours import FleetHours
from provider_server.fleet.analysis.hazard import Estimate
from provider_server.fleet.telemetry.quality import QualityRow

if TYPE_CHECKING:
    from provider_server.fleet.analysis.contexts import ContextMap  # loads scikit-learn

NO_CONTEXT = -1  # the number for all nodes without a context
UNSORTED = "nodes not yet assigned by `pharoah-provider nodes contexts`"
Bounded = tuple[float | None, float | None, float | None]  # an estimate and its interval
NO_NUMBER: Bounded = (None, None, None)


class EvidenceRow(TypedDict):
    """What was seen: failures in hours at risk of nodes."""

    failures: int
    node_hours: int
    nodes: int


class RatesRow(EvidenceRow):
    """A rate, and its ratio to that of the usual level or context."""

    failures_per_1000_node_hours: float | None
    failures_per_1000_node_hours_low: float | None
    failures_per_1000_node_hours_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


class LevelRow(RatesRow):
    """A build-up level."""

    level: int


class ContextRow(RatesRow):
    """A context at level 0; `context` is null for nodes without one."""

    context: int | None
    description: str


class FleetHazardRow(TypedDict):
    """Hazards of a fleet; `left_out` says what was excluded."""

    start_hour: int
    end_hour: int
    nodes: int
    node_hours: int
    failures: int
    failures_by_kind: dict[str, int]
    levels: list[LevelRow]
    contexts: list[ContextRow]
    left_out: list[str]


class TelemetryRow(TypedDict):
    """The quality of the telemetry, and what is doubtful about it."""

    quality: QualityRow
    doubts: dict[str, int]


class HazardRow(FleetHazardRow, TelemetryRow):
    """Hazards, and what they rest on."""


NOTHING: EvidenceRow = {"failures": 0, "node_hours": 0, "nodes": 0}


def numbers(nodes: Iterable[str], known: "ContextMap | None") -> dict[str, int]:
    """The number of the context of each node; those that have none are one by themselves."""
    found = {node: known.of(node) if known else None for node in nodes}
    return {node: NO_CONTEXT if number is None else number for node, number in found.items()}


def hazard_row(seen: Gathered, fit: LevelFit, hours: FleetHours, known: "ContextMap | None") -> FleetHazardRow:
    """Everything in one row, of hours (not empty) and what was at risk in them."""
    return {
        "start_hour": hours.start_hour,
        "end_hour": hours.end_hour,
        "nodes": int(seen.evidence.filter(factor="context")["nodes"].sum()),
        "node_hours": seen.node_hours,
        "failures": seen.failures,
        "failures_by_kind": dict(seen.kinds.iter_rows()),
        "levels": _level_rows(seen, fit),
        "contexts": _context_rows(seen, fit, known),
        "left_out": list(_left_out(hours, seen.node_hours)),
    }


def _left_out(recorded: FleetHours, at_risk_hours: int) -> tuple[str, ...]:
    """What is excluded of the hours that were recorded, in words."""
    hours, silences = recorded.node_hours - at_risk_hours, count_silent_together(recorded)
    texts = (
        f"{hours:,} of {recorded.node_hours:,} node-hours not at risk: no report of the node in the hour before, or a"
        f" failure in the {QUIET_H} h before",
        f"{silences:,} silences of nodes that began together: network, monitoring or maintenance, not failures",
    )
    return tuple(text for text, count in zip(texts, (hours, silences), strict=True) if count)


def _level_rows(gathered: Gathered, fit: LevelFit) -> list[LevelRow]:
    evidence = _evidence(gathered, "level")
    rows: list[LevelRow] = []
    for level in range(LEVELS):
        seen = evidence.get(level, NOTHING)
        rate = _bounded(fit.by_level, level, PER_NODE_HOURS) if seen["node_hours"] else NO_NUMBER
        ratio = _bounded(fit.ratios, level - 1) if level and seen["node_hours"] else NO_NUMBER
        rows.append({"level": level, **_rates(seen, rate, ratio)})
    return rows


def _context_rows(seen: Gathered, fit: LevelFit, known: "ContextMap | None") -> list[ContextRow]:
    """Contexts at level 0, by number, and their ratios to the one with most hours at risk."""
    evidence = _evidence(seen, "context")
    words = {one.number: one.description for one in known.contexts} if known else {}
    names, ratios = fit.fit.ratios("context")
    among = {int(name): row for row, (name,) in enumerate(names)}
    rows: list[ContextRow] = []
    for row, number in enumerate(map(int, fit.contexts)):
        at_0 = Estimate(fit.rates.value[row], fit.rates.log_sd[row])
        ratio = _bounded(ratios, among[number]) if number in among else NO_NUMBER
        rate = _bounded(at_0, 0, PER_NODE_HOURS)
        context, description = None if number == NO_CONTEXT else number, words.get(number, UNSORTED)
        rows.append({"context": context, "description": description, **_rates(evidence[number], rate, ratio)})
    return rows


def _rates(seen: EvidenceRow, rate: Bounded, ratio: Bounded) -> RatesRow:
    return {
        **seen,
        "failures_per_1000_node_hours": rate[0],
        "failures_per_1000_node_hours_low": rate[1],
        "failures_per_1000_node_hours_high": rate[2],
        "ratio": ratio[0],
        "ratio_low": ratio[1],
        "ratio_high": ratio[2],
    }


def _evidence(seen: Gathered, factor: str) -> dict[int, EvidenceRow]:
    rows = seen.evidence.filter(factor=factor).iter_rows(named=True)
    return {
        row["value"]: {"failures": row["failures"], "node_hours": row["node_hours"], "nodes": row["nodes"]}
        for row in rows
    }


def _bounded(estimate: Estimate, place: int, times: float = 1.0) -> Bounded:
    low, high = estimate.interval()
    return times * float(estimate.value[place]), times * float(low[place]), times * float(high[place])


# ---- lines -----------------------------------------------------------------------------------------------------------


def hazard_lines(row: HazardRow) -> list[str]:
    """The row as text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in row["failures_by_kind"].items())
    head = f"{counted_as(row['failures'], 'failure')} in {row['node_hours']:,} node-hours at risk"
    return [
        f"{head} of {counted_as(row['nodes'], 'node')}: {kinds}",
        *(_level_line(one) for one in row["levels"]),
        *(_context_line(one, row["contexts"]) for one in row["contexts"] if len(row["contexts"]) > 1),
    ]


def _level_line(one: LevelRow) -> str:
    if not one["node_hours"]:
        return f"level {one['level']}: no hours at risk"
    return f"level {one['level']}: {_rate(one)}{_beside(one, 'level 0')}; {_seen(one)}"


def _context_line(one: ContextRow, contexts: Sequence[ContextRow]) -> str:
    usual = next(other for other in contexts if other["ratio"] is None)
    beside = _beside(one, _name(usual))
    return f"{_name(one)}: {one['description']}; at level 0 {_rate(one)}{beside}; {_seen(one)}"


def _name(context: ContextRow) -> str:
    return "no context" if context["context"] is None else f"context {context['context']}"


def _rate(one: RatesRow) -> str:
    return f"{_times(one, 'failures_per_1000_node_hours')} failures per 1,000 node-hours"


def _beside(one: RatesRow, what: str) -> str:
    if one["ratio"] is None:
        return ""
    return f", {_times(one, 'ratio')} times those of {what}"


def _times(one: Mapping[str, Any], name: str) -> str:
    return f"{one[name]:.2g} ({one[f'{name}_low']:.2g}–{one[f'{name}_high']:.2g})"


def _seen(one: EvidenceRow) -> str:
    return f"{one['failures']} in {one['node_hours']:,} node-hours of {counted_as(one['nodes'], 'node')}"
