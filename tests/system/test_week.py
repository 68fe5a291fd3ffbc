"""The whole week, narrated once: in process with eight tenants, and through a real SuperLink with two nodes."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from crypto.codec import decode
from crypto.errors import CohortTooSmall
from crypto.ids import LeaseId
from federation.protocol.noise import SystemSampler
from federation.protocol.round_messages import Contribution
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.network.flower_app import server_app
from provider_server.rounds.network.grid_tenants import GridTenants, Why
from provider_server.rounds.network.superlink import run_server_app
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.week import Tenants, federated_week
from simulation.replay.lives import InsecureSilence
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from simulation.run.play import exact_sum
from tenant_client.doctor.records.journal import Failure
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease
from tests.support.factories import a_descriptor
from tests.support.superlink import pinned_node, superlink

WEEK = (0, 168)
LEASES = 6


def a_federation(root: Path, tenants: int, *, silent: bool = False) -> Federation:
    settings = PlanSettings(
        1.0, 1e-8, tenants - tenants // 4, noise_shares=1, owners_minimum=2, windows=(1,), weeks_per_epoch=1
    )
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
    return found(root, tenants, settings, policy, InsecureSilence() if silent else SystemSampler())


def happen(federation: Federation) -> None:
    """Every tenant runs the same workload on six leases, and the first of them fails."""
    provider = federation.provider
    for number, tenant in enumerate(federation.tenants):
        leases = [LeaseId(bytes([number, lease]) + bytes(14)) for lease in range(LEASES)]
        labels = provider.context_labels(0, "a100 hall 3", 0)
        provider.record_leases(Lease(lease, tenant.id, 4, 1.0, 100.0, labels) for lease in leases)
        tenant.start_leases([StartedLease(lease, 1.0, labels, a_descriptor()) for lease in leases], provider.epoch(0))
        tenant.record([Failure(str(leases[0]), 30.0, 29.0, "nvlink_error")])


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Federation]:
    federation = a_federation(tmp_path, 8, silent=True)
    happen(federation)
    yield federation
    federation.close()


def in_process(
    federation: Federation, *, absent: int = 0, publisher: Publisher | None = None
) -> tuple[Release, GridTenants]:
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(federation.tenants)}
    with local_task():
        tenants = GridTenants(LocalGrid(apps, silent=range(absent)), 0.0, 0.0)
        return federated_week(federation.provider, publisher, tenants, federation.trustees, WEEK), tenants


def test_a_silent_sampler_releases_the_exact_sum_and_the_providers_own_exposure(eight: Federation) -> None:
    release, _ = in_process(eight)
    for table, exact in zip(release.tables, exact_sum(eight, release.plan), strict=True):
        assert np.array_equal(table.events, exact)
    assert release.table("pairs").events.sum() == len(eight.tenants)
    assert release.table("pairs").exposure_node_hours.sum() == len(eight.tenants) * LEASES * 4 * 99


def test_tenants_that_vanish_are_named_and_the_sum_is_exact_over_the_rest(eight: Federation) -> None:
    release, tenants = in_process(eight, absent=2)
    assert release.contributors == 6
    assert release.table("pairs").events.sum() == 6
    assert {silence.why for silence in tenants.silences} == {Why.LATE}


def test_a_round_below_its_cohort_minimum_releases_nothing(eight: Federation) -> None:
    with pytest.raises(CohortTooSmall, match="5 contributions, at least 6 needed"):
        in_process(eight, absent=3)
    assert eight.provider.store.releases() == []


def test_the_week_ends_with_a_bundle_that_every_tenant_holds(eight: Federation) -> None:
    in_process(eight, publisher=eight.publisher)
    bundles = [tenant.bundle() for tenant in eight.tenants]
    assert all(bundle == bundles[0] is not None for bundle in bundles)
    assert bundles[0] is not None
    assert bundles[0].statement is not None
    assert bundles[0].statement.contributions_fewest == 8


def test_a_week_without_a_publisher_ends_with_its_release(eight: Federation) -> None:
    release, _ = in_process(eight)
    assert [made.plan for made in eight.provider.store.releases()] == [release.plan]
    assert eight.publisher.unpublished()
    assert {tenant.bundle() for tenant in eight.tenants} == {None}


def test_what_left_a_tenant_is_not_its_table(eight: Federation) -> None:
    """Even without noise the masks hide it: the words that left look nothing like small counts."""
    release, _ = in_process(eight)
    sent = eight.tenants[0].outbox.sent(release.plan.round_id)
    assert sent is not None
    words = np.frombuffer(decode(Contribution, sent).cells, "<u8")
    assert np.median(words) > 2.0**60


@pytest.mark.nightly
@pytest.mark.xdist_group("superlink")
def test_the_same_week_runs_through_a_real_superlink_and_two_nodes(tmp_path: Path) -> None:
    federation = a_federation(tmp_path / "homes", 2)
    happen(federation)
    releases: list[Release] = []

    def run(tenants: Tenants) -> None:
        releases.append(federated_week(federation.provider, federation.publisher, tenants, federation.trustees, WEEK))

    with ExitStack() as stack:
        link = stack.enter_context(superlink(tmp_path))
        for tenant in federation.tenants:
            stack.enter_context(pinned_node(link.address, client_app(tenant.answer)))
        run_server_app(link.address, server_app(run, wanted=2))
    (release,) = releases
    exact = exact_sum(federation, release.plan)
    assert release.contributors == 2
    for table, counts in zip(release.tables, exact, strict=True):
        spread = np.sqrt(table.noise_variance)
        assert np.all(np.abs(table.events - counts) < 8 * spread)
    assert any(np.any(table.events != counts) for table, counts in zip(release.tables, exact, strict=True))
    assert [len(tenant.ledger.charges()) for tenant in federation.tenants] == [1, 1]
    assert all(tenant.bundle() is not None for tenant in federation.tenants)
    federation.close()
