"""What the provider saw itself of each version's failures: a second witness of its rate, if its share is known.

    V_vc = own failures at the rate r θ_vc s e^(α + δ_v);   tenants alone count what is left of r θ_vc

Own failures are a subset of what tenants count, so what is seen is taken off what they alone can count: a version
whose failures are merely more visible has more of the one and less of the other. s is the share that is seen of all
failures, α by how much it differs for an archetype, δ_v for a version of it. Most δ are normal with a standard
deviation of one of `SPREADS`, learnt from all archetypes, since own failures over tenants' tell it whatever the rates
are; but a share `ODD` of all versions is seen at any share. So own failures count as much as their visibility is alike.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.ratio_grid import read_rows

LOG_RATES = np.arange(-9.0, 9.0, 0.02)  # at which own failures are read, around the crude rate
VISIBILITIES = np.unique(np.round(np.concatenate([np.arange(-0.5, 0.501, 0.05), np.arange(-1.1, 1.101, 0.1)]), 3))
LEVELS = np.linspace(-0.225, 0.225, 7)  # of an archetype's visibility around the likeliest, equally probable
SPREADS = (0.03, 0.1, 0.3)  # of visibility between versions of an archetype, equally probable before they are seen
ODD, ODD_SPREAD = 0.1, 0.6  # versions that are seen at another share
LEVEL_SD = 0.3  # of archetypes' visibility around the usual
LEAST_LEFT = 0.05  # of any failures, those that tenants alone can count
NOTHING = np.finfo(float).tiny

Places = NDArray[np.intp]


class Witness(Protocol):
    """What own failures say of P pairs."""

    def read(self, log_rate: Floats) -> Floats:
        """log p(V | log rate) of as many rates for each pair as `log_rate` (P, n) has, up to a term per pair."""


@dataclass(frozen=True, eq=False)
class OwnPairs:
    """Own failures by version and context, beside what tenants can count there; arrays (V, contexts) but for `values`.

    So many `failures` were seen and taken off tenants' counts, and `taken` would be at a rate of one of what they would
    count otherwise, `countable`. `values` (V, contexts, rates) is log p(V | log rate) at `log_crude` + `LOG_RATES`.
    """

    failures: Floats
    countable: Floats
    taken: Floats
    log_crude: float
    values: Floats

    @classmethod
    def of(
        cls, witness: Witness, failures: Floats, in_sight: Floats, part: float, countable: Floats, taken: Floats
    ) -> "OwnPairs":
        """`in_sight` is the exposure of the witness, in failures that hazards explain, of which it sees a `part`."""
        log_crude = float(np.log(max(failures.sum(), 1.0) / max(float(in_sight.sum()), NOTHING)))
        values = witness.read(np.broadcast_to(log_crude + LOG_RATES, (failures.size, len(LOG_RATES))))
        values = values.reshape((*failures.shape, len(LOG_RATES)))
        return cls(failures, countable, taken, log_crude - float(np.log(part)), values)

    def only(self, versions: Places) -> "OwnPairs":
        """Of some versions."""
        names = ("failures", "countable", "taken", "values")
        return replace(self, **{name: getattr(self, name)[versions] for name in names})

    def log_likelihood(self, version: int, contexts: Places, log_rates: Floats) -> Floats:
        """log p(V | log rate), at most zero, of a version on contexts (C,) at `log_rates` (n,): (C, n)."""
        place = (log_rates - self.log_crude - LOG_RATES[0]) / (LOG_RATES[1] - LOG_RATES[0])
        values = self.values[version, contexts]
        return read_rows(values - values.max(axis=1, keepdims=True), np.tile(place, (len(contexts), 1)))

    def log_left(self, version: int, contexts: Places, visibilities: Floats, expected: Floats) -> Floats:
        """Log of what tenants alone can count over `expected` (C,), at visibilities (D,) over the usual: (C, D)."""
        countable, seen = (column[version, contexts, None] for column in (self.countable, self.taken))
        left = np.maximum(countable - np.exp(visibilities) * seen, LEAST_LEFT * countable)
        return np.asarray(np.log(left / expected[:, None]), np.float64)


def by_law(log_likelihood: Floats) -> Floats:
    """From log p at rates and `VISIBILITIES` (V, grid, D), those at levels and spreads of visibility (V, grid, laws).

    Levels lie around the one that is likeliest if all versions were alike.
    """
    alike = logsumexp(log_likelihood.sum(axis=0), axis=0) - 0.5 * (VISIBILITIES / LEVEL_SD) ** 2
    laws = _laws(float(VISIBILITIES[np.argmax(alike)]))
    return np.stack([logsumexp(log_likelihood + law, axis=-1) for law in laws], axis=-1)


def _laws(likeliest: float) -> list[Floats]:
    """The log mass of `VISIBILITIES`, at each level and spread."""
    width = np.gradient(VISIBILITIES)
    laws = []
    for level in likeliest + LEVELS:
        for spread in SPREADS:
            usual, odd = (np.exp(-0.5 * ((VISIBILITIES - level) / sd) ** 2) * width for sd in (spread, ODD_SPREAD))
            laws.append(np.log((1.0 - ODD) * usual / usual.sum() + ODD * odd / odd.sum()))
    return laws
