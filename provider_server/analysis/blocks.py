"""Defects that many pairs share: a driver and a framework, a firmware and a collective, a batch of nodes.

Groups of pairs are given, such as the versions of an archetype on the contexts of one driver. A group is a *block*
where most of its pairs are worse by one and the same ratio; few groups are. What speaks for a block is how much better
one ratio explains its pairs together than each of them by itself:

    odds of a block = π / (1 − π) Σ_θ w(θ) Π_j (ρ p(data_j | θ) / p(data_j) + 1 − ρ)

over its pairs j, with π the share of groups that are blocks, ρ that of the pairs in a block that have its ratio, and w
the law of ratios that are worse. The likeliest block is taken first, and others have to explain what it does not, so a
group that merely overlaps with a block is none. A pair borrows from the *other* pairs of its block: from them alone
come the odds and the ratio of the block that its own data meet.

Of many groups some look like blocks by chance. So a group is taken for one only where its odds are even at π = one of
all groups, and two more for each block found before, since about half of them are found: where nothing is shared, one
at most is expected, however many ways of grouping there are. What a block lends is weighed at π = `BLOCK_SHARE`.

Not promised: defects that follow none of the groups. Where no group is a block, nothing changes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import logsumexp

from federation.protocol.life_table import Floats

Places = NDArray[np.intp]

BLOCK_SHARE = 0.01  # of the groups are blocks, at most
ALIKE_SHARE = 0.9  # of the pairs of a block have its ratio
LEAST_PAIRS = 3  # fewer lend nothing that a pair does not know itself
MOST_BLOCKS = 50
NO_BLOCK = -1


def lent(
    log_likelihood: Floats, log_prior: Floats, log_worse: Floats, groups: Sequence[Places]
) -> tuple[Floats, Places]:
    """The log prior (P, grid) of each pair with what others of its blocks lend it, and its first block (P,) by number.

    `log_likelihood` (P, grid) is each pair's own; `log_prior` and `log_worse` (grid,) are the laws of the logarithm of
    its ratio where nothing is shared, and within a block. `groups` have places of pairs; a pair may be in many.
    """
    prior = np.tile(log_prior, (len(log_likelihood), 1))
    block = np.full(len(prior), NO_BLOCK)
    groups = [group for group in groups if len(group) >= LEAST_PAIRS]
    if not groups:
        return prior, block
    held = _membership(groups, len(prior))
    odds = _log_odds(BLOCK_SHARE)
    taken = np.zeros(len(groups))
    for number in range(MOST_BLOCKS):
        alike = _alike(log_likelihood, prior)
        together = np.asarray(held @ alike) + log_worse
        evidence = logsumexp(together, axis=1) + taken
        best = int(np.argmax(evidence))
        if evidence[best] + _log_odds(min(BLOCK_SHARE, (1.0 + 2.0 * number) / len(groups))) < 0.0:
            break
        pairs, taken[best] = groups[best], -np.inf
        others = together[best] - alike[pairs]
        prior[pairs] = _mixed(prior[pairs], others, odds)
        block[pairs] = np.where(block[pairs] == NO_BLOCK, number, block[pairs])
    return prior, block


def _log_odds(share: float) -> float:
    return float(np.log(share) - np.log1p(-share))


def _membership(groups: Sequence[Places], pairs: int) -> csr_array:
    """Which pairs (columns) each group (row) has."""
    rows = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return csr_array((np.ones(len(rows)), (rows, np.concatenate(groups))), shape=(len(groups), pairs))


def _alike(log_likelihood: Floats, prior: Floats) -> Floats:
    """log(ρ p(data | θ) / p(data) + 1 − ρ) of each pair (P, grid), given what explains it so far."""
    explained = logsumexp(log_likelihood + prior, axis=1, keepdims=True)
    alike = np.log(ALIKE_SHARE) + log_likelihood - explained
    return np.asarray(np.logaddexp(alike, np.log1p(-ALIKE_SHARE)), np.float64)


def _mixed(prior: Floats, others: Floats, odds: float) -> Floats:
    """The prior of a block's pairs (n, grid) beside the ratio that the `others` (n, grid) say the block has."""
    evidence = logsumexp(others, axis=1, keepdims=True)
    within = np.logaddexp(np.log(ALIKE_SHARE) + others - evidence, np.log1p(-ALIKE_SHARE) + prior)
    return np.asarray(np.logaddexp(prior, odds + evidence + within) - np.logaddexp(0.0, odds + evidence), np.float64)
