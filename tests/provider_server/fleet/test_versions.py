"""Versions that behave alike are merged, others split, under noise too; and no split is made up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import adjusted_rand_score

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis import versions
from provider_server.fleet.analysis.noisy_counts import LOG_FACTOR
from provider_server.fleet.analysis.versions import PairPrior, Partition, partitions
from tests.support.changing import replace


def released(expected: Floats, rate: Floats, seed: int, *, noise_sd: float = 0.0) -> LifeTable:
    """A table over (workload, context): counts of `rate` times `expected` failures, and noise; rows are numbered."""
    rng = np.random.default_rng(seed)
    levels = [tuple(str(level) for level in range(size)) for size in expected.shape]
    dimensions = (Dimension("workload", levels[0]), Dimension("context", levels[1]))
    events = rng.poisson(expected * rate) + rng.normal(0.0, noise_sd, expected.shape)
    return LifeTable(dimensions, events, expected, expected, np.full(expected.shape, noise_sd**2))


def even(failures: float, contexts: int, *ratios: float, archetypes: int = 1) -> tuple[Floats, Floats]:
    """Versions (rows) of `archetypes` that are alike, each expecting so many failures in all, and their rates."""
    expected = np.full((archetypes * len(ratios), contexts), failures / contexts)
    return expected, np.tile(ratios, archetypes)[:, None] * np.ones(contexts)


def by_archetype(table: LifeTable, size: int) -> dict[str, str]:
    return {level: f"archetype {int(level) // size}" for level in table.levels("workload")}


def labels(found: Partition) -> list[int]:
    return [next(k for k, group in enumerate(found.groups) if own in group.versions) for own in found.versions]


def bert(table: LifeTable, **how: Any) -> Partition:
    """Of a table whose rows are all versions of one archetype."""
    return partitions(table, dict.fromkeys(table.levels("workload"), "bert"), **how)["bert"]


def groups(table: LifeTable) -> list[tuple[str, ...]]:
    return [group.versions for group in bert(table).groups]


# ---- what is merged, what is split --------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("failures", "contexts", "noise_sd"), [(50.0, 1, 0.0), (800.0, 20, 0.0), (800.0, 20, 15.5), (5000.0, 5, 7.8)]
)
def test_versions_that_do_not_differ_are_rarely_split(failures: float, contexts: int, noise_sd: float) -> None:
    archetypes = 60
    table = released(*even(failures, contexts, 1.0, 1.0, 1.0, archetypes=archetypes), 1, noise_sd=noise_sd)
    found = partitions(table, by_archetype(table, 3))
    assert sum(len(own.groups) > 1 for own in found.values()) <= 0.05 * archetypes


def test_noise_that_is_not_accounted_for_would_make_up_differences() -> None:
    table = released(*even(800.0, 20, 1.0, 1.0, 1.0, archetypes=20), 1, noise_sd=15.5)
    loud = replace(table, noise_variance=np.zeros(table.shape))
    accounted, ignored = (
        sum(len(own.groups) > 1 for own in partitions(one, by_archetype(one, 3), pairs=PairPrior(0.0, 0.0)).values())
        for one in (table, loud)
    )
    assert accounted <= 1
    assert ignored > 4


@pytest.mark.parametrize(("failures", "noise_sd"), [(60.0, 0.0), (250.0, 4.0), (640.0, 15.5)])
def test_a_factor_of_two_is_found(failures: float, noise_sd: float) -> None:
    table = released(*even(failures, 20, 1.0, 1.0, 2.0, archetypes=30), 2, noise_sd=noise_sd)
    found = partitions(table, by_archetype(table, 3))
    assert np.mean([labels(own) == [0, 0, 1] for own in found.values()]) >= 0.85


def test_it_finds_planted_groups_and_finds_fewer_under_noise() -> None:
    """As in the simulated cloud: half of the versions behave as the one before, others differ by 0.25 of the log."""
    archetypes, size, rng = 15, 4, np.random.default_rng(3)
    ratio, planted = rng.lognormal(0.0, 0.25, (archetypes, size)), np.tile(np.arange(size), (archetypes, 1))
    for version in range(1, size):
        before = rng.random(archetypes) < 0.5
        ratio[before, version] = ratio[before, version - 1]
        planted[before, version] = planted[before, version - 1]
    rate = ratio.reshape(-1, 1) * np.where(rng.random((archetypes * size, 20)) < 0.03, 8.0, 1.0)
    expected = 800.0 * rng.dirichlet(np.full(20, 5.0), archetypes * size)
    scores = []
    for noise_sd in (0.0, 7.75, 40.0):
        table = released(expected, rate, 4, noise_sd=noise_sd)
        found = partitions(table, by_archetype(table, size)).values()
        scores.append(np.mean([adjusted_rand_score(*pair) for pair in zip(planted, map(labels, found), strict=True)]))
    assert scores[0] > 0.4
    assert scores[0] > scores[1] > scores[2]


# ---- mismatches -----------------------------------------------------------------------------------------------------


def test_a_version_that_differs_on_one_context_is_not_split() -> None:
    expected, rate = even(800.0, 20, 1.0, 1.0, 1.0)
    rate[2, 5] = 8.0
    table = released(expected, rate, 5)
    assert len(bert(table).groups) == 1
    assert len(bert(table, pairs=PairPrior(0.0, 0.0)).groups) == 2  # to totals it looks 1.35 times as bad
    rate[2] = 1.35
    assert groups(released(expected, rate, 5)) == [("0", "1"), ("2",)]


def test_without_contexts_totals_are_compared() -> None:
    expected, rate = even(800.0, 20, 1.0, 1.0, 1.35)
    table = released(expected, rate, 6).marginal("workload")
    assert groups(table) == [("0", "1"), ("2",)]


# ---- what it says ---------------------------------------------------------------------------------------------------


def test_probabilities_are_those_of_bayes() -> None:
    """Two versions by brute force: one rate or two, at even odds, over the same priors of rates."""
    counts, expected = np.array([30.0, 48.0]), np.array([40.0, 40.0])
    dimension = (Dimension("workload", ("a", "b")),)
    table = replace(LifeTable.zeros(dimension), events=counts, exposure_node_hours=expected)
    found = partitions(table, {"a": "bert", "b": "bert"})["bert"]
    crude = np.log(counts.sum() / expected.sum())
    grid = crude + np.linspace(-2.5, 2.5, 3001)
    likelihood = np.exp(counts[:, None] * grid - expected[:, None] * np.exp(grid) - (counts - counts.sum())[:, None])
    one = two = 0.0
    for level in crude + versions.LEVEL:
        for sd in versions.GROUP_SD:
            prior = norm.pdf(grid, level, sd) / norm.pdf(grid, level, sd).sum()
            one += float((likelihood.prod(axis=0) * prior).sum())
            two += float((likelihood @ prior).prod())
    assert found.probability_alike("a", "b") == pytest.approx(one / (one + two), abs=0.002)
    assert found.probability_alike("b", "b") == pytest.approx(1.0)


def test_intervals_hold_the_ratio_and_narrower_ones_would_not() -> None:
    ratios = np.array([0.6, 0.6, 1.5])
    table = released(*even(150.0, 10, *ratios, archetypes=100), 7, noise_sd=4.0)
    found = partitions(table, by_archetype(table, 3))
    inside, inside_half = [], []
    for own in found.values():
        for group in own.groups:
            true = np.log(np.mean([ratios[int(version) % 3] for version in group.versions]) / ratios.mean())
            low, middle, high = np.log([group.low, group.ratio, group.high])
            inside.append(len(own.groups) > 1 and low <= true <= high)
            inside_half.append((middle + low) / 2 <= true <= (middle + high) / 2)
    assert np.mean(inside) > 0.9
    assert np.mean(inside_half) < 0.85


def test_an_archetype_in_one_group_is_its_own_average() -> None:
    table = released(*even(100.0, 5, 1.7, 1.7), 8)
    (group,) = bert(table).groups
    assert (group.ratio, group.low, group.high) == pytest.approx((1.0, 1.0, 1.0))
    assert group.failures == table.events.sum()


def test_counts_that_a_cap_holds_back_tell_of_higher_rates() -> None:
    expected, _ = even(400.0, 5, 1.0, 1.0)
    counted = expected[..., None] * 2.0 * (1.0 - np.exp(-np.exp(LOG_FACTOR) / 2.0))
    seen = expected * np.array([[1.0], [3.0]])
    table = released(2.0 * expected * (1.0 - np.exp(-seen / expected / 2.0)), np.ones((2, 5)), 9)
    table = replace(table, exposure_node_hours=expected)
    free, capped = (bert(table, counted=of).groups for of in (None, counted))
    assert free[1].ratio / free[0].ratio < 2.3
    assert 2.3 < capped[1].ratio / capped[0].ratio < 3.5


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_only_versions_with_exposure_are_grouped() -> None:
    table = released(*even(100.0, 5, 1.0, 1.0, 1.0, 1.0), 10)
    expected = table.exposure_node_hours * np.array([[1.0], [1.0], [0.0], [1.0]])
    found = partitions(replace(table, exposure_node_hours=expected), {"0": "bert", "1": "bert", "2": "bert"})
    assert [group.versions for group in found["bert"].groups] == [
        ("0", "1")
    ]  # "3" is no version: an archetype's own row


def test_a_noisy_archetype_without_failures_is_one_group() -> None:
    table = released(*even(100.0, 5, 1.0, 1.0), 11)
    table = replace(table, events=np.full(table.shape, -20.0), noise_variance=np.full(table.shape, 400.0))
    assert groups(table) == [("0", "1")]


@pytest.mark.parametrize("many", [8, 10])
def test_many_versions_are_searched_beyond_the_exact_limit_too(many: int) -> None:
    ratios = np.array([0.5, 1.0, 2.0])[np.arange(many) % 3]
    table = released(*even(500.0, 1, *ratios), 12).marginal("workload")
    expected: Sequence[tuple[str, ...]] = [tuple(str(own) for own in range(start, many, 3)) for start in range(3)]
    assert groups(table) == expected
