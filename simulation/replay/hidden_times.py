"""Times of leaving kept secret: exits by band under noise, and the exposure that is estimated from them.

In the other replays the end of a life is the provider's knowledge, as a lease's end is, and epsilon covers only whether
it was a failure. Here every lease lasts until the study's end. Tenants journal every exit with its age and the reason
`DIED` or `LEFT`, and all that is released are counts of exits under noise.

Guarantee. Data that differ in one unit's exit (its age, whether it was a death, or both) are (epsilon, delta)-
indistinguishable to whoever sees leases, plan and release. An exit adds at most one to one cell of each table, so to
put another in its place is two steps of the plan's neighbouring relation, out and in. A plan is therefore given half of
the pure epsilon or of rho (`plan_epsilon`; proof sketch in docs/simulation.md).

Not promised: places, the number of units, the study's length and the bands are public. Estimates assume that exits lie
in the middle of a band on average, and that the odds of staying are a product over places.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.plan import Mechanism
from federation.protocol.privacy_cost import zcdp_epsilon, zcdp_rho
from simulation.replay.lives import Life

DIED, LEFT = "died", "left"
SWEEPS = 20  # over all tables, for each edge: by then the odds change by less than noise does
HALF_A_UNIT = 0.5  # is left of each level on either side, so that its odds are finite


def hidden(lives: Sequence[Life], horizon_hours: float) -> list[Life]:
    """The same lives with public hours that say nothing; who is still there at the horizon leaves then."""
    return [
        replace(
            life,
            hours=horizon_hours,
            secret_hours=min(life.hours, horizon_hours),
            reason=LEFT if life.reason is None or life.hours > horizon_hours else DIED,
        )
        for life in lives
    ]


def plan_epsilon(epsilon: float, delta: float, mechanism: Mechanism) -> float:
    """The plan's epsilon for an exit present or absent, at which one exit instead of another costs `epsilon`.

    >>> plan_epsilon(1.0, 1e-8, Mechanism.DISCRETE_LAPLACE)
    0.5
    >>> round(plan_epsilon(1.0, 1e-8, Mechanism.DISCRETE_GAUSSIAN), 2)
    0.7
    """
    if mechanism is Mechanism.DISCRETE_LAPLACE:
        return epsilon / 2.0
    return zcdp_epsilon(zcdp_rho(epsilon, delta) / 2.0, delta)


# ---- one curve -------------------------------------------------------------------------------------------------------


def survival_at_edges(units: int, died: Floats, left: Floats) -> Floats:
    """The actuarial estimate (bands + 1,) of survival at the bands' edges, from noisy exits (bands,) of `units`.

    The counts are first moved, as little as possible, to where none is negative and all add up to the units. Who left
    counts as at risk for half of the band (Cutler & Ederer 1958).
    """
    died, left = np.split(_on_simplex(np.concatenate([died, left]), float(units)), 2)
    present = units - np.concatenate([[0.0], np.cumsum(died + left)[:-1]])
    at_risk = present - left / 2.0
    share = np.divide(died, at_risk, out=np.zeros(len(died)), where=at_risk > 0.0)
    return np.concatenate([[1.0], np.cumprod(1.0 - np.clip(share, 0.0, 1.0))])


def _on_simplex(counts: Floats, total: float) -> Floats:
    """The nearest point whose coordinates are not negative and add up to `total` (Duchi and others 2008)."""
    falling = np.sort(counts)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    return np.asarray(np.maximum(counts - excess[np.flatnonzero(falling > excess)[-1]], 0.0), np.float64)


# ---- exposure by place -----------------------------------------------------------------------------------------------


def expected_hours(places: NDArray[np.intp], exits: Sequence[LifeTable], edges: Floats) -> Floats:
    """Hours (units, bands) that each unit is expected to have been there, by noisy exits by level and band.

    `places` (tables, units) holds each unit's level in each of the tables `exits`, whose events have the shape
    (levels, bands); `edges` (bands + 1,) are the bands, in hours.
    """
    units = places.shape[1]
    overall = _overall(exits, units)
    sizes = [np.bincount(place, minlength=len(table.events)) for place, table in zip(places, exits, strict=True)]
    staying = [_staying(size, table, overall / units) for size, table in zip(sizes, exits, strict=True)]
    present = np.ones((units, len(edges)))
    present[:, -1] = 0.0
    for edge in range(1, len(edges) - 1):
        counts = [table[:, edge - 1] for table in staying]
        present[:, edge] = np.minimum(_rake(places, sizes, counts), present[:, edge - 1])
    return np.diff(edges) * (present[:, :-1] + present[:, 1:]) / 2.0


def _overall(exits: Sequence[LifeTable], units: int) -> Floats:
    """Exits of all units by band (bands,): each table says it, and the less noise it has, the more it counts."""
    sums = np.array([table.events.sum(axis=0) for table in exits])
    variances = np.array([table.noise_variance.sum(axis=0) for table in exits])
    weights = 1.0 / np.maximum(variances, 1e-9)
    return _on_simplex((weights * sums).sum(axis=0) / weights.sum(axis=0), float(units))


def _staying(sizes: NDArray[np.intp], table: LifeTable, overall: Floats) -> Floats:
    """Units of each level that are there at the end of each band (levels, bands); `sizes` (levels,) are positive.

    The share of a level that leaves in a band is drawn towards that of all units, `overall` (bands,), as far as noise
    exceeds what levels differ by.
    """
    size = sizes[:, None].astype(np.float64)
    apart, variance = table.events / size - overall, table.noise_variance / size**2
    between = np.maximum(np.mean(apart**2 - variance, axis=0), 0.0)
    kept = np.divide(between, between + variance, out=np.ones_like(apart), where=between + variance > 0.0)
    leaving = np.array([_on_simplex(row, 1.0) for row in overall + kept * apart])
    return np.asarray(size * (1.0 - np.cumsum(leaving, axis=1)), np.float64)


def _rake(places: NDArray[np.intp], sizes: Sequence[NDArray[np.intp]], counts: Sequence[Floats]) -> Floats:
    """Probability (units,) of being there: odds are a product over places, and levels add up to their `counts`.

    Iterative proportional fitting (Deming & Stephan 1940) of the table of units, there or gone.
    """
    odds = np.zeros(places.shape[1])
    for _ in range(SWEEPS):
        for place, size, count in zip(places, sizes, counts, strict=True):
            reached = np.bincount(place, expit(odds), len(size)).astype(np.float64)
            odds += (_log_odds(count, size) - _log_odds(reached, size))[place]
    return np.asarray(expit(odds), np.float64)


def _log_odds(counts: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Of being there (levels,), where so many of each level are."""
    kept = np.minimum(np.maximum(counts, HALF_A_UNIT), sizes - HALF_A_UNIT)
    return np.asarray(logit(kept / sizes), np.float64)
