"""Versions by two witnesses: own failures find more that differ, and who is merely more visible is not split."""

import numpy as np
import pytest

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.own_failures import Leases
from provider_server.fleet.analysis.version_sight import OwnPairs
from provider_server.fleet.analysis.versions import Partition, partitions

SIZE, CONTEXTS, NOISE_SD = 3, 20, 15.5
SEEN = 0.5  # of the failures of a version of usual visibility


def archetypes(
    failures: float,
    rates: tuple[float, ...],
    visibility: tuple[float, ...],
    many: int,
    *,
    seed: int,
    shape: float = np.inf,
) -> tuple[list[Partition], list[Partition]]:
    """Of so many archetypes alike: as tenants' counts alone split their versions, and as both witnesses do.

    Each version expects so many failures, on four leases in each context, which differ by a gamma law of that shape.
    """
    rng = np.random.default_rng(seed)
    cells = (many * SIZE, CONTEXTS)
    expected = np.full((*cells, 4), failures / CONTEXTS / 4)
    frail = rng.gamma(shape, 1.0 / shape, expected.shape) if np.isfinite(shape) else np.ones(expected.shape)
    total = rng.poisson(expected * frail * np.tile(rates, many)[:, None, None])
    seen = rng.binomial(total, np.minimum(SEEN * np.tile(visibility, many), 1.0)[:, None, None])
    noise = rng.normal(0.0, NOISE_SD, cells)
    pair = np.repeat(np.arange(expected[..., 0].size), 4)
    leases = Leases(seen.ravel().astype(float), expected.ravel(), pair, np.arange(len(pair)) % 4)
    own, explained = seen.sum(axis=2).astype(float), expected.sum(axis=2)
    part = float(seen.sum() / total.sum())
    witness = leases.witness(np.arange(own.size), own.size).given(np.full(own.size, part), np.ones(own.size), None)
    pairs = OwnPairs.of(witness, own, explained, part, explained, part * explained)
    of = {str(version): f"archetype {version // SIZE}" for version in range(cells[0])}
    counted = total.sum(axis=2) + noise
    alone = partitions(released(counted, explained), of)
    both = partitions(released(counted - own, (1.0 - part) * explained), of, own=pairs)
    return list(alone.values()), list(both.values())


def released(counts: Floats, expected: Floats) -> LifeTable:
    levels = [tuple(str(level) for level in range(size)) for size in counts.shape]
    dimensions = (Dimension("workload", levels[0]), Dimension("context", levels[1]))
    return LifeTable(dimensions, counts, expected, expected, np.full(counts.shape, NOISE_SD**2))


def split(found: list[Partition]) -> float:
    """The share of archetypes that is split at all."""
    return float(np.mean([len(own.groups) > 1 for own in found]))


def exactly(found: list[Partition]) -> float:
    """The share in which the last version, and it alone, is split off."""
    return float(np.mean([{group.versions for group in own.groups} == _last_alone(own) for own in found]))


def _last_alone(own: Partition) -> set[tuple[str, ...]]:
    return {own.versions[:-1], own.versions[-1:]}


@pytest.mark.nightly
def test_own_failures_find_versions_that_noise_hides() -> None:
    alone, both = archetypes(400.0, (1.0, 1.0, 1.6), (1.0, 1.0, 1.0), many=16, seed=1)
    assert exactly(alone) < 0.75
    assert exactly(both) > 0.85


@pytest.mark.nightly
def test_a_version_whose_failures_are_merely_more_visible_is_not_split() -> None:
    """The provider sees twice as many of every third version, whether it fails more or shows more."""
    _, more_visible = archetypes(800.0, (1.0, 1.0, 1.0), (0.8, 0.8, 1.6), many=20, seed=2)
    _, failing_more = archetypes(800.0, (0.8, 0.8, 1.6), (1.0, 1.0, 1.0), many=20, seed=2)
    assert split(more_visible) <= 0.05
    assert split(failing_more) > 0.95


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [np.inf, 0.3])
def test_versions_without_difference_are_rarely_split_by_both_witnesses(shape: float) -> None:
    _, both = archetypes(400.0, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), many=40, seed=4, shape=shape)
    assert split(both) <= 0.05
