"""How well the provider learns from a year of the `standard` scenario: without privacy, at epsilon 1 and at epsilon 2.

Each seed is a cloud of its own, with planted truth. From it comes what the federation would have opened window by
window, without the cost of the federation: exact tables by the tenants' own counting rules, rows by the provider's own
plans, under noise of the law that all tenants together add (their shares of discrete Laplace noise add up to one share
of the summed size), and the release gate. `provider_server.fleet.learning.findings.learn` sees these releases and the
leases, and nothing else. Masks, messages, ledgers and databases are left out: none of them changes a released number.

`auroc`, `average_precision`   how well `probability_worse` ranks planted pairs among all rows of a single workload;
                               the mean over seeds
`false_discovery_rate`         share of unplanted pairs among those that are called worse, at nominally 5%, of all seeds
`interval_coverage`            share of the 95% intervals of hazards that hold the truth: infrastructure failures per
                               node-hour of a context, build-up level and age band, of the leases that really ran there
`planted_ratio_coverage`       the same of the ratios of planted pairs, whose truth is the planted factor
`found_share`                  share of the planted pairs that are called worse

Not promised: that a real cloud has main effects that multiply, as this one does; nor figures that agree from run to run
to more than the noise allows, which is fresh each time. The cloud of a seed is always the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from itertools import pairwise
from math import ceil
from types import MappingProxyType
from typing import TypedDict

import msgspec
import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from crypto.ids import LeaseId, RoundId, TenantId
from crypto.masking import MaskKey, Words, add_words
from federation.protocol import noise
from federation.protocol.bundle import PairJudgement
from federation.protocol.noise import Integers, NoiseSampler, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK, MaskTrustee, Plan
from provider_server.fleet.exposure import Slices, expose
from provider_server.fleet.learning.findings import Findings, learn
from provider_server.fleet.learning.verdicts import PairFinding
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Answered, Release
from provider_server.rounds.opening import release
from provider_server.rounds.planning import PlanSettings, make_plan
from simulation.cloud import cloud as world
from simulation.cloud.scenario import Scenario, load
from simulation.cloud.truth import context_features
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.run.play import settings_of
from simulation.studies.study import Quick, Seed, Seeds, Table, by_seed
from tenant_client.doctor.records.journal import Failure, LabelledFailure
from tenant_client.rounds.counts import build_tables

EPSILONS: Mapping[str, float | None] = MappingProxyType({"without_privacy": None, "epsilon_1": 1.0, "epsilon_2": 2.0})
QUICK_WEEKS, QUICK_WINDOWS, QUICK_JOBS = 6, (2, 4, 6), 1500
SELECTION_KEY = bytes(32)  # which of a unit's failures counts: in the federation each tenant's secret
Telling = Callable[[int, int, str], str]  # what a tenant writes down as the reason of a failure of a workload
NO_TRUSTEE = MaskTrustee(1, MaskKey(bytes(32)).public)


@dataclass(frozen=True, eq=False)
class Year:
    """A cloud as the provider knows it (leases, their slices by round), and what the tenants count for each plan."""

    cloud: world.Cloud
    leases: tuple[Lease, ...]
    plans: tuple[Plan, ...]
    slices: tuple[Slices, ...]
    exact: tuple[tuple[Integers, ...], ...]


@dataclass(frozen=True)
class Judged:
    """One set of findings beside the truth of its cloud; `true` and `false` count published pairs."""

    auroc: float
    average_precision: float
    true: int
    false: int
    hazards_covered: tuple[bool, ...]
    planted_covered: tuple[bool, ...]


def of_seed(shared: tuple[NoiseSampler, bool], seed: int) -> list[tuple[str, Judged]]:
    """The judgements of a seed's cloud; of a small one it is quick, and shows no more than that it runs."""
    sampler, quick = deepcopy(shared)  # a sampler may have a state, which the next seed must not find changed
    scenario = small(load("standard")) if quick else load("standard")
    year = live(scenario, seed)
    truth = true_rates(year)
    return [
        (name, judge(year, truth, learn(releases(year, epsilon, sampler), year.leases)))
        for name, epsilon in EPSILONS.items()
    ]


class LearningFigures(TypedDict):
    """The accuracy of findings at one level of privacy."""

    auroc: float
    average_precision: float
    false_discovery_rate: float
    interval_coverage: float
    planted_ratio_coverage: float
    found_share: float


def summary(judged: Sequence[tuple[str, Judged]]) -> dict[str, LearningFigures]:
    """Means over seeds by level of privacy; the false discovery rate and coverages are of all seeds together."""
    return {name: _mean([one for level, one in judged if level == name]) for name in EPSILONS}


def _mean(judged: Sequence[Judged]) -> LearningFigures:
    published = sum(one.true + one.false for one in judged)
    return {
        "auroc": float(np.mean([one.auroc for one in judged])),
        "average_precision": float(np.mean([one.average_precision for one in judged])),
        "false_discovery_rate": sum(one.false for one in judged) / max(1, published),
        "interval_coverage": float(np.mean([held for one in judged for held in one.hazards_covered])),
        "planted_ratio_coverage": float(np.mean([held for one in judged for held in one.planted_covered])),
        "found_share": sum(one.true for one in judged) / sum(len(one.planted_covered) for one in judged),
    }


def run(
    seed: Seed = 0,
    seeds: Seeds = 20,
    engine: EngineKind = Kind.PROCESSES,
    *,
    quick: Quick = False,
) -> Table:
    """Accuracy of findings from a year of the standard scenario: without privacy, at epsilon 1 and 2."""
    shared = SystemSampler(), quick
    return Table(summary(by_seed(engine, of_seed, shared, range(seed, seed + seeds))))


def small(scenario: Scenario) -> Scenario:
    """The same cloud with fewer weeks and jobs."""
    share = QUICK_JOBS / scenario.jobs_per_week
    failures = {domain: share * rate for domain, rate in scenario.failures_per_week.items()}
    return msgspec.structs.replace(
        scenario,
        weeks=QUICK_WEEKS,
        windows=QUICK_WINDOWS,
        jobs_per_week=QUICK_JOBS,
        failures_per_week=MappingProxyType(failures),
    )


# ---- the year --------------------------------------------------------------------------------------------------------


def settings_for(scenario: Scenario, epsilon: float) -> PlanSettings:
    """The scenario's settings at that epsilon."""
    return settings_of(msgspec.structs.replace(scenario, epsilon=epsilon))


def as_it_was(_: int, __: int, reason: str) -> str:
    """A tenant that knows the reason of every failure."""
    return reason


def live(scenario: Scenario, seed: int, told: Telling = as_it_was) -> Year:
    """The cloud of a seed with its plans, exposure and exact tables of what tenants told; everything but noise."""
    year = begun(world.build_cloud(scenario, np.random.default_rng(seed)))
    while (later := with_next_round(year, told)) is not None:
        year = later
    return year


def begun(cloud: world.Cloud) -> Year:
    """A cloud before its first round."""
    return Year(cloud, tuple(_leases(cloud, settings_of(cloud.scenario).weeks_per_epoch)), (), (), ())


def relocated(year: Year, cloud: world.Cloud) -> Year:
    """The year with its leases where that cloud has them; rounds so far stay as they are."""
    return replace(begun(cloud), plans=year.plans, slices=year.slices, exact=year.exact)


def with_next_round(year: Year, told: Telling = as_it_was) -> Year | None:
    """The year with one more round; None where the scenario's weeks are over."""
    cloud, leases, plans = year.cloud, year.leases, year.plans
    since = plans[-1].end_hour if plans else 0
    window = next_window(settings_of(cloud.scenario), since)
    if window[1] > cloud.scenario.weeks * HOURS_PER_WEEK:
        return None
    plan = _plan(cloud, leases, window)
    own = [leases[row] for row in running(cloud, *window)]
    starts = dict.fromkeys((lease.tenant for lease in own), float(since))
    slices = Slices.by_window(starts, own, window, plan.band_edges_hours)
    exact = build_tables(plan, failures(cloud, leases, *window, told), SELECTION_KEY)
    return replace(year, plans=(*plans, plan), slices=(*year.slices, slices), exact=(*year.exact, exact))


def next_window(settings: PlanSettings, since: int) -> tuple[int, int]:
    """The window that begins at an hour."""
    edges = settings.edges(since // (settings.weeks_per_epoch * HOURS_PER_WEEK))
    return next(window for window in pairwise(edges) if window[0] == since)


def retold(year: Year, told: Telling) -> Year:
    """The same year if tenants had told their failures so."""
    counts = (
        build_tables(plan, failures(year.cloud, year.leases, *plan.window, told), SELECTION_KEY) for plan in year.plans
    )
    return replace(year, exact=tuple(counts))


def running(cloud: world.Cloud, start_hour: float, end_hour: float) -> list[int]:
    """The rows of the leases that run at some time within these hours."""
    found: list[int] = np.flatnonzero((cloud.leases.start_h < end_hour) & (cloud.leases.end_h > start_hour)).tolist()
    return found


def _leases(cloud: world.Cloud, weeks_per_epoch: int) -> Iterator[Lease]:
    """The leases; tokens say what they stand for, and in each epoch their numbers go on from the one before."""
    names = ("tenant", "workload", "context", "level", "nodes", "start_h", "end_h")
    columns = [getattr(cloud.leases, name).tolist() for name in names]
    tenants = [tenant_id(number) for number in range(cloud.scenario.tenants)]
    labels_of_all = cache(partial(labels_of, cloud.scenario))  # leases of one kind share theirs
    for row, (tenant, workload, context, level, nodes, start_h, end_h) in enumerate(zip(*columns, strict=True)):
        epoch = int(start_h // (weeks_per_epoch * HOURS_PER_WEEK))
        labels = labels_of_all(epoch, workload, context, level)
        yield Lease(LeaseId(row.to_bytes(LeaseId.length, "big")), tenants[tenant], nodes, start_h, end_h, labels)


def labels_of(scenario: Scenario, epoch: int, workload: int, context: int, level: int) -> dict[str, str]:
    """The tokens of a workload on a context in an epoch."""
    archetype = workload // scenario.versions_per_archetype + epoch * scenario.archetypes
    place = context + epoch * scenario.contexts
    return {
        "subarchetype": f"workload {workload + epoch * scenario.workloads}",
        "archetype": f"archetype {archetype}",
        "family": f"family {epoch}",
        "context": f"context {place}",
        "context_level": f"context {place} level {level}",
    }


def features(scenario: Scenario) -> dict[str, tuple[str, ...]]:
    """The features of the contexts of the first epoch, by their tokens."""
    return {f"context {number}": own for number, own in enumerate(context_features(scenario.contexts))}


def tenant_id(number: int) -> TenantId:
    """What a tenant of the cloud is called."""
    return TenantId(sha256(b"tenant %d" % number).digest()[: TenantId.length])


def _plan(cloud: world.Cloud, leases: Sequence[Lease], window: tuple[int, int]) -> Plan:
    """The provider's plan of a round, from each tenant's first leases of every token in the epoch so far.

    More of them would make the same rows.
    """
    settings = settings_for(cloud.scenario, cloud.scenario.epsilon)
    epoch_hours = settings.weeks_per_epoch * HOURS_PER_WEEK
    begins = window[0] // epoch_hours * epoch_hours
    rows = cloud.leases
    since, until = (int(np.searchsorted(rows.start_h, hour)) for hour in (begins, window[1]))
    places = rows.context * cloud.scenario.buildup_levels + rows.level
    first = set()
    for token in (rows.workload, places):
        owned = rows.tenant[since:until] * (int(token.max()) + 1) + token[since:until]
        first.update((since + np.unique(owned, return_index=True)[1]).tolist())
    round_id = RoundId(window[0].to_bytes(RoundId.length, "big"))
    known = [leases[row] for row in sorted(first)]
    return make_plan(settings, round_id, window, known, [NO_TRUSTEE], members=cloud.scenario.tenants)


def failures(
    cloud: world.Cloud, leases: Sequence[Lease], start_hour: int, end_hour: int, told: Telling = as_it_was
) -> Iterator[LabelledFailure]:
    """The failures within these hours, as their tenants tell them, with the labels of their leases."""
    for failure in cloud.failures_within(start_hour, end_hour):
        row = row_of(failure.lease_id)
        reason = told(int(cloud.leases.tenant[row]), int(cloud.leases.workload[row]), failure.reason)
        yield LabelledFailure(Failure(failure.lease_id, failure.at_h, failure.age_h, reason), leases[row].labels)


def row_of(lease: str) -> int:
    """The row of a lease by its name in the cloud."""
    return int(lease.rpartition("-")[2])


# ---- what is released ------------------------------------------------------------------------------------------------


def releases(year: Year, epsilon: float | None, sampler: NoiseSampler) -> list[Release]:
    """The year's releases at an epsilon; for None those of the scenario's with exact counts."""
    settings = settings_for(year.cloud.scenario, epsilon or year.cloud.scenario.epsilon)
    made = [
        opened(year, number, noise_of(plan, year.cloud.scenario.tenants, sampler), plan)
        for number, plan in enumerate(_at(plan, settings) for plan in year.plans)
    ]
    return made if epsilon else without_privacy(year, made)


def opened(year: Year, number: int, drawn: Words, plan: Plan | None = None) -> Release:
    """The release of a round when all tenants answer; `drawn` is the noise of all, `plan` the year's if left out."""
    plan = plan or year.plans[number]
    answered = [Answered(tenant_id(one), plan.start_hour) for one in range(year.cloud.scenario.tenants)]
    return release(plan, noise.to_ring(plan, year.exact[number]) + drawn, answered, expose(plan, year.slices[number]))


def without_privacy(year: Year, noisy: Sequence[Release]) -> list[Release]:
    """The same releases with the counts that noise would have hidden."""
    made: list[Release] = []
    for one, counts in zip(noisy, year.exact, strict=True):
        pairs = zip(one.tables, counts, strict=True)
        made.append(replace(one, tables=tuple(table.without_privacy(own.astype(np.float64)) for table, own in pairs)))
    return made


def _at(plan: Plan, settings: PlanSettings) -> Plan:
    scales = zip(plan.marginals, settings.scales(), strict=True)
    marginals = tuple(msgspec.structs.replace(marginal, noise_scale=scale) for marginal, scale in scales)
    return msgspec.structs.replace(plan, epsilon=settings.epsilon, marginals=marginals)


def noise_of(plan: Plan, tenants: int, sampler: NoiseSampler) -> Words:
    """The sum of all tenants' shares, flat over the cells of a plan, in the ring, from as few draws as there may be.

    Gaussian shares add up to nearly that, within the accountant's tolerance, and Laplace shares exactly.
    """
    opened = tenants * plan.shares.of(plan.honest(tenants))
    draws = ceil(opened)  # a share is the whole noise at most
    return add_words(noise.noise_share(plan, sampler, opened / draws) for _ in range(draws))


# ---- the truth -------------------------------------------------------------------------------------------------------


def true_rates(year: Year) -> dict[tuple[str, str], float]:
    """Expected infrastructure failures per node-hour, by context level and band, of the leases that ran."""
    rows, hazard, levels = year.cloud.leases, year.cloud.hazard, year.cloud.scenario.buildup_levels
    epoch_hours = settings_of(year.cloud.scenario).weeks_per_epoch * HOURS_PER_WEEK
    epochs = 1 + int(rows.start_h[-1] // epoch_hours)
    totals = np.zeros((2, epochs * year.cloud.scenario.contexts * levels, len(hazard.band)))
    for slices in year.slices:
        own = np.array([int.from_bytes(lease.lease, "big") for lease in slices.leases])
        workload, context, level = rows.workload[own], rows.context[own], rows.level[own]
        place = context + (rows.start_h[own] // epoch_hours).astype(np.intp) * year.cloud.scenario.contexts
        failures = slices.node_hours * hazard.per_node_hour(workload, context, level)[:, None] * hazard.band
        for total, values in zip(totals, (failures, slices.node_hours), strict=True):
            np.add.at(total, place * levels + level, values)
    return {
        (f"context {place // levels} level {place % levels}", str(band)): float(totals[0, place, band] / hours)
        for (place, band), hours in np.ndenumerate(totals[1])
        if hours > 0
    }


def judge(year: Year, truth: Mapping[tuple[str, str], float], findings: Findings, epoch: int = 0) -> Judged:
    """Findings of an epoch's tokens beside the truth; of hazards, where something ran in the epoch."""
    known = list(numbered(year, findings, epoch))
    pairs, planted = [pair for pair, _ in known], np.array([one in year.cloud.mismatched for _, one in known])
    said = np.array([pair.probability_worse for pair in pairs])
    chosen = np.array([pair.judgement is PairJudgement.WORSE for pair in pairs])
    factor = year.cloud.scenario.mismatch_factor
    rates = [rate for rate in findings.rates if (rate.context_level, rate.band) in truth]
    return Judged(
        float(roc_auc_score(planted, said)),
        float(average_precision_score(planted, said)),
        int(planted[chosen].sum()),
        int((~planted[chosen]).sum()),
        tuple(rate.low <= truth[rate.context_level, rate.band] <= rate.high for rate in rates),
        tuple(pair.low <= factor <= pair.high for pair, is_planted in zip(pairs, planted, strict=True) if is_planted),
    )


def numbered(year: Year, findings: Findings, epoch: int) -> Iterator[tuple[PairFinding, tuple[int, int]]]:
    """The pairs of single workloads whose tokens are of an epoch, with the numbers of workload and context."""
    scenario = year.cloud.scenario
    for pair in findings.pairs:
        if pair.workload.startswith("workload "):
            of_workload, workload = divmod(_number(pair.workload), scenario.workloads)
            of_context, context = divmod(_number(pair.context), scenario.contexts)
            if of_workload == of_context == epoch:
                yield pair, (workload, context)


def _number(token: str) -> int:
    return int(token.rpartition(" ")[2])
