"""Tables of pairs by the law that the learner assumes, changed in one way.

40 workloads on 15 contexts, with eight failures of a pair on average (heavy tails: half have three or fewer), noise of
standard deviation 3, and 3% of the pairs failing eight times as often. Pairs that cannot fail have no ratio that an
interval could hold: they count among the others for `false` alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from federation.protocol.judgement import surest
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.mismatch import find_mismatches

SHAPE, FAILURES, FACTOR, NOISE_SD = (40, 15), 8.0, 8.0, 3.0
CANNOT_FAIL, LEFT, MOVED = 0.2, 0.25, 0.1
Random = np.random.Generator


@dataclass(frozen=True)
class Cloud:
    """Exposure, usual rates and ratios of all pairs, and the failures that are counted; all of shape `SHAPE`."""

    exposure: Floats
    usual: Floats
    ratio: Floats
    counted: Floats


@dataclass(frozen=True)
class Row:
    """What is found in all clouds of a kind; `held_…` are shares of intervals that hold the ratio."""

    name: str
    planted: int
    found: int
    false: int
    held_planted: float
    held_others: float


def as_assumed(rng: Random) -> Cloud:
    """By the law that the learner assumes."""
    exposure = np.outer(rng.lognormal(0.0, 1.0, SHAPE[0]), rng.lognormal(0.0, 0.4, SHAPE[1]))
    exposure *= rng.lognormal(0.0, 0.5, SHAPE)
    exposure *= FAILURES / exposure.mean()
    usual = np.outer(rng.lognormal(0.0, 0.3, SHAPE[0]), rng.lognormal(0.0, 0.3, SHAPE[1]))
    ratio = np.where(rng.random(SHAPE) < 0.03, FACTOR, 1.0)
    return Cloud(exposure, usual, ratio, rng.poisson(exposure * usual * ratio).astype(np.float64))


def structural_zeros(rng: Random) -> Cloud:
    """Pairs that never ran, and pairs that ran and cannot fail."""
    cloud = as_assumed(rng)
    few = (rng.random(SHAPE[0]) < 0.5)[:, None] & (rng.random(SHAPE) > 1 / 3)
    ratio = np.where((rng.random(SHAPE) < CANNOT_FAIL) & (cloud.ratio == 1.0), 0.0, cloud.ratio)
    ran = np.where(few, 0.0, cloud.exposure)
    return Cloud(ran, cloud.usual, ratio, np.where((ran > 0.0) & (ratio > 0.0), cloud.counted, 0.0))


def shifted_mix(rng: Random) -> Cloud:
    """Two halves, which share planted pairs and nothing else."""
    first, second = as_assumed(rng), as_assumed(rng)
    later = rng.poisson(second.exposure * second.usual * first.ratio)
    exposure = first.exposure + second.exposure
    return Cloud(exposure, first.usual, first.ratio, first.counted + later)


def leaving_tenants(rng: Random) -> Cloud:
    """Some pairs are counted in part."""
    cloud = as_assumed(rng)
    share = np.where(rng.random(SHAPE) < LEFT, rng.random(SHAPE), 1.0)
    left = rng.binomial(cloud.counted.astype(np.int64), share).astype(np.float64)
    return Cloud(cloud.exposure, cloud.usual, cloud.ratio, left)


def misattribution(rng: Random) -> Cloud:
    """Some failures count in another row or column."""
    cloud = as_assumed(rng)
    counted = cloud.counted.astype(np.int64)
    for axis in (0, 1):
        moved = rng.binomial(counted, MOVED)
        counted -= moved
        for (place, other), many in np.ndenumerate(np.moveaxis(moved, axis, 0)):
            elsewhere = np.delete(np.arange(SHAPE[axis]), place)
            np.moveaxis(counted, axis, 0)[:, other] += np.bincount(rng.choice(elsewhere, many), minlength=SHAPE[axis])
    return Cloud(cloud.exposure, cloud.usual, cloud.ratio, counted.astype(np.float64))


KINDS: Mapping[str, Callable[[Random], Cloud]] = MappingProxyType(
    {
        "as assumed": as_assumed,
        "structural zeros": structural_zeros,
        "shifted mix": shifted_mix,
        "leaving tenants": leaving_tenants,
        "misattribution": misattribution,
    }
)


def judged(cloud: Cloud, rng: Random) -> tuple[NDArray[np.bool_], ...]:
    """Of pairs that ran: which are planted, called worse, held by their interval, and have a ratio."""
    dimensions = tuple(
        Dimension(name, tuple(map(str, range(size)))) for name, size in zip(("workload", "context"), SHAPE, strict=True)
    )
    ran = cloud.exposure > 0.0
    events = np.where(ran, cloud.counted + np.round(rng.normal(0.0, NOISE_SD, SHAPE)), 0.0)
    table = LifeTable(dimensions, events, cloud.exposure, cloud.exposure, np.where(ran, NOISE_SD**2, 0.0))
    found, ratio = find_mismatches(table), cloud.ratio[ran]
    called = np.zeros(len(ratio), np.bool_)
    called[surest(found.probability_worse)] = True
    return ratio == FACTOR, called, (found.ratio_low <= ratio) & (ratio <= found.ratio_high), ratio > 0.0


def row(name: str, seeds: int) -> Row:
    """A kind of cloud, with seeds 0 to `seeds` − 1."""
    rngs = map(np.random.default_rng, range(seeds))
    clouds = [judged(KINDS[name](rng), rng) for rng in rngs]
    planted, called, held, known = (np.concatenate(parts) for parts in zip(*clouds, strict=True))
    return Row(
        name,
        int(planted.sum()),
        int((planted & called).sum()),
        int((~planted & called).sum()),
        float(held[planted].mean()),
        float(held[~planted & known].mean()),
    )
