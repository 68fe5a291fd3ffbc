"""What was learnt, arranged for a person: which pictures answer which question, and what to look at first."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.learning.findings import Findings
from provider_server.learning.publication_gate import Outlook
from provider_server.learning.verdicts import PairFinding
from provider_server.reporting.figures.calibration import calibration_plot
from provider_server.reporting.figures.hazard import hazard_curves
from provider_server.reporting.figures.mismatch import forest_plot, mismatch_matrix
from provider_server.reporting.figures.ratios import Ratio, ratio_plot
from provider_server.reporting.findings_text import level_name
from provider_server.reporting.html import Page, Section
from provider_server.rounds.release import Release

MOST_ROWS = 50
DIGITS = 6  # of a token where several stand together
RATIO_HEAD = ("which", "ratio", "low", "high")


def page_of(findings: Findings, seen: Outlook, releases: Sequence[Release], names: Mapping[str, str]) -> Page:
    """The page of `releases`; `names` says what tokens stand for, as far as the provider knows."""
    newest = releases[-1].plan
    weeks = f"{len(releases)} releases, up to hour {newest.end_hour}, of at least"
    summary = (
        f"Learnt from {weeks} {min(made.contributors for made in releases)} tenants each.",
        f"Every job-week counted under epsilon {newest.epsilon:g} at delta {newest.delta:g}.",
    )
    return Page(
        "What the provider learnt",
        summary,
        [alarm.text for alarm in seen.alarms],
        _sections(findings, seen, releases, names),
    )


def _sections(
    findings: Findings, seen: Outlook, releases: Sequence[Release], names: Mapping[str, str]
) -> list[Section]:
    pairs = sorted(findings.pairs, key=lambda pair: -pair.probability_worse)
    rates = sorted(findings.rates, key=lambda rate: -rate.low)
    sections = [
        Section(
            "Mismatches",
            "Which workloads fail on which contexts more often than both explain.",
            mismatch_matrix(pairs, names),
            ("workload", "context", "judgement", "probability worse", "risk ratio", "low", "high", "better on"),
            [_pair_row(pair, names) for pair in pairs[:MOST_ROWS]],
        ),
        Section(
            "Risk ratios",
            "How many times as often, with 95% intervals, for the pairs that matter most.",
            forest_plot(pairs, names),
            ("workload", "context", "why"),
            [(pair.workload, _named(pair.context, names), pair.reason) for pair in pairs[:MOST_ROWS]],
        ),
        Section(
            "Hazards",
            "Infrastructure failures by the age of a job, for each context and build-up level.",
            hazard_curves(rates, names, edges_hours=releases[-1].plan.band_edges_hours),
            ("context and level", "age band", "per 1,000 node-hours", "low", "high"),
            [
                (
                    _named(one.context_level, names),
                    one.band,
                    *(PER_NODE_HOURS * value for value in (one.rate, one.low, one.high)),
                )
                for one in rates[:MOST_ROWS]
            ],
        ),
    ]
    if (found := seen.calibration) is not None:
        sections.append(
            Section(
                "Calibration",
                "Whether what bundles said in advance is what happened.",
                calibration_plot(found),
                ("predicted", "observed", "low", "high"),
                list(zip(*(x.tolist() for x in (found.predicted, found.observed, found.low, found.high)), strict=True)),
            )
        )
    return [*sections, *_besides(findings)]


def _besides(findings: Findings) -> list[Section]:
    """What is no verdict: versions, factors, and rules of benchmark jobs, as far as there are any."""
    several = [found for found in findings.versions.values() if len(found.versions) > 1]
    groups = [
        Ratio(" = ".join(version[:DIGITS] for version in group.versions), group.ratio, group.low, group.high)
        for found in several
        for group in found.groups
    ]
    factors = [Ratio(level_name(one.dimension, one.level), one.ratio, one.low, one.high) for one in findings.factors]
    rules = [Ratio(str(one), one.lift, one.low, one.high) for one in findings.rules or ()]
    parts = (
        ("Versions", "Which versions of an archetype fail alike, and how often.", "their archetype", groups),
        ("Size and season", "How failures differ with the size of a job and the week.", "the average", factors),
        ("Rules", "With what the provider's own benchmark jobs fail more often.", "all else", rules),
    )
    return [
        Section(heading, why, ratio_plot(heading, rows, beside=beside), RATIO_HEAD, [astuple(row) for row in rows])
        for heading, why, beside, rows in parts
        if rows
    ]


def _pair_row(pair: PairFinding, names: Mapping[str, str]) -> tuple[str | float, ...]:
    numbers = pair.probability_worse, pair.risk_ratio, pair.low, pair.high
    better = ", ".join(_named(context, names) for context in pair.alternatives)
    return (pair.workload, _named(pair.context, names), str(pair.judgement), *numbers, better)


def _named(token: str, names: Mapping[str, str]) -> str:
    return names.get(token, token)
