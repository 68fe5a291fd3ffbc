"""Log likelihoods of ratios as a bundle carries them (`federation.protocol.evidence`).

Ratios are on the grid `LOG_RATIOS`. A log likelihood is kept below its largest value, in steps of `STEP`, a byte each:
beyond 255 steps a ratio is as good as excluded.
"""

import numpy as np

from federation.protocol.evidence import LEVELS, PairEvidence
from federation.protocol.life_table import Floats

LOG_RATIOS = np.linspace(-3.0, np.log(100.0), LEVELS)
STEP = 0.05


def below(log_likelihood: Floats) -> bytes:
    """A log likelihood over `LOG_RATIOS` as a bundle carries it.

    >>> list(below(np.array([-99.0, -1.0, -0.5])))
    [255, 10, 0]
    """
    depth = np.minimum((log_likelihood.max() - log_likelihood) / STEP, 255.0)
    return bytes(np.round(depth).astype(np.uint8).tolist())


def log_likelihood(of: PairEvidence) -> Floats:
    """Of each of `LOG_RATIOS` by the pair's own failures, up to a constant."""
    return _read(of.below)


def log_lent(of: PairEvidence) -> Floats:
    """What other pairs add to the log prior of each of `LOG_RATIOS`, up to a constant."""
    return _read(of.lent) if of.lent else np.zeros(LEVELS)


def _read(below_largest: bytes) -> Floats:
    return -STEP * np.frombuffer(below_largest, np.uint8).astype(np.float64)
