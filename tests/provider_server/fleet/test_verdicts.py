"""From model and quasi-experiment to a verdict: which pairs are accused, which acquitted, and where to go instead."""

from collections.abc import Sequence

import numpy as np
import pytest

from federation.protocol.bundle import PairJudgement
from federation.protocol.judgement import FALSE_SHARE, HARMFUL_RATIO, surest, suspected
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.blocks import NO_BLOCK, Lent
from provider_server.fleet.analysis.cap_correction import capped_mean
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.noisy_counts import LOG_FACTOR
from provider_server.fleet.learning.verdicts import PairFinding, affordable, judge_pairs, within_budget
from tests.support.changing import replace

WORKLOADS, CONTEXTS = 20, 10
PLANTED = {(3, 4), (7, 1), (12, 8)}
DIMENSIONS = (
    Dimension("workload", tuple(f"w{number}" for number in range(WORKLOADS))),
    Dimension("context", tuple(f"c{number}" for number in range(CONTEXTS))),
)


def counts(rng: np.random.Generator, expected: Floats, noise_sd: float, units: Floats | None = None) -> LifeTable:
    events = rng.poisson(expected) + noise_sd * rng.standard_normal(expected.shape)
    nothing = np.zeros(expected.shape)
    exposure = expected if units is None else units
    return LifeTable(DIMENSIONS, events.astype(np.float64), exposure, nothing, nothing + noise_sd**2)


def verdicts(
    seed: int, *, factor: float = 8.0, noise_sd: float = 0.0, confounded: bool = False, per_pair: float = 20.0
) -> list[PairFinding]:
    """Verdicts on a cloud whose planted pairs fail `factor` times as often; if `confounded`, so do their scripts."""
    rng = np.random.default_rng(seed)
    explained = rng.gamma(4.0, per_pair / 4.0, (WORKLOADS, CONTEXTS))
    ratio = np.ones(explained.shape)
    for pair in PLANTED:
        ratio[pair] = factor
    counted = replace(counts(rng, explained * ratio, noise_sd), exposure_node_hours=explained)
    units = 10.0 * explained
    scripts = counts(rng, explained * (ratio if confounded else 1.0), noise_sd, units)
    return judge_pairs(find_mismatches(counted), counted, scripts, 100.0 * explained)


def accused(found: list[PairFinding], judgement: PairJudgement) -> set[tuple[int, int]]:
    return {(int(one.workload[1:]), int(one.context[1:])) for one in found if one.judgement is judgement}


def test_the_surest_are_likely_and_expected_to_be_right() -> None:
    assert surest(np.array([0.2, 0.99, 0.95, 0.6, 1.0])).tolist() == [4, 1, 2]
    assert surest(np.array([1.0] * 36 + [0.06] * 10)).tolist() == list(range(36))  # room left, but acquitted
    assert surest(np.array([0.94, 0.4])).tolist() == []


@pytest.mark.parametrize("noise_sd", [0.0, 9.0])
def test_planted_pairs_are_called_worse_and_no_others(noise_sd: float) -> None:
    found = verdicts(1, noise_sd=noise_sd)
    assert accused(found, PairJudgement.WORSE) == PLANTED
    assert not accused(found, PairJudgement.CONFOUNDED)


def test_where_script_errors_differ_as_well_hardware_is_not_accused() -> None:
    found = verdicts(2, confounded=True)
    assert accused(found, PairJudgement.CONFOUNDED) == PLANTED
    assert not accused(found, PairJudgement.WORSE)
    assert {"script errors differ too" in one.reason for one in found if one.judgement is PairJudgement.CONFOUNDED} == {
        True
    }


def test_without_a_control_a_pair_can_still_be_accused_and_says_so() -> None:
    rng = np.random.default_rng(3)
    explained = np.full((WORKLOADS, CONTEXTS), 30.0)
    ratio = np.ones(explained.shape)
    ratio[3, 4] = 8.0
    counted = replace(counts(rng, explained * ratio, 0.0), exposure_node_hours=explained)
    found = judge_pairs(find_mismatches(counted), counted, LifeTable.zeros(DIMENSIONS), 100.0 * explained)
    (worse,) = (one for one in found if one.judgement is PairJudgement.WORSE)
    assert (worse.workload, worse.context) == ("w3", "c4")
    assert "too few script errors to check" in worse.reason


UNITS = 40  # units of a pair, each of which counts one failure at most


@pytest.mark.parametrize("of_a_cap", [True, False])
def test_what_is_misreported_confounds_no_pair_if_the_cap_is_known(of_a_cap: bool) -> None:  # noqa: FBT001
    """A fifth of the hardware failures is told as script errors; most of a bad pair's hide under the cap."""
    rng, ratio = np.random.default_rng(11), np.ones((WORKLOADS, CONTEXTS))
    for pair in PLANTED:
        ratio[pair] = 8.0
    expected = 0.5 * ratio[:, :, None] * np.ones(UNITS)
    explained = 0.5 * UNITS * np.ones(ratio.shape)
    told, mistaken = (rng.poisson(share * expected) for share in (0.8, 0.2))
    counted = replace(counts(rng, explained, 0.0), events=np.minimum(told, 1).sum(axis=2).astype(np.float64))
    scripts = counts(rng, 4.0 * np.ones(ratio.shape), 0.0, explained)
    scripts = replace(scripts, events=scripts.events + np.minimum(mistaken, 1).sum(axis=2))
    by_factor = capped_mean(explained[..., None] / UNITS * np.exp(LOG_FACTOR), 1) * UNITS
    misreported = capped_mean(0.15 * 0.8 * expected, 1).sum(axis=2) if of_a_cap else None
    found = judge_pairs(find_mismatches(counted, by_factor), counted, scripts, 100.0 * explained, misreported)
    assert accused(found, PairJudgement.WORSE if of_a_cap else PairJudgement.CONFOUNDED) == PLANTED


def test_nothing_is_acquitted_for_want_of_data() -> None:
    assert not accused(verdicts(4, factor=1.0, per_pair=0.2, noise_sd=9.0), PairJudgement.NOT_WORSE)
    rich = verdicts(4, factor=1.0, per_pair=80.0)
    assert len(accused(rich, PairJudgement.NOT_WORSE)) > 0.98 * len(rich)


def test_a_counter_proposal_is_a_context_where_the_workload_fails_less() -> None:
    found = verdicts(5)
    by_pair = {(one.workload, one.context): one for one in found}
    for one in found:
        if one.judgement is not PairJudgement.WORSE:
            assert one.alternatives == () or one.judgement in (PairJudgement.SUSPECTED, PairJudgement.CONFOUNDED)
            continue
        better = [by_pair[one.workload, context] for context in one.alternatives]
        assert len(better) == 3
        assert [other.rate_high for other in better] == sorted(other.rate_high for other in better)
        assert all(other.rate_high < one.rate and other.probability_worse < 0.5 for other in better)


def test_rates_are_those_of_the_pair() -> None:
    found = verdicts(6, factor=1.0, per_pair=200.0)
    assert np.median([one.rate for one in found]) == pytest.approx(0.01, rel=0.1)
    assert all(one.rate < one.rate_high for one in found)


def test_the_same_counts_give_the_same_verdicts() -> None:
    assert verdicts(7, noise_sd=9.0) == verdicts(7, noise_sd=9.0)


def test_suspected_are_the_likeliest_within_a_bounded_share_of_vain_moves() -> None:
    rng = np.random.default_rng(8)
    probability, hours = rng.beta(0.05, 1.0, 2000), rng.gamma(2.0, 1.0, 2000)
    chosen = suspected(probability, hours)
    right, wrong = hours * probability, hours * (1.0 - probability)
    assert 0.035 < wrong[chosen].sum() / wrong.sum() <= 0.045
    assert right[chosen].sum() > 0.7 * right.sum()
    assert probability[chosen].min() > probability[~chosen].max()
    worth = rng.random(2000) < probability  # as often worse as said
    assert hours[chosen & ~worth].sum() < 0.06 * hours[~worth].sum()
    assert not suspected(np.full(2000, 0.029), hours).any()  # nobody is left for next to nothing
    assert suspected(np.array([0.5, 0.9]), np.array([1.0, 1e6])).all()  # but for what is likely, whatever it costs


def test_what_is_suspected_is_proposed_another_context() -> None:
    found = verdicts(9, factor=3.0, per_pair=8.0, noise_sd=9.0)
    doubted = [one for one in found if one.judgement is PairJudgement.SUSPECTED]
    assert doubted
    assert np.mean([bool(one.alternatives) for one in doubted]) > 0.5
    assert all("use another hardware group if that costs little" in one.reason for one in doubted)


# ---- at the bounds -----------------------------------------------------------------------------------------------

JUST = 1e-9  # beyond a bound
TWINS = (Dimension("workload", ("w0",)), Dimension("context", ("c0", "c1", "c2")))


def judged(
    probability_worse: Sequence[float], likely_high: Sequence[float], first_hours: float = 1e4
) -> list[PairFinding]:
    """Verdicts on one workload that failed once in 100 node-hours on each of three contexts, as was expected."""
    hours, nothing = np.array([[first_hours, 1e4, 1e4]]), np.zeros((1, 3))
    counted = LifeTable(TWINS, hours / 100.0, hours / 100.0, nothing, nothing)
    places, ones = np.arange(3), np.ones(3)
    found = Mismatches(
        workload=places * 0,
        context=places,
        expected=hours[0] / 100.0,
        told_rate=nothing[0],
        seen_rate=nothing[0],
        stand_in_rate=nothing[0],
        probability_worse=np.array(probability_worse),
        probability_half_more=nothing[0],
        probability_fourfold=nothing[0],
        ratio=ones,
        ratio_low=0.5 * ones,
        ratio_high=2.0 * HARMFUL_RATIO * ones,
        likely_low=0.5 * ones,
        likely_high=np.array(likely_high),
        ratio_if_expected=ones,
        ratio_if_worse=ones,
        relative_variance=nothing[0],
        share_worse=0.03,
        spread=0.1,
        scale=1.0,
        shape=np.inf,
        block=np.full(3, NO_BLOCK),
        supported=ones > 0.0,
        log_prior=nothing[0],
        log_likelihood=nothing,
        lent=Lent.nothing(nothing[0], 3),
        expected_by_others=hours[0] / 100.0,
        log_sd=nothing[0],
    )
    return judge_pairs(found, counted, counted, hours)


def accused_in(block: Sequence[int], supported: Sequence[bool], probability_worse: Sequence[float]) -> list[int]:
    """The places of pairs that are called worse, as members of these blocks with data of their own or without."""
    pairs = len(block)
    hours, nothing = np.full((1, pairs), 1e4), np.zeros((1, pairs))
    dimensions = (Dimension("workload", ("w",)), Dimension("context", tuple(map(str, range(pairs)))))
    counted = LifeTable(dimensions, hours / 100.0, hours / 100.0, nothing, nothing)
    found = replace(
        find_mismatches(counted),
        probability_worse=np.array(probability_worse),
        block=np.array(block),
        supported=np.array(supported),
    )
    judged = judge_pairs(found, counted, counted, hours)
    return [place for place, pair in enumerate(judged) if pair.judgement is PairJudgement.WORSE]


def test_of_a_block_only_pairs_are_called_worse_that_their_own_data_support() -> None:
    sure = [0.99] * 4
    assert accused_in([0, 0, 0, NO_BLOCK], [True, False, True, False], sure) == [0, 2, 3]  # a single pair needs none


def test_a_block_counts_as_one_where_false_ones_are_weighed() -> None:
    """Forty pairs at .995 leave room for one at .85 beside them, but not where they stand or fall together."""
    likely = [0.995] * 40 + [0.85]
    yes = [True] * 41
    assert accused_in([NO_BLOCK] * 41, yes, likely) == list(range(41))
    assert accused_in([0] * 40 + [NO_BLOCK], yes, likely) == list(range(40))
    assert accused_in([0] * 20 + [1] * 20 + [NO_BLOCK], yes, likely) == list(range(40))


def test_a_pair_that_is_sure_enough_is_called_worse_while_few_are_expected_to_be_wrong() -> None:
    assert surest(np.array([1.0] * 49 + [0.8])).tolist() == list(range(50))
    assert surest(np.array([1.0] * 49 + [0.8 - JUST])).tolist() == list(range(49))
    assert surest(np.array([1.0] * 3 + [0.8 + JUST])).tolist() == list(range(3))  # a fifth of a pair of 4 is too much


def test_who_is_suspected_at_the_least_suspicion_and_at_the_full_share_of_vain_moves() -> None:
    room = np.array([1.0, 1e6])
    assert suspected(np.array([0.03, 0.0]), room).tolist() == [True, False]
    assert suspected(np.array([0.03 - JUST, 0.0]), room).tolist() == [False, False]
    assert suspected(np.array([0.25, 0.0]), np.array([0.06, 0.955])).tolist() == [True, False]  # 0.045 of 1 in vain
    assert suspected(np.array([0.25, 0.0]), np.array([0.06 + JUST, 0.955])).tolist() == [False, False]
    assert suspected(np.array([0.5, 0.5 - JUST]), np.array([1.0, 1.0])).tolist() == [True, False]


def test_a_pair_is_acquitted_once_twice_the_rate_is_excluded_and_not_before() -> None:
    bounds = (HARMFUL_RATIO - JUST, HARMFUL_RATIO, HARMFUL_RATIO + JUST)
    assert [one.judgement for one in judged((0.0, 0.0, 0.0), bounds)] == [
        PairJudgement.NOT_WORSE,
        PairJudgement.TOO_LITTLE,
        PairJudgement.TOO_LITTLE,
    ]


@pytest.mark.parametrize(("probability", "proposed"), [(0.5, ("c1",)), (0.5 - JUST, ("c1", "c2"))])
def test_who_is_likely_to_suffer_is_sent_where_less_is_suffered_and_others_below_their_upper_bound(
    probability: float, proposed: tuple[str, ...]
) -> None:
    """The pair's own rate is 1 of what is expected, its upper bound 3."""
    doubted = judged((probability, 0.0, 0.0), (3.0, 0.9, 2.0), first_hours=100.0)[0]
    assert doubted.alternatives == proposed


# ---- over many bundles -----------------------------------------------------------------------------------------------


def test_as_many_are_called_worse_for_the_first_time_as_the_charges_so_far_allow() -> None:
    assert affordable(np.array([0.96 + JUST, 0.9]), []) == 1
    assert affordable(np.array([0.96 - JUST]), []) == 0
    assert affordable(np.array([0.9]), [0.04]) == 0  # charges of .14 where two pairs allow .08
    assert affordable(np.array([1.0] * 4 + [0.9]), [0.1]) == 5  # but all together .2 where six allow .24
    assert affordable(np.array([]), [0.5]) == 0


def test_who_was_accused_before_stays_accused_and_who_costs_too_much_is_suspected() -> None:
    first, second, third = (
        replace(one, judgement=PairJudgement.WORSE, probability_worse=probability)
        for one, probability in zip(judged((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), (0.99, 0.9, 0.85), strict=True)
    )

    def told(charges: dict[tuple[str, str], float]) -> list[PairJudgement]:
        return [one.judgement for one in within_budget([third, first, second], charges)]

    worse, suspicious = PairJudgement.WORSE, PairJudgement.SUSPECTED
    assert told({}) == [suspicious, worse, suspicious]
    assert told({third.key: 0.15}) == [worse, suspicious, suspicious]
    assert told({third.key: 0.0, second.key: 0.0}) == [worse, worse, worse]


def accusations_of_a_year(rng: np.random.Generator, looks: int, effect: float) -> tuple[int, int, int, int]:
    """A thousand pairs, 4% worse, looked at so often; posteriors are exact, and any false one is there by chance.

    Distinct accusations and false ones, of each look by itself and within the budget over all looks.
    """
    share, alone, charges = 0.04, np.zeros(1000, np.bool_), dict[int, float]()
    worse, seen = rng.random(1000) < share, np.zeros(1000)
    for look in range(1, looks + 1):
        seen += effect * worse + rng.standard_normal(1000)
        odds = share / (1.0 - share) * np.exp(effect * seen - 0.5 * look * effect**2)
        probability = odds / (1.0 + odds)
        called = surest(probability)
        alone[called] = True
        first = [pair for pair in called.tolist() if pair not in charges]
        for pair in first[: affordable(probability[first], list(charges.values()))]:
            charges[pair] = 1.0 - probability[pair]
    return int(alone.sum()), int((alone & ~worse).sum()), len(charges), int((~worse[list(charges)]).sum())


@pytest.mark.parametrize(("looks", "effect"), [(6, 1.5), (52, 0.8)])
def test_a_year_of_looks_makes_no_more_false_accusations_than_promised_and_without_a_budget_it_does(
    looks: int, effect: float
) -> None:
    rng = np.random.default_rng(7)
    alone, alone_false, called, false = np.sum([accusations_of_a_year(rng, looks, effect) for _ in range(40)], axis=0)
    chance = np.sqrt(FALSE_SHARE / called)  # one standard error of the share
    assert false / called < FALSE_SHARE + 2.0 * chance < 0.06
    assert alone_false / alone > FALSE_SHARE + 3.0 * chance
    assert called - false > 0.85 * (alone - alone_false)  # what it costs
