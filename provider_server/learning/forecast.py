"""The probability that a job fails within the next hours, from findings: piecewise exponential, with an interval.

    P(failure within h) = 1 - exp(-nodes × Σ_b hours in band b × rate_b)

A pair's rate is that of its workload on its context over the hours that it ran there; over ages and build-up levels it
goes as the context's hazards do. So rate_b is the pair's rate, times the hazard of the level and the band over the mean
hazard of the pair's own node-hours.

The interval takes three errors of the log rate as independent: that of the pair's own ratio; that of the hazards,
shared by all bands; and that of the workload's average rate, on which the ratio is put (as uncertain as its noisy
counts on all contexts leave the prior of `analysis.mismatch`). Only infrastructure failures count, and the job is
assumed to continue otherwise. Not promised: validity at sizes that the pair has not run at, nor independent failures of
nodes.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from federation.protocol.life_table import Floats
from federation.protocol.round_messages import finest_row
from provider_server.analysis.intervals import NORMAL_95
from provider_server.analysis.mismatch import MAIN_EFFECT_SD
from provider_server.fleet.leases import Lease
from provider_server.learning.findings import Findings, RateFinding
from provider_server.learning.verdicts import PairFinding
from provider_server.learning.windows import predict_window
from provider_server.rounds.release import Release

NO_ROW = "no row"  # which no token begins with


@dataclass(frozen=True)
class Job:
    """A running or planned job: nodes, age, and the token of its build-up level; None for those the pair ran at."""

    nodes: int
    age_h: float
    context_level: str | None = None


@dataclass(frozen=True)
class Chance:
    """A probability with its 95% interval."""

    probability: float
    low: float
    high: float


def job_of(lease: Lease, findings: Findings, now_h: float) -> tuple[Job, str, str]:
    """The job on a lease as it is now, and the tokens of its workload's row and of its context, or `NO_ROW`."""
    workload = finest_row(lease.labels, {one.workload for one in findings.pairs})
    job = Job(lease.nodes, max(0.0, now_h - lease.start_h), lease.labels.get("context_level"))
    return job, workload or NO_ROW, lease.labels.get("context", NO_ROW)


def chance_of_failure(
    pair: PairFinding,
    job: Job,
    within_h: float,
    findings: Findings,
    releases: Sequence[Release],
    leases: Sequence[Lease],
) -> Chance:
    """How probably `job`, which runs as `pair`, fails within the hours. ValueError where its level has no rate.

    `findings` are those of `releases`, oldest first, and `leases` of their windows.
    """
    node_hours, hazard, levels = _ran(pair, findings, releases, leases)
    if job.context_level is None:
        shape = np.average(hazard, axis=0, weights=node_hours.sum(axis=1))
    else:
        levels = {job.context_level}
        shape = _by_band([one for one in findings.rates if one.context_level == job.context_level], hazard.shape[1])
    rates = pair.rate * shape / np.average(hazard, weights=node_hours)
    edges = releases[-1].plan.band_edges_hours
    expected = job.nodes * float(_hours(job.age_h, within_h, edges) @ rates)
    of_hazard = max(np.log(one.high / one.low) / 2.0 for one in findings.rates if one.context_level in levels)
    shared = np.hypot(of_hazard, NORMAL_95 * _workload_sd(pair, findings, releases))
    steps = pair.risk_ratio / pair.likely_low, pair.likely_high / pair.risk_ratio
    down, up = (np.hypot(shared, np.log(step)) for step in steps)
    middle, low, high = (-np.expm1(-expected * factor) for factor in (1.0, np.exp(-down), np.exp(up)))
    return Chance(float(middle), float(low), float(high))


def _ran(
    pair: PairFinding, findings: Findings, releases: Sequence[Release], leases: Sequence[Lease]
) -> tuple[Floats, Floats, set[str]]:
    """Node-hours and hazards of the pair's own units, (J, bands), and the tokens of their levels."""
    rows = {one.workload for one in findings.pairs}
    hazard = {(one.context_level, one.band): one.rate for one in findings.rates}
    own = [
        lease
        for lease in leases
        if lease.labels.get("context") == pair.context and finest_row(lease.labels, rows) == pair.workload
    ]
    windows = [predict_window(hazard, {}, made, own) for made in releases]
    node_hours, rates = (np.concatenate([getattr(one, name) for one in windows]) for name in ("node_hours", "rates"))
    if not node_hours.sum() > 0.0:
        raise ValueError("the pair has run no hours in these releases")
    return node_hours, rates, {lease.labels.get("context_level", "") for lease in own}


def _workload_sd(pair: PairFinding, findings: Findings, releases: Sequence[Release]) -> float:
    """The standard deviation of the log of the workload's average rate: prior and noisy counts on all its contexts."""
    expected = {one.context: one.expected_failures for one in findings.pairs if one.workload == pair.workload}
    row = reduce(operator.add, (made.table("pairs") for made in releases)).at("workload", pair.workload)
    mean = np.array([expected.get(context, 0.0) for context in row.levels("context")])
    information = np.divide(mean**2, mean + row.noise_variance, out=np.zeros(len(mean)), where=mean > 0.0)
    return float((MAIN_EFFECT_SD**-2.0 + information.sum()) ** -0.5)


def _by_band(own: Sequence[RateFinding], bands: int) -> Floats:
    """Rates of one level; where a band has none, the mean of the others."""
    if not own:
        raise ValueError("this build-up level of the context has no rate yet")
    known = {one.band: one.rate for one in own}
    return np.array([known.get(str(band), float(np.mean(list(known.values())))) for band in range(bands)])


def _hours(age_h: float, within_h: float, edges_hours: Sequence[float]) -> Floats:
    """Of the next hours, those in each age band; beyond the last band as in it."""
    low, high = np.array(edges_hours[:-1]), np.array([*edges_hours[1:-1], np.inf])
    inside = np.minimum(high, age_h + within_h) - np.maximum(low, age_h)
    return np.asarray(np.maximum(inside, 0.0), np.float64)
