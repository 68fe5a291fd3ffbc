"""How probably a job fails within hours: exact where rates are known, and intervals hold a planted truth."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from crypto.ids import LeaseId
from federation.protocol.noise import Integers
from federation.protocol.plan import Mechanism
from provider_server.fleet.leases import Lease
from provider_server.learning.findings import Findings, RateFinding, learn
from provider_server.learning.forecast import NO_ROW, Chance, Job, chance_of_failure, job_of
from provider_server.learning.verdicts import PairFinding
from provider_server.rounds.release import Release
from simulation.cloud.scenario import load
from simulation.studies.learning import Year, live, releases, small
from tests.support.changing import replace

DAYS_3 = 72.0


class InsecureSeeded:
    """Noise of the right scale from a seed, so that a test of what follows from it is the same each time."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(20)

    def gaussian(self, scale: float, size: int) -> Integers:
        return np.round(self._rng.normal(0.0, scale, size)).astype(np.int64)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        raise NotImplementedError


@cache
def a_year() -> Year:
    return live(small(replace(load("standard"), mechanism=Mechanism.DISCRETE_GAUSSIAN, delta=1e-8)), 3)


@cache
def learnt(epsilon: float | None = None) -> tuple[Findings, tuple[Release, ...]]:
    made = tuple(releases(a_year(), epsilon, InsecureSeeded()))
    return learn(made, a_year().leases), made


@cache
def by_pair() -> dict[tuple[str, str], list[Lease]]:
    found: dict[tuple[str, str], list[Lease]] = {}
    for lease in a_year().leases:
        found.setdefault((lease.labels["subarchetype"], lease.labels["context"]), []).append(lease)
    return found


def busiest(findings: Findings) -> PairFinding:
    return max(
        (one for one in findings.pairs if one.workload.startswith("workload ")), key=lambda one: one.expected_failures
    )


def chance(pair: PairFinding, job: Job, within_h: float, findings: Findings) -> Chance:
    return chance_of_failure(pair, job, within_h, findings, learnt()[1], by_pair()[pair.workload, pair.context])


def truth(pair: PairFinding, job: Job, within_h: float) -> float:
    """By the rates that the cloud was made of, hour by hour."""
    hazard, edges = a_year().cloud.hazard, learnt()[1][-1].plan.band_edges_hours
    numbers = [int(token.rpartition(" ")[2]) for token in (pair.workload, pair.context, job.context_level or "level 0")]
    rate = float(np.asarray(hazard.per_node_hour(*(np.array([number]) for number in numbers)))[0])
    ages = job.age_h + np.arange(0.0, within_h, 0.01)
    band = np.minimum(np.searchsorted(edges, ages, side="right") - 1, len(edges) - 2)
    return float(-np.expm1(-job.nodes * rate * 0.01 * np.asarray(hazard.band)[band].sum()))


def log_hazard(probability: float) -> float:
    return float(np.log(-np.log1p(-min(probability, 1.0 - 1e-15))))


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_intervals_hold_the_true_probability_and_are_not_absurd(epsilon: float | None) -> None:
    findings, rng = learnt(epsilon)[0], np.random.default_rng(0)
    pairs = [one for one in findings.pairs if one.workload.startswith("workload ")]
    held, third, width = [], [], []
    for place in rng.choice(len(pairs), 80, replace=False):
        own = by_pair()[pairs[place].workload, pairs[place].context]
        job = Job(4, float(rng.uniform(0.0, 60.0)), own[int(rng.integers(len(own)))].labels["context_level"])
        found = chance(pairs[place], job, DAYS_3, findings)
        low, middle, high = map(log_hazard, (found.low, found.probability, found.high))
        true = log_hazard(truth(pairs[place], job, DAYS_3))
        held.append(low <= true <= high)
        third.append(abs(true - middle) <= (high - low) / 6.0)
        width.append(high - low)
    assert np.mean(held) >= 0.93
    assert np.mean(third) < 0.85
    assert np.median(width) < (2.0 if epsilon is None else 6.0)


def known_rates() -> tuple[Findings, PairFinding, tuple[float, ...]]:
    """Findings whose hazards are 0.004, 0.003, 0.002, 0.001 by band at every level, and a pair that fails at these."""
    findings = learnt()[0]
    bands = sorted({int(one.band) for one in findings.rates})
    rates = tuple(0.001 * (len(bands) - band) for band in bands)
    levels = {one.context_level for one in findings.rates}
    flat = [RateFinding(level, str(band), rates[band], rates[band], rates[band]) for level in levels for band in bands]
    return replace(findings, rates=tuple(flat)), busiest(findings), rates


@pytest.mark.nightly
def test_a_probability_is_that_of_the_piecewise_exponential() -> None:
    findings, pair, rates = known_rates()
    edges = learnt()[1][-1].plan.band_edges_hours
    age, within = edges[1] - 2.0, edges[2] - edges[1] + 5.0  # two hours in band 0, all of band 1, three in band 2
    hours = (2.0, edges[2] - edges[1], 3.0)
    scale = chance(pair, Job(1, 0.0), 1.0, findings).probability
    scale = -np.log1p(-scale) / rates[0]  # the pair's own rate over these hazards
    exact = -np.expm1(-3 * scale * float(np.dot(hours, rates[:3])))
    assert chance(pair, Job(3, age), within, findings).probability == pytest.approx(exact)
    assert chance(pair, Job(3, age + 1.0), within, findings).probability != pytest.approx(exact, rel=1e-3)
    mean = np.mean([chance(replace(pair, rate=pair.rate * k), Job(1, 0.0), 1e-3, findings).probability for k in (1, 3)])
    assert mean == pytest.approx(2.0 * chance(pair, Job(1, 0.0), 1e-3, findings).probability, rel=1e-3)


@pytest.mark.nightly
def test_more_nodes_and_more_hours_are_more_probable_and_no_hours_are_impossible() -> None:
    findings = learnt()[0]
    pair = busiest(findings)
    one, more, longer = (chance(pair, Job(nodes, 0.0), h, findings) for nodes, h in ((1, 10.0), (8, 10.0), (1, 500.0)))
    assert one.low < one.probability < one.high < 1.0
    assert one.probability < min(more.probability, longer.probability)
    nothing = chance(pair, Job(8, 0.0), 0.0, findings)
    assert (nothing.low, nothing.probability, nothing.high) == (0.0, 0.0, 0.0)
    beyond = chance(pair, Job(1, 1e5), 10.0, findings)  # the last band goes on
    assert beyond.probability > 0.0


@pytest.mark.nightly
def test_a_wider_interval_of_the_pair_or_of_the_hazards_is_a_wider_one_of_the_probability() -> None:
    findings, pair, _ = known_rates()
    job = Job(4, 0.0)
    narrow = chance(pair, job, DAYS_3, findings)
    unsure = chance(
        replace(pair, likely_high=2.0 * pair.likely_high, likely_low=pair.likely_low / 2.0), job, DAYS_3, findings
    )
    vague = replace(
        findings, rates=tuple(replace(one, low=one.low / 3.0, high=one.high * 3.0) for one in findings.rates)
    )
    for wide in (unsure, chance(pair, job, DAYS_3, vague)):
        assert wide.probability == pytest.approx(narrow.probability)
        assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.nightly
def test_noise_in_the_counts_of_its_workload_makes_it_less_sure() -> None:
    """Everything else equal: the average rate of the workload, on which the pair's ratio is put, is known less well."""
    findings, pair, _ = known_rates()
    own, job = by_pair()[pair.workload, pair.context], Job(4, 0.0)
    loud = releases(a_year(), 0.1, InsecureSeeded())
    exact, noisy = (chance_of_failure(pair, job, DAYS_3, findings, made, own) for made in (learnt()[1], loud))
    assert noisy.probability == pytest.approx(exact.probability)
    assert log_hazard(noisy.high) - log_hazard(noisy.low) > 1.1 * (log_hazard(exact.high) - log_hazard(exact.low))


def test_what_never_ran_or_has_no_rate_is_refused() -> None:
    findings = learnt()[0]
    pair = busiest(findings)
    with pytest.raises(ValueError, match="no rate yet"):
        chance(pair, Job(1, 0.0, "context 99 level 0"), 10.0, findings)
    with pytest.raises(ValueError, match="no hours"):
        chance_of_failure(pair, Job(1, 0.0), 10.0, findings, learnt()[1], [])


def test_a_lease_tells_its_job() -> None:
    findings = learnt()[0]
    pair = busiest(findings)
    lease = by_pair()[pair.workload, pair.context][0]
    job, workload, context = job_of(lease, findings, lease.start_h + 30.0)
    assert (workload, context) == (pair.workload, pair.context)
    assert (job.nodes, job.age_h, job.context_level) == (lease.nodes, 30.0, lease.labels["context_level"])
    bare = Lease(LeaseId(bytes(16)), lease.tenant, 2, 50.0, 60.0, {})
    assert job_of(bare, findings, 40.0) == (Job(2, 0.0, None), NO_ROW, NO_ROW)
