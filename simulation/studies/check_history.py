"""What a tenant's own history adds to its checks: precision before the jobs of the next 13 weeks.

A cloud is a year of the `standard` scenario under the settings as shipped (epsilon 1). After `weeks` weeks each tenant
checks, for every pair of workload and context on which it starts a job within the next 13, how probable a mismatch is:

`own`      by its own leases and failures alone, as without a federation (`simulation.judge.histories`)
`bundle`   by the provider's bundle alone
`both`     by the bundle and its own history, as `pharoah-tenant check` does

Figures are average precisions over all tenants and pairs, weighted by the node-hours of these jobs: the mean over
clouds. Masks and messages are left
out, as in `study learning`; noise is fresh.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from sklearn.metrics import average_precision_score

from federation.protocol.bundle import Bundle
from federation.protocol.check import Checker
from federation.protocol.judgement import HARMFUL_RATIO
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.ratio_likelihood import LOG_RATIOS
from provider_server.fleet.learning.bundle import compose
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.release import Release
from simulation.judge.histories import Histories, alone, with_bundle
from simulation.judge.user_loop import Trial
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.studies import learning
from simulation.studies.attendance import InsecureRepeatable
from simulation.studies.impact import trial_of, with_tokens
from simulation.studies.study import Quick, Seed, Seeds, Table, by_seed

WEEKS, QUICK_WEEKS = (13, 26), (4,)
AHEAD_H = 13 * HOURS_PER_WEEK


class CheckHistoryRow(msgspec.Struct, frozen=True):
    """Checks after so many weeks."""

    weeks: int
    own: float
    bundle: float
    both: float
    seeds: int


class CheckHistoryRows(msgspec.Struct, frozen=True):
    """Of `study check-history`."""

    rows: tuple[CheckHistoryRow, ...]


@dataclass(frozen=True)
class Precision:
    """One cloud after so many weeks."""

    weeks: int
    own: float
    bundle: float
    both: float


def weeks_of(*, quick: bool) -> tuple[int, ...]:
    """After which weeks."""
    return QUICK_WEEKS if quick else WEEKS


def summary(found: Sequence[Precision]) -> CheckHistoryRows:
    """Means over clouds."""
    rows = []
    for weeks in dict.fromkeys(one.weeks for one in found):
        own = [one for one in found if one.weeks == weeks]
        of_own, told, both = np.mean([(one.own, one.bundle, one.both) for one in own], axis=0).tolist()
        rows.append(CheckHistoryRow(weeks, of_own, told, both, len(own)))
    return CheckHistoryRows(tuple(rows))


def _of_cloud(quick: bool, seed: int) -> list[Precision]:  # noqa: FBT001
    year = learning.live(learning.shipped(quick=quick), seed)
    made = learning.releases(year, year.cloud.scenario.epsilon, InsecureRepeatable(os.urandom(16)))
    trial = trial_of(year.cloud, seed)
    bundles = (_bundle(year, made, weeks) for weeks in weeks_of(quick=quick))
    return [_precision(trial, Histories(trial), bundle) for bundle in bundles]


def _bundle(year: learning.Year, made: Sequence[Release], weeks: int) -> Bundle:
    """The one that was learnt after so many weeks."""
    end = weeks * HOURS_PER_WEEK
    known, past = [lease for lease in year.leases if lease.start_h < end], [m for m in made if m.plan.end_hour <= end]
    return compose(weeks, (), past, with_tokens(learn(past, known)))


def _precision(trial: Trial, histories: Histories, bundle: Bundle) -> Precision:
    """Of the checks of all tenants before the jobs that follow the bundle."""
    cloud, hour = trial.cloud, float(bundle.until_hour)
    failures, of_all = histories.failures(hour), Checker(bundle)
    planted, weights, said = [], [], []
    by_itself, joined = alone(bundle), with_bundle(bundle)
    for tenant, jobs in _jobs(trial, hour).items():
        own = histories.until(tenant, hour, failures)
        checkers = Checker(by_itself(own).bundle), of_all, Checker(joined(own).bundle)
        for (workload, context), (row, node_hours) in jobs.items():
            labels = trial.labels(row)
            said.append([_probability(checker, bundle, labels) for checker in checkers])
            planted.append((workload, context) in cloud.mismatched)
            weights.append(node_hours)
    scores = (
        average_precision_score(planted, column, sample_weight=weights) for column in np.array(said, np.float64).T
    )
    return Precision(bundle.number, *map(float, scores))


def _jobs(trial: Trial, hour: float) -> dict[int, dict[tuple[int, int], tuple[int, float]]]:
    """By tenant and pair: a lease that starts there in the weeks ahead, and the node-hours of all of them."""
    leases, end_h = trial.cloud.leases, float(HOURS_PER_WEEK * trial.cloud.scenario.weeks)
    jobs: defaultdict[int, dict[tuple[int, int], tuple[int, float]]] = defaultdict(dict)
    for row in np.flatnonzero((leases.start_h >= hour) & (leases.start_h < min(hour + AHEAD_H, end_h))).tolist():
        own, pair = jobs[int(leases.tenant[row])], (int(leases.workload[row]), int(leases.context[row]))
        hours = float(leases.nodes[row] * (min(leases.end_h[row], end_h) - leases.start_h[row]))
        own[pair] = row, own.get(pair, (row, 0.0))[1] + hours
    return jobs


def _probability(checker: Checker, bundle: Bundle, labels: Mapping[str, str]) -> float:
    """Of a mismatch; what the prior says where nothing else does."""
    found = checker.check(labels).evidence
    if found is not None:
        return found.probability_worse
    prior = np.exp(bundle.evidence.log_prior) if bundle.evidence else np.ones(len(LOG_RATIOS))
    return float(prior[np.log(HARMFUL_RATIO) < LOG_RATIOS].sum() / prior.sum())


def run(
    seed: Seed = 0,
    seeds: Seeds = 20,
    engine: EngineKind = Kind.PROCESSES,
    *,
    quick: Quick = False,
) -> Table:
    """Precision of checks by a tenant's own history, by the bundle, and by both, after 13 and 26 weeks."""
    return Table(summary(by_seed(engine, _of_cloud, quick, range(seed, seed + seeds))))
