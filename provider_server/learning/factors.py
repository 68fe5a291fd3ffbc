"""Factors of job size and season, estimated from the same releases after the findings.

Each window is predicted by the findings, and `analysis.factors` says by what factor its counts differ with size and
season. A season is the ISO week that a window begins in, so windows of
several years share a level.

Sizes that did not run are left out.

Guarantee: factors never change verdicts or rates. The findings were fitted to the same windows, so factors show only
what rows do not already explain.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from provider_server.analysis.factors import find_factors, size_band
from provider_server.fleet.leases import Lease
from provider_server.learning.findings import Findings
from provider_server.learning.windows import mean_risks, predict_window
from provider_server.rounds.release import Release

TABLE = "pairs"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def add_factors(findings: Findings, releases: Sequence[Release], leases: Sequence[Lease]) -> Findings:
    """`findings` of `releases`, oldest first, with factors; without rates there are none. As slow as `learn`."""
    if not findings.rates:
        return findings
    rates = {(one.context_level, one.band): one.rate for one in findings.rates}
    risks = {(one.workload, one.context): one.risk_ratio for one in findings.pairs}
    mix = mean_risks(risks, releases, leases)
    predictions = [predict_window(rates, risks, made, leases, mix) for made in releases]
    seasons = [season(made.plan.start_hour) for made in releases]
    found = find_factors(predictions, [made.table(TABLE) for made in releases], seasons)
    ran = {size_band(lease.nodes) for prediction in predictions for lease in prediction.leases}
    return replace(findings, factors=tuple(one for one in found if one.dimension != "size" or one.level in ran))


def season(hour: float) -> str:
    """The ISO week that an hour since 1970 lies in, such as `W07`."""
    return f"W{(EPOCH + timedelta(hours=hour)).isocalendar().week:02d}"
