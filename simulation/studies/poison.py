"""A member that sends false counts: the weeks until it is named, and its effect until then.

Sixty tenants in six groups of ten with noise of ε = 1 and δ = 1e-8 in three marginals, as the provider plans them by
default. A week has 934 failures of the infrastructure and 1,000 others among 12,000 job-weeks. Tenants differ in size
(gamma of shape 2) and in their rate (gamma of shape 10: the 95th percentile is three times the 5th). Rows differ in
rate by up to a factor of 25. Every week the groups are drawn anew; a tenant that is named is left out from then on.

`weeks` are those until the liar is named, over the seeds in which it is; `found` is their share within a year. `bias`
is the largest share of all failures that an undetected liar added to a release, averaged over the weeks before it was
named. Honest years must name nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crypto.ids import Digest, LeaseId, RoundId, TenantId
from crypto.masking import MaskKey
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.life_table import Floats
from federation.protocol.noise import noise_variances
from federation.protocol.plan import Marginal, MaskTrustee, Plan, PlanDimension
from provider_server.fleet.leases import Lease
from provider_server.rounds.ceilings import GroupSum, Units, units_of
from provider_server.rounds.grouping import GroupLimits, TenantScores, accepted, assign, judge
from provider_server.rounds.planning import PlanSettings
from simulation.studies.study import Quick, Seeds, Table

TENANTS, GROUPS, MINIMUM, JOB_WEEKS = 60, 6, 10, 12_000
WORKLOADS, CONTEXTS, LEVELS = 24, 8, 3
FAILURES = {Domain.INFRASTRUCTURE: 934, Domain.FRAMEWORK: 500, Domain.SCRIPT: 500}
WEEK_H, WEEKS = 168.0, 52
USUAL = GroupLimits()


@dataclass(frozen=True, eq=False)
class World:
    """Leases of one week, which stay the same, and the expected failures per marginal, shape (tenants, cells)."""

    plan: Plan
    tenants: tuple[TenantId, ...]
    held: Units
    expected: tuple[Floats, ...]


def make_world(rng: np.random.Generator, rate_shape: float = 10.0, size_shape: float = 2.0) -> World:
    """A federation whose tenants differ in size by a gamma of `size_shape` and in rate by one of `rate_shape`."""
    tenants = tuple(TenantId(rng.bytes(TenantId.length)) for _ in range(TENANTS))
    sizes = np.clip(rng.gamma(size_shape, size=TENANTS), 0.1, None)
    leases = [
        lease
        for tenant, count in zip(tenants, np.ceil(JOB_WEEKS * sizes / sizes.sum()).astype(int), strict=True)
        for lease in _leases(rng, tenant, int(count))
    ]
    plan = _plan()
    held = units_of(plan, leases, dict.fromkeys(tenants, 0.0))
    rates = rng.gamma(rate_shape, 1 / rate_shape, TENANTS)
    return World(
        plan, tenants, held, tuple(_expected(rng, plan, held, number, rates) for number in range(len(plan.tables)))
    )


def _plan() -> Plan:
    settings = PlanSettings(epsilon=1.0, delta=0.0, cohort_minimum=MINIMUM, noise_shares=MINIMUM // 2)
    workloads = tuple(f"workload {number}" for number in range(WORKLOADS))
    contexts = tuple(f"context {number}" for number in range(CONTEXTS))
    levels = tuple(f"{context} level {level}" for context in contexts for level in range(LEVELS))
    rows = {"workload": workloads, "context": contexts, "context_level": levels}
    public = {"band": ("0", "1", "2", "3"), "domain": tuple(Domain), "reason": tuple(CAUSES)}
    return Plan(
        round_id=RoundId(bytes(16)),
        directory=Digest(bytes(32)),
        epoch=0,
        start_hour=0,
        end_hour=int(WEEK_H),
        windows=(0, int(WEEK_H)),
        dimensions=(
            *(PlanDimension(name, tokens, (MINIMUM,) * len(tokens)) for name, tokens in rows.items()),
            *(PlanDimension(name, values, ()) for name, values in public.items()),
        ),
        band_edges_hours=settings.band_edges_hours,
        marginals=tuple(
            Marginal(spec.name, spec.dimensions, spec.domains, scale)
            for spec, scale in zip(settings.marginals, settings.scales(), strict=True)
        ),
        failures_per_unit=settings.failures_per_unit,
        mechanism=settings.mechanism,
        epsilon=settings.epsilon,
        delta=settings.delta,
        owners_minimum=settings.owners_minimum,
        cohort_minimum=settings.cohort_minimum,
        noise_shares=settings.noise_shares,
        trustees=(MaskTrustee(1, MaskKey(bytes(32)).public),),
    )


def _leases(rng: np.random.Generator, tenant: TenantId, count: int) -> Iterator[Lease]:
    """A tenant has four workloads and half of the contexts."""
    own, near = rng.choice(WORKLOADS, 4, replace=False), rng.choice(CONTEXTS, CONTEXTS // 2, replace=False)
    for _ in range(count):
        start, hours, context = rng.uniform(0, WEEK_H - 1), rng.exponential(30.0) + 0.5, rng.choice(near)
        labels = {
            "subarchetype": f"workload {rng.choice(own)}",
            "context": f"context {context}",
            "context_level": f"context {context} level {rng.integers(LEVELS)}",
        }
        yield Lease(LeaseId(rng.bytes(16)), tenant, 1, start, min(start + hours, WEEK_H), labels)


def _expected(rng: np.random.Generator, plan: Plan, held: Units, number: int, rates: Floats) -> Floats:
    """Expected failures by (tenants, cells), the marginal's total as given; each row has a rate of its own."""
    table, marginal = plan.tables[number], plan.marginals[number]
    hazard = np.exp(rng.uniform(-np.log(5), np.log(5), (1, *table.shape)))
    raw = (held.cells[number] * hazard).reshape(TENANTS, -1) * rates[:, np.newaxis]
    scaled: Floats = raw * sum(FAILURES[domain] for domain in marginal.domains or FAILURES) / raw.sum()
    return scaled


@dataclass(frozen=True)
class Year:
    """How a liar fared: weeks until named or None, innocents named, largest bias of an accepted week, mean bias."""

    weeks: int | None
    suspected: int | None
    innocent: int
    worst_bias: float
    mean_bias: float


def play(
    world: World,
    rng: np.random.Generator,
    liar: int | None,
    factor: float,
    weeks: int = WEEKS,
    limits: GroupLimits = USUAL,
) -> Year:
    """Weeks until the liar, who reports `factor` times its failures, is named; all weeks if there is none."""
    suspicion, out = TenantScores(limits), set[TenantId]()
    villain = None if liar is None else world.tenants[liar]
    biases, suspected = [0.0], None
    for week in range(1, weeks + 1):
        contributors = [tenant for tenant in world.tenants if tenant not in out]
        members = assign(contributors, GROUPS, MINIMUM, suspicion, rng.bytes)
        groups = tuple(group_sum(world, rng, group, villain, factor) for group in members)
        judgement = judge(groups, world.held, suspicion.rates(), limits)
        kept = accepted(groups, judgement)
        if villain is not None and any(villain in groups[number].members for number in kept):
            biases.append(_bias(world, world.tenants.index(villain), factor))
        suspicion = suspicion.after(judgement)
        out |= suspicion.named()
        if suspected is None and villain in suspicion.suspects():
            suspected = week
        if villain in out:
            return Year(week, suspected, len(out) - 1, max(biases), sum(biases) / week)
    return Year(None, suspected, len(out), max(biases), sum(biases) / weeks)


def group_sum(
    world: World,
    rng: np.random.Generator,
    members: tuple[TenantId, ...],
    liar: TenantId | None = None,
    factor: float = 1.0,
) -> GroupSum:
    """A group's counts, noise included; the liar multiplies its own."""
    places = world.held.places(members)
    factors = np.array([factor if tenant == liar else 1.0 for tenant in members])
    counts = [
        (rng.poisson(expected[places]) * factors[:, np.newaxis]).sum(axis=0).reshape(table.shape)
        + rng.normal(0, np.sqrt(variance), table.shape)
        for expected, table, variance in zip(
            world.expected, world.plan.tables, noise_variances(world.plan, len(members)), strict=True
        )
    ]
    return GroupSum(members, tuple(counts), noise_variances(world.plan, len(members)))


def _bias(world: World, liar: int, factor: float) -> float:
    """What the liar adds to the first marginal, as a share of its true total."""
    return float((factor - 1) * world.expected[0][liar].sum() / world.expected[0].sum())


def liars(seeds: int, factor: float) -> dict[str, object]:
    """One random liar per seed."""
    years = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        years.append(play(make_world(rng), rng, int(rng.integers(TENANTS)), factor))
    named = [year.weeks for year in years if year.weeks is not None]
    unlimited = [year.weeks or np.inf for year in years]
    return {
        "factor": factor,
        "seeds": seeds,
        "found": len(named) / seeds,
        "weeks_median": _finite(np.median(unlimited)),
        "weeks_p95_of_found": float(np.quantile(named, 0.95)) if named else None,
        "weeks_until_suspected_median": _finite(np.median([year.suspected or np.inf for year in years])),
        "innocent_named": sum(year.innocent for year in years),
        "bias_undetected_largest": max((year.worst_bias for year in years if year.weeks is None), default=0.0),
        "bias_mean": float(np.mean([year.mean_bias for year in years])),
    }


def _finite(value: float | np.floating) -> float | None:
    return float(value) if np.isfinite(value) else None


def honest(seeds: int, rate_shape: float) -> dict[str, object]:
    """Honest years: how many tenants were named in all of them, which should be none."""
    named = 0
    for seed in range(seeds):
        rng = np.random.default_rng(10_000 + seed)
        named += play(make_world(rng, rate_shape), rng, None, 1.0).innocent
    return {"rate_shape": rate_shape, "seeds": seeds, "named": named}


def run(seeds: Seeds = 100, *, quick: Quick = False) -> Table:
    """Weeks until a member that sends false counts is named, its effect until then, and honest members named."""
    many = 2 if quick else seeds
    lying = {f"liar_{factor:g}x": liars(many, factor) for factor in (10.0, 3.0, 1.5)}
    return Table(lying | {f"honest_shape_{shape:g}": honest(many, shape) for shape in (10.0, 2.0)})
