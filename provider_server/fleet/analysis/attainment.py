"""What leases delivered by context, from noisy counts of units by band of goodput: shares that met a target.

Everything is about the units that were counted, so noise is all that is uncertain, and its variance is known. With
M of N units at or above a target, the share p = M/N solves M - pN = 0, of which the noise has mean 0 and variance
σ² (a (1 - p)² + b p²), for a bands above and b below. The p that its normal law does not reject are the interval
(Fieller 1954): right for however few units, and wide, up to all shares, where noise outweighs them.

A context misses an aim if fewer than `aim` of its units met the target: named by Benjamini and Hochberg's procedure
at the false discovery rate asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm

Floats = NDArray[np.float64]
FALSE_SHARE, LEVEL = 0.1, 0.95
_SHARES = np.linspace(0.0, 1.0, 2001)


@dataclass(frozen=True)
class AttainedShare:
    """The share of units with a goodput of at least `goodput`: an estimate, and its interval."""

    goodput: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class GoodputQuantile:
    """The goodput that a share of the units stayed below: at least `low` and below `high`, as far as noise lets."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class ContextGoodput:
    """A context: its units with noise, the shares attained by target, quantiles, and whether it misses the aim."""

    context: str
    units: float
    attained: tuple[AttainedShare, ...]
    quantiles: tuple[GoodputQuantile, ...]
    p_value: float
    is_missed: bool


def by_context(
    contexts: Sequence[str],
    counts: Floats,
    noise_variance: Floats,
    edges: Sequence[float],
    aim: tuple[float, float],
    quantiles: Sequence[float] = (0.1, 0.5),
) -> tuple[ContextGoodput, ...]:
    """All contexts, those that surely miss the aim first.

    `counts` are noisy units (contexts, bands), each with the `noise_variance` of its context (contexts,). `edges`
    begin the bands, from 0 on; `aim` is a target, one of them, and the share of units that are to meet it.
    """
    target, wanted = aim
    place, variances = edges.index(target), noise_variance.tolist()
    scores = [_score(own, place, wanted, variance) for own, variance in zip(counts, variances, strict=True)]
    p_values = np.asarray(norm.cdf(scores), np.float64)
    missed = false_discovery_control(p_values) <= FALSE_SHARE
    found = []
    rows = zip(contexts, counts, variances, p_values.tolist(), missed.tolist(), strict=True)
    for context, own, variance, p_value, is_missed in rows:
        attained = tuple(attained_share(own, edges, above, variance) for above in range(1, len(edges)))
        between = tuple(_quantile(attained, share) for share in quantiles)
        found.append(ContextGoodput(context, float(own.sum()), attained, between, p_value, is_missed))
    return tuple(sorted(found, key=lambda one: one.p_value))


def attained_share(counts: Floats, edges: Sequence[float], place: int, variance: float) -> AttainedShare:
    """The share of units in the bands from `place` on, with its 95% interval."""
    above, all_ = float(counts[place:].sum()), float(counts.sum())
    share = min(max(above / all_, 0.0), 1.0) if all_ > 0 else 0.5
    reach = norm.ppf((1 + LEVEL) / 2)
    possible = _SHARES[np.abs(_score(counts, place, _SHARES, variance)) <= reach]
    low, high = (possible[0], possible[-1]) if possible.size else (0.0, 1.0)
    return AttainedShare(edges[place], share, min(float(low), share), max(float(high), share))


def _score(counts: Floats, place: int, share: Floats | float, variance: float) -> Floats:
    """How far the units from `place` on are above that share of all, in standard deviations of the noise."""
    above, bands = counts[place:].sum(), len(counts)
    spread = (bands - place) * (1 - np.asarray(share)) ** 2 + place * np.asarray(share) ** 2
    off = above - np.asarray(share) * counts.sum()
    return np.asarray(off / np.sqrt(np.maximum(variance * spread, 1e-12)), np.float64)


def _quantile(attained: Sequence[AttainedShare], share: float) -> GoodputQuantile:
    """Between the last edge that surely, and the first that surely not, as many units reach."""
    low = max((one.goodput for one in attained if one.low >= 1 - share), default=0.0)
    high = min((one.goodput for one in attained if one.high < 1 - share), default=1.0)
    return GoodputQuantile(share, low, high)
