"""Noise of a cell's total over the windows so far, in a table with a share of epsilon 1, under the settings as shipped.

Everybody answers, so the noise of a round is that of all shares, of which half would be enough.
"""

import numpy as np

from federation.protocol.noise import NoiseSampler
from federation.protocol.subjects import Subject, norms
from provider_server.settings import PlanTable
from simulation.cloud.fabric import Floats


def cell_sigma(subject: Subject, share: float, until: int) -> float:
    """Standard deviation after so many weeks, in counts; 0 without a share: no privacy."""
    return total_sigma(norms(subject, 1)[0] / share, until) if share else 0.0


def cell_noise(
    subject: Subject, share: float, until: int, shape: tuple[int, ...], sampler: NoiseSampler
) -> tuple[float, Floats]:
    """The variance after so many weeks, and a draw of the mechanism's own noise for each cell."""
    if not share:
        return 0.0, np.zeros(shape)
    drawn = total_noise(norms(subject, 1)[0] / share, until, int(np.prod(shape)), sampler)
    return cell_sigma(subject, share, until) ** 2, drawn.reshape(shape)


def total_sigma(scale: float, until: int) -> float:
    """Standard deviation of a cell's total after so many weeks, where a whole noise has the scale b = `scale`."""
    p = np.exp(-1 / scale)
    return float(np.sqrt(_draws(until) * 2 * p) / (1 - p))


def total_noise(scale: float, until: int, cells: int, sampler: NoiseSampler) -> Floats:
    """A draw of it for each cell."""
    drawn = [sampler.laplace_share(scale, 1, cells).astype(np.float64) for _ in range(_draws(until))]
    total: Floats = np.sum(drawn, axis=0)
    return total


def _draws(until: int) -> int:
    """How many whole noises were opened."""
    settings = PlanTable()
    return (settings.windows.index(until) + 1) * settings.cohort_minimum // settings.noise_shares
