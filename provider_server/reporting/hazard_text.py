"""Hazards from the provider's own events, as a JSON row with stable keys and as text lines.

Rates are failures per 1,000 node-hours, intervals are 95%, hours count from the window's first. A number that does not
exist is null: the rate of a level without hours at risk, the ratio of a level to itself, one that Cox's model refuses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from federation.protocol.life_table import PER_NODE_HOURS, Floats
from federation.runtime.visible import counted_as
from provider_server.analysis.buildup import LEVELS
from provider_server.analysis.contexts import ContextMap
from provider_server.analysis.fleet_curves import Curve, OwnHazards, Ratios
from provider_server.analysis.fleet_events import QUIET_H, silent_together
from provider_server.analysis.hazard import Estimate

NO_CONTEXT = -1  # the number for all nodes without a context
UNSORTED = "nodes not yet assigned by `pharoah-provider contexts`"
NOTHING = {"failures": 0, "node_hours": 0, "nodes": 0}


def numbers(at_risk: pl.DataFrame, known: ContextMap | None) -> dict[str, int]:
    """The number of the context of each node; those that have none are one by themselves."""
    found = {node: known.of(node) if known else None for node in at_risk["node"].unique()}
    return {node: NO_CONTEXT if number is None else number for node, number in found.items()}


def hazard_row(
    found: OwnHazards, levels: pl.DataFrame, at_risk: pl.DataFrame, known: ContextMap | None
) -> dict[str, Any]:
    """Everything in one row, of hours (not empty) with their levels and those of them at risk."""
    hours = levels["hour"].to_numpy()
    kinds = at_risk.filter(pl.col("kind").is_not_null()).group_by("kind").len().sort("len", "kind", descending=True)
    return {
        "start_hour": int(hours.min()),
        "end_hour": int(hours.max()) + 1,
        "nodes": at_risk["node"].n_unique(),
        "node_hours": at_risk.height,
        "failures": int(at_risk["kind"].count()),
        "failures_by_kind": dict(kinds.iter_rows()),
        "levels": _level_rows(found, at_risk),
        "contexts": _context_rows(found, at_risk, known),
        "curve": [
            {"hours": after, "at_risk": risk} | survival | hazard
            for after, risk, survival, hazard in zip(
                found.survival.times.tolist(),
                found.survival.at_risk.tolist(),
                _points("survival", found.survival),
                _points("hazard", found.hazard),
                strict=True,
            )
        ],
        "left_out": [*_left_out(levels, at_risk), *found.left_out],
    }


def _left_out(levels: pl.DataFrame, at_risk: pl.DataFrame) -> tuple[str, ...]:
    """What is excluded from the hours of `levels`, in words."""
    hours, silences = levels.height - at_risk.height, silent_together(levels).height
    texts = (
        f"{hours:,} of {levels.height:,} node-hours not at risk: no report of the node in the hour before, or a failure"
        f" in the {QUIET_H} h before",
        f"{silences:,} silences of nodes that began together: network, monitoring or maintenance, not failures",
    )
    return tuple(text for text, count in zip(texts, (hours, silences), strict=True) if count)


def _points(name: str, curve: Curve) -> Iterator[dict[str, float]]:
    for value, low, high in zip(curve.value.tolist(), curve.low.tolist(), curve.high.tolist(), strict=True):
        yield {name: value, f"{name}_low": low, f"{name}_high": high}


def _level_rows(found: OwnHazards, at_risk: pl.DataFrame) -> list[dict[str, Any]]:
    evidence = _evidence(at_risk, pl.col("level").cast(pl.Int64))
    rows = []
    for level in range(LEVELS):
        seen = evidence.get(level, NOTHING)
        rate = _bounded("failures_per_1000_node_hours", found.fit.by_level, level, PER_NODE_HOURS)
        ratio = _bounded("ratio", found.fit.ratios, level - 1) if level else _nulls("ratio")
        known = rate | ratio if seen["node_hours"] else _nulls("failures_per_1000_node_hours") | _nulls("ratio")
        curve = found.hazard_by_level.get(level)
        points = [] if curve is None else list(_points("hazard", curve))
        times = [] if curve is None else zip(curve.times.tolist(), curve.at_risk.tolist(), strict=True)
        steps = [{"hours": hours, "at_risk": risk} for hours, risk in times]
        rows.append(
            {"level": level, **seen, **known, **_cox(found.cox.get("level"), level)}
            | {"curve": [step | point for step, point in zip(steps, points, strict=True)]}
        )
    return rows


def _context_rows(found: OwnHazards, at_risk: pl.DataFrame, known: ContextMap | None) -> list[dict[str, Any]]:
    """Contexts at level 0, by number, and their ratios to the one with most hours at risk."""
    evidence = _evidence(at_risk, pl.col("node").replace_strict(found.contexts, return_dtype=pl.Int64))
    words = {one.number: one.description for one in known.contexts} if known else {}
    names, ratios = found.fit.fit.ratios("context")
    among = {int(name): row for row, (name,) in enumerate(names)}
    rows = []
    for row, number in enumerate(map(int, found.fit.contexts)):
        at_0 = Estimate(found.fit.rates.value[row], found.fit.rates.log_sd[row])
        ratio = _bounded("ratio", ratios, among[number]) if number in among else _nulls("ratio")
        rows.append(
            {"context": None if number == NO_CONTEXT else number, "description": words.get(number, UNSORTED)}
            | evidence[number]
            | _bounded("failures_per_1000_node_hours", at_0, 0, PER_NODE_HOURS)
            | {**ratio, **_cox(found.cox.get("context"), number)}
        )
    return rows


def _evidence(at_risk: pl.DataFrame, by: pl.Expr) -> dict[int, dict[str, int]]:
    counted = at_risk.group_by(by=by).agg(
        failures=pl.col("kind").count(), node_hours=pl.len(), nodes=pl.col("node").n_unique()
    )
    return {row.pop("by"): row for row in counted.iter_rows(named=True)}


def _bounded(name: str, estimate: Estimate, place: int, times: float = 1.0) -> dict[str, float | None]:
    low, high = estimate.interval()
    return dict(zip(_keys(name), (times * float(one[place]) for one in (estimate.value, low, high)), strict=True))


def _nulls(name: str) -> dict[str, float | None]:
    return dict.fromkeys(_keys(name))


def _keys(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _cox(ratios: Ratios | None, value: int) -> dict[str, float | None]:
    if ratios is None or value not in ratios.values:
        return _nulls("cox_ratio")
    place, columns = ratios.values.index(value), (ratios.ratio, ratios.low, ratios.high)
    return dict(zip(_keys("cox_ratio"), (_number(column, place) for column in columns), strict=True))


def _number(column: Floats, place: int) -> float:
    return float(column[place])


# ---- lines -----------------------------------------------------------------------------------------------------------


def hazard_lines(row: Mapping[str, Any]) -> list[str]:
    """The row as text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in row["failures_by_kind"].items())
    last = row["curve"][-1]
    head = f"{counted_as(row['failures'], 'failure')} in {row['node_hours']:,} node-hours at risk"
    return [
        f"{head} of {counted_as(row['nodes'], 'node')}: {kinds}",
        *(_level_line(one) for one in row["levels"]),
        *(_context_line(one, row["contexts"]) for one in row["contexts"] if len(row["contexts"]) > 1),
        f"no failure in {row['end_hour'] - row['start_hour']} h: {100 * last['survival']:.1f}% of nodes"
        f" ({100 * last['survival_low']:.1f}–{100 * last['survival_high']:.1f}%); expected failures per node in that"
        f" time: {_times(last, 'hazard')}",
    ]


def _level_line(one: Mapping[str, Any]) -> str:
    if not one["node_hours"]:
        return f"level {one['level']}: no hours at risk"
    return f"level {one['level']}: {_rate(one)}{_beside(one, 'level 0')}; {_seen(one)}"


def _context_line(one: Mapping[str, Any], contexts: list[dict[str, Any]]) -> str:
    usual = next(other for other in contexts if other["ratio"] is None)
    beside = _beside(one, _name(usual))
    return f"{_name(one)}: {one['description']}; at level 0 {_rate(one)}{beside}; {_seen(one)}"


def _name(context: Mapping[str, Any]) -> str:
    return "no context" if context["context"] is None else f"context {context['context']}"


def _rate(one: Mapping[str, Any]) -> str:
    return f"{_times(one, 'failures_per_1000_node_hours')} failures per 1,000 node-hours"


def _beside(one: Mapping[str, Any], what: str) -> str:
    if one["ratio"] is None:
        return ""
    cox = f"; by Cox {_times(one, 'cox_ratio')}" if one["cox_ratio"] else ""
    return f", {_times(one, 'ratio')} times those of {what}{cox}"


def _times(one: Mapping[str, Any], name: str) -> str:
    return f"{one[name]:.2g} ({one[f'{name}_low']:.2g}–{one[f'{name}_high']:.2g})"


def _seen(one: Mapping[str, Any]) -> str:
    return f"{one['failures']} in {one['node_hours']:,} node-hours of {counted_as(one['nodes'], 'node')}"
