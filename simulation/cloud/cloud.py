"""A simulated cloud with ground truth: which lease ran what, where and when, and what failed.

`build_cloud` draws tenants, workloads, contexts and every lease and failure of the whole horizon at once; `Cloud.week`
hands them out week by week. Everything follows from the scenario and the generator. What it promises:

- A lease keeps its context, build-up level and nodes for life and may span weeks; a job-week is a lease within a week.
- Infrastructure failures restart the job within its lease; they are a Poisson process with the rates of `truth.Hazard`,
  times the lease's frailty and what its context's weeks differ by.
- With `node_faults`, nodes have names and histories: some are lemons, repairs do not always cure, several may fail at
  once, weeks differ. The expected number of each lease's failures stays what it was, less those while a node is down.
  Calibration knows nothing of it: domains share the lost node-hours within six points.
- Framework and script failures end their lease early; the user mends the job and submits it again, as a new lease. How
  many there are depends on the tenant only, never on the hardware: a negative control for who looks for mismatches.
- `acme_mix` follows Acme's Table 3 (Hu et al., NSDI 2024). Reasons within a domain come in its proportions, and those
  that cost Acme more GPU time per failure come with the failures that cost more node-hours. Domains share the lost
  node-hours as in the table, 82.1 / 14.7 / 3.2% for infrastructure, framework and script, within three points. As
  there, a failure loses the node-hours of its attempt: nodes × hours since the lease began or last restarted.

What it does not promise: the domains' shares by count. In Acme infrastructure makes 11% of failures; the 300 that
quickstart counts in a week would come with 2,450 others, each a lease of its own, among 1,000 job-weeks. Scenarios keep
the infrastructure failures and the shares of lost time and have fewer framework and script failures (about a sixth of
all failures each). Each of these therefore loses more, against one of infrastructure, than it does in Acme, and takes
longer: half of the script failures come within the first hour, not the first minutes.

Busy job-weeks on bad hardware fail often, so a limit of one counted failure per job-week drops about half of all
infrastructure failures, most of them where the rate is highest: counted failures over exposure understate high rates
(in quickstart a planted factor of 8 shows as one of about 2.5).

    >>> from simulation.cloud.scenario import load
    >>> cloud = build_cloud(load("tiny"), np.random.default_rng(1))
    >>> len(cloud.workloads), len(cloud.mismatched)
    (6, 1)
    >>> all(lease.end_h > 0 for lease in cloud.week(0).leases)
    True
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from federation.protocol.causes import CAUSES, Cause, Domain, causes_of
from federation.protocol.plan import HOURS_PER_WEEK
from simulation.cloud.arrivals import Draft, Leases, draw_draft, hours_to_fault, lay_out
from simulation.cloud.node_places import Strikes, strikes
from simulation.cloud.profiles import ClientProfile, Floats, Ints, WorkloadProfile, draw_clients, draw_workloads
from simulation.cloud.scenario import Scenario
from simulation.cloud.truth import (
    Hazard,
    draw_hazard,
    draw_unsteadiness,
    expected_lost_node_hours,
    solve,
    solve_base,
)

_MEDIAN_HOURS_TO_FAULT = (0.0, 2.0, 0.15)  # by domain; with acme_mix, they follow from the time to lose
_SEVERITY_SIGMA = 0.5  # how loosely a reason's cost in Acme orders the failures that it is given to
_CALIBRATION_ROUNDS = 4
_DOMAINS = tuple(Domain)


@dataclass(frozen=True)
class Lease:
    """An allocation of `nodes` to one tenant, in hours since the simulation began; `end_h` may lie beyond its end."""

    lease_id: str
    tenant: int
    workload: int
    context: int
    level: int
    nodes: int
    start_h: float
    end_h: float

    def node_hours(self, from_h: float, to_h: float) -> float:
        """Exposure within [from_h, to_h), in node-hours."""
        return self.nodes * max(0.0, min(self.end_h, to_h) - max(self.start_h, from_h))


@dataclass(frozen=True)
class Failure:
    """A failure `at_h` hours since the simulation began, `age_h` since its lease did; `reason` is a key of `CAUSES`."""

    lease_id: str
    at_h: float
    age_h: float
    reason: str


@dataclass(frozen=True)
class Week:
    """Leases that ran within a week (each a job-week) by time of start, and the failures within it by time."""

    leases: tuple[Lease, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, eq=False)
class Failures:
    """Failures as columns, by time. `lease` is the row in `Leases`, `reason` the row in `CAUSES`."""

    lease: Ints
    age_h: Floats
    at_h: Floats
    reason: Ints


@dataclass(frozen=True, eq=False)
class Struck:
    """Which node each failure struck and when that node was back, in the order of `Failures`; -1 and nan for none."""

    node: Ints
    back_h: Floats


@dataclass(frozen=True, eq=False)
class Cloud:
    """A whole simulated cloud. Tenants, workloads, contexts, levels and bands are indices from 0.

    `struck` is there with the scenario's `node_faults`.
    """

    scenario: Scenario
    clients: tuple[ClientProfile, ...]
    workloads: tuple[WorkloadProfile, ...]
    hazard: Hazard
    leases: Leases
    failures: Failures
    struck: Struck | None = None

    @property
    def mismatched(self) -> frozenset[tuple[int, int]]:
        """The planted pairs (workload, context)."""
        return frozenset((int(row), int(column)) for row, column in np.argwhere(self.hazard.mismatch > 1))

    def true_infrastructure_rate(self, workload: int, context: int, level: int, band: int) -> float:
        """Infrastructure failures per node-hour."""
        rate = self.hazard.per_node_hour(np.array(workload), np.array(context), np.array(level))
        return float(rate * self.hazard.band[band])

    def week(self, week: int) -> Week:
        """What ran and what failed in week `week`, from 0; IndexError beyond the scenario's weeks."""
        if not 0 <= week < self.scenario.weeks:
            raise IndexError(f"week {week} of a scenario of {self.scenario.weeks} weeks")
        begin, end = week * HOURS_PER_WEEK, (week + 1) * HOURS_PER_WEEK
        running = np.flatnonzero((self.leases.start_h < end) & (self.leases.end_h > begin))
        return Week(_lease_rows(self.leases, running), self.failures_within(begin, end))

    def failures_within(self, start_h: float, end_h: float) -> tuple[Failure, ...]:
        """The failures in [start_h, end_h), by time."""
        first, last = np.searchsorted(self.failures.at_h, (start_h, end_h))
        return _failure_rows(self.failures, np.arange(first, last))


def build_cloud(scenario: Scenario, rng: Generator) -> Cloud:
    """Draw a cloud: who runs what, the true hazard, and every lease and failure of `scenario.weeks` weeks."""
    workloads = draw_workloads(scenario, rng)
    clients = draw_clients(scenario, rng)
    hazard = draw_hazard(scenario, clients, rng)
    draft = draw_draft(scenario, clients, rng)
    leases, hazard = _calibrated(scenario, draft, hazard)
    failures, struck = _draw_failures(scenario, leases, hazard, rng)
    return Cloud(scenario, clients, workloads, hazard, leases, failures, struck)


def moved(cloud: Cloud, context: Ints, rng: Generator) -> Cloud:
    """The same cloud with its leases on these contexts; infrastructure failures of those that moved are drawn anew.

    `context` has an entry per lease. Levels stay, contexts are as in weeks without bursts or drift, and nodes have no
    history.
    """
    leases, own = replace(cloud.leases, context=context), cloud.failures
    changed = context != cloud.leases.context
    hours = _observed_hours(leases, cloud.scenario.weeks)
    kept = ~changed[own.lease] | (leases.end_h[own.lease] <= own.at_h)  # what ended a lease still does
    struck = np.repeat(np.arange(len(hours)), rng.poisson(_expected(leases, cloud.hazard, hours) * changed))
    age = cloud.hazard.age_h(rng.random(len(struck)) * cloud.hazard.effective_hours(hours[struck]))
    domain, cost = np.zeros(len(struck), np.int64), leases.nodes[struck] * age
    reason = _draw_reasons(domain, cost, rng, acme_mix=cloud.scenario.acme_mix)
    at = np.minimum(leases.start_h[struck] + age, leases.end_h[struck])
    pairs = ((own.lease, struck), (own.age_h, age), (own.at_h, at), (own.reason, reason))
    columns = [np.concatenate([old[kept], new]) for old, new in pairs]
    order = np.argsort(columns[2], kind="stable")
    return replace(cloud, leases=leases, failures=Failures(*(column[order] for column in columns)), struck=None)


def _calibrated(scenario: Scenario, draft: Draft, hazard: Hazard) -> tuple[Leases, Hazard]:
    """Leases and hazard that meet the scenario's failures a week and, with `acme_mix`, Acme's shares of lost time.

    Time lost to infrastructure sets the time to lose to faults, whose length changes exposure: a few rounds settle it.
    """
    leases, hazard = _at_target_rate(scenario, draft, hazard, np.array(_MEDIAN_HOURS_TO_FAULT))
    for _ in range(_CALIBRATION_ROUNDS if scenario.acme_mix else 0):
        lost = _lost_to_infrastructure(leases, hazard, scenario.weeks)
        leases, hazard = _at_target_rate(scenario, draft, hazard, _acme_medians(draft, leases, lost))
    return leases, hazard


def _at_target_rate(scenario: Scenario, draft: Draft, hazard: Hazard, medians_h: Floats) -> tuple[Leases, Hazard]:
    leases = lay_out(draft, medians_h)
    unit = _expected_by_job_week(leases, replace(hazard, base_per_node_hour=1.0), scenario.weeks)
    target = scenario.failures_per_week[Domain.INFRASTRUCTURE] * scenario.weeks
    return leases, replace(hazard, base_per_node_hour=solve_base(unit, scenario.failures_per_unit, target))


def _acme_medians(draft: Draft, leases: Leases, lost_to_infrastructure: Floats) -> Floats:
    """Median hours to a fault, by domain, at which lost node-hours are shared between domains as in Table 3.

    Faulty leases lose part of their node-hours to infrastructure, lease by lease as given, and so must run longer.
    """
    shares = [sum(cause.share_of_lost_gpu_time for cause in causes_of(domain)) for domain in _DOMAINS]
    nodes = draft.jobs.nodes[draft.faulty]

    def ran(domain: int, median_h: float) -> float:
        hours = hours_to_fault(draft, np.full(len(_DOMAINS), median_h))
        return float((nodes * hours)[draft.fault == domain].sum())

    medians = [0.0]
    for domain in (1, 2):
        of_domain = leases.fault == domain
        node_hours = (leases.nodes * (leases.end_h - leases.start_h))[of_domain].sum()
        own = 1 - lost_to_infrastructure[of_domain].sum() / node_hours
        target = lost_to_infrastructure.sum() * shares[domain] / shares[0]
        medians.append(solve(partial(ran, domain), target / own))
    return np.array(medians)


def _observed_hours(leases: Leases, weeks: int) -> Floats:
    return np.minimum(leases.end_h, weeks * HOURS_PER_WEEK) - leases.start_h


def _lost_to_infrastructure(leases: Leases, hazard: Hazard, weeks: int) -> Floats:
    hours = _observed_hours(leases, weeks)
    return expected_lost_node_hours(_expected(leases, hazard, hours), leases.nodes, hours)


def _expected(leases: Leases, hazard: Hazard, hours: Floats) -> Floats:
    """Infrastructure failures that each lease expects in its first `hours` hours."""
    rate = hazard.per_node_hour(leases.workload, leases.context, leases.level)
    return rate * leases.nodes * hazard.effective_hours(hours)


def _expected_by_job_week(leases: Leases, hazard: Hazard, weeks: int) -> Floats:
    """Infrastructure failures that each job-week expects; lease by lease, each in order of weeks."""
    hours = _observed_hours(leases, weeks)
    first = leases.start_h // HOURS_PER_WEEK
    slices = (np.ceil((leases.start_h + hours) / HOURS_PER_WEEK) - first).astype(np.int64)
    lease = np.repeat(np.arange(len(slices)), slices)
    nth = np.arange(len(lease)) - np.repeat(np.cumsum(slices) - slices, slices)
    begin = HOURS_PER_WEEK * (first[lease] + nth) - leases.start_h[lease]
    ages = np.clip(begin, 0.0, hours[lease]), np.clip(begin + HOURS_PER_WEEK, 0.0, hours[lease])
    rate = hazard.per_node_hour(leases.workload, leases.context, leases.level) * leases.nodes
    return rate[lease] * (hazard.effective_hours(ages[1]) - hazard.effective_hours(ages[0]))


def _draw_failures(
    scenario: Scenario, leases: Leases, hazard: Hazard, rng: Generator
) -> tuple[Failures, Struck | None]:
    """Infrastructure failures by their hazard, faults at the end of their leases, and a reason for each."""
    hours, more = _observed_hours(leases, scenario.weeks), hazard.mismatch[leases.workload, leases.context]
    frailty = np.ones(len(hours))
    if scenario.lease_frailty:
        frailty = rng.gamma(1 / scenario.lease_frailty, scenario.lease_frailty, len(hours))
    frailty *= draw_unsteadiness(scenario, rng)[leases.context, (leases.start_h // HOURS_PER_WEEK).astype(np.int64)]
    expected, nodes = _expected(leases, hazard, hours) * frailty, None
    if scenario.node_faults:
        nodes = strikes(leases, hazard, expected, hours, float(scenario.weeks * HOURS_PER_WEEK), rng)
        struck, struck_age = nodes.lease, nodes.age_h
    else:
        struck = np.repeat(np.arange(len(hours)), rng.poisson(expected))
        struck_age = hazard.age_h(rng.random(len(struck)) * hazard.effective_hours(hours[struck]))
    ended = np.flatnonzero((leases.fault > 0) & (leases.end_h < scenario.weeks * HOURS_PER_WEEK))
    lease = np.concatenate([struck, ended])
    age = np.concatenate([struck_age, hours[ended]])
    domain = np.concatenate([np.zeros(len(struck), dtype=np.int64), leases.fault[ended]])
    sort = np.lexsort((age, lease))
    lease, age, domain = lease[sort], age[sort], domain[sort]
    # What makes failures more frequent makes them of no other kinds: those that it adds do not count as restarts here.
    usual = (domain > 0) | (rng.random(len(lease)) < 1 / np.maximum((more * frailty)[lease], 1.0))
    cost = leases.nodes[lease] * _since_restart(lease, age, usual)
    reason = _draw_reasons(domain, cost, rng, acme_mix=scenario.acme_mix)
    at = np.minimum(leases.start_h[lease] + age, leases.end_h[lease])
    order = np.argsort(at)
    return Failures(lease[order], age[order], at[order], reason[order]), _struck(nodes, sort[order])


def _struck(nodes: Strikes | None, order: Ints) -> Struck | None:
    """Nodes in the order of failures, those of other domains last before it."""
    if nodes is None:
        return None
    others = len(order) - len(nodes.node)
    node, back_h = np.append(nodes.node, np.full(others, -1)), np.append(nodes.back_h, np.full(others, np.nan))
    return Struck(node[order], back_h[order])


def _since_restart(lease: Ints, age_h: Floats, usual: NDArray[np.bool_]) -> Floats:
    """Hours since each failure's lease began, or since its last `usual` failure; sorted by lease and age."""
    place = np.arange(len(lease))
    latest = np.maximum.accumulate(np.where(usual, place, -1))
    before = np.concatenate([[-1], latest[:-1]])
    same = (before >= 0) & (lease[before] == lease)
    return age_h - np.where(same, age_h[before], 0.0)


def _draw_reasons(domain: Ints, lost_node_hours: Floats, rng: Generator, *, acme_mix: bool) -> Ints:
    """A row of `CAUSES` for each failure, given its domain and, with `acme_mix`, what it cost."""
    rows = {slug: row for row, slug in enumerate(CAUSES)}
    reason = np.empty(len(domain), dtype=np.int64)
    for number, name in enumerate(_DOMAINS):
        chosen = np.flatnonzero(domain == number)
        causes = causes_of(name)
        observed = np.array([cause.observed if acme_mix else 1 for cause in causes], dtype=np.float64)
        drawn = rng.choice(len(causes), len(chosen), p=observed / observed.sum())
        if acme_mix:
            drawn = _matched(drawn, causes, lost_node_hours[chosen], rng)
        reason[chosen] = np.array([rows[cause.slug] for cause in causes])[drawn]
    return reason


def _matched(drawn: Ints, causes: Sequence[Cause], lost_node_hours: Floats, rng: Generator) -> Ints:
    """The drawn reasons in another order: those that cost Acme much go, loosely, to the failures that cost much here.

    A share printed as 0.00 counts as 0.0025, half of the most that rounds to it.
    """
    cost = np.log([max(cause.share_of_lost_gpu_time, 0.0025) / cause.observed for cause in causes])
    severity = cost[drawn] + rng.normal(0.0, _SEVERITY_SIGMA, len(drawn))
    matched = np.empty_like(drawn)
    matched[np.argsort(lost_node_hours)] = drawn[np.argsort(severity)]
    return matched


def _lease_id(row: int) -> str:
    return f"lease-{row:07d}"


def _lease_rows(leases: Leases, rows: Ints) -> tuple[Lease, ...]:
    names = ("tenant", "workload", "context", "level", "nodes", "start_h", "end_h")
    columns = [getattr(leases, name)[rows].tolist() for name in names]
    return tuple(Lease(_lease_id(row), *values) for row, *values in zip(rows.tolist(), *columns, strict=True))


def _failure_rows(failures: Failures, rows: Ints) -> tuple[Failure, ...]:
    slugs = tuple(CAUSES)
    columns = (failures.lease[rows].tolist(), failures.at_h[rows].tolist(), failures.age_h[rows].tolist())
    reasons = [slugs[row] for row in failures.reason[rows].tolist()]
    return tuple(Failure(_lease_id(row), at, age, why) for row, at, age, why in zip(*columns, reasons, strict=True))
