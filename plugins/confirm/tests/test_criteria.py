"""Criteria: distances against an oracle, learning with bad machines among good ones, verdicts that keep their bound."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Generator
from scipy.stats import kstest

from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm.criteria import (
    BOUND,
    Criterion,
    NoCriterion,
    distance,
    effective,
    judge,
    learn,
    median_interval,
    one_sided,
    published_distance,
    sign_test,
)
from pharoah_confirm.sample import Rates, Sample

RATES = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=60).map(np.array)
Noise = Callable[[Generator, int], Rates]


def sample(values: Rates) -> Sample:
    return Sample("gemm", "cpu", "GFLOP/s", values)


def even(generator: Generator, repeats: int) -> Rates:
    return generator.normal(0.0, 0.02, repeats)


def spiky(generator: Generator, repeats: int) -> Rates:
    """Slowed down only, sometimes tenfold: what neighbours do."""
    return -0.02 * np.abs(generator.standard_t(2, repeats))


def sluggish(generator: Generator, repeats: int, correlation: float = 0.8) -> Rates:
    """Repeats that resemble the ones before them."""
    shocks, found = generator.normal(0.0, 0.02, repeats), np.zeros(repeats)
    found[0] = shocks[0] / np.sqrt(1 - correlation**2)
    for at in range(1, repeats):
        found[at] = correlation * found[at - 1] + shocks[at]
    return found


def normal(generator: Generator) -> float:
    return float(generator.normal(0.0, 0.01))


def laplace(generator: Generator) -> float:
    return float(generator.laplace(0.0, 0.01 / np.sqrt(2)))


def bins(generator: Generator) -> float:
    """Two qualities of silicon."""
    return float(generator.choice([-0.01, 0.01]))


def machine(generator: Generator, noise: Noise, level: float = 0.0, slower: float = 1.0, repeats: int = 100) -> Sample:
    return sample(100.0 / slower * np.exp(level + noise(generator, repeats)))


def fleet(generator: Generator, noise: Noise, levels: Callable[[Generator], float], machines: int) -> Criterion:
    return learn({str(number): [machine(generator, noise, levels(generator))] for number in range(machines)})


# ---- distances -----------------------------------------------------------------------------------------------------


def integrals(one: Rates, other: Rates, low: float) -> tuple[float, float, float]:
    """Of |F - G|, max(F, G) and max(1 - F, 1 - G), from `low` to the highest rate, step by step."""
    steps = np.unique(np.concatenate([[low], one, other]))
    steps = steps[steps >= low]
    f, g = ((values[None, :] <= steps[:-1, None]).mean(1) for values in (one, other))
    widths = np.diff(steps)
    return tuple(float((part * widths).sum()) for part in (np.abs(f - g), np.maximum(f, g), np.maximum(1 - f, 1 - g)))  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 100.0), min_size=64, max_size=64).map(np.array), st.integers(0, 2**32 - 1))
def test_distances_are_the_integrals(one: Rates, seed: int) -> None:
    other = np.random.default_rng(seed).uniform(1.0, 100.0, 128)
    apart, either, _ = integrals(one, other, min(one.min(), other.min()))
    assert published_distance(one, other) == pytest.approx(apart / either)
    apart, _, either = integrals(one, other, 0.0)
    assert distance(one, other) == pytest.approx(apart / either)


@given(RATES, RATES, st.floats(0.1, 10.0))
def test_distance_has_two_sides_and_no_scale(one: Rates, other: Rates, scale: float) -> None:
    assert 0 <= distance(one, other) < 1
    assert distance(one, one) == 0
    assert distance(one, other) == pytest.approx(distance(other, one))
    assert one_sided(one, other) + one_sided(other, one) == pytest.approx(distance(one, other))
    assert distance(scale * one, scale * other) == pytest.approx(distance(one, other))


def test_the_published_distance_blows_up_small_differences() -> None:
    generator = np.random.default_rng(1)
    one, other = (rate * (1 + 0.001 * generator.standard_normal(100)) for rate in (100.0, 101.0))
    assert distance(one, other) == pytest.approx(0.01, abs=0.001)
    assert published_distance(one, other) > 0.5


# ---- learning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 1, 4, 7])
def test_bad_machines_among_good_ones_are_left_out(bad: int) -> None:
    generator = np.random.default_rng(bad)
    units = {f"good {n}": [machine(generator, spiky, normal(generator))] for n in range(16 - bad)}
    units |= {f"bad {n}": [machine(generator, spiky, normal(generator), 1.3)] for n in range(bad)}
    learnt = learn(units)
    assert (learnt.units, learnt.dropped) == (16 - bad, bad)
    assert learnt.usual == pytest.approx(learn({n: s for n, s in units.items() if "good" in n}).usual)
    assert 0.004 < learnt.spread < 0.02


def test_half_of_them_bad_is_no_criterion() -> None:
    generator = np.random.default_rng(1)

    def half(slower: float) -> dict[str, list[Sample]]:
        return {str(n): [machine(generator, even, slower=1.0 if n % 2 else slower)] for n in range(12)}

    with pytest.raises(NoCriterion):
        learn(half(2.0))
    unsure = learn(half(1.3))  # nothing tells which half is right
    assert unsure.finds() > 2
    assert judge(machine(generator, even, slower=1.3), unsure).verdict is CheckVerdict.UNKNOWN


def test_a_machine_counts_once_however_often_it_ran() -> None:
    generator = np.random.default_rng(1)
    units = {str(n): [machine(generator, even, normal(generator)) for _ in range(1 + 9 * (n == 0))] for n in range(8)}
    assert learn(units).units == 8


def test_samples_of_different_kinds_do_not_mix() -> None:
    one, other = sample(np.ones(9)), Sample("copy", "cpu", "GB/s", np.ones(9))
    with pytest.raises(ValueError, match="2 kinds"):
        learn({"a": [one], "b": [other]})
    with pytest.raises(ValueError, match="different kinds"):
        judge(other, learn({"a": [one], "b": [one]}))


# ---- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("noise", [even, spiky, sluggish])
@pytest.mark.parametrize("levels", [normal, laplace, bins])
def test_of_a_thousand_healthy_machines_none_is_accused(noise: Noise, levels: Callable[[Generator], float]) -> None:
    generator = np.random.default_rng(7)
    found = Counter(
        judge(machine(generator, noise, levels(generator)), criterion).verdict
        for criterion in (fleet(generator, noise, levels, 16) for _ in range(20))
        for _ in range(50)
    )
    assert found.total() == 1000
    assert found[CheckVerdict.MISMATCH] <= (
        levels is laplace
    )  # 2 in 10,000 expected; seed 7 has a machine 6 spreads off
    assert found[CheckVerdict.WARNING] <= 10
    assert found[CheckVerdict.OK] >= 980 - 20 * (noise is sluggish)


@pytest.mark.nightly
@pytest.mark.parametrize("noise", [even, spiky])
@pytest.mark.parametrize(
    ("machines", "slower", "least"), [(8, 1.3, 0.95), (16, 1.3, 0.99), (16, 1.1, 0.85), (64, 1.1, 0.9)]
)
def test_slow_machines_are_found(noise: Noise, machines: int, slower: float, least: float) -> None:
    generator = np.random.default_rng(8)
    found = Counter(
        judge(machine(generator, noise, normal(generator), slower), criterion).verdict
        for criterion in (fleet(generator, noise, normal, machines) for _ in range(20))
        for _ in range(10)
    )
    assert found[CheckVerdict.MISMATCH] >= least * found.total()
    assert found[CheckVerdict.OK] <= 0.02 * found.total()


def test_the_published_rule_would_accuse_the_same_healthy_machines() -> None:
    generator = np.random.default_rng(7)
    healthy = [machine(generator, even, normal(generator)).values for _ in range(200)]
    assert sum(1 - published_distance(one, healthy[0]) < 0.95 for one in healthy[1:]) > 100


def test_few_samples_give_no_verdict_rather_than_a_wrong_one() -> None:
    generator = np.random.default_rng(9)
    for machines in (2, 3):
        criterion = fleet(generator, even, normal, machines)
        assert judge(machine(generator, even), criterion).verdict is CheckVerdict.UNKNOWN
        assert judge(machine(generator, even, slower=1.1), criterion).verdict is not CheckVerdict.MISMATCH


def test_few_repeats_give_no_verdict() -> None:
    generator = np.random.default_rng(9)
    criterion = fleet(generator, even, normal, 16)
    assert criterion.repeats == 100
    assert judge(machine(generator, even, slower=1.5, repeats=12), criterion).verdict is not CheckVerdict.MISMATCH
    assert judge(machine(generator, even, slower=1.5, repeats=30), criterion).verdict is CheckVerdict.MISMATCH
    assert judge(machine(generator, even, repeats=10), criterion).verdict is CheckVerdict.UNKNOWN


def test_a_floor_holds_its_bound_and_rises_with_it() -> None:
    """Levels drawn from the fleet's own distribution lie below the floor no more often than half the bound says."""
    generator = np.random.default_rng(10)
    below, values = 0, []
    for _ in range(2000):
        levels = generator.normal(0.0, 0.1, 9)
        criterion = Criterion("b", "d", "u", 8, 0, 100, (1.0,) * 128, levels[:8].mean(), levels[:8].std(ddof=1), 1e9)
        below += levels[8] < np.log(criterion.floor(0.2))
        values.append(criterion.p_value(float(np.exp(levels[8]))))
    assert 0.07 < below / 2000 < 0.13
    assert kstest(values, "uniform").pvalue > 0.01
    few = fleet(generator, even, normal, 8)
    assert few.floor(1e-6) < few.floor(BOUND) < few.floor(0.01) <= few.ordinary < few.usual


def test_a_shortfall_comes_with_its_interval() -> None:
    generator = np.random.default_rng(11)
    criterion = fleet(generator, even, normal, 16)
    found = judge(machine(generator, even, slower=1.25), criterion)
    assert found.shortfall == pytest.approx(0.2, abs=0.015)
    assert found.shortfall_low < found.shortfall < found.shortfall_high
    assert found.shortfall_high - found.shortfall_low < 0.05
    assert 1.05 < found.finds < 1.12


# ---- repeats that resemble each other ------------------------------------------------------------------------------


def test_correlated_repeats_count_for_less() -> None:
    generator = np.random.default_rng(12)
    assert effective(even(generator, 1000)) == pytest.approx(1000, rel=0.15)
    assert effective(sluggish(generator, 5000)) == pytest.approx(5000 / 9, rel=0.25)
    assert 95 < effective(np.ones(100)) <= 100
    assert effective(np.array([1.0, 2.0])) == 1


def test_the_sign_test_keeps_its_level_only_with_that() -> None:
    generator = np.random.default_rng(13)
    runs = [sluggish(generator, 200) for _ in range(1000)]
    assert np.mean([sign_test(run, 0.0) <= 0.05 for run in runs]) <= 0.08
    assert np.mean([sign_test(run, 0.0, independent=200) <= 0.05 for run in runs]) > 0.2


def test_an_interval_of_the_median_holds_it() -> None:
    generator = np.random.default_rng(14)
    intervals = [median_interval(even(generator, 101)) for _ in range(500)]
    assert 0.91 < np.mean([low <= 0 <= high for low, high in intervals]) < 0.99


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, np.nan], [[1.0]]])
def test_a_sample_holds_rates_only(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"sample|rates"):
        sample(np.array(values))
