"""Findings as JSON rows and as text lines: verdicts, versions, factors, rules, new contexts, forecasts.

Rows have whole tokens, lines their first twelve digits.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import PER_NODE_HOURS
from federation.runtime.visible import counted_as
from provider_server.analysis.factors import Factor
from provider_server.analysis.rules import Rule
from provider_server.analysis.versions import Group
from provider_server.learning.findings import Findings
from provider_server.learning.forecast import Chance, Job
from provider_server.learning.new_contexts import NewContext
from provider_server.learning.publication_gate import Outlook
from provider_server.learning.verdicts import PairFinding

DIGITS = 12


# ---- verdicts --------------------------------------------------------------------------------------------------------


def learnt_row(
    findings: Findings, newcomers: Sequence[NewContext], seen: Outlook, names: Mapping[str, str]
) -> dict[str, Any]:
    """All findings in one row: counts, mismatches, and the rows of the functions below."""
    worse = [pair for pair in findings.pairs if pair.judgement in (PairJudgement.WORSE, PairJudgement.CONFOUNDED)]
    return {
        "pairs": len(findings.pairs),
        "rates": len(findings.rates),
        "accused": [pair_row(pair, names) for pair in sorted(worse, key=lambda pair: -pair.probability_worse)],
        "versions": version_rows(findings),
        "factors": factor_rows(findings.factors),
        "rules": rule_rows(findings.rules or ()),
        "newcomers": newcomer_rows(newcomers),
        "alarms": [alarm.text for alarm in seen.alarms],
        "calibration_slope": seen.calibration.slope if seen.calibration else None,
        "calibration_ratio": seen.calibration.ratio_total if seen.calibration else None,
    }


def pair_row(pair: PairFinding, names: Mapping[str, str]) -> dict[str, Any]:
    """A verdict; `names` says what tokens of contexts stand for."""
    return {
        "workload": pair.workload,
        "context": pair.context,
        "context_name": names.get(pair.context),
        "judgement": str(pair.judgement),
        "probability_worse": pair.probability_worse,
        "risk_ratio": pair.risk_ratio,
        "risk_ratio_low": pair.low,
        "risk_ratio_high": pair.high,
        "expected_failures": pair.expected_failures,
        "reason": pair.reason,
        "alternatives": list(pair.alternatives),
    }


def learnt_lines(row: dict[str, Any]) -> list[str]:
    """`learnt_row` as text, mismatches first."""
    judged = f"{counted_as(row['pairs'], 'pair')}, {counted_as(row['rates'], 'rate')}"
    lines = [f"{counted_as(row['releases'], 'release')}: {judged}"]
    for one in row["accused"]:
        context = one["context_name"] or f"context {one['context'][:12]}"
        better = f"; fails less on {one['alternatives'][0][:12]}" if one["alternatives"] else ""
        lines.append(f"  workload {one['workload'][:12]} on {context}: {one['reason']}{better}")
    parts = (("versions", version_lines), ("factors", factor_lines), ("rules", rule_lines))
    lines += [f"  {line}" for name, part in (*parts, ("newcomers", newcomer_lines)) for line in part(row[name])]
    lines += [f"  alarm: {text}" for text in row["alarms"]]
    if row["against_bundle"]:
        lines.append(f"  newest week, compared with the bundle in force: {row['against_bundle']}")
    if row["calibration_slope"] is not None:
        ratio, slope = row["calibration_ratio"], row["calibration_slope"]
        lines.append(f"  calibration: {ratio:.2f} failures observed for each one predicted, slope {slope:.2f}")
    return lines


def explanation_row(pair: PairFinding, findings: Findings, names: Mapping[str, str]) -> dict[str, Any]:
    """A verdict with its evidence, and the workload's group of versions."""
    twin = pair.compared
    return pair_row(pair, names) | {
        "rate_per_1000_node_hours": PER_NODE_HOURS * pair.rate,
        "rate_high": PER_NODE_HOURS * pair.rate_high,
        "failures": twin.evidence.failures,
        "failures_elsewhere": twin.evidence.failures_elsewhere,
        "ratio_to_elsewhere": twin.ratio,
        "net_outcome": twin.net_outcome,
        "sign_p": twin.sign_p,
        "gamma": twin.gamma,
        "control_ratio": twin.control.ratio,
        "control_sees": twin.control.sees,
        "control_fires": twin.control.fires,
        "version": version_row(findings, pair.workload),
        "forecast": None,
    }


def explanation_lines(row: dict[str, Any]) -> list[str]:
    """`explanation_row` as text."""
    context = row["context_name"] or row["context"]
    control = "fires" if row["control_fires"] else "does not fire" if row["control_sees"] else "has too little data"
    lines = [
        f"workload {row['workload']} on {context}: {row['judgement']}",
        f"  it {row['reason']}",
        f"  {row['rate_per_1000_node_hours']:.2f} failures per 1,000 node-hours, upper bound {row['rate_high']:.2f}",
        f"  noisy counts: {row['failures']:.0f} failures here, {row['failures_elsewhere']:.0f} elsewhere;"
        f" {row['ratio_to_elsewhere']:.2g} times as many per node-hour",
        f"  matched node-hours: net outcome {row['net_outcome']:.2%}, sign test p = {row['sign_p']:.2g},"
        f" Γ = {row['gamma']:.1f}; the negative control {control}",
    ]
    if row["alternatives"]:
        lines.append(f"  it fails less on {', '.join(row['alternatives'])}")
    if row["version"]:
        lines.append(f"  {version_line(row['version'])}")
    if row["forecast"]:
        lines.append(f"  {_chance_line(row['forecast'])}")
    return lines


def chance_row(job: Job, within_h: float, chance: Chance) -> dict[str, Any]:
    """The probability that a job fails within the hours, and the job's size and age."""
    return {
        "within_h": within_h,
        "nodes": job.nodes,
        "age_h": job.age_h,
        "probability": chance.probability,
        "low": chance.low,
        "high": chance.high,
    }


def _chance_line(row: dict[str, Any]) -> str:
    job = f"on {level_name('size', str(row['nodes']))}, {row['age_h']:.0f} hours old"
    return (
        f"{job}, it fails within {row['within_h']:g} hours with probability {row['probability']:.1%}"
        f" ({row['low']:.1%}–{row['high']:.1%})"
    )


# ---- versions, factors, rules, newcomers -----------------------------------------------------------------------------


def version_rows(findings: Findings) -> list[dict[str, Any]]:
    """One row per archetype with several versions: its groups, and the probability that each two fail alike."""
    return [
        {
            "archetype": archetype,
            "versions": list(found.versions),
            "alike": found.alike.round(4).tolist(),
            "groups": [_group_row(group) for group in found.groups],
        }
        for archetype, found in findings.versions.items()
        if len(found.versions) > 1
    ]


def version_row(findings: Findings, workload: str) -> dict[str, Any] | None:
    """The group of versions of `workload`, and the probability that each other one fails alike; None if no version."""
    for archetype, found in findings.versions.items():
        if workload in found.versions:
            (group,) = (one for one in found.groups if workload in one.versions)
            others = [other for other in found.versions if other != workload]
            return {
                "archetype": archetype,
                "group": _group_row(group),
                "alike": {other: round(found.probability_alike(workload, other), 4) for other in others},
            }
    return None


def factor_rows(factors: Sequence[Factor]) -> list[dict[str, Any]]:
    """One row per factor."""
    return [
        {"dimension": one.dimension, "level": one.level, "ratio": one.ratio, "low": one.low, "high": one.high}
        for one in factors
    ]


def rule_rows(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Rules of benchmark jobs; `high` is None where nothing failed outside."""
    return [
        {
            "conditions": [str(condition) for condition in rule.conditions],
            "ratio": rule.lift,
            "low": rule.low,
            "high": rule.high if isfinite(rule.high) else None,
            "failures": rule.failures,
            "node_hours": rule.support_node_hours,
        }
        for rule in rules
    ]


def newcomer_rows(newcomers: Sequence[NewContext]) -> list[dict[str, Any]]:
    """First rates at an average age, per 1,000 node-hours."""
    return [
        {
            "context": one.name,
            "rate_per_1000_node_hours": PER_NODE_HOURS * one.newcomer.rate,
            "low": PER_NODE_HOURS * one.newcomer.low,
            "high": PER_NODE_HOURS * one.newcomer.high,
            "basis": one.newcomer.basis,
        }
        for one in newcomers
    ]


def version_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line that counts archetypes, and one for each whose versions fail differently."""
    split = [row for row in rows if len(row["groups"]) > 1]
    if rows:
        yield f"versions: they fail differently in {len(split)} of {counted_as(len(rows), 'archetype')} with several"
    for row in split:
        groups = "; ".join(f"{_names(group['versions'])} {_ratio(group)}" for group in row["groups"])
        yield f"  archetype {row['archetype'][:DIGITS]}: {groups}"


def version_line(row: dict[str, Any]) -> str:
    """`version_row` as text."""
    alike = [f"{other[:DIGITS]} ({probability:.2f})" for other, probability in row["alike"].items()]
    if not alike:
        return f"it is the only version of archetype {row['archetype'][:DIGITS]}"
    same = len(row["group"]["versions"]) - 1
    return (
        f"archetype {row['archetype'][:DIGITS]}: grouped with {same} of {counted_as(len(alike), 'other version')}; rate"
        f" {_ratio(row['group'])} times the archetype's; probability to fail alike: {', '.join(alike)}"
    )


def factor_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """All sizes in a line, and the weeks whose interval excludes 1."""
    sizes = [f"{level_name('size', row['level'])} {_ratio(row)}" for row in rows if row["dimension"] == "size"]
    if sizes:
        yield f"size: {', '.join(sizes)} times the average hazard"
    seasons = [row for row in rows if row["dimension"] == "week"]
    unusual = [f"{row['level']} {_ratio(row)}" for row in seasons if not row["low"] <= 1.0 <= row["high"]]
    if seasons:
        yield f"season: {', '.join(unusual) or 'none'} of {counted_as(len(seasons), 'week')} significantly different"


def level_name(dimension: str, level: str) -> str:
    """A level of size or season in words."""
    return f"week {level}" if dimension == "week" else f"{level} node{'' if level == '1' else 's'}"


def rule_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each rule."""
    for row in rows:
        high = f"{row['high']:.1f}" if row["high"] is not None else "no bound"
        yield (
            f"rule: with {' and '.join(row['conditions'])}, benchmark jobs fail {row['ratio']:.1f} times as often"
            f" ({row['low']:.1f}–{high}; {row['failures']:.0f} failures in {row['node_hours']:,.0f} node-hours)"
        )


def newcomer_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each new context."""
    for row in rows:
        rate, low, high = (row[name] for name in ("rate_per_1000_node_hours", "low", "high"))
        interval = f"{low:.2g}–{high:.2g}"
        measured = f"{rate:.2g} failures per 1,000 node-hours ({interval})"
        yield f"first rate of context {row['context']}: {measured}; {row['basis']}"


def _group_row(group: Group) -> dict[str, Any]:
    return {
        "versions": list(group.versions),
        "ratio": group.ratio,
        "low": group.low,
        "high": group.high,
        "failures": group.failures,
    }


def _names(versions: Sequence[str]) -> str:
    return " = ".join(version[:DIGITS] for version in versions)


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f})"
