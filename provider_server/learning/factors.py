"""Factors of job size and season, estimated from the same releases after the findings.

Each week that the newest release still has all rows of is predicted by the findings, and `analysis.factors` says by
what factor its counts differ with size and season, given the covariance of the weeks' noise. A season is an ISO week,
so weeks of several years share a level.

Sizes that did not run are left out.

Guarantee: factors never change verdicts or rates. The findings were fitted to the same weeks, so factors show only what
rows do not already explain.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from provider_server.analysis.factors import find_factors, size_band
from provider_server.fleet.leases import Lease
from provider_server.learning.findings import Findings
from provider_server.learning.weekly import cell_covariance, mean_risks, predict_week, week_tables
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
    weeks = [made for made in releases if _rows(made) <= _rows(releases[-1])]
    predictions = [predict_week(rates, risks, made, leases, mix) for made in weeks]
    tables = [week_tables(made, weeks[:at])[_place(made)] for at, made in enumerate(weeks)]
    seasons = [season(made.plan.start_hour) for made in weeks]
    found = find_factors(predictions, tables, seasons, cell_covariance(weeks, TABLE))
    ran = {size_band(lease.nodes) for prediction in predictions for lease in prediction.leases}
    return replace(findings, factors=tuple(one for one in found if one.dimension != "size" or one.level in ran))


def season(hour: float) -> str:
    """The ISO week that an hour since 1970 lies in, such as `W07`."""
    return f"W{(EPOCH + timedelta(hours=hour)).isocalendar().week:02d}"


def _rows(made: Release) -> set[tuple[str, str]]:
    return {(dimension.name, level) for dimension in made.table(TABLE).dimensions for level in dimension.levels}


def _place(made: Release) -> int:
    return [marginal.name for marginal in made.plan.marginals].index(TABLE)
