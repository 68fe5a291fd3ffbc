"""How many hardware failures tenants file as script errors: a factor of all hazards, with its uncertainty.

    script errors of workload a on context c = α_a x units + what counts of β x (hardware failures told there)

Script errors do not depend on the hardware, so on all contexts a workload has as many in a unit (α_a). Where they
are more frequent just where more hardware fails, some of them are hardware failures: β for each that was told as one.
All that failed is then 1 + β times what was told. β has an exponential prior, which spreads where counts say little and
gives way where they say more; α_a is fitted for each β, and what counts scatter beyond their noise widens all of it.

Not promised: what tenants file as unknown, or do not tell at all, is missing still. And β is one for all tenants.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from federation.protocol.life_table import Floats, LifeTable

USUAL = 0.1  # of those that were told, the mean of the prior
SHARES = np.linspace(0.0, 1.0, 101)


class More(NamedTuple):
    """By how much the logarithm of all hazards is higher than told, and the standard deviation of that."""

    log_more: float = 0.0
    log_sd: float = 0.0


def filed_elsewhere(control: LifeTable, would_count: Callable[[float], Floats]) -> More:
    """From script errors by (workload, context) and units as their exposure; nothing where nobody counted them.

    `would_count(β)`, of the same shape, is how many script errors would be hardware failures.
    """
    known = (control.exposure_node_hours > 0.0).sum(axis=1) > 1
    degrees = int((control.exposure_node_hours[known] > 0.0).sum()) - int(known.sum())
    if degrees <= 0:
        return More()
    misfit = np.array([_misfit(control, would_count(share)) for share in SHARES])
    scatter = max(1.0, float(misfit.min()) / degrees)
    log_mass = -0.5 * (misfit - misfit.min()) / scatter - SHARES / USUAL
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    log_more = np.log1p(SHARES)
    mean = float(mass @ log_more)
    return More(mean, float(np.sqrt(mass @ (log_more - mean) ** 2)))


def _misfit(control: LifeTable, mistaken: Floats) -> float:
    """The weighted squares that are left where `mistaken` are no script errors, and others are as frequent anywhere.

    These show in units without one that is mistaken, of which each counts as either.
    """
    free, others = np.maximum(control.exposure_node_hours - mistaken, 0.0), control.events - mistaken
    rate = np.maximum(others.sum(axis=1), 0.0) / np.maximum(free.sum(axis=1), 1.0)
    variance = np.maximum(rate[:, None] * free + mistaken, 1.0) + control.noise_variance
    weight = np.where(control.exposure_node_hours > 0.0, 1.0 / variance, 0.0)
    squares = np.maximum((weight * free**2).sum(axis=1), np.finfo(float).tiny)
    usual = (weight * free * others).sum(axis=1) / squares
    return float((weight * (others - usual[:, None] * free) ** 2).sum())
