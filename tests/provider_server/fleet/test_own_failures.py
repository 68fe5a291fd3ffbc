"""What the provider saw itself: exact counts of leases that differ, and one witness beside another."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import nbinom

from crypto.ids import LeaseId
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import capped_mean
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.own_failures import LOG_RATE, Differ, Leases, OwnFailures, differing
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO
from provider_server.fleet.own_failures import EventsOfLeases, OwnFailure

SHAPE, LEASES, FACTOR = (30, 12), 40, 8.0
PAIRS = SHAPE[0] * SHAPE[1]
TENANTS, FRAIL, ALONE = 12, 3, 17
DIMENSIONS = (
    Dimension("workload", tuple(map(str, range(SHAPE[0])))),
    Dimension("context", tuple(map(str, range(SHAPE[1])))),
)


def some_leases(seed: int, shape: float = np.inf, planted: Floats | None = None) -> tuple[Leases, Floats]:
    """Leases of every pair with what failed on each, and the failures that were expected."""
    rng = np.random.default_rng(seed)
    pair = np.repeat(np.arange(PAIRS), LEASES)
    explained = rng.gamma(0.5, 0.4, len(pair))
    frailty = np.ones(len(pair)) if np.isinf(shape) else rng.gamma(shape, 1.0 / shape, len(pair))
    ratio = np.ones(PAIRS) if planted is None else np.where(planted.ravel() > 0, FACTOR, 1.0)
    failures = rng.poisson(explained * frailty * ratio[pair]).astype(np.float64)
    return Leases(failures, explained, pair, tenant_of(pair)), explained


def tenant_of(pair: NDArray[np.intp]) -> NDArray[np.intp]:
    """Every tenant has leases of every pair."""
    return np.arange(len(pair)) % TENANTS


def some_planted(seed: int) -> Floats:
    planted = np.random.default_rng((seed, 1)).random(SHAPE) < 0.03
    return planted.astype(np.float64)


def released(counts: Floats, expected: Floats, sd: float, seed: int) -> LifeTable:
    noise = np.random.default_rng((seed, 2)).normal(0.0, sd, SHAPE)
    return LifeTable(DIMENSIONS, counts + noise, expected, np.zeros(SHAPE), np.full(SHAPE, sd**2))


def by_pair(leases: Leases, weight: Floats) -> Floats:
    return leases.by_pair(weight, PAIRS).reshape(SHAPE)


@pytest.mark.parametrize("shape", [0.3, 2.0])
def test_the_likelihood_is_that_of_negative_binomial_leases(shape: float) -> None:
    leases, explained = some_leases(1, shape)
    own = OwnFailures.of(leases, np.arange(PAIRS), PAIRS, Differ(shape))
    assert np.abs(LOG_RATE).max() > LOG_RATIO.max()
    rates = np.array([0.5, 1.0, 4.0])
    for pair in (0, 17):
        of = leases.pair == pair
        exact = [nbinom.logpmf(leases.failures[of], shape, 1 / (1 + explained[of] * x / shape)).sum() for x in rates]
        said = [np.interp(np.log(x), LOG_RATE + own.log_crude, own.values[pair]) for x in rates]
        np.testing.assert_allclose(np.diff(said), np.diff(exact), atol=0.05)


@pytest.mark.parametrize("shape", [0.3, 1.5])
def test_how_leases_differ_is_found_and_that_they_do_not_as_well(shape: float) -> None:
    frail, _ = some_leases(2, shape)
    assert differing(frail, np.ones(PAIRS)).shape == pytest.approx(shape, rel=0.25)
    alike, _ = some_leases(2)
    assert differing(alike, np.ones(PAIRS)).shape > 20.0


def of_tenants(seed: int, tenant_shape: float) -> Leases:
    """Leases of tenants that differ: each tenant runs a third of the workloads, and one pair is one tenant's alone."""
    leases, explained = some_leases(seed)
    rng = np.random.default_rng((seed, 3))
    tenant = rng.integers(0, TENANTS, len(leases.pair))
    tenant[leases.pair == ALONE] = FRAIL
    effect = rng.gamma(tenant_shape, 1.0 / tenant_shape, TENANTS)
    effect[FRAIL] = 4.0
    failures = rng.poisson(explained * effect[tenant]).astype(np.float64)
    return Leases(failures, explained, leases.pair, tenant)


def test_how_tenants_differ_is_found_and_is_no_difference_between_leases() -> None:
    differ = differing(of_tenants(11, 2.0), np.ones(PAIRS))
    assert 0.8 < differ.tenant_shape < 4.0
    assert differ.shape > 20.0
    assert differing(some_leases(11)[0], np.ones(PAIRS)).tenant_shape > 20.0


def test_a_tenant_whose_leases_all_fail_more_often_makes_no_mismatch_of_the_pair_that_it_alone_runs() -> None:
    """With tenants taken to be alike, it would: that is what the same leases show under names of one tenant."""
    leases = of_tenants(12, 2.0)
    table = released(np.zeros(SHAPE), by_pair(leases, leases.explained), 1e4, 12)
    told_apart = find_mismatches(table, own=leases)
    alike = find_mismatches(
        table, own=Leases(leases.failures, leases.explained, leases.pair, np.zeros_like(leases.tenant))
    )
    assert alike.probability_worse[ALONE] > 0.9
    assert told_apart.probability_worse[ALONE] < 0.5
    assert told_apart.ratio_low[ALONE] < 1.0 < told_apart.ratio_high[ALONE]


def test_nothing_seen_says_neither_how_leases_differ_nor_anything_else() -> None:
    leases, _ = some_leases(9)
    expected = by_pair(leases, leases.explained)
    table = released(by_pair(leases, leases.failures), expected, 3.0, 9)
    blind = Leases(np.zeros(len(leases.pair)), leases.explained, leases.pair, leases.tenant)
    alone, beside = find_mismatches(table), find_mismatches(table, own=blind)
    assert np.isinf(beside.shape)
    np.testing.assert_allclose(beside.ratio, alone.ratio, rtol=0.05)


def test_one_bad_lease_accuses_no_pair_but_as_many_failures_on_many_leases_do() -> None:
    leases, _ = some_leases(3, 0.3)
    expected = by_pair(leases, leases.explained)
    table = released(np.zeros(SHAPE), expected, 1e4, 3)
    spread, heaped = leases.failures.copy(), leases.failures.copy()
    of = np.flatnonzero(leases.pair == 5)
    spread[of[:20]] += 1.0
    heaped[of[np.argmax(leases.explained[of])]] += 20.0
    many = find_mismatches(table, own=Leases(spread, leases.explained, leases.pair, leases.tenant))
    one = find_mismatches(table, own=Leases(heaped, leases.explained, leases.pair, leases.tenant))
    assert many.probability_worse[5] > 0.9
    assert one.probability_worse[5] < 0.5


@pytest.mark.nightly
def test_a_second_witness_finds_what_noise_hides() -> None:
    planted = some_planted(4)
    seen, _ = some_leases(4, planted=planted)
    hidden, _ = some_leases(5, planted=planted)
    told = released(by_pair(hidden, hidden.failures), by_pair(hidden, hidden.explained), 20.0, 4)
    alone, both = find_mismatches(told), find_mismatches(told, own=seen)
    assert caught(both, planted) > 0.9
    assert caught(alone, planted) < 0.5
    others = planted.ravel() == 0
    assert (both.probability_worse[others] > 0.8).mean() < 0.005


def caught(found: Mismatches, planted: Floats) -> float:
    return float((found.probability_worse[planted.ravel() > 0] > 0.8).mean())


@pytest.mark.nightly
def test_where_everything_is_seen_tenants_add_nothing() -> None:
    """Own failures are a subset of what tenants count: the same failures must not be used twice."""
    planted = some_planted(6)
    seen, _ = some_leases(6, planted=planted)
    expected = by_pair(seen, seen.explained)
    blind = find_mismatches(released(np.zeros(SHAPE), expected, 1e5, 6), own=seen)
    none_left = np.stack([np.full(SHAPE, 1e-6)] * 19, axis=-1)
    told = released(np.zeros(SHAPE), expected, 3.0, 6)
    both = find_mismatches(told, none_left, own=seen)
    widths = [np.log(found.ratio_high / found.ratio_low) for found in (both, blind)]
    assert np.median(widths[0] / widths[1]) == pytest.approx(1.0, abs=0.05)
    twice = find_mismatches(released(by_pair(seen, seen.failures), expected, 3.0, 6), own=seen)
    assert np.median(np.log(twice.ratio_high / twice.ratio_low)[planted.ravel() > 0]) < 0.9 * np.median(
        widths[1][planted.ravel() > 0]
    )


@pytest.mark.nightly
def test_a_workload_that_is_seen_more_often_is_accused_of_nothing() -> None:
    seen, _ = some_leases(7)
    often = np.where((seen.pair // SHAPE[1]) % 3 == 0, 1.0, 0.5)
    thinned = np.random.default_rng(7).binomial(seen.failures.astype(int), often).astype(np.float64)
    found = find_mismatches(
        released(np.zeros(SHAPE), by_pair(seen, seen.explained), 1e4, 7),
        own=Leases(thinned, seen.explained, seen.pair, seen.tenant),
    )
    assert (found.probability_worse > 0.5).sum() == 0


def test_what_counts_of_leases_that_differ_is_that_of_a_gamma_mixture() -> None:
    rng = np.random.default_rng(8)
    frailty = rng.gamma(0.5, 2.0, 400_000)
    for most in (1, 3):
        drawn = np.minimum(rng.poisson(2.0 * frailty), most).mean()
        assert capped_mean(np.array([2.0]), most, 0.5)[0] == pytest.approx(drawn, abs=0.01)
        assert abs(capped_mean(np.array([2.0]), most)[0] - drawn) > 0.1


def test_own_failures_are_counted_within_hours_and_by_lease() -> None:
    one, other = LeaseId(bytes(16)), LeaseId(bytes([1]) * 16)
    events = EventsOfLeases.of([OwnFailure(one, 9.0), OwnFailure(one, 2.0), OwnFailure(other, 2.0)])
    assert [events.between(one, 0, 10), events.between(one, 2, 9), events.between(one, 9.1, 99)] == [2, 1, 0]
    assert events.between(LeaseId(bytes([2]) * 16), 0, 10) == 0
