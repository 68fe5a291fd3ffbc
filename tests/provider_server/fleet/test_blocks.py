"""Pairs borrow from others that may share their defect: so blocks are found that no pair shows by itself."""

from collections.abc import Sequence
from itertools import starmap

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.metrics import average_precision_score

from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.blocks import ALIKE_SHARE, BLOCK_SHARE, NO_BLOCK, Groups, Places, lent
from provider_server.fleet.analysis.contexts import Context, ContextMap, Look
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.learning.kin import NO_FEATURES, features_of, groups
from provider_server.fleet.learning.verdicts import judge_pairs
from simulation.cloud.scenario import load
from simulation.cloud.truth import context_features, plant_blocks
from simulation.studies.field_cells import BLOCKS
from tests.provider_server.fleet.test_learning import a_cloud, noisy
from tests.support.changing import replace

FEATURES = {str(context): own for context, own in enumerate(context_features(20))}
ARCHETYPES = {str(workload): f"of {workload // 4}" for workload in range(60)}
THREEFOLD = replace(load("standard"), **{**BLOCKS, "mismatch_factor": 3.0})
Flags = NDArray[np.bool_]


def with_blocks(seed: int) -> tuple[LifeTable, Flags]:
    """Half a per cent of single pairs that fail eight times as often, six blocks that fail three times, and noise."""
    rng = np.random.default_rng(seed + 50)
    table, single = a_cloud(seed, planted_share=0.005)
    factors = plant_blocks(THREEFOLD, np.ones(table.shape), rng)
    block = (factors > 1.0) & (single == 0.0)
    more = rng.poisson(np.where(block, 2.0 * table.events, 0.0))
    return noisy(replace(table, events=table.events + more), 10.0, seed), (single > 0.0) | (factors > 1.0)


def precision(found: Mismatches, planted: Flags) -> float:
    return float(average_precision_score(planted[found.workload, found.context], found.probability_worse))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_blocks_are_found_by_what_their_pairs_say_together(seed: int) -> None:
    table, planted = with_blocks(seed)
    alone, together = (find_mismatches(table, groups=kin) for kin in ((), groups(table, ARCHETYPES, FEATURES)))
    assert precision(together, planted) > precision(alone, planted) + 0.15
    called = together.probability_worse > 0.8
    assert called.sum() > 2 * (alone.probability_worse > 0.8).sum()
    assert (~planted[together.workload, together.context])[called].mean() < 0.1


@pytest.mark.parametrize("planted_share", [0.0, pytest.param(0.03, marks=pytest.mark.nightly)])
def test_where_no_block_is_planted_nothing_changes(planted_share: float) -> None:
    table, planted = a_cloud(3, planted_share=planted_share)
    released = noisy(table, 10.0, 3)
    alone, together = (find_mismatches(released, groups=kin) for kin in ((), groups(released, ARCHETYPES, FEATURES)))
    assert np.abs(together.probability_worse - alone.probability_worse).max() < 0.05
    if planted.any():
        assert precision(together, planted > 0) > precision(alone, planted > 0) - 0.01


def rare(seed: int) -> tuple[LifeTable, Flags]:
    """Rare failures (1.8 of a pair), two per cent of single pairs that fail eight times as often, and no block."""
    rng, shape = np.random.default_rng((seed, 15)), (60, 20)
    exposure = np.outer(rng.lognormal(0.0, 1.3, 60), rng.lognormal(0.0, 0.4, 20)) * rng.lognormal(0.0, 0.5, shape)
    exposure *= 1.8 / exposure.mean()
    usual = np.outer(rng.lognormal(0.0, 0.35, 60), rng.lognormal(0.0, 0.25, 20))
    planted = rng.random(shape) < 0.02
    failures = rng.poisson(exposure * usual * np.where(planted, 8.0, 1.0)).astype(np.float64)
    levels = (tuple(map(str, range(size))) for size in shape)
    dimensions = tuple(starmap(Dimension, zip(("workload", "context"), levels, strict=True)))
    return LifeTable(dimensions, failures, exposure, exposure, np.zeros(shape)), planted.ravel()


def found_in(table: LifeTable) -> Mismatches:
    return find_mismatches(table, groups=groups(table, ARCHETYPES, FEATURES))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_no_group_of_many_is_a_block_by_chance(seed: int) -> None:
    """With π = .01 of 1,275 groups, five of the first twelve tables have one, these two among them."""
    assert (found_in(rare(seed)[0]).block == NO_BLOCK).all()


def test_a_false_block_accuses_nobody_wrongly() -> None:
    """A block of one planted pair and three that failed often by chance makes all four sure: .9 or more."""
    assert_none_is_accused_wrongly(34)
    found = found_in(rare(34)[0])
    assert (found.probability_worse[found.block != NO_BLOCK] > 0.9).all()


@pytest.mark.nightly
def test_no_block_of_sixty_tables_accuses_wrongly() -> None:
    for seed in range(60):
        assert_none_is_accused_wrongly(seed)


def assert_none_is_accused_wrongly(seed: int) -> None:
    table, planted = rare(seed)
    found, nothing = found_in(table), np.zeros(table.shape)
    silent = LifeTable(table.dimensions, nothing, nothing, nothing, nothing)
    counted = replace(table, exposure_node_hours=found.expected.reshape(table.shape))
    judged = judge_pairs(found, counted, silent, table.exposure_node_hours)
    worse = np.array([pair.judgement is PairJudgement.WORSE for pair in judged])
    assert not (worse & (found.block != NO_BLOCK) & ~planted).any()


def test_what_is_lent_is_what_the_others_say() -> None:
    """Three pairs on a grid of two ratios: odds of the block as the formula has them, from the other two pairs."""
    likelihood = np.log(np.array([[0.1, 0.9], [0.2, 0.8], [0.05, 0.95]]))
    prior, worse = np.log([0.999, 0.001]), np.array([-np.inf, 0.0])
    every = np.arange(3)
    found, none = (lent(likelihood.__getitem__, prior, worse, Groups(groups, 3)) for groups in ([every], []))
    first = found.of(every)[0]
    assert np.allclose(none.of(every), prior)
    assert (found.block.tolist(), none.block.tolist()) == ([0] * 3, [NO_BLOCK] * 3)

    def ratio(pair: int) -> float:
        told = np.exp(likelihood[pair])
        return float(ALIKE_SHARE * told[1] / (told @ np.exp(prior)) + 1.0 - ALIKE_SHARE)

    odds = BLOCK_SHARE / (1.0 - BLOCK_SHARE) * ratio(1) * ratio(2)
    within = ALIKE_SHARE + (1.0 - ALIKE_SHARE) * 0.001
    assert np.exp(first[1]) == pytest.approx((0.001 + odds * within) / (1.0 + odds))
    assert np.exp(first).sum() == pytest.approx(1.0)


def test_groups_that_are_left_out_would_have_been_no_blocks() -> None:
    """All evidence of all groups, worked out anew for each block, finds the same ones: three, two of which overlap."""
    rng = np.random.default_rng(11)
    grid, many = np.linspace(-1.0, 3.0, 60), 200
    ratio = np.zeros(many)
    members = [np.arange(6), np.arange(3, 9), np.arange(50, 70)]
    for group, log_ratio in zip(members, (1.0, 1.8, 0.5), strict=True):
        ratio[group] = log_ratio
    likelihood = -0.5 * ((grid - ratio[:, None] - rng.normal(0.0, 0.7, (many, 1))) / 0.7) ** 2
    log_prior, log_worse = (mass - logsumexp(mass) for mass in (-0.5 * (grid / 0.2) ** 2, -((grid - 1.0) ** 2)))
    all_groups = members + [np.sort(rng.choice(many, rng.integers(2, 30), replace=False)) for _ in range(150)]
    found = lent(likelihood.__getitem__, log_prior, log_worse, Groups(all_groups, many))
    prior, block = by_all_groups(likelihood, log_prior, log_worse, [one for one in all_groups if len(one) >= 3])
    assert set(block.tolist()) == {NO_BLOCK, 0, 1, 2}
    assert found.block.tolist() == block.tolist()
    assert found.of(np.arange(many)) == pytest.approx(prior, rel=1e-9)


def by_all_groups(
    likelihood: Floats, log_prior: Floats, log_worse: Floats, all_groups: Sequence[Places]
) -> tuple[Floats, Places]:
    """The formulas of `analysis.blocks`, group by group."""
    prior, block = np.tile(log_prior, (len(likelihood), 1)), np.full(len(likelihood), NO_BLOCK)
    left = list(all_groups)
    for number in range(50):
        explained = logsumexp(likelihood + prior, axis=1)[:, None]
        alike = np.log(ALIKE_SHARE * np.exp(likelihood - explained) + 1.0 - ALIKE_SHARE)
        together = [alike[group].sum(axis=0) + log_worse for group in left]
        best = int(np.argmax(evidence := logsumexp(together, axis=1)))
        share = min(BLOCK_SHARE, (1.0 + 2.0 * number) / len(all_groups))
        if evidence[best] + np.log(share / (1.0 - share)) < 0.0:
            break
        group = left.pop(best)
        others, odds = together[best] - alike[group], BLOCK_SHARE / (1.0 - BLOCK_SHARE)
        weight = odds * np.exp(logsumexp(others, axis=1))[:, None]
        within = ALIKE_SHARE * np.exp(others - logsumexp(others, axis=1)[:, None])
        within += (1.0 - ALIKE_SHARE) * np.exp(prior[group])
        prior[group] = np.log((np.exp(prior[group]) + weight * within) / (1.0 + weight))
        block[group] = np.where(block[group] == NO_BLOCK, number, block[group])
    return prior, block


def test_groups_are_of_the_ladder_and_of_features_and_each_is_there_once() -> None:
    table, _ = a_cloud(0)
    ladder, all_of_them = groups(table, ARCHETYPES, NO_FEATURES), groups(table, ARCHETYPES, FEATURES)
    assert len(ladder) == 15 * 20  # each archetype on each context
    assert {tuple(group.tolist()) for group in ladder} < {tuple(group.tolist()) for group in all_of_them}
    assert len({tuple(group.tolist()) for group in all_of_them}) == len(all_of_them)
    driver_0 = [context for context in range(20) if "driver 0" in FEATURES[str(context)]]
    wanted = [workload * 20 + context for workload in range(4) for context in driver_0]
    assert wanted in [sorted(group.tolist()) for group in all_of_them]


def test_a_feature_is_one_in_which_all_nodes_of_a_context_agree() -> None:
    looks = (
        Look("driver", told=True, levels=("550",), low=None, high=None),
        Look("hall", told=False, levels=("a", "b"), low=None, high=None),
        Look("degrees", told=True, levels=(), low=60.0, high=70.0),
        Look("rack", told=False, levels=("",), low=None, high=None),
    )
    known = ContextMap(("driver",), (Context(7, "driver 550", ("n1",), 1.0, 0.5, 2.0),), 8, (looks,), (1.0,), (0.0,))
    assert features_of(known) == {7: ("driver 550",)}
