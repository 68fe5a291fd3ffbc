"""The sampler's law is OpenDP's: its tables to the last bit that is claimed, its draws by tests that can fail.

Tables are compared with the exact law in intervals of integers, which share no step with the code under test. Draws,
and OpenDP's, are compared with the exact law by counts per bin (`tests/support/chances.py`) and by Kolmogorov's test
with the Dvoretzky–Kiefer–Wolfowitz inequality in Massart's form, which holds for discrete laws too. A test fails by
chance in less than one of 10^9 runs; how often each wrong law that is shown would be missed is computed.
"""

import hashlib
import os
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from crypto import discrete_gaussian
from crypto.discrete_gaussian import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    chacha20,
    covers,
    draw,
    drawn_by_rejection,
    table,
    total_variation,
)
from crypto.inversion import Integers, Keystream, Table
from federation.protocol.life_table import Floats
from federation.protocol.noise import SystemSampler, from_ring, noise_share
from tests.support.chances import RARE, fits, missed
from tests.support.opendp import opendp_gaussian
from tests.support.plans import cells_plan

CELLS, FEWER_CELLS = 1_000_000, 30_000
SHARED_CELLS = 2**15
SCALE = 20.0
SAMPLER = SystemSampler()
INSECURE_KEY = bytes(range(32))
UNIT = Fraction(1, 2**127)


def system_draw(scale: float, size: int) -> Integers:
    return draw(table(scale), size, chacha20(os.urandom(32)))


# ---- the exact law, in intervals of integers -------------------------------------------------------------------------

BITS = 400
Interval = tuple[Fraction, Fraction]


def exp_minus(value: Fraction) -> Interval:
    """Between which fractions exp(-value) lies: one over the Taylor series of exp(value), rounded to either side."""
    low = high = low_sum = high_sum = 1 << BITS
    number = 0
    while high > 1 or number < 2 * value + 2:
        number += 1
        low = low * value.numerator // (value.denominator * number)
        high = -(-high * value.numerator // (value.denominator * number))
        low_sum, high_sum = low_sum + low, high_sum + high
    return Fraction(1 << BITS, high_sum + 2 * high), Fraction(1 << BITS, low_sum)  # terms left: a geometric series


@cache
def exact_sums(scale: float) -> list[Interval]:
    """Bounds of w(0) + 2 w(1) + … + 2 w(k) for k = 0 … T."""
    rate = 1 / (2 * Fraction(scale) ** 2)
    sums = [(Fraction(1), Fraction(1))]
    for x in range(1, len(table(scale).high) + 1):
        low, high = exp_minus(rate * x * x)
        below = sums[-1]
        sums.append((rounded(below[0] + 2 * low, -1), rounded(below[1] + 2 * high, 1)))
    return sums


def rounded(value: Fraction, side: int) -> Fraction:
    """To a multiple of 2^-350, downwards or upwards, or fractions grow without end."""
    whole = value.numerator << 350
    return Fraction(whole // value.denominator if side < 0 else -(-whole // value.denominator), 1 << 350)


def entries(law: Table) -> list[int]:
    return [(int(high) << 64) + int(low) for high, low in zip(law.high, law.low, strict=True)]


def largest_error(drawn: list[int], scale: float) -> Fraction:
    """How far, at most, a table's entries lie from the exact conditional law, in units of 2^-127."""
    *sums, (total_low, total_high) = exact_sums(scale)
    errors = [
        max(abs(entry * UNIT - low / total_high), abs(entry * UNIT - high / total_low))
        for entry, (low, high) in zip(drawn, sums, strict=True)
    ]
    return max(errors) / UNIT


def distance(drawn: list[int], scale: float) -> Fraction:
    """An upper bound of the total variation between what the table draws and the exact law on all integers."""
    sums = exact_sums(scale)
    reach = len(sums) - 1
    total_low, total_high = sums[-1]
    total_high += exp_minus(Fraction(reach**2) / (2 * Fraction(scale) ** 2))[1] * total_high  # w(T) bounds the tail
    law = [high - low for (low, _), (_, high) in zip([(Fraction(0), Fraction(0)), *sums[:-1]], sums, strict=True)]
    masses = np.diff(np.array([0, *drawn, 2**127], object))
    apart = sum(abs(int(mass) * UNIT - weight / total_high) for mass, weight in zip(masses, law, strict=True))
    return (apart + 1 - total_low / total_high) / 2


SCALES = [0.5, 0.5**0.5, 0.6, 1.0, 3.0, 17.3, 177.35]


@pytest.mark.parametrize("scale", SCALES)
def test_every_entry_of_a_table_is_the_exact_law_to_its_last_bit(scale: float) -> None:
    drawn = entries(table(scale))
    assert largest_error(drawn, scale) < 1 + Fraction(1, 2**70)
    for wrong in (0, len(drawn) // 2, len(drawn) - 1):
        for off in (-2, 2):
            assert largest_error([*drawn[:wrong], drawn[wrong] + off, *drawn[wrong + 1 :]], scale) >= 1


@pytest.mark.parametrize("scale", SCALES)
def test_the_law_of_a_draw_is_within_the_stated_total_variation(scale: float) -> None:
    drawn = entries(table(scale))
    assert distance(drawn, scale) <= total_variation(scale) < Fraction(1, 2**110)
    beside = entries(table(float(np.nextafter(scale, 2 * scale))))
    assert distance(beside, scale) > 10**9 * total_variation(scale)
    cut = [*drawn[: len(drawn) // 2], *[2**127] * (len(drawn) - len(drawn) // 2)]
    assert distance(cut, scale) > 10**9 * total_variation(scale)


def test_the_bound_holds_up_to_the_largest_scale() -> None:
    law = table(LARGEST_SCALE)
    assert total_variation(LARGEST_SCALE) == (len(law.high) + 1) * UNIT < Fraction(1, 2**110)
    support = np.arange(-len(law.high), len(law.high) + 1)
    cumulative = np.cumsum(gaussian_law(LARGEST_SCALE, len(law.high)))
    middle = len(support) // 2
    stated = law.high / 2**63
    assert np.abs(stated - (cumulative[middle:-1] - (1 - cumulative[middle:-1]))).max() < 1e-12
    drawn = entries(law)
    assert drawn == sorted(drawn)
    assert 0 < 2**127 - drawn[-1] < 16


# ---- tests that a sample goes through --------------------------------------------------------------------------------


def gaussian_law(scale: float, reach: int) -> Floats:
    mass = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
    law: Floats = mass / mass.sum()
    return law


def borders(scale: float) -> NDArray[np.int64]:
    """Bins of about equal probability, and two more beyond 3 scales."""
    inner = norm.ppf(np.linspace(0, 1, 32)[1:-1]) * scale
    return np.unique(np.rint(np.concatenate([[-3 * scale], inner, [3 * scale]])).astype(np.int64))


def binned(sample: Integers, scale: float) -> NDArray[np.int64]:
    bins = borders(scale).searchsorted(sample, side="left")
    return np.bincount(bins, minlength=len(borders(scale)) + 1)


def reach(scale: float) -> int:
    return 20 * int(scale + 1)


def right_law(scale: float) -> Floats:
    return gaussian_law(scale, reach(scale))


def in_bins(law: Floats, scale: float) -> Floats:
    """A law over -n … n in the bins of a scale."""
    bins = borders(scale).searchsorted(np.arange(len(law)) - len(law) // 2, side="left")
    return np.bincount(bins, weights=law).astype(np.float64)


def passes_in_bins(sample: Integers, scale: float) -> bool:
    return fits(binned(sample, scale), in_bins(right_law(scale), scale))


def passes_kolmogorov(sample: Integers, scale: float) -> bool:
    end = reach(scale)
    counts = np.bincount(np.clip(sample, -end, end) + end, minlength=2 * end + 1)
    apart = np.abs(np.cumsum(counts) / len(sample) - np.cumsum(right_law(scale))).max()
    return bool(apart < allowed(len(sample)))


def allowed(size: int) -> float:
    return float(np.sqrt(np.log(2 / RARE) / (2 * size)))


def missed_by_kolmogorov(size: int, law: Floats, true: Floats) -> float:
    """How often, at most, a sample of another law passes: by the rank where the two are furthest apart."""
    ranks, others = np.cumsum(law), np.clip(np.cumsum(true), 0.0, 1.0)
    far = np.abs(ranks - others).argmax()
    low, high = size * (ranks[far] - allowed(size)), size * (ranks[far] + allowed(size))
    return float(binom.cdf(high, size, others[far]) - binom.cdf(low, size, others[far]))


@cache
def opendp_sample(scale: float) -> Integers:
    return opendp_gaussian(scale, FEWER_CELLS)


# ---- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [3.0, SCALE, 177.35, 1000.0])
def test_draws_have_the_exact_law(scale: float) -> None:
    sample = system_draw(scale, CELLS)
    assert passes_in_bins(sample, scale)
    assert passes_kolmogorov(sample, scale)


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [SCALE, 177.35])
def test_draws_of_opendp_pass_the_same_tests(scale: float) -> None:
    assert passes_in_bins(opendp_sample(scale), scale)
    assert passes_kolmogorov(opendp_sample(scale), scale)


def without_tail(scale: float) -> Integers:
    sample = system_draw(scale, CELLS + CELLS // 20)
    kept: Integers = sample[np.abs(sample) <= 2.5 * scale][:CELLS]
    assert len(kept) == CELLS
    return kept


def some_always_plus(scale: float) -> Integers:
    sample = system_draw(scale, CELLS)
    sample[::10] = np.abs(sample[::10])
    return sample


def scaled(factor: float) -> Floats:
    return gaussian_law(factor * SCALE, reach(SCALE))


def truncated() -> Floats:
    law = np.where(np.abs(np.arange(-reach(SCALE), reach(SCALE) + 1)) <= 2.5 * SCALE, right_law(SCALE), 0.0)
    return np.asarray(law / law.sum())


def leaning() -> Floats:
    return np.asarray(right_law(SCALE) * (1.0 + 0.1 * np.sign(np.arange(-reach(SCALE), reach(SCALE) + 1))))


WRONG: dict[str, tuple[Callable[[], Integers], Callable[[], Floats]]] = {
    "a scale 5% too small": (lambda: system_draw(0.95 * SCALE, CELLS), lambda: scaled(0.95)),
    "a scale 5% too large": (lambda: system_draw(1.05 * SCALE, CELLS), lambda: scaled(1.05)),
    "a mean of a tenth of the scale": (lambda: system_draw(SCALE, CELLS) + 2, lambda: np.roll(right_law(SCALE), 2)),
    "no tail beyond 2.5 scales": (lambda: without_tail(SCALE), truncated),
    "one sign in ten always plus": (lambda: some_always_plus(SCALE), leaning),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_law_is_rejected_by_the_same_tests(wrong: str) -> None:
    draws, true = WRONG[wrong]
    sample, law, right = draws(), true(), right_law(SCALE)
    assert missed(CELLS, in_bins(right, SCALE), in_bins(law, SCALE)) < RARE
    assert not passes_in_bins(sample, SCALE)
    assert missed_by_kolmogorov(CELLS, right, law) < RARE
    assert not passes_kolmogorov(sample, SCALE)


def test_cells_and_calls_are_independent() -> None:
    """Correlations of independent cells are normal with variance 1/n; a stream used twice has correlation 1."""
    one, two = SAMPLER.gaussian(SCALE, CELLS), SAMPLER.gaussian(SCALE, CELLS)
    bound = norm.isf(RARE) / np.sqrt(CELLS - 2**15)
    pairs = [(one[:-1], one[1:]), (one[: -(2**15)], one[2**15 :]), (one, two), (np.abs(one[:-1]), np.abs(one[1:]))]
    assert all(abs(np.corrcoef(*pair)[0, 1]) < bound for pair in pairs)


def test_the_sum_of_shares_has_the_noise_of_the_plan_and_a_missing_share_shows() -> None:
    shares, scale = 3, 3.0
    plan = cells_plan(SHARED_CELLS, scale, noise_shares=shares)
    drawn = [from_ring(plan, noise_share(plan, SAMPLER))[0] * 256 for _ in range(shares)]
    total = np.sum(drawn, axis=0).astype(np.int64)
    assert passes_in_bins(total, 256 * scale)
    assert passes_kolmogorov(total, 256 * scale)
    right, without_one = (gaussian_law(part * 256 * scale, reach(256 * scale)) for part in (1.0, (2 / 3) ** 0.5))
    assert missed(SHARED_CELLS, *(in_bins(law, 256 * scale) for law in (right, without_one))) < RARE
    assert not passes_in_bins(total - drawn[0].astype(np.int64), 256 * scale)
    assert missed_by_kolmogorov(SHARED_CELLS, right, without_one) < RARE
    assert not passes_kolmogorov(total - drawn[0].astype(np.int64), 256 * scale)


# ---- inversion, bit by bit -------------------------------------------------------------------------------------------


def insecure_stream(*words: int) -> tuple[Keystream, list[int]]:
    """A keystream that says these 64-bit words, and how many bytes each call asked for."""
    rest, asked = bytearray(b"".join(word.to_bytes(8, "little") for word in words)), list[int]()

    def read(length: int) -> bytes:
        asked.append(length)
        said = bytes(rest[:length])
        del rest[:length]
        return said

    return read, asked


def slowly_drawn(scale: float, size: int) -> list[int]:
    """The definition, a cell at a time; there are no ties within a test's lifetime."""
    stream, drawn = chacha20(INSECURE_KEY), entries(table(scale))
    words = [int.from_bytes(stream(8), "little") for _ in range(size)]
    return [(-1) ** (word & 1) * bisect_right(drawn, (word >> 1 << 64) + 2**63) for word in words]


@pytest.mark.parametrize("scale", [0.5, 3.0, 177.35, LARGEST_SCALE])
def test_draws_are_those_of_the_definition_beyond_the_border_of_a_block(scale: float) -> None:
    size = 2**15 + 1000
    assert draw(table(scale), size, chacha20(INSECURE_KEY)).tolist() == slowly_drawn(scale, size)


def test_vectors_of_an_insecure_keystream() -> None:
    vectors = {
        0.5: [0, 0, 1, 0, 0, 0, 0, 0],
        3.0: [-2, -1, 4, 2, -3, -2, -1, 0],
        177.35: [-97, -65, 227, 140, -172, -91, -40, 11],
        8192.0: [-4467, -3006, 10464, 6477, -7955, -4209, -1846, 492],
    }
    for scale, expected in vectors.items():
        assert draw(table(scale), 8, chacha20(INSECURE_KEY)).tolist() == expected
    million = draw(table(300.0), CELLS, chacha20(INSECURE_KEY)).astype("<i8").tobytes()
    assert hashlib.sha256(million).hexdigest() == "6b85753b72753136d7de4a844aa7371a4b497b8ede306640bd8b9d8261e2865c"


@pytest.mark.parametrize("scale", [0.5, 3.0, 177.35, LARGEST_SCALE])
def test_a_tie_is_decided_by_64_more_bits(scale: float) -> None:
    drawn = entries(table(scale))
    for number in {0, 1, len(drawn) // 3, len(drawn) - 1}:
        high, low = divmod(drawn[number], 2**64)
        for more in {max(low - 1, 0), low, 0, 2**64 - 1}:
            stream, asked = insecure_stream(2 * high, more)
            assert draw(table(scale), 1, stream).tolist() == [bisect_right(drawn, (high << 64) + more)]
            assert asked == [8, 8]


def test_ties_within_a_block_are_decided_in_the_order_of_cells() -> None:
    drawn = entries(table(3.0))
    ties = [divmod(drawn[number], 2**64) for number in (5, 2)]
    stream, asked = insecure_stream(2 * ties[0][0], 0, 2 * ties[1][0] + 1, ties[0][1], ties[1][1] - 1)
    assert draw(table(3.0), 3, stream).tolist() == [6, 0, -2]
    assert asked == [24, 8, 8]


@pytest.mark.parametrize("scale", [0.5, 3.0, 177.35])
def test_the_largest_magnitude_is_reached_and_none_beyond(scale: float) -> None:
    highest = [2**64 - 2, 2**64 - 1, 2**64 - 1, 2**64 - 1]
    reach = len(table(scale).high)
    assert draw(table(scale), 2, insecure_stream(*highest)[0]).tolist() == [reach, -reach]
    assert reach**2 > 180 * scale**2 >= (reach - 1) ** 2


def test_the_lowest_bit_is_the_sign_and_nothing_else() -> None:
    said = os.urandom(8 * 1000)
    flipped = (np.frombuffer(said, np.uint64) ^ np.uint64(1)).tobytes()
    kept, other = draw(table(3.0), 1000, lambda _: said), draw(table(3.0), 1000, lambda _: flipped)
    assert np.array_equal(kept, -other)
    assert {-1, 0, 1} <= set(kept.tolist())


def test_the_keystream_is_that_of_the_rfc_and_goes_on() -> None:
    """RFC 8439, A.1, test vectors 1 and 2: key, nonce zero; blocks 0 and 1."""
    blocks = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    stream = chacha20(bytes(32))
    assert stream(24) + stream(104) == blocks


# ---- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "keys"), [(SMALLEST_SCALE, 2), (SCALE, 2), (LARGEST_SCALE, 2), (LARGEST_SCALE + 1, 0)]
)
def test_tables_are_drawn_from_with_a_fresh_key_each_time(
    monkeypatch: pytest.MonkeyPatch, scale: float, keys: int
) -> None:
    asked: list[bytes] = []

    def recorded(length: int) -> bytes:
        asked.append(os_urandom(length))
        return asked[-1]

    os_urandom = os.urandom
    monkeypatch.setattr("federation.protocol.noise.os.urandom", recorded)
    drawn = [SAMPLER.gaussian(scale, 100) for _ in range(2)]
    assert [len(key) for key in asked] == keys * [32]
    assert len(set(asked)) == len(asked)
    assert all(values.shape == (100,) and values.dtype == np.int64 for values in drawn)
    assert not np.array_equal(drawn[0], drawn[1])


# ---- by rejection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale", [3.0, *(pytest.param(scale, marks=pytest.mark.nightly) for scale in (0.3, SCALE, 20_000.0))]
)
def test_draws_by_rejection_have_the_exact_law(scale: float) -> None:
    sample = drawn_by_rejection(scale, FEWER_CELLS)
    right, wrong = (in_bins(gaussian_law(factor * scale, reach(scale)), scale) for factor in (1.0, 0.9))
    assert fits(binned(sample, scale), right)
    if scale > 1:  # in the bins of a smaller one all is at 0
        assert missed(FEWER_CELLS, right, wrong) < RARE
        assert not fits(binned(drawn_by_rejection(0.9 * scale, FEWER_CELLS), scale), right)


# ---- the range of the tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, -3.0, 0.499, LARGEST_SCALE * 1.0001, float("inf"), float("nan")])
def test_there_is_no_table_beyond_the_range(scale: float) -> None:
    assert not covers(scale)
    with pytest.raises(ValueError, match=r"tables for scales from 0\.5 to 8192"):
        table(scale)


@pytest.mark.parametrize("size", [0, 1])
def test_few_cells(size: int) -> None:
    assert draw(table(3.0), size, chacha20(INSECURE_KEY)).shape == (size,)


def test_memory_is_bounded() -> None:
    assert max(table(scale).nbytes for scale in (SMALLEST_SCALE, 300.0, LARGEST_SCALE)) < 2.9e6
    assert discrete_gaussian.table.cache_parameters()["maxsize"] == 64
    law = table(LARGEST_SCALE)
    tracemalloc.start()
    draw(law, CELLS, chacha20(INSECURE_KEY))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * CELLS + 3e6
