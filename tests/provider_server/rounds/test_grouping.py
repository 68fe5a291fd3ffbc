"""Groups and suspicion: what no honest group could send is found at once, and who lies all the time is found in time.

The simulated federation is that of the study `poison`, which also measures what these tests only bound.
"""

import json
import math
from collections import Counter
from itertools import count
from statistics import median

import numpy as np
import pytest

from crypto.ids import TenantId
from federation.protocol.noise import noise_variances
from federation.protocol.plan import Mechanism
from provider_server.rounds.ceilings import GroupSum
from provider_server.rounds.grouping import (
    GroupJudgement,
    GroupLimits,
    PoisonedRound,
    TenantScore,
    TenantScores,
    accepted,
    assign,
    judge,
    shuffled,
)
from provider_server.rounds.planning import PlanSettings
from simulation.studies.poison import GROUPS, MINIMUM, TENANTS, World, group_sum, make_world, play
from tests.support.changing import replace

NOBODY = TenantScores()
SCALES = PlanSettings(1.0, 1e-8, MINIMUM, MINIMUM // 2, mechanism=Mechanism.DISCRETE_GAUSSIAN).scales()


@pytest.fixture(scope="module")
def world() -> World:
    """Its noise is Gaussian, as that is what `group_sum` draws."""
    made = make_world(np.random.default_rng(7))
    marginals = tuple(replace(one, noise_scale=scale) for one, scale in zip(made.plan.marginals, SCALES, strict=True))
    plan = replace(made.plan, mechanism=Mechanism.DISCRETE_GAUSSIAN, delta=1e-8, marginals=marginals)
    return replace(made, plan=plan, held=replace(made.held, plan=plan))


def tenant(number: int) -> TenantId:
    return TenantId(number.to_bytes(TenantId.length))


def everybody(size: int = TENANTS) -> tuple[TenantId, ...]:
    return tuple(tenant(number) for number in range(size))


def a_round(world: World, seed: int = 1) -> list[GroupSum]:
    rng = np.random.default_rng(seed)
    return [group_sum(world, rng, members) for members in assign(world.tenants, GROUPS, MINIMUM, NOBODY, rng.bytes)]


def lying(group: GroupSum, word: int, marginal: int = 0, cell: int = 0) -> GroupSum:
    """The group with a word of the ring, which is 2^8 per count, added to one cell and wrapped as the sum is."""
    counts = [values.copy() for values in group.counts]
    flat = counts[marginal].reshape(-1)
    ring = (round(float(flat[cell]) * 256) + word) % 2**64
    flat[cell] = (ring - 2**64 if ring >= 2**63 else ring) / 256
    return replace(group, counts=tuple(counts))


# ---- assignment ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contributors", "groups", "minimum", "sizes"),
    [(60, 6, 10, [10] * 6), (59, 6, 10, [12, 12, 12, 12, 11]), (19, 6, 10, [19]), (7, 3, 10, [7]), (12, 3, 2, [4] * 3)],
)
def test_everybody_is_in_one_group_and_no_group_is_below_the_minimum(
    contributors: int, groups: int, minimum: int, sizes: list[int]
) -> None:
    rng = np.random.default_rng(1)
    made = assign(everybody(contributors), groups, minimum, NOBODY, rng.bytes)
    assert [len(group) for group in made] == sizes
    assert sorted(member for group in made for member in group) == sorted(everybody(contributors))


def test_a_shuffle_is_uniform_and_a_biased_one_would_show() -> None:
    rng = np.random.default_rng(3)
    orders = Counter(tuple(shuffled(everybody(4), rng.bytes)) for _ in range(12_000))
    assert len(orders) == 24
    assert chi_square(list(orders.values())) < 50  # 23 degrees of freedom: once in a thousand
    naive = Counter(tuple(sorted(range(4), key=lambda _: rng.integers(3))) for _ in range(12_000))  # ties keep order
    assert chi_square(list(naive.values())) > 50


def chi_square(counts: list[int]) -> float:
    mean = sum(counts) / 24
    return sum((seen - mean) ** 2 / mean for seen in counts) + (24 - len(counts)) * mean


def test_draws_that_would_favour_small_numbers_are_thrown_away() -> None:
    draws = iter([b"\xff" * 8, bytes(8)])  # 2^64 - 1 lies in the incomplete last block of three
    assert shuffled(everybody(3)[:3], lambda size: next(draws, bytes(8))) == [tenant(1), tenant(2), tenant(0)]
    assert next(draws, None) is None


def test_suspects_are_dealt_out_evenly() -> None:
    suspects = set(everybody(12))
    suspicion = TenantScores(alarms={one: 8.0 if one in suspects else -20.0 for one in everybody()})
    assert suspicion.suspects() == suspects
    for groups in (2, 6):
        made = assign(everybody(), groups, MINIMUM, suspicion, np.random.default_rng(1).bytes)
        assert {len(suspects & set(group)) for group in made} == {12 // groups}


def test_an_alarm_leaves_at_most_half_of_the_suspects_each_round() -> None:
    """A loud liar among 60 in two groups: 30, 15, 8, 4, 2, 1, so it is alone after six rounds."""
    rng, suspicion, liar = np.random.default_rng(5), NOBODY, tenant(17)
    left = set(everybody())
    for _ in range(6):
        groups = assign(everybody(), 2, MINIMUM, suspicion, rng.bytes)
        guilty = next(number for number, group in enumerate(groups) if liar in group)
        suspicion = suspicion.after(GroupJudgement(groups, (), frozenset({guilty}), {}, {}))
        left &= set(groups[guilty])
    assert max(everybody(), key=suspicion.score) == liar
    assert len(left) <= 2


# ---- one round -----------------------------------------------------------------------------------------------------


def test_an_honest_round_is_accepted_whole(world: World) -> None:
    for seed in range(20):
        groups = a_round(world, seed)
        judgement = judge(groups, world.held, {})
        assert judgement.findings == ()
        assert accepted(groups, judgement) == tuple(range(GROUPS))


@pytest.mark.parametrize("marginal", [0, 1, 2])
@pytest.mark.parametrize("word", [2**64 - 2**48, 2**63, 2**40, 2**17, 2**64 - 2**17])
def test_a_huge_lie_in_one_cell_costs_its_group_and_nothing_else(world: World, word: int, marginal: int) -> None:
    groups = a_round(world)
    groups[2] = lying(groups[2], word, marginal, cell=5)
    judgement = judge(groups, world.held, {})
    assert judgement.flagged == {2}
    assert {finding.where.split()[0] for finding in judgement.findings} == {world.plan.marginals[marginal].name}
    assert any(finding.where.endswith("cell 5") for finding in judgement.findings)
    assert accepted(groups, judgement) == (0, 1, 3, 4, 5)


def test_minus_one_in_the_ring_is_a_256th_of_a_failure_and_passes(world: World) -> None:
    groups = a_round(world)
    groups[2] = lying(groups[2], 2**64 - 1)
    assert groups[2].counts[0].reshape(-1)[0] == pytest.approx(a_round(world)[2].counts[0].reshape(-1)[0], abs=0.01)
    assert judge(groups, world.held, {}).findings == ()


def test_the_largest_lie_in_one_cell_that_passes_is_a_few_deviations_of_the_noise(world: World) -> None:
    """So the bias of an undetected cell is bounded, whatever a member sends."""
    groups = a_round(world)
    deviation = math.sqrt(groups[0].noise_variance[0])

    def passes(counts: int) -> bool:
        return not judge([lying(groups[0], counts * 256), *groups[1:]], world.held, {}).findings

    largest = next(counts for counts in count(10, 5) if not passes(counts))
    assert 3 * deviation < largest < 12 * deviation


def test_a_ceiling_is_enough_where_there_is_one_group_only(world: World) -> None:
    group = GroupSum(world.tenants, a_sum(world), noise_variances(world.plan, TENANTS))
    assert accepted([group], judge([group], world.held, {})) == (0,)
    liar = lying(group, 2**40)
    with pytest.raises(PoisonedRound, match="1 of 1 groups") as refused:
        accepted([liar], judge([liar], world.held, {}))
    assert "suspects" in refused.value.diagnostics()


def a_sum(world: World) -> tuple[np.ndarray, ...]:
    return group_sum(world, np.random.default_rng(2), world.tenants).counts


def test_when_more_than_half_of_the_groups_are_poisoned_nothing_is_released(world: World) -> None:
    groups = a_round(world)
    half = [lying(group, 2**40) for group in groups[:3]] + groups[3:]
    assert accepted(half, judge(half, world.held, {})) == (3, 4, 5)
    most = [lying(group, 2**40) for group in groups[:4]] + groups[4:]
    with pytest.raises(PoisonedRound, match="of 6 groups"):
        accepted(most, judge(most, world.held, {}))


def test_all_of_a_lie_that_is_spread_over_cells_shows_in_their_total(world: World) -> None:
    """Twelve failures in each of 288 cells hide in any of them behind noise of deviation nine, not in their sum."""
    groups = a_round(world)
    counts = list(groups[4].counts)
    counts[1] = counts[1] + 12
    groups[4] = replace(groups[4], counts=tuple(counts))
    judgement = judge(groups, world.held, {})
    assert judgement.flagged == {4}
    assert not any("cell" in finding.where for finding in judgement.findings)


def test_laplace_noise_has_longer_tails_and_wider_limits(world: World) -> None:
    """With limits for Gaussian noise, honest groups under Laplace noise are flagged in half of the rounds or more."""
    laplace = replace(world.held, plan=replace(world.plan, mechanism=Mechanism.DISCRETE_LAPLACE))
    right, wrong = 0, 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        groups = [
            replace(
                group,
                counts=tuple(values + rng.laplace(0, 40.0, values.shape) for values in group.counts),
                noise_variance=tuple(variance + 2 * 40.0**2 for variance in group.noise_variance),
            )
            for group in a_round(world, seed)
        ]
        loose = GroupLimits(false_alarm=1e-2)
        right += bool(judge(groups, laplace, {}, loose).findings)
        wrong += bool(judge(groups, world.held, {}, loose).findings)
    assert right == 0
    assert wrong >= 5


# ---- over rounds ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_member_that_reports_ten_times_its_failures_is_named_and_nobody_else() -> None:
    years = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        years.append(play(make_world(rng), rng, int(rng.integers(TENANTS)), 10.0))
    weeks = [year.weeks or 1000 for year in years]
    assert median(weeks) <= 10
    assert sum(week <= 52 for week in weeks) >= 5
    assert all(year.suspected is not None and year.suspected <= week for year, week in zip(years, weeks, strict=True))
    assert sum(year.innocent for year in years) <= 1  # 1 in 40 such years, measured


@pytest.mark.nightly
def test_honest_federations_accuse_nobody_in_a_year_and_would_under_a_laxer_rule() -> None:
    named, lax = 0, 0
    for seed in range(2):
        rng = np.random.default_rng(100 + seed)
        world = make_world(rng)
        named += play(world, rng, None, 1.0).innocent
        lax += play(world, rng, None, 1.0, weeks=26, limits=GroupLimits(tolerated=1.0, accused=10.0)).innocent
    assert named == 0
    assert lax >= 1  # honest tenants do have different rates


def test_a_small_liar_is_not_named_and_moves_a_release_by_its_own_share_only() -> None:
    rng = np.random.default_rng(4)
    year = play(make_world(rng), rng, 3, 1.5)
    assert year.weeks is None
    assert year.innocent == 0
    assert 0 < year.worst_bias < 0.05  # half of its own failures, among those of sixty


def test_a_lie_in_a_cell_where_the_liar_has_no_leases_is_traced_by_alarms_alone(world: World) -> None:
    rng, suspicion, liar = np.random.default_rng(9), NOBODY, world.tenants[11]
    for _ in range(30):
        groups = []
        for members in assign(world.tenants, GROUPS, MINIMUM, suspicion, rng.bytes):
            group = group_sum(world, rng, members)
            groups.append(lying(group, 60 * 256, cell=3) if liar in members else group)
        suspicion = suspicion.after(judge(groups, world.held, suspicion.rates()))
        if suspicion.named():
            break
    assert suspicion.named() == {liar}
    assert liar in suspicion.suspects()


def test_evidence_of_a_tenant_whose_group_has_no_baseline_says_nothing(world: World) -> None:
    groups = a_round(world)
    groups = [groups[0], *(lying(group, 2**40) for group in groups[1:])]
    assert judge(groups, world.held, {}).evidence == {}


def test_an_honest_score_is_an_e_value_and_a_threshold_of_half_its_size_is_too_low() -> None:
    """Scores at the tolerated rate, which is the worst case: rarely ever above log(1/α), more often above half."""
    rng, bound, beyond, half = np.random.default_rng(1), math.log(20), 0, 0
    for _ in range(400):
        score, peak = 0.0, -math.inf
        for week in range(1, 53):
            score += rng.normal(0.0, math.sqrt(0.1))
            one = TenantScores(excess={tenant(1): TenantScore(score, 0.1 * week)}, alarms={tenant(1): -math.inf})
            peak = max(peak, one.score(tenant(1)))
        beyond += peak > bound - math.log(2)  # half of the weight lies on alarms, which are silent here
        half += peak > bound / 2 - math.log(2)
    assert beyond / 400 <= 0.05
    assert half / 400 > 0.05


def test_suspicion_survives_json(world: World) -> None:
    groups = a_round(world)
    groups[2] = lying(groups[2], 2**40)
    suspicion = NOBODY.after(judge(groups, world.held, {}))
    again = TenantScores.from_dict(json.loads(json.dumps(suspicion.to_dict())))
    assert again == suspicion
    assert {again.score(member) > 0 for member in groups[2].members} == {True}
    assert again.suspects() == suspicion.suspects()


def test_nothing_is_suspected_before_the_first_round() -> None:
    assert NOBODY.suspects() == NOBODY.named() == frozenset()
    assert NOBODY.rates() == {}
