"""Makes a bundle for tenants from findings, with the statement of its privacy cost."""

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from crypto.ids import Token
from federation.protocol.bundle import (
    Bundle,
    CatalogueEntry,
    ContextName,
    HazardEntry,
    MismatchEntry,
    PairJudgement,
    RuleEntry,
    Statement,
)
from federation.protocol.evidence import Evidence
from federation.protocol.life_table import PER_NODE_HOURS
from federation.protocol.plan import Plan
from provider_server.fleet.analysis.rules import Rule
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.learning.verdicts import Pair
from provider_server.fleet.release import Release


def compose(
    number: int,
    catalogue: Sequence[CatalogueEntry],
    releases: Sequence[Release],
    findings: Findings,
    *,
    rules: Sequence[RuleEntry] = (),
    names: Sequence[ContextName] = (),
) -> Bundle:
    """The bundle after `releases`. `rules` are the last bundle's, kept unless findings have rules of their own.

    `names` of contexts are those of the newest release's epoch.
    """
    newest = releases[-1].plan
    return Bundle(
        number=number,
        epoch=newest.epoch,
        until_hour=newest.end_hour,
        catalogue=tuple(catalogue),
        mismatches=tuple(
            MismatchEntry(
                Token.fromhex(pair.workload),
                Token.fromhex(pair.context),
                pair.probability_worse,
                pair.risk_ratio,
                pair.low,
                pair.high,
                pair.expected_failures,
                pair.judgement,
                tuple(map(Token.fromhex, pair.alternatives)),
            )
            for pair in findings.pairs
        ),
        hazards=tuple(
            HazardEntry(
                Token.fromhex(rate.context_level),
                rate.band,
                *(PER_NODE_HOURS * value for value in (rate.rate, rate.low, rate.high)),
            )
            for rate in findings.rates
        ),
        statement=Statement(
            newest.epsilon,
            newest.delta,
            newest.mechanism,
            len(releases),
            min(made.contributors for made in releases),
        ),
        band_edges_hours=newest.band_edges_hours,
        rules=tuple(rules) if findings.rules is None else _rules(findings.rules),
        context_names=tuple(names),
        evidence=_evidence(findings, releases),
    )


def charges(bundles: Iterable[Bundle], newest: Plan) -> dict[Pair, float]:
    """The pairs that `bundles` (oldest first) called worse in the newest plan's epoch, as tokens.

    Each with the probability that it is not worse, as the first such bundle had it.
    """
    found: dict[Pair, float] = {}
    for bundle in bundles:
        if bundle.epoch == newest.epoch and bundle.until_hour <= newest.end_hour:
            for entry in bundle.mismatches:
                if entry.judgement is PairJudgement.WORSE:
                    found.setdefault((str(entry.workload), str(entry.context)), 1.0 - entry.probability_worse)
    return found


def _evidence(findings: Findings, releases: Sequence[Release]) -> Evidence | None:
    known, rounds = findings.evidence, tuple(made.plan.round_id for made in releases)
    return replace(known, rounds=rounds) if known else None


def _rules(found: Sequence[Rule]) -> tuple[RuleEntry, ...]:
    """Those whose ratio has an upper bound: where nothing failed outside of the rule, there is none yet."""
    bounded = (one for one in found if math.isfinite(one.high))
    return tuple(
        RuleEntry(tuple(map(str, one.conditions)), one.lift, one.low, one.high, one.failures) for one in bounded
    )
