"""What is chosen before anything private is asked: age bands from public lease ends.

A rate is taken to be constant within a band. Where very many units leave on one day (a retirement, the end of the
study), those at risk change in the middle of whatever band holds that day, and the constant rate is weighted wrongly;
so such a day gets an edge on both sides. The other edges are quantiles of the distinct times of departure, which
follow the process and not its bulk events. No function here is shown an outcome: such choices cost no privacy.

    >>> edges = bands_from_departures(np.array([3.0, 5.0, 8.0, 9.0]), max_bands=2)
    >>> edges.tolist()
    [0.0, 6.5, 9.0]
    >>> band_of(np.array([6.5, 7.0]), edges).tolist()
    [0, 1]
"""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

BULK_SHARE = 0.05


def bands_from_departures(times: Floats, max_bands: int, *, day: float = 1.0, bulk_share: float = BULK_SHARE) -> Floats:
    """Edges (k + 1,) of k <= `max_bands` bands from 0 to the last departure, ascending, in the unit of `times`.

    `times` (n,) are ages at which units left, for whatever reason; `day` is the length of a day in their unit. A day on
    which at least `bulk_share` of all units leave is set apart by an edge on either side; of several such days the
    largest, as long as half of the bands remain for the others. ValueError where there are no positive times.
    """
    if not times.size or times.min() < 0.0 or times.max() <= 0.0:
        raise ValueError("departures must be non-negative times, at least one of them positive")
    last = float(times.max())
    days, where, counts = np.unique(np.floor(times / day), return_inverse=True, return_counts=True)
    bulk = (counts >= bulk_share * times.size) & ((days + 1.0) * day < last)
    bulk &= np.argsort(np.argsort(-counts * bulk, kind="stable")) < max_bands // 4
    forced = np.unique(np.concatenate([days[bulk] * day, (days[bulk] + 1.0) * day]))
    forced = forced[forced > 0.0]
    left = max_bands - len(forced)
    rest = np.unique(times[~bulk[where]])
    inner = np.quantile(rest, np.linspace(0.0, 1.0, left + 1)[1:-1]) if rest.size else np.empty(0)
    return np.unique(np.concatenate([[0.0], forced, inner, [last]]))


def quantile_bands(times: Floats, max_bands: int) -> Floats:
    """Edges (k + 1,) of k <= `max_bands` bands that hold about equally many of the departures `times` (n,) each."""
    if not times.size or times.min() < 0.0 or times.max() <= 0.0:
        raise ValueError("departures must be non-negative times, at least one of them positive")
    inner = np.quantile(times, np.linspace(0.0, 1.0, max_bands + 1)[1:-1])
    return np.unique(np.concatenate([[0.0], inner, [times.max()]]))


def band_of(times: Floats, edges: Floats) -> NDArray[np.intp]:
    """Band (n,) of each age: open on the left, closed on the right; ages outside fall into the first or last band."""
    return np.clip(np.searchsorted(edges, times, side="left") - 1, 0, len(edges) - 2)


def time_in_bands(times: Floats, edges: Floats) -> Floats:
    """Time (n, bands) that a unit which left at each age spent in each band, in the unit of `times`."""
    return np.clip(np.minimum(times[:, None], edges[None, 1:]) - edges[None, :-1], 0.0, None)
