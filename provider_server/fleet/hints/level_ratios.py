"""By how much a build-up level multiplies the failure rate: each context's ratio, drawn towards that of all.

Under noise a single context's ratio is vague. How far contexts agree is learnt from them: ratios are log-normal around a common one,
whose variance between contexts is that of DerSimonian and Laird (Controlled Clinical Trials 7, 1986); what is drawn is
the posterior, with what is not known of the common one in its interval. One context alone keeps what it has.
"""

from typing import NamedTuple

import numpy as np

from federation.protocol.life_table import Floats

NORMAL_95 = 1.96


class Ratios(NamedTuple):
    """Logarithms of ratios (contexts,), and their standard deviations."""

    log: Floats
    log_sd: Floats


def pooled(seen: Ratios) -> Ratios:
    """The same, each drawn towards the common one as far as contexts agree; deviations are above 0."""
    if len(seen.log) < 2:
        return seen
    variance = seen.log_sd**2
    between = _between(seen.log, 1.0 / variance)
    weight = 1.0 / (variance + between)
    common, vague = float(weight @ seen.log / weight.sum()), 1.0 / float(weight.sum())
    drawn = variance / (variance + between)
    log_sd = np.sqrt((1.0 - drawn) * variance + drawn**2 * vague)
    return Ratios((1.0 - drawn) * seen.log + drawn * common, log_sd)


def _between(log: Floats, weight: Floats) -> float:
    """The variance between contexts beyond that of their estimates, which is 0 where they differ no more than these do.

    It is taken for known: where contexts differ a little, an interval of 95% holds somewhat less.
    """
    total = float(weight.sum())
    excess = float(weight @ (log - weight @ log / total) ** 2) - (len(log) - 1)
    return max(0.0, excess / (total - float(weight @ weight) / total))
