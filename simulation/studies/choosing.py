"""Which stand-in runs on which idle node next: what says most, for its node-hours, about which pairs are worse.

    what is known of θ of each pair ─ information ─▶ nats about "fine or bad" per exposure ─ choose ─▶ a pair per node

A run of E expected failures (at θ = 1) ends with N of them. What it is worth is how much is expected to be learnt about
whether the pair is bad (θ above `BAD_FROM`) or fine (below `FINE_BELOW`), in nats, times the probability that it is
either: of what lies between it matters little which it is. N is that of a stand-in that may be deaf, as often as usual
(`analysis.trials.USUAL`). The best pair for each node in turn is taken; where returns diminish, as they mostly do, that
is within 1 − 1/e of the best choice of all nodes together (Nemhauser, Wolsey & Fisher 1978). Nodes that fail more often
say more in an hour, and so choose first.

Not promised: that runs over many days are planned together; each choice is for the next run alone. That it finds pairs
sooner than going through them in turn: in `simulation.studies.experiments` it did not, so no program plans by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.mismatch import WORSE_FROM, Mismatches
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO
from provider_server.fleet.analysis.trials import USUAL

Places = NDArray[np.intp]

MOST_FAILURES = 6  # of a run that are told apart; of more expected ones a run is long enough
FINE_BELOW, BAD_FROM = 1.5, 3.0
COARSE = 8  # steps of the grid of ratios that are taken together


@dataclass(frozen=True, eq=False)
class Beliefs:
    """What is known of P pairs: the mass of θ on a coarse grid (P, ratios); failures per node-hour at θ = 1 (P,)."""

    mass: Floats
    rate: Floats

    @classmethod
    def of(cls, found: Mismatches, rate: Floats) -> "Beliefs":
        """By what has been found; `rate` (P,) is that of stand-ins."""
        log_mass = found.log_likelihood + found.lent.of(slice(None))
        mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
        mass = np.add.reduceat(mass, np.arange(0, mass.shape[1], COARSE), axis=1)
        return cls(mass / mass.sum(axis=1, keepdims=True), rate)

    def only(self, pairs: Places) -> "Beliefs":
        """Of some pairs."""
        return Beliefs(self.mass[pairs], self.rate[pairs])

    @property
    def probability_worse(self) -> Floats:
        """Of θ > 2 (P,)."""
        return np.asarray(self.mass @ _WORSE, np.float64)

    @property
    def mean_ratio(self) -> Floats:
        """Of θ (P,)."""
        return np.asarray(self.mass @ _RATIO, np.float64)

    def after(self, failures: Floats, node_hours: Floats) -> "Beliefs":
        """When so many runs have failed (P,) within so many node-hours of an average node (P,)."""
        expected = (self.rate * node_hours)[:, None]
        log_faithful = failures[:, None] * np.log(_RATIO) - expected * (_RATIO - 1.0)
        mass = self.mass * (USUAL * np.exp(log_faithful) + 1.0 - USUAL)
        return Beliefs(mass / mass.sum(axis=1, keepdims=True), self.rate)

    def information(self, node_hours: Floats) -> Floats:
        """Nats about whether each pair is fine or bad, from so many node-hours (P,) of an average node: (P,)."""
        expected = (self.rate * node_hours)[:, None, None]
        count = np.arange(MOST_FAILURES + 1.0)[:, None]
        at = xlogy(count, expected * _RATIO) - expected * _RATIO - _LOG_FACTORIAL[:, None]
        faithful, deaf = np.exp(at), np.exp(xlogy(count, expected) - expected - _LOG_FACTORIAL[:, None])
        law = USUAL * faithful + (1.0 - USUAL) * deaf
        law[:, -1] = np.maximum(1.0 - law[:, :-1].sum(axis=1), 0.0)  # so many or more
        clear = np.maximum((self.mass * (_FINE | _BAD)).sum(axis=1), np.finfo(float).tiny)
        mass = self.mass / clear[:, None]
        both = np.stack([law @ (mass * chosen)[:, :, None] for chosen in (_BAD, _FINE)])[..., 0]
        of_count, of_state = both.sum(axis=0), both.sum(axis=2)
        entropy = xlogy(both, both).sum(axis=(0, 2))
        gain = entropy - xlogy(of_count, of_count).sum(axis=1) - xlogy(of_state, of_state).sum(axis=0)
        return np.asarray(clear * np.maximum(gain, 0.0), np.float64)


_RATIO = np.exp(np.add.reduceat(LOG_RATIO, np.arange(0, len(LOG_RATIO), COARSE)) / COARSE)
_WORSE = np.log(_RATIO) > WORSE_FROM
_FINE, _BAD = _RATIO < FINE_BELOW, _RATIO > BAD_FROM
_LOG_FACTORIAL = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, MOST_FAILURES + 1.0)))])


def choose(beliefs: Beliefs, allowed: Sequence[Places], weight: Floats, hours: float) -> Places:
    """The pair that each of N nodes runs next for so many hours: (N,), -1 where it may run none.

    `allowed` has the pairs that may run on each node, `weight` (N,) how many times an average one it fails.
    """
    given, chosen = np.zeros(len(beliefs.rate)), np.full(len(weight), -1, np.intp)
    for node in np.argsort(-weight, kind="stable"):
        pairs = allowed[node]
        if len(pairs):
            own, more = beliefs.only(pairs), weight[node] * hours
            gain = own.information(given[pairs] + more) - own.information(given[pairs])
            chosen[node] = pairs[int(np.argmax(gain))]
            given[chosen[node]] += more
    return chosen
