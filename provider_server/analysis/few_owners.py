"""What it says of a pair's rate that fewer than so many of its owners had an own failure, if no more may be told.

Owner o of a pair expects e_o failures at a rate of one, so it has any with probability q_o = 1 − exp(−x e_o) at the
rate x. How many owners have some is a sum of independent events (Poisson binomial); its law below `enough` is the
pair's likelihood. So a pair about which little may be told is not mistaken for one where little happened: the
likelihood of all pairs together stays that of what is told, whichever pairs were chosen to be told more of.

Not promised: leases that differ (`analysis.own_failures`) are taken to be alike here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class FewOwners:
    """What hazards explain of the job-weeks of O owners, each in one pair (flat); both arrays (O,).

    In each of these pairs fewer than `enough` of its owners here had a failure.
    """

    explained: Floats
    pair: Places
    enough: int

    def by_pair(self, pairs: int) -> Floats:
        """What is explained, by pair (pairs,)."""
        return np.bincount(self.pair, self.explained, pairs).astype(np.float64)

    def log_likelihood(self, pairs: int, rates: Floats) -> Floats:
        """log P(fewer than `enough` owners | rate), shape (pairs, rates); 0 for a pair that is not here."""
        order = np.argsort(self.pair, kind="stable")
        pair, explained = self.pair[order], self.explained[order]
        rank = np.arange(len(pair)) - np.searchsorted(pair, pair)
        having = np.zeros((pairs, self.enough, len(rates)))
        having[:, 0] = 1.0
        for place in range(int(rank.max(initial=-1)) + 1):
            own = rank == place
            none = np.exp(-explained[own, None] * rates)[:, None]
            before = having[pair[own]]
            after = before * none
            after[:, 1:] += before[:, :-1] * (1.0 - none)
            having[pair[own]] = after
        return np.asarray(np.log(np.maximum(having.sum(axis=1), np.finfo(float).tiny)), np.float64)
