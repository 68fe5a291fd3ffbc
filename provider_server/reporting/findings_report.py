"""The report on findings: which sections, figures and tables it has, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from federation.protocol.life_table import PER_NODE_HOURS, Floats
from federation.runtime.visible import counted_as
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


FOR_OPERATORS = "For operators, not for tenants: failures that the provider saw itself are in the findings."
FOR_TENANTS = "What bundles tell tenants, from their sums alone."


def page_of(
    findings: Findings,
    seen: Outlook,
    releases: Sequence[Release],
    names: Mapping[str, str],
    *,
    for_operators: bool,
) -> Page:
    """The page of `releases`; `names` has names of tokens, as far as the provider knows them."""
    newest = releases[-1].plan
    least = min(release.contributors for release in releases)
    summary = (
        f"Learnt from {counted_as(len(releases), 'release')} up to hour {newest.end_hour}, each of at least"
        f" {counted_as(least, 'tenant')}.",
        f"Privacy budget per lease and window: epsilon {newest.epsilon:g} at delta {newest.delta:g}.",
        FOR_OPERATORS if for_operators else FOR_TENANTS,
    )
    return Page(
        "The provider's findings",
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
            "Workloads that fail on a context more often than workload and context explain.",
            mismatch_matrix(pairs, names),
            ("workload", "context", "judgement", "probability worse", "risk ratio", "low", "high", "fails less on"),
            [_pair_row(pair, names) for pair in pairs[:MOST_ROWS]],
        ),
        Section(
            "Risk ratios",
            "Failures as a multiple of the expected number, with 95% intervals, most probable mismatches first.",
            forest_plot(pairs, names),
            ("workload", "context", "reason"),
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
    if (calibration := seen.calibration) is not None:
        sections.append(
            Section(
                "Calibration",
                "Failures that bundles predicted, compared with those observed.",
                calibration_plot(calibration),
                ("predicted", "observed", "low", "high"),
                _columns(calibration.predicted, calibration.observed, calibration.low, calibration.high),
            )
        )
    return [*sections, *_besides(findings)]


def _besides(findings: Findings) -> list[Section]:
    """Sections on versions, factors, and rules of benchmark jobs, as far as there are any."""
    several = [found for found in findings.versions.values() if len(found.versions) > 1]
    groups = [
        Ratio(" = ".join(version[:DIGITS] for version in group.versions), group.ratio, group.low, group.high)
        for found in several
        for group in found.groups
    ]
    factors = [Ratio(level_name(one.dimension, one.level), one.ratio, one.low, one.high) for one in findings.factors]
    rules = [Ratio(str(one), one.lift, one.low, one.high) for one in findings.rules or ()]
    parts = (
        ("Versions", "Versions of an archetype that fail alike, and how often.", "their archetype", groups),
        ("Size and season", "How failures vary with the size of a job and the week.", "the average", factors),
        ("Rules", "Conditions under which the provider's own benchmark jobs fail more often.", "all others", rules),
    )
    return [
        Section(heading, why, ratio_plot(heading, rows, beside=beside), RATIO_HEAD, [astuple(row) for row in rows])
        for heading, why, beside, rows in parts
        if rows
    ]


def _columns(*columns: Floats) -> list[tuple[float, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _pair_row(pair: PairFinding, names: Mapping[str, str]) -> tuple[str | float, ...]:
    numbers = pair.probability_worse, pair.risk_ratio, pair.low, pair.high
    better = ", ".join(_named(context, names) for context in pair.alternatives)
    return (pair.workload, _named(pair.context, names), str(pair.judgement), *numbers, better)


def _named(token: str, names: Mapping[str, str]) -> str:
    return names.get(token, token)
