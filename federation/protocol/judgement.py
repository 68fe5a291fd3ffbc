"""When a pair is called worse, and when it is suspected: the same rules for the provider and for a tenant.

- *Worse*: of the pairs with probability .8 or more, the most probable ones, as many as keep the expected share of false
  discoveries (posterior) at 4% or less; 5% is promised.
- *Suspected*: the other pairs with probability ½ or more, then the next most probable ones down to 3%. Together with
  the pairs called worse they hold at most 4.5% of the node-hours on pairs that are not worse (posterior expectation),
  so avoiding all suspected pairs costs at most 4.5% needless node-hours.

    >>> surest(np.array([0.2, 0.99, 0.6, 0.97])).tolist()
    [1, 3]
"""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats

FALSE_SHARE = 0.04  # expected among the pairs called worse; a margin below the promised 5%, for errors of the model
VAIN_SHARE = 0.045  # of node-hours on pairs that are not worse, expected to be suspected; users accept 5%
LIKELY, SURE = 0.5, 0.8  # many sure pairs must not carry unsure ones along into what is called worse
LEAST_SUSPICION = 0.03  # even at eight times the failures only a fifth more is expected: hardly worth a move
HARMFUL_RATIO = 2.0  # must be excluded before a pair is called not worse


def surest(probability_worse: Floats) -> NDArray[np.intp]:
    """Positions of the pairs that are called worse, most probable first."""
    order = np.argsort(-probability_worse, kind="stable")
    falling = probability_worse[order]
    false_share = 1.0 - np.cumsum(falling) / np.arange(1, len(falling) + 1)
    return np.asarray(order[(false_share <= FALSE_SHARE) & (falling >= SURE)], np.intp)


def suspected(probability_worse: Floats, hours: Floats) -> NDArray[np.bool_]:
    """Which pairs are worth avoiding, those called worse included; `hours` (P,) are their node-hours.

    >>> suspected(np.array([0.9, 0.2, 0.2, 0.01]), np.array([1.0, 2.0, 90.0, 7.0])).tolist()
    [True, True, False, False]
    """
    order = np.argsort(-probability_worse, kind="stable")
    wrong = (hours * (1.0 - probability_worse))[order]
    few = np.cumsum(wrong) <= VAIN_SHARE * max(wrong.sum(), np.finfo(float).tiny)
    chosen = np.zeros(len(order), np.bool_)
    chosen[order] = few & (probability_worse[order] >= LEAST_SUSPICION)
    return np.asarray(chosen | (probability_worse >= LIKELY))
