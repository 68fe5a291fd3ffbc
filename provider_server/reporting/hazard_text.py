"""Hazards from the provider's own events, as a JSON row with stable keys and as text lines.

Rates are failures per 1,000 node-hours, intervals are 95%, hours count from the window's first. A number that does not
exist is null: the rate of a level without hours at risk, the ratio of a level to itself, one that Cox's model refuses.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from federation.protocol.life_table import PER_NODE_HOURS
from federation.runtime.visible import counted_as
from provider_server.analysis.buildup import LEVELS
from provider_server.analysis.fleet_curves import Curve, OwnHazards, Ratios
from provider_server.analysis.fleet_events import QUIET_H, REPAIR, count_silent_together
from provider_server.analysis.fleet_hours import FleetHours
from provider_server.analysis.hazard import Estimate
from provider_server.fleet.telemetry.quality import QualityRow

if TYPE_CHECKING:
    from provider_server.analysis.contexts import ContextMap  # loads scikit-learn

NO_CONTEXT = -1  # the number for all nodes without a context
UNSORTED = "nodes not yet assigned by `pharoah-provider contexts`"
Bounded = tuple[float | None, float | None, float | None]  # an estimate and its interval
NO_NUMBER: Bounded = (None, None, None)


class EvidenceRow(TypedDict):
    """What was seen: failures in hours at risk of nodes."""

    failures: int
    node_hours: int
    nodes: int


class RatesRow(EvidenceRow):
    """A rate, and its ratio to that of the usual level or context: by the model of counts, and by Cox's."""

    failures_per_1000_node_hours: float | None
    failures_per_1000_node_hours_low: float | None
    failures_per_1000_node_hours_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    cox_ratio: float | None
    cox_ratio_low: float | None
    cox_ratio_high: float | None


class SurvivalPoint(TypedDict):
    """The share of nodes without a failure."""

    survival: float
    survival_low: float
    survival_high: float


class HazardPoint(TypedDict):
    """The cumulative hazard."""

    hazard: float
    hazard_low: float
    hazard_high: float


class LevelPoint(HazardPoint):
    """A step of a level's curve; `at_risk` counts nodes."""

    hours: float
    at_risk: float


class CurvePoint(LevelPoint, SurvivalPoint):
    """A step of the curve of all nodes."""


class LevelRow(RatesRow):
    """A build-up level; `curve` is empty without a failure."""

    level: int
    curve: list[LevelPoint]


class ContextRow(RatesRow):
    """A context at level 0; `context` is null for nodes without one."""

    context: int | None
    description: str


class BandRow(TypedDict):
    """Hours since a node came back (`to_hours` null: no end), and its ratio to nodes without a repair."""

    from_hours: float
    to_hours: float | None
    failures: int
    node_hours: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


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
    curve: list[CurvePoint]
    after_repair: list[BandRow]
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


def hazard_row(found: OwnHazards, hours: FleetHours, known: "ContextMap | None") -> FleetHazardRow:
    """Everything in one row, of hours (not empty) and what was at risk in them."""
    seen = found.seen
    return {
        "start_hour": hours.start_hour,
        "end_hour": hours.end_hour,
        "nodes": int(seen.evidence.filter(factor="context")["nodes"].sum()),
        "node_hours": seen.node_hours,
        "failures": seen.failures,
        "failures_by_kind": dict(seen.kinds.iter_rows()),
        "levels": _level_rows(found),
        "contexts": _context_rows(found, known),
        "curve": curve_points(found.survival, found.hazard),
        "after_repair": _after_repair(found),
        "left_out": [*_left_out(hours, seen.node_hours), *found.left_out],
    }


def _after_repair(found: OwnHazards) -> list[BandRow]:
    """Empty where no hour at risk came after a repair."""
    if REPAIR not in found.seen.table.names:
        return []
    seen, (names, ratios) = found.seen.table.marginal(REPAIR), found.fit.fit.ratios(REPAIR)
    rows: list[BandRow] = []
    for place, (name,) in enumerate(names):
        band = seen.levels(REPAIR).index(name)
        hours = float(seen.exposure_node_hours[band])
        ratio, low, high = _bounded(ratios, place) if hours else NO_NUMBER
        begin, _, end = name.removesuffix(" h").partition("-")
        rows.append(
            {
                "from_hours": float(begin.removesuffix("+")),
                "to_hours": float(end) if end else None,
                "failures": int(seen.events[band]),
                "node_hours": hours,
                "ratio": ratio,
                "ratio_low": low,
                "ratio_high": high,
            }
        )
    return rows


def _left_out(recorded: FleetHours, at_risk_hours: int) -> tuple[str, ...]:
    """What is excluded of the hours that were recorded, in words."""
    hours, silences = recorded.node_hours - at_risk_hours, count_silent_together(recorded)
    texts = (
        f"{hours:,} of {recorded.node_hours:,} node-hours not at risk: no report of the node in the hour before, or a"
        f" failure in the {QUIET_H} h before",
        f"{silences:,} silences of nodes that began together: network, monitoring or maintenance, not failures",
    )
    return tuple(text for text, count in zip(texts, (hours, silences), strict=True) if count)


def curve_points(survival: Curve, hazard: Curve) -> list[CurvePoint]:
    """The steps of two curves with the same times."""
    points = zip(_survival_points(survival), _hazard_points(hazard), strict=True)
    steps = zip(survival.times.tolist(), survival.at_risk.tolist(), points, strict=True)
    return [{"hours": after, "at_risk": risk, **alive, **failed} for after, risk, (alive, failed) in steps]


def _survival_points(curve: Curve) -> Iterator[SurvivalPoint]:
    for value, low, high in _steps(curve):
        yield {"survival": value, "survival_low": low, "survival_high": high}


def _hazard_points(curve: Curve) -> Iterator[HazardPoint]:
    for value, low, high in _steps(curve):
        yield {"hazard": value, "hazard_low": low, "hazard_high": high}


def _steps(curve: Curve) -> Iterator[tuple[float, float, float]]:
    return zip(curve.value.tolist(), curve.low.tolist(), curve.high.tolist(), strict=True)


def _level_rows(found: OwnHazards) -> list[LevelRow]:
    evidence = _evidence(found, "level")
    rows: list[LevelRow] = []
    for level in range(LEVELS):
        seen = evidence.get(level, NOTHING)
        rate = _bounded(found.fit.by_level, level, PER_NODE_HOURS) if seen["node_hours"] else NO_NUMBER
        ratio = _bounded(found.fit.ratios, level - 1) if level and seen["node_hours"] else NO_NUMBER
        rates = _rates(seen, rate, ratio, _cox(found.cox.get("level"), level))
        rows.append({"level": level, **rates, "curve": list(_level_points(found.hazard_by_level.get(level)))})
    return rows


def _level_points(curve: Curve | None) -> Iterator[LevelPoint]:
    if curve is None:
        return
    for hours, risk, point in zip(curve.times.tolist(), curve.at_risk.tolist(), _hazard_points(curve), strict=True):
        yield {"hours": hours, "at_risk": risk, **point}


def _context_rows(found: OwnHazards, known: "ContextMap | None") -> list[ContextRow]:
    """Contexts at level 0, by number, and their ratios to the one with most hours at risk."""
    evidence = _evidence(found, "context")
    words = {one.number: one.description for one in known.contexts} if known else {}
    names, ratios = found.fit.fit.ratios("context")
    among = {int(name): row for row, (name,) in enumerate(names)}
    rows: list[ContextRow] = []
    for row, number in enumerate(map(int, found.fit.contexts)):
        at_0 = Estimate(found.fit.rates.value[row], found.fit.rates.log_sd[row])
        ratio = _bounded(ratios, among[number]) if number in among else NO_NUMBER
        rate, cox = _bounded(at_0, 0, PER_NODE_HOURS), _cox(found.cox.get("context"), number)
        context, description = None if number == NO_CONTEXT else number, words.get(number, UNSORTED)
        rows.append({"context": context, "description": description, **_rates(evidence[number], rate, ratio, cox)})
    return rows


def _rates(seen: EvidenceRow, rate: Bounded, ratio: Bounded, cox: Bounded) -> RatesRow:
    return {
        **seen,
        "failures_per_1000_node_hours": rate[0],
        "failures_per_1000_node_hours_low": rate[1],
        "failures_per_1000_node_hours_high": rate[2],
        "ratio": ratio[0],
        "ratio_low": ratio[1],
        "ratio_high": ratio[2],
        "cox_ratio": cox[0],
        "cox_ratio_low": cox[1],
        "cox_ratio_high": cox[2],
    }


def _evidence(found: OwnHazards, factor: str) -> dict[int, EvidenceRow]:
    rows = found.seen.evidence.filter(factor=factor).iter_rows(named=True)
    return {
        row["value"]: {"failures": row["failures"], "node_hours": row["node_hours"], "nodes": row["nodes"]}
        for row in rows
    }


def _bounded(estimate: Estimate, place: int, times: float = 1.0) -> Bounded:
    low, high = estimate.interval()
    return times * float(estimate.value[place]), times * float(low[place]), times * float(high[place])


def _cox(ratios: Ratios | None, value: int) -> Bounded:
    if ratios is None or value not in ratios.values:
        return NO_NUMBER
    place = ratios.values.index(value)
    return float(ratios.ratio[place]), float(ratios.low[place]), float(ratios.high[place])


# ---- lines -----------------------------------------------------------------------------------------------------------


def hazard_lines(row: HazardRow) -> list[str]:
    """The row as text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in row["failures_by_kind"].items())
    last = row["curve"][-1]
    head = f"{counted_as(row['failures'], 'failure')} in {row['node_hours']:,} node-hours at risk"
    return [
        f"{head} of {counted_as(row['nodes'], 'node')}: {kinds}",
        *(_level_line(one) for one in row["levels"]),
        *(band_line(one) for one in row["after_repair"] if one["ratio"] is not None),
        *(_context_line(one, row["contexts"]) for one in row["contexts"] if len(row["contexts"]) > 1),
        f"no failure in {row['end_hour'] - row['start_hour']} h: {100 * last['survival']:.1f}% of nodes"
        f" ({100 * last['survival_low']:.1f}–{100 * last['survival_high']:.1f}%); expected failures per node in that"
        f" time: {_times(last, 'hazard')}",
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


def band_line(band: BandRow) -> str:
    """A band of hours after a repair, with its ratio."""
    until = "on" if band["to_hours"] is None else f"to {band['to_hours']:g} h"
    return (
        f"{band['from_hours']:g} h {until} after a node came back: {_times(band, 'ratio')} times the failures of one"
        f" without a repair; {band['failures']} in {band['node_hours']:,.0f} node-hours"
    )


def _rate(one: RatesRow) -> str:
    return f"{_times(one, 'failures_per_1000_node_hours')} failures per 1,000 node-hours"


def _beside(one: RatesRow, what: str) -> str:
    if one["ratio"] is None:
        return ""
    cox = f"; by Cox {_times(one, 'cox_ratio')}" if one["cox_ratio"] else ""
    return f", {_times(one, 'ratio')} times those of {what}{cox}"


def _times(one: Mapping[str, Any], name: str) -> str:
    return f"{one[name]:.2g} ({one[f'{name}_low']:.2g}–{one[f'{name}_high']:.2g})"


def _seen(one: EvidenceRow) -> str:
    return f"{one['failures']} in {one['node_hours']:,} node-hours of {counted_as(one['nodes'], 'node')}"
