"""Whether words show nothing: a test of every bit, with a stated chance of a false alarm and a stated power.

What a mask hides is independent of uniform words, so whatever is tested here is tested of words that a fair coin would
have made. Each statistic counts independent fair coins, and its bound is Hoeffding's, which holds for every number.
"""

import math

import numpy as np

from crypto.masking import Words

FALSE_ALARM = 1e-9
MOST_WORDS = 2**16  # beyond, two of so many random words are equal too often

_BITS = 64
STATISTICS = 2 * (_BITS + _BITS * (_BITS - 1) // 2)  # bits and pairs of bits, of the words and of what changes
# Two of MOST_WORDS words, or of their changes, are equal with a chance of 2 · 2^32 / 2^65 = 2.4e-10. The counts have
# 1e-10: one of n coins lies further than this · √n from n / 2 with a chance of at most 2·exp(−2·this²).
FAR = math.sqrt(math.log(2 * STATISTICS / 1e-10) / 2)
_MISS = math.sqrt(math.log(1e5) / 2)


def words_needed(bias: float) -> int:
    """How many words show a bit, or an agreement of two bits, whose chance is `bias` or more away from one half.

    It is missed less than once in 100,000 times; with four times as many words, less than once in 10^60.
    """
    return math.ceil(((FAR + _MISS) / bias) ** 2)


def looks_hidden(words: Words, bias: float = 0.05) -> bool:
    """Whether each bit of these words, and whether it changes between contributions, is a fair coin.

    `words` is one vector, or one row for each contribution of the same cells, under masks that are to be independent.
    Tested are each of the 64 bits, each pair of them, and that no two words are equal: of all words, and of the bits
    that change from each row to the next. What shines through a mask is the same in every row, so it never changes,
    which shows it even where the cells themselves have as many ones as zeros.

    False alarms: below `FALSE_ALARM` for truly random words. Power: `words_needed(bias)`; ValueError for fewer words,
    since so few would pass whatever they showed, and for more than `MOST_WORDS`.
    """
    if not words_needed(bias) <= words.size <= MOST_WORDS:
        raise ValueError(f"{words.size} words: a bias of {bias} takes {words_needed(bias)} to {MOST_WORDS}")
    rows = words.reshape(-1, words.shape[-1])
    return _are_fair(rows.ravel()) and _are_fair((rows[1:] ^ rows[:-1]).ravel())


def _are_fair(words: Words) -> bool:
    """Whether all bits, and all agreements of two bits, are set in about half of the words, and no word comes twice."""
    signs = 2 * np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).astype(np.float32) - 1
    agreements = (signs.T @ signs)[np.triu_indices(_BITS, 1)]  # exact: below 2^24
    excess = np.abs(np.concatenate([signs.sum(axis=0), agreements])) / 2
    return bool(excess.max() <= FAR * math.sqrt(len(words))) and len(np.unique(words)) == len(words)
