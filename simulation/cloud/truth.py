"""The true hazard of infrastructure failures, which only the simulation knows.

The rate per node-hour is a product: base × workload (archetype × version) × context × build-up level × age band, times
`mismatch_factor` for planted pairs of workload and context. It is piecewise constant in the age of the lease, and a
restart within the lease does not renew it; so failures of one lease are a Poisson process, and counts in groups are
exactly Poisson with rate times exposure as mean (Holford 1980; Laird & Olivier 1981). A version often behaves as the
one before: such versions form one sub-archetype.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammainc

from simulation.cloud.profiles import ClientProfile, Floats, Ints
from simulation.cloud.scenario import Scenario, ScenarioError

_ARCHETYPE_SIGMA, _VERSION_SIGMA, _CONTEXT_SIGMA = 0.25, 0.25, 0.25
_DRIVERS, _FIRMWARES, _IN_HALL = 4, 5, 5  # kinds of each, and contexts in a hall
_FOREVER_H = 1e6  # beyond every age: where the open band ends


@dataclass(frozen=True, eq=False)
class Hazard:
    """The factors of the hazard. `base_per_node_hour` is the rate where every factor is 1.

    Shapes: `workload` (workloads,), `context` (contexts,), `level` (levels,), `mismatch` (workloads, contexts) of 1 or
    the mismatch factor, `band` and `edges_h` (bands,).
    """

    base_per_node_hour: float
    workload: Floats
    context: Floats
    level: Floats
    mismatch: Floats
    band: Floats
    edges_h: Floats

    def per_node_hour(self, workload: Ints, context: Ints, level: Ints) -> Floats:
        """Failures per node-hour where the band factor is 1; indices of one shape give rates of that shape."""
        factors = self.workload[workload] * self.context[context] * self.level[level] * self.mismatch[workload, context]
        rate: Floats = self.base_per_node_hour * factors
        return rate

    def effective_hours(self, age_h: Floats) -> Floats:
        """Hours from the start of a lease to `age_h`, each weighted by its band's factor."""
        knots = np.append(self.edges_h, _FOREVER_H)
        return np.interp(age_h, knots, self._at_knots(knots))

    def age_h(self, effective_hours: Floats) -> Floats:
        """The age at which `effective_hours` are reached: the inverse of `effective_hours`."""
        knots = np.append(self.edges_h, _FOREVER_H)
        ages: Floats = np.interp(effective_hours, self._at_knots(knots), knots)
        return ages

    def _at_knots(self, knots: Floats) -> Floats:
        return np.concatenate(([0.0], np.cumsum(self.band * np.diff(knots))))


def draw_hazard(scenario: Scenario, clients: Sequence[ClientProfile], rng: Generator) -> Hazard:
    """All factors, with base 1; a factor's logarithm has mean zero."""
    archetype = rng.lognormal(0.0, _ARCHETYPE_SIGMA, (scenario.archetypes, 1))
    version = _version_factors(scenario, rng)
    return Hazard(
        base_per_node_hour=1.0,
        workload=(archetype * version).ravel(),
        context=rng.lognormal(0.0, _CONTEXT_SIGMA, scenario.contexts),
        level=np.array(scenario.buildup_factors),
        mismatch=plant_blocks(scenario, _mismatch(scenario, clients, rng), rng),
        band=np.array(scenario.age_band_factors),
        edges_h=np.array(scenario.age_band_edges_h),
    )


def _version_factors(scenario: Scenario, rng: Generator) -> Floats:
    shape = (scenario.archetypes, scenario.versions_per_archetype)
    factors = rng.lognormal(0.0, _VERSION_SIGMA, shape)
    as_before = rng.random(shape) < scenario.versions_as_before
    for version in range(1, scenario.versions_per_archetype):
        factors[:, version] = np.where(as_before[:, version], factors[:, version - 1], factors[:, version])
    return factors


def _mismatch(scenario: Scenario, clients: Sequence[ClientProfile], rng: Generator) -> Floats:
    """Pairs planted at random where enough tenants own the workload; neither too rare to tell nor too common to miss.

    Each planted workload keeps contexts that work, so that there is a better place to propose.
    """
    candidates = np.argwhere(_plantable(scenario, clients))
    factors = np.ones((scenario.workloads, scenario.contexts))
    planted = 0
    for workload, context in rng.permutation(candidates):
        spoilt = np.count_nonzero(factors[workload] > 1)
        if planted < scenario.mismatches and spoilt < scenario.contexts // 2:
            factors[workload, context] = scenario.mismatch_factor
            planted += 1
    if planted < scenario.mismatches:
        raise ScenarioError(
            f"{scenario.name}: {scenario.mismatches} mismatched pairs do not fit, {len(candidates)} could be planted",
            hint="ask for more tenants, a lower owners_minimum or fewer pairs",
        )
    return factors


def context_features(contexts: int) -> tuple[tuple[str, ...], ...]:
    """Driver, firmware and hall of each context: features that its inventory shows, crossed with one another."""
    return tuple(
        (
            f"driver {number % _DRIVERS}",
            f"firmware {number // 2 % _FIRMWARES}",
            f"hall {3 * number % contexts // _IN_HALL}",
        )
        for number in range(contexts)
    )


def plant_blocks(scenario: Scenario, factors: Floats, rng: Generator) -> Floats:
    """The factors (workloads, contexts) with those of shared defects.

    In turn of an archetype and a driver, of an archetype and one context (a batch), and of one workload and a hall.
    """
    features = np.array(context_features(scenario.contexts))
    versions = np.arange(scenario.workloads) // scenario.versions_per_archetype
    for number in range(scenario.mismatch_blocks):
        workload, context = rng.integers(scenario.workloads), rng.integers(scenario.contexts)
        alike, own = versions == versions[workload], np.arange(scenario.workloads) == workload
        rows, columns = (
            (alike, features[:, 0] == features[context, 0]),
            (alike, np.arange(scenario.contexts) == context),
            (own, features[:, 2] == features[context, 2]),
        )[number % 3]
        factors = np.where(np.outer(rows, columns), scenario.mismatch_factor, factors)
    return factors


def _plantable(scenario: Scenario, clients: Sequence[ClientProfile]) -> NDArray[np.bool_]:
    """Which pairs (workloads, contexts) have owners enough and get about their even share of all jobs."""
    owners = np.zeros(scenario.workloads)
    jobs = np.zeros((scenario.workloads, scenario.contexts))
    for client in clients:
        owners[list(client.workloads)] += 1
        jobs[list(client.workloads)] += client.share * np.outer(client.workload_shares, client.context_shares)
    rarest, commonest = scenario.mismatch_exposure
    return (owners >= scenario.owners_minimum)[:, None] & (jobs * jobs.size > rarest) & (jobs * jobs.size < commonest)


def draw_level_shares(scenario: Scenario, rng: Generator) -> Floats:
    """Share of each context's nodes at each build-up level by week: shape (contexts, weeks, levels), rows sum to 1.

    Nodes build up towards the highest level until maintenance takes the context back, every 8 to 24 weeks.
    """
    period = rng.uniform(8.0, 24.0, (scenario.contexts, 1))
    phase = rng.random((scenario.contexts, 1))
    progress = np.mod(np.arange(scenario.weeks) / period + phase, 1.0)
    steps = scenario.buildup_levels - 1
    chance = 0.05 + 0.5 * progress[:, :, None]
    binomial = np.array([comb(steps, level) for level in range(steps + 1)])
    shares: Floats = binomial * chance ** np.arange(steps + 1) * (1 - chance) ** np.arange(steps, -1, -1)
    return shares


def draw_unsteadiness(scenario: Scenario, rng: Generator) -> Floats:
    """By what each context's hazard differs for leases that start in a week: shape (contexts, weeks).

    Drift is a random walk around each context's own hazard, bursts are weeks at random. Nothing is drawn for neither.
    """
    shape = scenario.contexts, scenario.weeks
    factors = np.ones(shape)
    if scenario.context_drift:
        walk = np.cumsum(rng.normal(0.0, scenario.context_drift / np.sqrt(scenario.weeks), shape), axis=1)
        factors *= np.exp(walk - walk.mean(axis=1, keepdims=True))
    share, burst = scenario.context_bursts
    if share:
        factors[rng.random(shape) < share] *= burst
    return factors


def solve_base(effective_node_hours: Floats, most: int, counted: float) -> float:
    """The base rate at which `counted` failures are expected when each job-week counts `most` at most.

    `effective_node_hours` has one entry per job-week: its expected failures at base 1.
    """
    return solve(lambda base: expected_counted(base * effective_node_hours, most).sum(), counted)


def expected_counted(expected: Floats, most: int) -> Floats:
    """E[min(N, most)] for Poisson N of mean `expected`, entry by entry."""
    total = np.zeros_like(expected)
    for count in range(1, most + 1):
        total += gammainc(count, expected)  # P(N >= count)
    return total


def expected_lost_node_hours(failures: Floats, nodes: Ints, hours: Floats) -> Floats:
    """Node-hours that leases lose to infrastructure: E[age of the last failure] × nodes, at a rate constant in age.

    `failures` is the expected number over the lease's `hours`. All three have one entry per lease.
    """
    lost: Floats = nodes * hours * (1 + np.expm1(-failures) / np.maximum(failures, 1e-12))
    return lost


def solve(rising: Callable[[float], float], target: float) -> float:
    """Where the rising function of a positive number reaches `target`; ScenarioError where it never does."""
    try:
        return float(np.exp(brentq(lambda log: rising(float(np.exp(log))) - target, -30.0, 15.0)))
    except ValueError as error:
        raise ScenarioError(f"a target of {target:.4g} cannot be reached", hint="lower failures_per_week") from error
