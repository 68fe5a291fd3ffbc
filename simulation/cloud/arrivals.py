"""Jobs arrive and become leases: each client sends its own, some submissions fail by their own fault, the last runs.

Everything random is drawn once, as a `Draft`; `lay_out` turns it into leases for given hours to a fault. So calibration
can stretch these hours and lay the same draft out again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from federation.protocol.causes import Domain
from federation.protocol.plan import HOURS_PER_WEEK
from simulation.cloud.profiles import ClientProfile, Floats, Ints
from simulation.cloud.scenario import Scenario
from simulation.cloud.truth import draw_level_shares

_LONGEST_JOB_H = 2 * HOURS_PER_WEEK
_SHORTEST_JOB_H = 0.5
# Hours to a framework or script failure are log-normal: half fail early, a few after days.
_FAULT_SIGMA = 2.0
_FIX_MEDIAN_H, _FIX_SIGMA = 0.5, 0.8


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs as columns; times are hours since the simulation began."""

    tenant: Ints
    workload: Ints
    nodes: Ints
    start_h: Floats
    end_h: Floats


@dataclass(frozen=True, eq=False)
class Leases:
    """Leases as columns, by time of start. `fault` is the index in `Domain` of the failure that ends it, 0 for none."""

    tenant: Ints
    workload: Ints
    context: Ints
    level: Ints
    nodes: Ints
    start_h: Floats
    end_h: Floats
    fault: Ints


@dataclass(frozen=True, eq=False)
class Draft:
    """Everything random about leases, so that calibration can lay them out anew without drawing again.

    Rows of `context` and `level_draw` (uniform on [0, 1)) are those of `jobs`, then one per faulty submission: of job
    `faulty`, for a cause in domain `fault`, failing after `stretch` times the domain's median, mended in `fix_h` hours.
    `level_shares` has shape (contexts, weeks, levels).
    """

    jobs: Jobs
    context: Ints
    level_draw: Floats
    level_shares: Floats
    faulty: Ints
    fault: Ints
    stretch: Floats
    fix_h: Floats


def draw_jobs(scenario: Scenario, clients: Sequence[ClientProfile], job_weeks: float, rng: Generator) -> Jobs:
    """Jobs whose leases make up `job_weeks` job-weeks in each week; those that run when it begins start at hour 0."""
    weeks = np.arange(-int(_LONGEST_JOB_H / HOURS_PER_WEEK), scenario.weeks)
    most = int(1.5 * job_weeks * len(weeks)) + 100
    tenant, week = _arrivals(clients, len(weeks), most, rng)
    start = HOURS_PER_WEEK * (weeks[week] + rng.random(most))
    end = start + _hours(clients, tenant, rng)
    nodes = _sizes(clients, scenario.largest_job_nodes, tenant, rng)
    workload = pick(rng.random(most), tenant, _mixes(clients, scenario.workloads))
    running = np.flatnonzero((end > 0) & (start >= _begins_h(scenario)[workload]))
    first = np.maximum(start[running], 0.0) // HOURS_PER_WEEK
    slices = np.minimum(np.ceil(end[running] / HOURS_PER_WEEK), scenario.weeks) - first
    kept = running[: int(np.searchsorted(np.cumsum(slices), job_weeks * scenario.weeks))]
    return Jobs(tenant[kept], workload[kept], nodes[kept], np.maximum(start[kept], 0.0), end[kept])


def _begins_h(scenario: Scenario) -> Floats:
    """The hour from which each workload is run: half-way for late versions, the newest of their archetypes."""
    version = np.arange(scenario.workloads) % scenario.versions_per_archetype
    late = version >= scenario.versions_per_archetype - scenario.late_versions
    return np.where(late, HOURS_PER_WEEK * (scenario.weeks // 2), -np.inf)


def _arrivals(clients: Sequence[ClientProfile], weeks: int, jobs: int, rng: Generator) -> tuple[Ints, Ints]:
    """Tenant and week of each job: every tenant's load wanders from week to week by its own burstiness."""
    shares = np.array([[client.share] for client in clients])
    sigmas = np.array([[client.burstiness] for client in clients])
    load = shares * rng.lognormal(0.0, sigmas, (len(clients), weeks))
    flat = rng.choice(load.size, jobs, p=load.ravel() / load.sum())
    return flat // weeks, flat % weeks


def _hours(clients: Sequence[ClientProfile], tenant: Ints, rng: Generator) -> Floats:
    median = np.array([client.median_h for client in clients])[tenant]
    sigma = np.array([client.duration_sigma for client in clients])[tenant]
    return np.clip(median * rng.lognormal(0.0, sigma), _SHORTEST_JOB_H, _LONGEST_JOB_H)


def _sizes(clients: Sequence[ClientProfile], largest: int, tenant: Ints, rng: Generator) -> Ints:
    decays = np.array([[client.size_decay] for client in clients])
    shares = np.exp(-decays * np.arange(largest.bit_length()))
    exponent = pick(rng.random(len(tenant)), tenant, shares / shares.sum(axis=1, keepdims=True))
    return np.left_shift(np.ones_like(exponent), exponent)


def _mixes(clients: Sequence[ClientProfile], workloads: int) -> Floats:
    """Each client's share of each workload: shape (clients, workloads)."""
    mixes = np.zeros((len(clients), workloads))
    for row, client in zip(mixes, clients, strict=True):
        row[list(client.workloads)] = client.workload_shares
    return mixes


def pick(uniform: Floats, row: Ints, shares: Floats) -> Ints:
    """One choice per entry: entry i follows `shares[row[i]]`. `uniform` and `row` have shape (n,), rows sum to 1."""
    choices = shares.shape[1]
    cumulated = np.cumsum(shares, axis=1) + np.arange(len(shares))[:, None]
    chosen: Ints = np.searchsorted(cumulated.ravel(), uniform + row, side="right") - choices * row
    return np.clip(chosen, 0, choices - 1)


def draw_draft(scenario: Scenario, clients: Sequence[ClientProfile], rng: Generator) -> Draft:
    """Jobs, the faulty submissions that come before some of them (more with some clients), and where each one lands."""
    rates = scenario.failures_per_week
    jobs = draw_jobs(scenario, clients, scenario.jobs_per_week - rates[Domain.FRAMEWORK] - rates[Domain.SCRIPT], rng)
    bugs = np.array([client.bugs for client in clients])[jobs.tenant] * (jobs.start_h > 0)
    counts = [int(rng.poisson(rates[domain] * scenario.weeks)) for domain in (Domain.FRAMEWORK, Domain.SCRIPT)]
    faulty = np.sort(rng.choice(len(bugs), sum(counts), p=bugs / bugs.sum()))
    tenant = np.concatenate([jobs.tenant, jobs.tenant[faulty]])
    return Draft(
        jobs=jobs,
        context=pick(rng.random(len(tenant)), tenant, np.array([client.context_shares for client in clients])),
        level_draw=rng.random(len(tenant)),
        level_shares=draw_level_shares(scenario, rng),
        faulty=faulty,
        fault=rng.permutation(np.repeat([1, 2], counts)),
        stretch=rng.lognormal(0.0, _FAULT_SIGMA, len(faulty)),
        fix_h=rng.lognormal(np.log(_FIX_MEDIAN_H), _FIX_SIGMA, len(faulty)),
    )


def lay_out(draft: Draft, medians_h: Floats) -> Leases:
    """Leases in order of start: faulty submissions one after another, each mended, and then the job that runs.

    `medians_h` are hours to a failure by domain. A faulty submission that would begin before hour 0 is left out.
    """
    jobs = draft.jobs
    job = np.concatenate([np.arange(len(jobs.tenant)), draft.faulty])
    length = hours_to_fault(draft, medians_h)
    begin = jobs.start_h[draft.faulty] - _sum_to_end(length + draft.fix_h, draft.faulty)
    start = np.concatenate([jobs.start_h, begin])
    end = np.concatenate([jobs.end_h, begin + length])
    fault = np.concatenate([np.zeros(len(jobs.tenant), dtype=np.int64), draft.fault])
    order = np.argsort(start, kind="stable")
    order = order[np.searchsorted(start[order], 0.0) :]
    job = job[order]
    return Leases(
        tenant=jobs.tenant[job],
        workload=jobs.workload[job],
        context=draft.context[order],
        level=_levels(draft, start)[order],
        nodes=jobs.nodes[job],
        start_h=start[order],
        end_h=end[order],
        fault=fault[order],
    )


def _levels(draft: Draft, start_h: Floats) -> Ints:
    """Build-up level of the nodes that each lease gets, by the shares of its context in the week of its start."""
    contexts, weeks, levels = draft.level_shares.shape
    week = np.clip(start_h // HOURS_PER_WEEK, 0, weeks - 1).astype(np.int64)
    return pick(draft.level_draw, draft.context * weeks + week, draft.level_shares.reshape(contexts * weeks, levels))


def hours_to_fault(draft: Draft, medians_h: Floats) -> Floats:
    """Hours that each faulty submission runs, given the median of each domain; none outlasts the longest job."""
    return np.minimum(medians_h[draft.fault] * draft.stretch, _LONGEST_JOB_H)


def _sum_to_end(values: Floats, group: Ints) -> Floats:
    """For each entry, the sum from it to the last entry of its group; `group` is sorted."""
    total = np.cumsum(values)
    last = np.searchsorted(group, group, side="right") - 1
    return total[last] - total + values
