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

There may be more groups than pairs, of which hardly any is a block. So each pair is bounded first by the most that it
can say for any of a range of ratios (`BINS` of them), and only groups whose bounds add up to a block are worked out.

Not promised: defects that follow none of the groups. Where no group is a block, nothing changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.ratio_grid import log_sum, parts

Places = NDArray[np.intp]

BLOCK_SHARE = 0.01  # of the groups are blocks, at most
ALIKE_SHARE = 0.9  # of the pairs of a block have its ratio
LEAST_PAIRS = 3  # fewer lend nothing that a pair does not know itself
MOST_BLOCKS = 50
NO_BLOCK = -1
BINS = 20  # of log ratios
MEMBERS = 50_000  # of groups that are worked out together


class Groups:
    """Groups of places of P pairs, which may be in many; those with fewer than `LEAST_PAIRS` are left out."""

    def __init__(self, groups: Sequence[Places], pairs: int) -> None:
        groups = [group for group in groups if len(group) >= LEAST_PAIRS]
        self.sizes = np.array([len(group) for group in groups], np.intp)
        places = np.concatenate([*groups, np.empty(0, np.intp)])
        rows = np.repeat(np.arange(len(groups)), self.sizes)
        self.held = csr_array((np.ones(len(rows)), (rows, places)), shape=(len(groups), pairs))
        self.of_pair = self.held.T.tocsr()

    def __len__(self) -> int:
        return len(self.sizes)

    def members(self, group: int) -> Places:
        """Its pairs."""
        return self.held.indices[self.held.indptr[group] : self.held.indptr[group + 1]].astype(np.intp)

    def touched(self, pairs: Places) -> Places:
        """The groups that have one of these pairs."""
        return np.unique(self.of_pair[pairs].indices).astype(np.intp)


@dataclass(frozen=True, eq=False)
class Lent:
    """The log prior of each pair: its row of `own` (n, grid), which others lend to it, or that of all pairs (grid,).

    `row` (P,) is -1 where a pair has none of its own; `block` (P,) is the number of the first block that it is in.
    """

    of_all: Floats
    row: Places
    own: Floats
    block: Places

    @classmethod
    def nothing(cls, of_all: Floats, pairs: int) -> "Lent":
        """Before any block is found."""
        return cls(of_all, np.full(pairs, -1), np.empty((0, len(of_all))), np.full(pairs, NO_BLOCK))

    def of(self, pairs: Places | slice) -> Floats:
        """The log prior of some pairs (n, grid)."""
        row = self.row[pairs]
        prior = np.broadcast_to(self.of_all, (len(row), len(self.of_all)))
        if (row >= 0).any():
            prior = prior.copy()
            prior[row >= 0] = self.own[row[row >= 0]]
        return prior

    def but(self, pairs: Places, prior: Floats, number: int) -> "Lent":
        """With another one (n, grid) for the pairs of the block of that number."""
        row, fresh = self.row.copy(), self.row[pairs] < 0
        row[pairs[fresh]] = len(self.own) + np.arange(fresh.sum())
        own = np.concatenate([self.own, prior[fresh]])
        own[row[pairs]] = prior
        block = self.block.copy()
        block[pairs[fresh]] = number
        return Lent(self.of_all, row, own, block)


def lent(log_likelihood: Callable[[Places], Floats], log_prior: Floats, log_worse: Floats, groups: Groups) -> Lent:
    """The log prior of each pair, with what others of its blocks lend it.

    `log_likelihood` says each pair's own (n, grid), of some pairs; `log_prior` and `log_worse` (grid,) are the laws of
    the logarithm of its ratio where nothing is shared, and within a block.
    """
    nothing = Lent.nothing(log_prior, groups.held.shape[1])
    if not len(groups):
        return nothing
    search = _Search(log_likelihood, nothing, log_worse, groups)
    search.weigh(np.arange(groups.held.shape[1]), np.arange(len(groups)))
    for number in range(MOST_BLOCKS):
        best = int(np.argmax(search.evidence))
        if search.evidence[best] + _log_odds(len(groups), number) < 0.0:
            break
        search.take(best, number)
    return search.prior


def _log_odds(groups: int, found: int) -> float:
    """That one of so many groups is a block, before its data are seen, where so many blocks are found."""
    share = min(BLOCK_SHARE, (1.0 + 2.0 * found) / groups)
    return float(np.log(share) - np.log1p(-share))


class _Search:
    """What speaks for each group by now: `evidence`, the log of Σ w Π above; minus infinity if that cannot suffice."""

    def __init__(
        self, log_likelihood: Callable[[Places], Floats], prior: Lent, log_worse: Floats, groups: Groups
    ) -> None:
        self.log_likelihood, self.prior, self.log_worse, self.groups = log_likelihood, prior, log_worse, groups
        self.evidence, self.open = np.full(len(groups), -np.inf), np.ones(len(groups), np.bool_)
        self._starts = np.linspace(0, len(log_worse), BINS, endpoint=False).astype(np.intp)
        self._most = np.zeros((groups.held.shape[1], BINS))
        self._log_worse = np.logaddexp.reduceat(log_worse, self._starts)

    def weigh(self, pairs: Places, groups: Places) -> None:
        """Anew, where some `pairs` have another prior than before, and `groups` all that have any of them."""
        for part in parts(pairs):
            self._most[part] = np.maximum.reduceat(self._alike(part), self._starts, axis=1)
        bound = log_sum(self.groups.held[groups] @ self._most + self._log_worse)[:, 0]
        self.evidence[groups] = -np.inf
        likely = groups[(bound + _log_odds(len(self.groups), MOST_BLOCKS) >= 0.0) & self.open[groups]]
        together = np.cumsum(self.groups.sizes[likely]) // MEMBERS
        for some in np.split(likely, 1 + np.flatnonzero(np.diff(together))):
            if len(some):
                self.evidence[some] = log_sum(self._together(some))[:, 0]

    def take(self, block: int, number: int) -> None:
        """Has the pairs of a group, which is the block of that number, borrow from each other."""
        pairs, self.open[block] = self.groups.members(block), False
        others = self._together(np.array([block]))[0] - self._alike(pairs)
        mixed = _mixed(self.prior.of(pairs), others, float(np.log(BLOCK_SHARE) - np.log1p(-BLOCK_SHARE)))
        self.prior = self.prior.but(pairs, mixed, number)
        self.weigh(pairs, self.groups.touched(pairs))

    def _together(self, groups: Places) -> Floats:
        """log w(θ) Π_j (…) over the pairs of each group (n, grid)."""
        held = self.groups.held[groups]
        pairs = np.unique(held.indices).astype(np.intp)
        alike = np.concatenate([self._alike(part) for part in parts(pairs)])
        return np.asarray(held[:, pairs] @ alike + self.log_worse, np.float64)

    def _alike(self, pairs: Places) -> Floats:
        """log(ρ p(data | θ) / p(data) + 1 − ρ) of some pairs (n, grid), given what explains them so far."""
        said = self.log_likelihood(pairs)
        explained = log_sum(said + self.prior.of(pairs))
        return np.asarray(np.log(ALIKE_SHARE * np.exp(said - explained) + 1.0 - ALIKE_SHARE), np.float64)


def _mixed(prior: Floats, others: Floats, odds: float) -> Floats:
    """The prior of a block's pairs (n, grid) beside the ratio that the `others` (n, grid) say the block has."""
    evidence = log_sum(others)
    within = np.logaddexp(np.log(ALIKE_SHARE) + others - evidence, np.log1p(-ALIKE_SHARE) + prior)
    return np.asarray(np.logaddexp(prior, odds + evidence + within) - np.logaddexp(0.0, odds + evidence), np.float64)
