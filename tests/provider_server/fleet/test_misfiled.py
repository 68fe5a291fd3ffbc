"""What a careless tenant tells of a pair is not listened to, and no other pair is left out."""

import numpy as np
import pytest

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.misfiled import misfiled
from provider_server.fleet.analysis.mismatch import WORSE_FROM, find_mismatches
from provider_server.fleet.learning.witness import without_misfiled
from tests.support.changing import replace

WORKLOADS, CONTEXTS, JOB_WEEKS = 20, 10, 1000.0
CARELESS, BAD = (5, 6), (9, 2)
DIMENSIONS = (
    Dimension("workload", tuple(f"w{number}" for number in range(WORKLOADS))),
    Dimension("context", tuple(f"c{number}" for number in range(CONTEXTS))),
)


def tables(
    seed: int, filed: float, noise_sd: float = 0.0, scripts: float = 0.2, hardware: float = 0.1
) -> tuple[LifeTable, LifeTable]:
    """Units that count their first failure; of the careless pair's script errors this share is told as hardware."""
    rng, shape = np.random.default_rng(seed), (WORKLOADS, CONTEXTS)
    wrong, by_hardware, by_script = np.zeros(shape), np.full(shape, hardware), np.full(shape, scripts)
    wrong[CARELESS], by_hardware[BAD] = filed, 8.0 * hardware
    both = by_hardware + by_script
    counted = rng.binomial(int(JOB_WEEKS), 1.0 - np.exp(-both))
    told = rng.binomial(counted, (by_hardware + wrong * by_script) / both)
    return released(rng, told, noise_sd), released(rng, counted - told, noise_sd)


def released(rng: np.random.Generator, counts: Floats, noise_sd: float) -> LifeTable:
    full = np.full(counts.shape, JOB_WEEKS)
    return LifeTable(
        DIMENSIONS, counts + noise_sd * rng.standard_normal(counts.shape), 0.1 * full, full, 0.0 * full + noise_sd**2
    )


@pytest.mark.parametrize("noise_sd", [0.0, 15.0])
def test_what_a_careless_tenant_told_is_found_and_a_pair_that_is_worse_is_not(noise_sd: float) -> None:
    found = misfiled(*tables(1, 1.0, noise_sd))
    assert list(zip(*np.nonzero(found), strict=True)) == [CARELESS]
    assert not misfiled(*tables(1, 0.2, noise_sd)).any()


@pytest.mark.parametrize("hardware", [0.1, 0.3, 0.6])
def test_script_errors_that_hide_behind_hardware_failures_are_not_missed(hardware: float) -> None:
    """Of a pair that fails in nearly each unit few script errors are seen: these are fewer than half elsewhere."""
    counted, control = tables(2, 0.0, scripts=0.4, hardware=hardware)
    left = control.events[BAD] / np.delete(control.events[BAD[0]], BAD[1]).mean()
    assert left < 0.8
    assert hardware < 0.5 or left < 0.5
    assert not misfiled(counted, control).any()


@pytest.mark.parametrize("scatter", [1.0, 2.0])
@pytest.mark.parametrize("hardware", [0.3, 0.6])
def test_a_pair_that_is_worse_is_heard_where_large_units_have_most_of_its_failures(
    scatter: float, hardware: float
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        size = rng.lognormal(-(scatter**2) / 2.0, scatter, (WORKLOADS, CONTEXTS, int(JOB_WEEKS)))
        by_hardware = rng.gamma(0.3, 1.0 / 0.3, size.shape) * hardware  # leases differ besides
        by_hardware[BAD] *= 8.0
        fails = rng.random(size.shape) < 1.0 - np.exp(-size * (by_hardware + 0.2))
        told = fails & (rng.random(size.shape) < by_hardware / (by_hardware + 0.2))
        counted, control = (
            replace(released(rng, counts.sum(axis=2), 0.0), exposure_node_hours=size.sum(axis=2))
            for counts in (told, fails & ~told)
        )
        assert not misfiled(counted, control)[BAD]
        assert control.events[BAD] < 0.8 * control.events[np.arange(WORKLOADS) != BAD[0]].mean()


def test_noise_alone_is_rarely_taken_for_carelessness() -> None:
    found = [misfiled(*tables(seed, 0.0, 30.0)).sum() for seed in range(20)]
    assert sum(found) <= 10  # at most 1 in 2,000 is expected on this side, of 4,000


def test_who_is_not_listened_to_accuses_nobody() -> None:
    counted, control = tables(3, 1.0, scripts=0.4)
    heard, deaf = find_mismatches(counted), find_mismatches(without_misfiled(counted, control))
    place = int(np.flatnonzero((heard.workload == CARELESS[0]) & (heard.context == CARELESS[1]))[0])
    assert heard.probability_worse[place] > 0.9
    assert deaf.probability_worse[place] < 0.1
    assert deaf.ratio_low[place] < 0.1
    assert deaf.ratio_high[place] > 20.0 > np.exp(WORSE_FROM)
    worse = int(np.flatnonzero((deaf.workload == BAD[0]) & (deaf.context == BAD[1]))[0])
    assert deaf.probability_worse[worse] > 0.9
