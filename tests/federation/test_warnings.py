"""Estimates and bets on warnings: intervals cover, bets do not grow on an honest provider, and find one that is not."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.random import Generator

from federation.protocol import warnings
from federation.protocol.warnings import ALARM, TOGETHER, CellNoise, Claims, WarnedSum, judged, line_of, log_e

NOISE = CellNoise("discrete_laplace", 10.0, 1.0)
CLAIMS = Claims(0.6, 0.35)


def laplace(rng: Generator, scale: float, size: int) -> np.ndarray:
    stops = -math.expm1(-1 / scale)
    return rng.geometric(stops, size) - rng.geometric(stops, size)


def a_sum(number: int, came_true: float, in_vain: float, unwarned: float, claims: Claims = CLAIMS) -> WarnedSum:
    return WarnedSum(number, number + 1, came_true, in_vain, unwarned, 0.0, 0.0, claims, NOISE)


@pytest.mark.parametrize("law", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize(("scale", "opened"), [(3.0, 1.0), (10.0, 1.7)])
def test_noise_has_the_moments_that_sums_of_shares_have(law: str, scale: float, opened: float) -> None:
    noise, at = CellNoise(law, scale, opened), 0.02
    assert noise.log_moment(at) == pytest.approx(noise.variance * at**2 / 2, rel=0.05)
    assert noise.log_moment(at) == pytest.approx(noise.log_moment(-at))
    once = CellNoise(law, scale, 1.0)
    assert noise.log_moment(0.05) == pytest.approx(opened * once.log_moment(0.05))


def test_the_moment_of_laplace_noise_is_that_of_drawn_noise() -> None:
    drawn = laplace(np.random.default_rng(1), 10.0, 2_000_000)
    assert math.log(np.exp(0.04 * drawn).mean()) == pytest.approx(NOISE.log_moment(0.04), rel=0.02)


@pytest.mark.parametrize(
    ("promised", "fallen"), [*product((0.05, 0.35, 0.6, 0.95), (warnings.INFLATED, warnings.HIDDEN))]
)
def test_a_bet_is_worth_one_at_the_claim_exactly_and_less_above_it_and_more_below(
    promised: float, fallen: float
) -> None:
    """Over one cluster that shares a fate, and so over any number of them that are sent at will."""
    for noise in (NOISE, CellNoise("discrete_laplace", 100.0, 1.0), CellNoise("discrete_laplace", 0.5, 1.0)):
        alpha, beta = warnings._weights(promised, fallen, noise.largest_bet)
        assert 0 < alpha <= noise.largest_bet + 1e-9
        assert 0 < beta <= noise.largest_bet + 1e-9
        true = promised * np.array([0.98, 1.0, 1.02])
        below, at, above = true * math.exp(-TOGETHER * alpha) + (1 - true) * math.exp(TOGETHER * beta)
        assert at == pytest.approx(1.0)
        assert above < 1 < below


def test_the_stake_of_an_honest_round_has_mean_one_and_without_the_noise_in_the_price_it_would_not() -> None:
    rng, many = np.random.default_rng(2), 200_000
    came_true = rng.binomial(333, 0.6, many)
    good, bad = came_true + laplace(rng, 10.0, many), 333 - came_true + laplace(rng, 10.0, many)
    pairs = [warnings._precision(a_sum(0, g, b, 0.0)) for g, b in zip(good[:20_000], bad[:20_000], strict=True)]
    assert np.exp([log_e(one, 0.6, warnings.INFLATED) for one in pairs]).mean() < 1.05
    alpha, beta = warnings._weights(0.6, warnings.INFLATED, NOISE.largest_bet)
    assert np.exp(beta * bad - alpha * good).mean() > 1.5


def test_intervals_hold_the_share_behind_noisy_counts() -> None:
    rng = np.random.default_rng(3)
    for share, many in ((0.6, 333), (0.1, 1000), (0.6, 20)):
        held = 0
        for _ in range(400):
            true = rng.binomial(many, share)
            good, bad = true + laplace(rng, 10.0, 1)[0], many - true + laplace(rng, 10.0, 1)[0]
            found = judged([a_sum(0, good, bad, 0.0)])
            held += found is not None and found.precision.low <= share <= found.precision.high
        assert held >= 0.93 * 400


def test_nothing_but_noise_leaves_everything_open() -> None:
    found = judged([a_sum(0, 3.0, -5.0, 4.0)])
    assert found is not None
    assert (found.precision.share, found.precision.low, found.precision.high) == (None, 0.0, 1.0)
    assert not found.alarm
    assert judged([]) is None


def years(
    seed: int, rounds: int, vain: float, hinted: float, claims: Claims = CLAIMS, first: int = 0
) -> list[WarnedSum]:
    """Rounds of 572 failures; `hinted` of them have a hint, and there are `vain` vain hints for each true one."""
    rng, found = np.random.default_rng(seed), []
    for number in range(first, first + rounds):
        true = rng.binomial(572, hinted)
        noise = laplace(rng, 10.0, 3)
        found.append(
            a_sum(number, true + noise[0], rng.poisson(vain * 572 * hinted) + noise[1], 572 - true + noise[2], claims)
        )
    return found


HONEST, INFLATED = 0.4 / 0.6, 0.4 / 0.6 + 0.2 / 0.6


def test_an_honest_provider_is_not_accused_and_one_that_warns_in_vain_or_hides_is() -> None:
    honest, inflated = (judged(years(4, 8, vain, 0.35)) for vain in (HONEST, INFLATED))
    hidden = judged(years(4, 2, HONEST, 0.175))
    assert honest is not None
    assert inflated is not None
    assert hidden is not None
    assert not honest.alarm
    assert (inflated.precision.below_claim, inflated.recall.below_claim) == (True, False)
    assert (hidden.precision.below_claim, hidden.recall.below_claim) == (False, True)
    assert line_of(inflated).endswith("it claims 60%, 35%; precision is below its claim")


def test_without_a_claim_the_own_past_is_one() -> None:
    nothing = Claims()
    found = judged([*years(5, 8, HONEST, 0.35, nothing), *years(6, 4, HONEST, 0.175, nothing, first=8)])
    assert found is not None
    assert (found.recall.below_claim, found.recall.below_past, found.precision.below_past) == (False, True, False)
    assert line_of(found).endswith("it claims nothing, nothing; recall is below its own past")


def test_a_provider_that_mends_is_no_longer_accused() -> None:
    caught = judged(years(7, 3, HONEST, 0.1))
    mended = judged([*years(7, 3, HONEST, 0.1), *years(8, 3, HONEST, 0.5, first=3)])
    assert caught is not None
    assert mended is not None
    assert caught.recall.against_claim == pytest.approx(ALARM)
    assert not mended.recall.below_claim


@pytest.mark.parametrize("levels", [(), ("precision",), ("precision x", "recall 0.5"), ("precision 2", "recall 0.5")])
def test_levels_that_claim_nothing_are_no_claim(levels: tuple[str, ...]) -> None:
    assert Claims.of(levels) == Claims()
    assert Claims.of(CLAIMS.levels) == CLAIMS
