"""The benchmark of other clouds has its keys, names and limits; its figures are for who runs it whole."""

import numpy as np
import pytest

from federation.protocol.causes import CAUSES, Domain
from provider_server.fleet.analysis import mismatch
from provider_server.fleet.learning import verdicts, witness
from simulation.cloud.cloud import build_cloud
from simulation.cloud.scenario import load, names
from simulation.cloud.visibility import visible
from simulation.studies.attendance import InsecureRepeatable
from simulation.studies.field import Readers, _learnt, _released
from simulation.studies.field_cells import CELLS, CORNERS, EVERY, MISREPORTED, RARE
from simulation.studies.learning import live, retold, small, true_rates

ASKED = {
    *("standard", "x3", "x1_5", "any_exposure", "frailty", "rate_6_5", "hyperscale", "hyperscale_x3"),
    *("misreported_20", "careless_tenant", "null"),
}


def test_every_kind_of_cloud_has_a_scenario_that_can_be_played() -> None:
    assert set(CELLS) >= ASKED
    for cell in (cell() for cell in EVERY.values()):
        assert cell.scenario in names()
        assert cell.played(quick=False).windows


def test_what_operators_see_is_judged_where_something_is_visible_and_bundles_where_nothing_is() -> None:
    readers = {name: Readers.of(cell()) for name, cell in EVERY.items()}
    assert readers["regional"] is Readers.OPERATORS
    assert readers["regional_visible_0"] is Readers.TENANTS


def test_each_factor_is_changed_in_half_of_the_corners_and_each_two_together_in_a_quarter() -> None:
    corners = [cell() for cell in CORNERS.values()]
    rare = RARE * 12_577
    changed = np.array(
        [
            [
                "mismatch_factor" in corner.changes,
                corner.played(quick=False).failures_per_week[Domain.INFRASTRUCTURE] == rare,
                "mismatch_exposure" in corner.changes,
                "lease_frailty" in corner.changes,
                corner.answering < 1.0,
                corner.misreported == MISREPORTED,
                corner.visible == 0.0,
            ]
            for corner in corners
        ]
    ).astype(int)
    np.testing.assert_array_equal(changed.T @ changed, 3 + 3 * np.eye(7))


@pytest.mark.nightly
def test_a_year_that_is_told_otherwise_is_the_one_that_was_lived_so() -> None:
    cell = EVERY["misreported_by_tenant"]()
    scenario, told, again = cell.played(quick=True), cell.telling(1), cell.telling(1)
    assert told is not None
    assert again is not None
    as_it_was, lived = live(scenario, 1), live(scenario, 1, told)
    for one, other, plain in zip(retold(as_it_was, again).exact, lived.exact, as_it_was.exact, strict=True):
        assert all(np.array_equal(*tables) for tables in zip(one, other, strict=True))
        assert not all(np.array_equal(*tables) for tables in zip(one, plain, strict=True))


def test_the_share_that_is_seen_is_what_was_asked_for_and_of_infrastructure_alone() -> None:
    cloud = build_cloud(small(load("standard")), np.random.default_rng(1))
    domains = np.array([cause.domain for cause in CAUSES.values()])[cloud.failures.reason]
    own = domains == Domain.INFRASTRUCTURE
    for share in (0.0, 0.3, 0.5):
        seen = visible(cloud, share, np.random.default_rng(2))
        assert seen[own].mean() == pytest.approx(share, abs=0.02)
        assert not seen[~own].any()


def test_what_is_assumed_is_not_what_is_planted() -> None:
    """A prior that knows the generator's numbers would make the figures of this benchmark worthless."""
    share = mismatch.SHARE_PRIOR[0] / sum(mismatch.SHARE_PRIOR)
    effects = {mismatch.SPREAD_PRIOR[0], *mismatch.TAIL_PRIOR, mismatch.MAIN_EFFECT_SD, mismatch.SEEN_EFFECT_SD}
    for cell in (cell() for cell in EVERY.values()):
        scenario = cell.played(quick=False)
        factor = float(scenario.mismatch_factor)
        assert scenario.mismatch_share != share
        assert effects.isdisjoint({factor, float(np.log(factor)), scenario.lease_frailty})
        assert cell.misreported not in (verdicts.MISREPORTED, witness.UNREPORTED)


@pytest.mark.nightly
def test_pairs_expect_as_many_failures_as_there_were_and_rates_those_that_were_filed_elsewhere_too() -> None:
    cell = EVERY["misreported_20"]()
    year = live(cell.played(quick=True), 1)
    found = _learnt(year, cell, _released(year, cell, 1, InsecureRepeatable(bytes(16))), 1)
    own = np.array([cause.domain is Domain.INFRASTRUCTURE for cause in CAUSES.values()])
    failed = own[year.cloud.failures.reason].sum()
    told = sum(pair.expected_failures * pair.risk_ratio for pair in found.pairs)
    assert told == pytest.approx((1.0 - MISREPORTED) * failed, rel=0.1)  # once half as many more where many were seen
    truth = true_rates(year)
    more = np.mean([np.log(one.rate / truth[one.context_level, one.band]) for one in found.rates])
    assert abs(more) < -2.0 / 3.0 * np.log1p(-MISREPORTED)  # in five weeks; a year tells nearly all of it
