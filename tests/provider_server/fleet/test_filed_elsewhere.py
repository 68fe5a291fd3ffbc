"""What tenants file as script errors is found from pairs that fail often, with an interval that holds it."""

import numpy as np
import pytest

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import capped_mean
from provider_server.fleet.analysis.filed_elsewhere import More, filed_elsewhere
from tests.support.changing import replace

SHAPE, JOBS = (30, 12), 8
DIMENSIONS = tuple(
    Dimension(name, tuple(map(str, range(size)))) for name, size in zip(("workload", "context"), SHAPE, strict=True)
)


def told(share: float, seed: int, noise_sd: float = 0.0, rate: float = 0.5) -> More:
    """Of tenants that file `share` of the hardware failures as script errors; one counts of a unit of either."""
    rng = np.random.default_rng((seed, 3))
    units = np.ceil(JOBS * rng.lognormal(1.0, 1.0, SHAPE))
    failing = rate * np.outer(rng.lognormal(0.0, 0.4, SHAPE[0]), rng.lognormal(0.0, 0.3, SHAPE[1]))
    failing = np.where(rng.random(SHAPE) < 0.03, 8.0, 1.0) * failing
    scripts = rng.uniform(0.02, 0.2, SHAPE[0])[:, None]
    either = 1.0 - (1.0 - scripts) * np.exp(-share * failing)
    counted = rng.binomial(units.astype(np.int64), either) + rng.normal(0.0, noise_sd, SHAPE)
    control = LifeTable(DIMENSIONS, counted, units, units, np.full(SHAPE, noise_sd**2))

    def would_count(times: float) -> Floats:
        return units * capped_mean(times * (1.0 - share) * failing, 1)

    return filed_elsewhere(control, would_count)


@pytest.mark.parametrize("noise_sd", [0.0, 5.0])
def test_intervals_hold_the_factor_by_which_more_failed_than_was_told(noise_sd: float) -> None:
    shares = np.tile([0.0, 0.05, 0.15, 0.3], 15)
    found = [told(share, seed, noise_sd) for seed, share in enumerate(shares)]
    off = [(one.log_more + np.log1p(-share)) / one.log_sd for one, share in zip(found, shares, strict=True)]
    assert np.mean(np.abs(off) < 1.96) >= 0.9
    assert np.mean(np.abs(off) < 0.5) <= 0.75  # half of the tenants' share would be missed by less


def test_tenants_that_know_their_failures_are_believed_and_others_are_not() -> None:
    assert told(0.0, 0).log_more < 0.05
    assert told(0.3, 0).log_more == pytest.approx(-np.log(0.7), abs=0.08)


def test_counts_that_say_nothing_leave_the_prior() -> None:
    blind = told(0.3, 0, noise_sd=1e6)
    assert blind.log_more == pytest.approx(0.08, abs=0.015)
    assert blind.log_sd == pytest.approx(0.08, abs=0.02)


def test_without_a_control_nothing_is_added() -> None:
    empty = LifeTable.zeros(DIMENSIONS)
    assert filed_elsewhere(empty, lambda _: np.zeros(SHAPE)) == More()
    one_context = np.zeros(SHAPE)
    one_context[:, 0] = 5.0
    alone = replace(empty, events=one_context, exposure_node_hours=one_context, at_risk=one_context)
    assert filed_elsewhere(alone, lambda _: np.zeros(SHAPE)) == More()
