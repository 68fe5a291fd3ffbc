"""What of the provider's own failures enters a bundle: batches of enough owners, or counts under noise."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from crypto.ids import LeaseId, RoundId, TenantId
from crypto.signing import open_signed
from federation.protocol.bundle import Bundle
from federation.protocol.noise import SystemSampler
from federation.protocol.privacy_cost import plan_loss
from provider_server.analysis.few_owners import FewOwners
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnFailure, OwnRecord
from provider_server.learning import findings
from provider_server.learning.bundle import compose
from provider_server.learning.findings import Findings
from provider_server.learning.own_events import on_leases
from provider_server.learning.own_noise import open_missing, own_plan
from provider_server.learning.own_sight import Batches, Exact, OwnSight, enough
from provider_server.learning.publisher import Learner, Publisher
from provider_server.learning.small_changes import with_small_changes_left_out
from provider_server.rounds.release import Release
from provider_server.store.own_store import HoursClosed
from simulation.run.federation import Federation
from tests.support.changing import replace
from tests.support.federations import CONTEXT, LEASES, WEEKS, Grounds, begin, fail, hold, lease_id

TENANTS, OWNERS = 6, 2
TENANT = TenantId(bytes(TenantId.length))
COLLUDER, VICTIM, *OTHERS = range(TENANTS)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    """Three weeks of one series were released; on all leases the provider knows the nodes, and it recorded nothing."""
    root = tmp_path_factory.mktemp("held")
    grounds = Grounds.founded(root, TENANTS, horizon=len(WEEKS))
    with grounds.opened(root) as federation:
        for number in range(TENANTS):
            let(federation, number)
            fail(federation, number)
        for window in WEEKS:
            hold(federation, window)
    return grounds, root


@pytest.fixture
def federation(held: tuple[Grounds, Path], tmp_path: Path) -> Iterator[Federation]:
    grounds, root = held
    with grounds.opened(shutil.copytree(root, tmp_path, dirs_exist_ok=True)) as federation:
        yield federation


def let(federation: Federation, number: int) -> None:
    """A tenant's leases, on nodes with names."""
    provider, (start, _) = federation.provider, WEEKS[0]
    labels, ids = provider.context_labels(start, CONTEXT, 0), [lease_id(number, WEEKS[0], one) for one in range(LEASES)]
    end_h, tenant = WEEKS[-1][1] - 4.0, federation.tenants[number].id
    leases = [Lease(one, tenant, 4, start + 1.0, end_h, labels) for one in ids]
    provider.record_leases(leases, {one: [f"node {one.hex()}"] for one in ids})
    begin(federation, number)


def failed(*numbers: int, week: int = 1) -> list[OwnFailure]:
    return [OwnFailure(lease_id(number, WEEKS[0], 0), WEEKS[week][0] + 30.0) for number in numbers]


def unbounded(releases: Sequence[Release], leases: Sequence[Lease], own: OwnSight | None) -> Findings:
    """The learner without the bound on what other tenants are told."""
    return findings.learn(releases, leases, Exact(own.record) if own else None)


def learnt(
    federation: Federation, own: Sequence[OwnFailure], learner: Learner = findings.learn, weeks: int = 2
) -> tuple[object, ...]:
    """What a bundle tells all tenants where the provider saw these failures."""
    store = federation.provider.store
    record = OwnRecord.of(own, placed=frozenset(lease.lease for lease in store.leases(0, WEEKS[-1][1])))
    publisher = Publisher(store, federation.provider._signing_key)
    releases = publisher.releases()[:weeks]
    leases = store.leases(0, releases[-1].plan.end_hour)
    bundle = compose(0, (), releases, learner(releases, leases, Exact(record, OWNERS)))
    return bundle.mismatches, bundle.hazards, bundle.evidence


# ---- batches ---------------------------------------------------------------------------------------------------------


def batches(failures: Sequence[Sequence[int]], openings: Sequence[int] | None = None) -> list[bool]:
    """Whether job-weeks enter: (owner, failures) of one row, counted at the openings, for K = 2."""
    owner, seen = (np.array(column) for column in zip(*failures, strict=True))
    opening = np.zeros(len(owner), np.intp) if openings is None else np.array(openings)
    entered: list[bool] = Batches.of(owner * 0, owner, opening, seen.astype(np.float64), OWNERS).entered.tolist()
    return entered


def test_a_batch_needs_owners_enough_and_none_of_them_above_half() -> None:
    assert enough(OWNERS) == 3
    assert batches([(0, 1), (1, 1), (2, 1), (3, 0)]) == [True] * 4
    assert batches([(0, 1), (1, 1), (2, 0), (1, 1)]) == [False] * 4
    assert batches([(0, 2), (1, 1), (2, 1)]) == [True] * 3
    assert batches([(0, 3), (1, 1), (2, 1)]) == [False] * 3


def test_what_is_new_since_a_batch_waits_until_it_is_one_itself() -> None:
    first, news = [(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 1)]
    assert batches(first + news, [0, 0, 0, 1, 1]) == [True] * 3 + [False] * 2
    assert batches([*first, *news, (3, 1)], [0, 0, 0, 1, 1, 2]) == [True] * 6


def test_whichever_colluders_know_their_part_of_a_batch_k_owners_are_left() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        owner, opening = rng.integers(0, 9, 40), np.sort(rng.integers(0, 4, 40))
        seen, row = rng.poisson(0.3, 40).astype(np.float64), rng.integers(0, 3, 40)
        entered = [
            Batches.of(row, owner, opening, np.where(opening <= now, seen, 0), OWNERS).entered & (opening <= now)
            for now in range(4)
        ]
        for before, now in zip([entered[0] & False, *entered], entered, strict=False):
            assert not (before & ~now).any()
            for one in range(3):
                new = owner[now & ~before & (row == one) & (seen > 0)]
                assert len(new) == 0 or len(set(new)) - (OWNERS - 1) >= OWNERS


def test_the_law_of_few_owners_is_that_of_independent_owners() -> None:
    rng = np.random.default_rng(2)
    explained, rates = np.array([0.4, 1.0, 0.1, 2.0, 0.7]), np.array([0.3, 1.0, 3.0])
    said = FewOwners(explained, np.array([0, 0, 2, 0, 0]), 3).log_likelihood(3, rates)
    for place, rate in enumerate(rates):
        drawn = rng.poisson(explained[[0, 1, 3, 4]] * rate, (100_000, 4)) > 0
        assert np.exp(said[0, place]) == pytest.approx((drawn.sum(axis=1) < 3).mean(), abs=0.006)
    np.testing.assert_allclose(said[1:], 0.0, atol=1e-12)  # nobody there, or too few owners for more


# ---- what two bundles tell apart -------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_k_minus_one_colluding_owners_do_not_see_whether_anothers_lease_failed(federation: Federation) -> None:
    """They know all of their own failures, and what the bundle would be in two worlds: it is the same."""
    known = failed(*range(OWNERS - 1), week=0) + failed(*range(OWNERS - 1))
    worlds = [learnt(federation, known), learnt(federation, known + failed(VICTIM))]
    assert worlds[0] == worlds[1]
    seen = [learnt(federation, known, unbounded), learnt(federation, known + failed(VICTIM), unbounded)]
    assert seen[0] != seen[1]  # without the bound, the attack works


@pytest.mark.nightly
def test_what_enters_does_not_say_whose_lease_it_was(federation: Federation) -> None:
    known = failed(COLLUDER, *OTHERS[:2])
    one, other = (learnt(federation, known + failed(number)) for number in (VICTIM, OTHERS[2]))
    assert one == other != learnt(federation, known)


@pytest.mark.nightly
def test_a_bundle_leaves_out_small_changes_and_shows_large_ones(federation: Federation) -> None:
    publisher = Publisher(federation.provider.store, federation.provider._signing_key)
    releases = publisher.releases()[:1]
    signed = publisher.publish(releases, publisher.learn(releases))
    before = replace(open_signed(Bundle, signed, federation.provider.directory.provider), evidence=None)
    pair, rate = before.mismatches[0], before.hazards[0]
    near = replace(pair, risk_ratio_high=1.09 * pair.risk_ratio_high)
    far = replace(pair, risk_ratio_high=1.11 * pair.risk_ratio_high)
    for changed, kept in ((near, pair), (far, far)):
        after = with_small_changes_left_out(before, replace(before, number=9, mismatches=(changed,)))
        assert (after.number, after.mismatches) == (9, (kept,))
    faster = replace(rate, rate_high=1.2 * rate.rate_high)
    assert with_small_changes_left_out(before, replace(before, hazards=(faster,))).hazards == (faster,)
    next_epoch = replace(before, epoch=before.epoch + 1, mismatches=(near,))
    assert with_small_changes_left_out(before, next_epoch) == next_epoch


# ---- through the week ------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_own_failures_in_the_store_change_the_bundle_of_the_week(tmp_path: Path, epsilon: float | None) -> None:
    bundles = []
    for number, seen in enumerate((None, failed(*range(TENANTS), week=0))):
        root = tmp_path / str(number)
        grounds = Grounds.founded(root, TENANTS)
        with grounds.opened(root) as federation:
            for tenant in range(TENANTS):
                let(federation, tenant)
                fail(federation, tenant)
            if seen is not None:
                federation.provider.store.own.add(*WEEKS[0], seen)
            signing_key = federation.provider._signing_key
            publisher = Publisher(federation.provider.store, signing_key, own_epsilon=epsilon)
            hold(replace(federation, publisher=publisher), WEEKS[0])
            newest = publisher.newest()
            assert newest is not None
            bundles.append(newest)
    blind, seeing = bundles
    assert blind.statement is not None
    assert seeing.statement is not None
    assert (blind.statement.own_owners, blind.statement.own_epsilon) == (0, 0.0)
    stated = (seeing.statement.own_owners, seeing.statement.own_epsilon)
    assert stated == ((enough(OWNERS), 0.0) if epsilon is None else (0, 1.0))
    assert blind.mismatches[0].expected_failures != seeing.mismatches[0].expected_failures


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_all_openings_together_cost_a_job_week_epsilon_and_less_noise_would_cost_more(federation: Federation) -> None:
    made = federation.provider.releases()[-1]
    plan = own_plan(made.plan, 0.5)
    assert plan_loss(plan).at(plan.delta) <= 0.5
    (pairs,) = plan.marginals
    weaker = replace(plan, marginals=(replace(pairs, noise_scale=0.7 * pairs.noise_scale),))
    assert plan_loss(weaker).at(plan.delta) > 0.5


@pytest.mark.nightly
def test_own_counts_carry_the_noise_that_they_state(federation: Federation) -> None:
    releases = federation.provider.releases()
    leases = federation.provider.leases(0, WEEKS[-1][1])
    record = OwnRecord.of(failed(*range(4)) + failed(0, 0, 1, week=2))  # twice in one job-week: F is one
    drawn = []
    for _ in range(300):
        kept: dict[RoundId, Release] = {}
        *_, last = open_missing(kept, record, releases, leases, 2.0, SystemSampler())
        drawn.append(last.table("pairs"))
    errors = np.array([table.events.sum() - 6.0 for table in drawn])
    sd = float(np.sqrt(drawn[0].noise_variance.sum()))
    assert abs(errors.mean()) < 4.0 * sd / np.sqrt(len(errors))
    assert 0.8 < errors.std() / sd < 1.2  # 300 draws: 4% is one standard deviation


def test_noise_is_drawn_once_and_what_is_recorded_later_moves_nothing(federation: Federation) -> None:
    asked: list[OwnSight | None] = []

    def keeps(releases: Sequence[Release], leases: Sequence[Lease], own: OwnSight | None) -> Findings:
        asked.append(own)
        return Findings((), ())

    store = federation.provider.store
    for end in (WEEKS[1][1], WEEKS[2][1]):
        store.own.add(store.own.looked_until(), end, failed(COLLUDER, week=0 if end == WEEKS[1][1] else 2))
        publisher = Publisher(store, federation.provider._signing_key, keeps, own_epsilon=1.0)
        publisher.learn(publisher.releases()[:2])
    tables = [own.table.events for own in asked if own is not None and not isinstance(own, Exact)]
    assert len(tables) == 2
    assert (tables[0] == tables[1]).all()
    assert len(store.own.counts()) == 2


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_hours_are_recorded_once_and_in_order(federation: Federation) -> None:
    own = federation.provider.store.own
    assert own.record() is None
    own.add(10, 20, failed(0, week=0))
    with pytest.raises(HoursClosed):
        own.add(19, 30, [])
    own.add(20, 30, [])
    own.add(40, 50, [])
    record = own.record()
    assert record is not None
    one = lease_id(0, WEEKS[0], 0)
    asked = (10, 30), (12, 41), (40, 50), (9, 11)
    assert [record.looks_at(one, *hours) for hours in asked] == [True, False, True, False]
    assert not record.looks_at(LeaseId(b"?" * LeaseId.length), 10, 30)  # nobody knows its nodes


def test_a_failure_is_that_of_the_lease_that_ran_or_had_just_ended() -> None:
    def on(number: int, start_h: float, end_h: float) -> Lease:
        return Lease(LeaseId(bytes([number]) + bytes(15)), TENANT, 2, start_h, end_h, {})

    first, second, third = on(1, 0.0, 10.2), on(2, 10.4, 20.5), on(3, 24.0, 30.0)
    placed = [(first, ["a", "b"]), (second, ["a", "b"]), (third, ["a"])]
    found, idle = on_leases([("a", 5), ("b", 5), ("a", 10), ("a", 21), ("a", 22), ("c", 5), ("a", 24)], placed)
    hours = {1: [5.0, 10.0], 2: [20.5], 3: [24.0]}
    assert [(one.lease[0], one.at_h) for one in found] == [(n, hour) for n, of in hours.items() for hour in of]
    assert idle == 2
