"""Contexts where jobs are slower than elsewhere, from noisy counts of watched and of slow units.

Of each context the share of slow units is held against that of all others. The variance of the score has the noise
of both counts, that of as many units, and that of the others' share. Where contexts scatter more than that
explains, the scale of the median one is taken. Benjamini and Hochberg's procedure names contexts at the false discovery
rate asked for.

Not promised: by how much a context is slower; a unit counts as slow from 10% on, and is weighed alike beyond.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm

from provider_server.fleet.analysis.votes import as_normal

Floats = NDArray[np.float64]
FALSE_SHARE = 0.1
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class ContextPace:
    """A context: slow and watched units with noise, how sure it is slower than others, and if it is named."""

    context: str
    slow: float
    watched: float
    score: float
    p_value: float
    is_named: bool


def slow_contexts(
    contexts: Sequence[str], slow: Floats, usual: Floats, noise_variance: Floats, false_share: float = FALSE_SHARE
) -> tuple[ContextPace, ...]:
    """All contexts, slowest first. `slow` and `usual` are noisy counts (contexts,), each with that `noise_variance`."""
    watched = slow + usual
    total = np.maximum(watched.sum() - watched, 1.0)
    share = np.clip((slow.sum() - slow) / total, 1e-3, 0.5)
    others = (noise_variance.sum() - noise_variance) * (share**2 + (1 - share) ** 2)
    of_share = (share * (1 - share) * total + others) / total**2
    seen = np.maximum(watched, 1.0)
    variance = share * (1 - share) * seen + noise_variance * (share**2 + (1 - share) ** 2) + seen**2 * of_share
    score = (slow - share * watched) / np.sqrt(variance)
    score /= max(1.0, _MAD_TO_SIGMA * float(np.median(np.abs(score - np.median(score)))))
    skewness = share * (1 - share) * (1 - 2 * share) * seen / variance**1.5
    p_values = norm.sf(as_normal(score, skewness))
    named = false_discovery_control(p_values) <= false_share
    columns = (values.tolist() for values in (slow, watched, score, p_values, named))
    found = (ContextPace(*row) for row in zip(contexts, *columns, strict=True))
    return tuple(sorted(found, key=lambda one: -one.score))
