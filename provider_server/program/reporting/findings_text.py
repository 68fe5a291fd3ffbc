"""Findings as JSON rows and as text lines: verdicts, versions, rules, new contexts.

Rows have whole tokens, lines their first twelve digits.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Literal, TypedDict

from federation.base.clock import dated
from federation.base.visible import counted_as
from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.cold_start import Newcomer
from provider_server.fleet.analysis.drift import Alarm
from provider_server.fleet.analysis.rules import Rule
from provider_server.fleet.analysis.versions import Group
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.learning.new_contexts import NewContext
from provider_server.fleet.learning.publication_gate import Outlook
from provider_server.fleet.learning.verdicts import PairFinding

DIGITS = 12


# ---- rows ------------------------------------------------------------------------------------------------------------


class PairRow(TypedDict):
    """The verdict of a workload on a context, by tokens; `context_name` is null where no name is known.

    `alternative_names` are names of `alternatives`, or their first digits.
    """

    workload: str
    context: str
    context_name: str | None
    judgement: str
    probability_worse: float
    risk_ratio: float
    risk_ratio_low: float
    risk_ratio_high: float
    expected_failures: float
    reason: str
    alternatives: list[str]
    alternative_names: list[str]


class VersionsRow(TypedDict):
    """An archetype; `alike` is the probability that each two versions fail alike, in their order."""

    archetype: str
    versions: list[str]
    alike: list[list[float]]
    groups: list[Group]


class VersionRow(TypedDict):
    """A workload's group of versions, and the probability that each other version fails alike."""

    archetype: str
    group: Group
    alike: dict[str, float]


class RuleRow(TypedDict):
    """A rule of benchmark jobs; `high` is null where nothing failed outside."""

    conditions: list[str]
    ratio: float
    low: float
    high: float | None
    failures: float
    node_hours: float


class StepTimeRow(TypedDict):
    """How long a step takes over what it takes on the fleet's usual node, with a 95% interval."""

    ratio: float
    low: float
    high: float
    basis: str


class NewcomerRow(TypedDict):
    """The first rate of a new context, with a 95% interval; `step_time` is null before any benchmark job ran."""

    context: str
    rate_per_1000_node_hours: float
    low: float
    high: float
    basis: str
    step_time: StepTimeRow | None


class FindingsRow(TypedDict):
    """What releases show; calibration is null before there is any."""

    pairs: int
    rates: int
    accused: list[PairRow]
    versions: list[VersionsRow]
    rules: list[RuleRow]
    newcomers: list[NewcomerRow]
    alarms: list[str]
    calibration_slope: float | None
    calibration_ratio: float | None


class LearntRow(FindingsRow):
    """All of it, who may read it, and how the bundle in force predicted the newest window; null without one."""

    readers: Literal["operators", "tenants"]
    releases: int
    against_bundle: str | None


class ExplanationRow(PairRow):
    """A verdict with its evidence; `version` is null without versions."""

    rate_per_1000_node_hours: float
    rate_high: float
    failures: float
    failures_elsewhere: float
    ratio_to_elsewhere: float
    net_outcome: float
    sign_p: float
    gamma: float
    control_ratio: float
    control_sees: bool
    control_fires: bool
    version: VersionRow | None


# ---- verdicts --------------------------------------------------------------------------------------------------------


def learnt_row(
    findings: Findings, newcomers: Sequence[NewContext], seen: Outlook, names: Mapping[str, str]
) -> FindingsRow:
    """All findings in one row: counts, mismatches, and the rows of the functions below."""
    worse = [pair for pair in findings.pairs if pair.judgement in (PairJudgement.WORSE, PairJudgement.CONFOUNDED)]
    return {
        "pairs": len(findings.pairs),
        "rates": len(findings.rates),
        "accused": [pair_row(pair, names) for pair in sorted(worse, key=lambda pair: -pair.probability_worse)],
        "versions": version_rows(findings),
        "rules": rule_rows(findings.rules or ()),
        "newcomers": newcomer_rows(newcomers),
        "alarms": [dated(_told(alarm, names)) for alarm in seen.alarms],
        "calibration_slope": seen.calibration.slope if seen.calibration else None,
        "calibration_ratio": seen.calibration.ratio_total if seen.calibration else None,
    }


def _told(alarm: Alarm, names: Mapping[str, str]) -> str:
    """An alarm for a person: hardware by its name."""
    _, _, token = alarm.what.partition(" ")
    return names[token] + alarm.text.removeprefix(alarm.what) if token in names else alarm.text


def pair_row(pair: PairFinding, names: Mapping[str, str]) -> PairRow:
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
        "alternative_names": [names.get(token) or token[:DIGITS] for token in pair.alternatives],
    }


def learnt_lines(row: LearntRow) -> list[str]:
    """The row as text, mismatches first."""
    judged = f"{counted_as(row['pairs'], 'pair')}, {counted_as(row['rates'], 'rate')}"
    readers = "for operators, not for tenants" if row["readers"] == "operators" else "as bundles tell tenants"
    lines = [f"{counted_as(row['releases'], 'release')}: {judged}; {readers}"]
    for one in row["accused"]:
        context = one["context_name"] or f"hardware group {one['context'][:DIGITS]}"
        better = f"; fails less on {one['alternative_names'][0]}" if one["alternatives"] else ""
        lines.append(f"  workload {one['workload'][:12]} on {context}: {one['reason']}{better}")
    lines += [f"  {line}" for line in version_lines(row["versions"])]
    lines += [f"  {line}" for line in (*rule_lines(row["rules"]), *newcomer_lines(row["newcomers"]))]
    lines += [f"  alarm: {text}" for text in row["alarms"]]
    if row["against_bundle"]:
        lines.append(f"  newest window, compared with the bundle in force: {row['against_bundle']}")
    if row["calibration_slope"] is not None:
        ratio, slope = row["calibration_ratio"], row["calibration_slope"]
        lines.append(f"  calibration: {ratio:.2f} failures observed for each one predicted, slope {slope:.2f}")
    return lines


def explanation_row(pair: PairFinding, findings: Findings, names: Mapping[str, str]) -> ExplanationRow:
    """A verdict with its evidence, and the workload's group of versions."""
    twin = pair.compared
    return {
        **pair_row(pair, names),
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
    }


def explanation_lines(row: ExplanationRow) -> list[str]:
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
        lines.append(f"  it fails less on {', '.join(row['alternative_names'])}")
    if row["version"]:
        lines.append(f"  {version_line(row['version'])}")
    return lines


# ---- versions, rules, newcomers --------------------------------------------------------------------------------------


def version_rows(findings: Findings) -> list[VersionsRow]:
    """One row per archetype with several versions: its groups, and the probability that each two fail alike."""
    return [
        {
            "archetype": archetype,
            "versions": list(found.versions),
            "alike": found.alike.round(4).tolist(),
            "groups": list(found.groups),
        }
        for archetype, found in findings.versions.items()
        if len(found.versions) > 1
    ]


def version_row(findings: Findings, workload: str) -> VersionRow | None:
    """The group of versions of `workload`, and the probability that each other one fails alike; None if no version."""
    for archetype, found in findings.versions.items():
        if workload in found.versions:
            (group,) = (one for one in found.groups if workload in one.versions)
            others = [other for other in found.versions if other != workload]
            return {
                "archetype": archetype,
                "group": group,
                "alike": {other: round(found.probability_alike(workload, other), 4) for other in others},
            }
    return None


def rule_rows(rules: Sequence[Rule]) -> list[RuleRow]:
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


def newcomer_rows(newcomers: Sequence[NewContext]) -> list[NewcomerRow]:
    """First rates at an average age, per 1,000 node-hours."""
    return [
        {
            "context": one.name,
            "rate_per_1000_node_hours": PER_NODE_HOURS * one.newcomer.rate,
            "low": PER_NODE_HOURS * one.newcomer.low,
            "high": PER_NODE_HOURS * one.newcomer.high,
            "basis": one.newcomer.basis,
            "step_time": step_row(one.step_time),
        }
        for one in newcomers
    ]


def step_row(step: Newcomer | None) -> StepTimeRow | None:
    """As JSON has it."""
    return {"ratio": step.rate, "low": step.low, "high": step.high, "basis": step.basis} if step else None


def step_words(step: StepTimeRow | None) -> str:
    """At the end of a line."""
    return f"; a step takes {step['ratio']:.2f} times as long ({step['low']:.2f}–{step['high']:.2f})" if step else ""


def version_lines(rows: Sequence[VersionsRow]) -> Iterator[str]:
    """A line that counts archetypes, and one for each whose versions fail differently."""
    split = [row for row in rows if len(row["groups"]) > 1]
    if rows:
        yield f"versions: they fail differently in {len(split)} of {counted_as(len(rows), 'archetype')} with several"
    for row in split:
        groups = "; ".join(f"{_names(group.versions)} {_ratio(group)}" for group in row["groups"])
        yield f"  archetype {row['archetype'][:DIGITS]}: {groups}"


def version_line(row: VersionRow) -> str:
    """`version_row` as text."""
    alike = [f"{other[:DIGITS]} ({probability:.2f})" for other, probability in row["alike"].items()]
    if not alike:
        return f"it is the only version of archetype {row['archetype'][:DIGITS]}"
    same = len(row["group"].versions) - 1
    return (
        f"archetype {row['archetype'][:DIGITS]}: grouped with {same} of {counted_as(len(alike), 'other version')}; rate"
        f" {_ratio(row['group'])} times the archetype's; probability to fail alike: {', '.join(alike)}"
    )


def rule_lines(rows: Sequence[RuleRow]) -> Iterator[str]:
    """A line for each rule."""
    for row in rows:
        high = f"{row['high']:.1f}" if row["high"] is not None else "no bound"
        yield (
            f"rule: with {' and '.join(row['conditions'])}, benchmark jobs fail {row['ratio']:.1f} times as often"
            f" ({row['low']:.1f}–{high}; {row['failures']:.0f} failures in {row['node_hours']:,.0f} node-hours)"
        )


def newcomer_lines(rows: Sequence[NewcomerRow]) -> Iterator[str]:
    """A line for each new context."""
    for row in rows:
        rate, low, high = row["rate_per_1000_node_hours"], row["low"], row["high"]
        interval = f"{low:.2g}–{high:.2g}"
        failures = f"{rate:.2g} failures per 1,000 node-hours ({interval})"
        yield f"first rate of context {row['context']}: {failures}; {row['basis']}{step_words(row['step_time'])}"


def _names(versions: Sequence[str]) -> str:
    return " = ".join(version[:DIGITS] for version in versions)


def _ratio(group: Group) -> str:
    return f"{group.ratio:.2f} ({group.low:.2f}–{group.high:.2f})"
