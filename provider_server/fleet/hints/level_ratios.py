"""By how much a build-up level multiplies the failure rate: each context's ratio, drawn towards that of all.

Under noise a single context's ratio is vague. How far contexts agree is learnt from them: logarithms of ratios are
normal around a common one, with a standard deviation between contexts that is unknown, all of `BETWEEN` alike. It is
summed out (Rubin, Journal of Educational Statistics 6, 1981), so that intervals hold what is not known of it. One
context alone keeps what it has.
"""

from typing import NamedTuple

import numpy as np

from federation.protocol.life_table import Floats

NORMAL_95 = 1.96
BETWEEN = np.linspace(0.0, 3.0, 61)


class Ratios(NamedTuple):
    """Logarithms of ratios (contexts,), and their standard deviations."""

    log: Floats
    log_sd: Floats


def pooled(seen: Ratios) -> Ratios:
    """The same, each drawn towards the common one as far as contexts agree; deviations are above 0."""
    if len(seen.log) < 2:
        return seen
    variance, between = seen.log_sd**2, BETWEEN[:, None] ** 2
    weight = 1.0 / (variance + between)
    total = weight.sum(axis=1, keepdims=True)
    common = (weight * seen.log).sum(axis=1, keepdims=True) / total
    likelihood = 0.5 * (np.log(weight) - weight * (seen.log - common) ** 2).sum(axis=1) - 0.5 * np.log(total[:, 0])
    chance = np.exp(likelihood - likelihood.max())
    chance /= chance.sum()
    drawn = variance * weight
    log = (1.0 - drawn) * seen.log + drawn * common
    spread = (1.0 - drawn) * variance + drawn**2 / total
    middle = chance @ log
    return Ratios(middle, np.sqrt(chance @ (spread + (log - middle) ** 2)))
