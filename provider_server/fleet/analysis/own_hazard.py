"""What the provider sees itself of the failures that its hazards explain: more on large leases, say, or at a high age.

    V_jb ~ failures expected of unit j in age band b x (factor of its level) x (factor of its size and the band)

Whether a failure leaves a trace depends on its kind, and its kind on what ran; hazards are learnt from noisy counts,
and are a little wrong for whole levels. Unaccounted for, both would look like leases that differ, and ratios of pairs
would lean towards what is seen on small leases. Factors are those of exact counts, each drawn towards one as if
`WORTH` failures more had been seen, just as many as expected; their scale is left to main effects.
"""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

Places = NDArray[np.intp]

WORTH = 10.0  # failures
ROUNDS = 20  # of fitting each of the two factors given the other; they converge geometrically


def seen_share(explained: Floats, seen: Floats, level: Places, size: Places) -> Floats:
    """How much of `explained` is seen, (J, bands), one on average, from `seen` (J, bands), which are counts.

    `level` and `size` (J,) are positions; a level of -1 is one of its own.
    """
    shape = (int(level.max(initial=0)) + 2, int(size.max(initial=0)) + 1, explained.shape[1])
    own = level % shape[0]
    flat = np.ravel_multi_index((own, size), shape[:2])
    expected, counted = (
        np.stack([np.bincount(flat, column, shape[0] * shape[1]) for column in values.T], axis=1).reshape(shape)
        for values in (explained, seen)
    )
    expected *= max(counted.sum(), 1.0) / max(expected.sum(), np.finfo(float).tiny)
    of_level, of_kind = np.ones((shape[0], 1, 1)), np.ones((1, *shape[1:]))
    for _ in range(ROUNDS):
        of_kind = (counted.sum(axis=0) + WORTH) / ((expected * of_level).sum(axis=0) + WORTH)
        of_level = ((counted.sum(axis=(1, 2)) + WORTH) / ((expected * of_kind).sum(axis=(1, 2)) + WORTH))[:, None, None]
    return np.asarray((of_level * of_kind)[own, size], np.float64)
