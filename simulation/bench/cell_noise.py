"""Noise of a cell's running total in a table of an optional subject, for a share of epsilon 1, opened as shipped."""

import numpy as np

from crypto.continual_counting import WEIGHT_ONE, running_total, running_variance
from federation.protocol.noise import NoiseSampler
from federation.protocol.subjects import Subject, norms
from provider_server.settings import PlanTable
from simulation.bench.votes import sigma_fresh
from simulation.cloud.fabric import Floats


def cell_sigma(subject: Subject, share: float, until: int) -> float:
    """Standard deviation after so many weeks, in counts; 0 without a share: no privacy."""
    if not share:
        return 0.0
    opened = PlanTable().openings.index(until) + 1
    variances = running_variance([WEIGHT_ONE**2] * opened, np.zeros(1, np.int64))
    return sigma_fresh(share, norms(subject, 1)[1]) * float(np.sqrt(variances[0]))


def cell_noise(
    subject: Subject, share: float, until: int, shape: tuple[int, ...], sampler: NoiseSampler
) -> tuple[float, Floats]:
    """The variance after so many weeks, and a draw of the mechanism's own noise for each cell."""
    if not share:
        return 0.0, np.zeros(shape)
    scale, opened = sigma_fresh(share, norms(subject, 1)[1]) * WEIGHT_ONE, PlanTable().openings.index(until) + 1
    drawn = [sampler.gaussian(scale, int(np.prod(shape))).astype(np.float64).reshape(shape) for _ in range(opened)]
    return cell_sigma(subject, share, until) ** 2, running_total(drawn)
