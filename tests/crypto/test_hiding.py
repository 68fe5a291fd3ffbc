"""The test of hiding passes what masks hide, and convicts whatever shows one bit: of the words, or of what changes.

Keys and words come from the system's randomness. `looks_hidden` raises a false alarm less than once in 10^9 times, and
each leak here is shown by about four times the words that its power asks for, so that it is missed as good as never.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from crypto.ids import Digest, Nonce, RoundId, TenantId
from crypto.masking import MaskKey, MaskStream, Words, mask_cells, words_from_bytes
from tests.support.hiding import FALSE_ALARM, FAR, MOST_WORDS, STATISTICS, looks_hidden, words_needed

ROWS, CELLS = 32, 2**11
TENANT, TRUSTEES = MaskKey(os.urandom(32)), [MaskKey(os.urandom(32)) for _ in range(3)]


def random_words(*shape: int) -> Words:
    return words_from_bytes(os.urandom(8 * int(np.prod(shape)))).reshape(shape)


def insecure_counts() -> Words:
    """Small counts, of which about half are odd: their lowest bit alone gives nothing away."""
    return random_words(CELLS) % np.uint64(8)


def as_sent(cells: Words) -> Words:
    """The same cells in many contributions, as a tenant masks them."""
    return np.stack([mask_cells(cells, TENANT, streams(Nonce(os.urandom(16)))) for _ in range(ROWS)])


def streams(nonce: Nonce) -> list[MaskStream]:
    bound = RoundId(bytes(16)), Digest(bytes(32)), TenantId(bytes(16)), TENANT.public, nonce
    return [MaskStream(*bound, index, trustee.public) for index, trustee in enumerate(TRUSTEES, 1)]


def test_real_contributions_are_hidden_whatever_their_cells() -> None:
    for cells in (np.zeros(CELLS, np.uint64), insecure_counts(), np.full(CELLS, 2**64 - 1, np.uint64)):
        sent = as_sent(cells)
        assert looks_hidden(sent)
        assert looks_hidden(sent.ravel())
        assert not looks_hidden(np.tile(cells, (ROWS, 1)))


@pytest.mark.parametrize("power", [1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 62, 63])
def test_a_mask_that_is_a_multiple_of_a_power_of_two_is_convicted(power: int) -> None:
    """What two encodings of one key once made of a contribution is the first of these: x + 2·M."""
    cells = insecure_counts()
    assert not looks_hidden(cells + (random_words(ROWS, CELLS) << np.uint64(power)))


def test_two_equal_masks_that_add_up_are_convicted() -> None:
    """Two trustees whose masks are one, and a third whose mask the reader has."""
    cells, known = insecure_counts(), random_words(ROWS, CELLS)
    twice = np.stack([2 * TENANT.mask(streams(Nonce(os.urandom(16)))[0], CELLS) for _ in range(ROWS)])
    assert not looks_hidden(cells + twice + known - known)
    assert looks_hidden(cells + twice + known)


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 62, 63])
@pytest.mark.parametrize(
    "spoilt",
    [
        lambda words, bit: np.where(random_words(*words.shape) < 2**64 // 10, words & ~bit, words),
        lambda words, bit: np.where(random_words(*words.shape) < 2**64 // 10, words | bit, words),
        lambda words, bit: words & ~bit,
        lambda words, bit: words | bit,
        lambda words, bit: np.where(np.arange(CELLS) % 2 == 0, words & ~bit, words | bit),
    ],
    ids=["set in 45%", "set in 55%", "never set", "always set", "known for each cell, and even"],
)
def test_one_bit_that_is_no_fair_coin_is_convicted(spoilt: Callable[[Words, np.uint64], Words], bit: int) -> None:
    assert not looks_hidden(spoilt(random_words(ROWS, CELLS), np.uint64(1 << bit)))


def test_two_bits_that_agree_are_convicted() -> None:
    words = random_words(2**16)
    lowest, others = words & np.uint64(1), words & ~np.uint64(1 << 40)
    assert not looks_hidden(others | lowest << np.uint64(40))


@pytest.mark.parametrize("shift", [0, 5])
def test_words_that_come_again_are_convicted(shift: int) -> None:
    """A mask that serves two contributions, and one that serves two cells of one."""
    words = random_words(2**15)
    again = np.concatenate([words, np.roll(words, shift)])
    assert not looks_hidden(again)
    assert not looks_hidden(np.stack([words, words + np.uint64(3)]))


def test_one_word_in_twenty_that_is_not_masked_is_convicted() -> None:
    words = random_words(2**15)
    assert not looks_hidden(np.where(random_words(2**15) < 2**64 // 20, np.uint64(0), words))


def test_too_few_words_prove_nothing_and_are_refused() -> None:
    for bias in (0.05, 0.1, 0.4):
        needed = words_needed(bias)
        assert looks_hidden(random_words(needed), bias)
        with pytest.raises(ValueError, match=f"takes {needed}"):
            looks_hidden(random_words(needed - 1), bias)
    with pytest.raises(ValueError, match="65537 words"):
        looks_hidden(random_words(MOST_WORDS + 1))


@pytest.mark.parametrize("bias", [0.05, 0.2])
def test_the_stated_power_is_the_power(bias: float) -> None:
    """With the words that a bias takes, and no more, each of 100 tries misses less than once in 100,000."""
    missed = 0
    for _ in range(100):
        words = random_words(words_needed(bias))
        is_cleared = random_words(len(words)) < np.uint64(round(2 * bias * 2**64))
        missed += looks_hidden(np.where(is_cleared, words & ~np.uint64(1), words), bias)
    assert missed <= 2, "three of 100: less than once in 10^9"


def test_the_false_alarms_are_as_rare_as_stated() -> None:
    """By the exact distribution of the counts, and by the birthdays of two vectors of the most words."""
    for words in (words_needed(0.4), words_needed(0.05), MOST_WORDS):
        too_far = 2 * binom.sf(words / 2 + FAR * words**0.5, words, 0.5)
        assert STATISTICS * too_far + 2 * MOST_WORDS**2 / 2**65 < FALSE_ALARM
    assert all(looks_hidden(random_words(4, 256), 0.25) for _ in range(100))
