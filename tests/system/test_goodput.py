"""Goodput from the journal of attempts to a context that misses its aim, in a federation in process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crypto.errors import PlanRefused
from crypto.ids import LeaseId
from crypto.signing import reopened
from federation.protocol.plan import Plan
from federation.protocol.subjects import GOODPUT_EDGES, Subject
from provider_server.fleet.analysis.attainment import by_context
from provider_server.fleet.leases import Lease
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import PlanSettings, with_optional
from provider_server.rounds.week import federated_week
from simulation.replay.lives import InsecureSilence
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.paces import Paces, Slice
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.policy import Policy, check_plan
from tenant_client.rounds.tenant import StartedLease
from tests.support.changing import replace
from tests.support.factories import a_descriptor

WEEK = (0, 168)
CONTEXTS = ("hall 1", "hall 2")
BAD = 1
DIMENSIONS = ("workload", "context", "context_level", "band", "domain", "goodput")


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Federation]:
    shares = with_optional({Subject.GOODPUT: 0.2})
    settings = PlanSettings(
        1.0, 1e-8, 6, noise_shares=1, owners_minimum=2, marginals=shares, windows=(1,), weeks_per_epoch=1
    )
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0, "dimensions": DIMENSIONS}
    federation = found(tmp_path, 8, settings, policy, InsecureSilence())
    for number in range(8):
        run(federation, number)
    yield federation
    federation.close()


def run(federation: Federation, number: int) -> None:
    """Two leases on each context; on the bad one a third of the time is lost."""
    provider, tenant = federation.provider, federation.tenants[number]
    for lease in range(4):
        name, start_h, place = LeaseId(bytes([number, lease]) + bytes(14)), 1.0 + 20 * lease, lease % len(CONTEXTS)
        labels = provider.context_labels(0, CONTEXTS[place], 0)
        provider.record_leases([Lease(name, tenant.id, 4, start_h, start_h + 10, labels)])
        tenant.start_leases([StartedLease(name, start_h, labels, a_descriptor())], 0)
        start_s = int(3600 * start_h)
        slices = [Slice(start_s + 600 * at, 600.0, 400 if place == BAD else 600, 100, 100.0) for at in range(60)]
        Paces(tenant._connection).keep(str(name), 1, slices)
        attempts = Attempts(tenant._connection)
        attempts.end(str(name), attempts.begin(str(name), start_s), AttemptState.SUCCEEDED, start_s + 36_000.0)


def test_leases_are_counted_by_goodput_and_the_context_that_loses_time_misses_its_aim(eight: Federation) -> None:
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(eight.tenants)}
    with local_task():
        release = federated_week(eight.provider, None, GridTenants(LocalGrid(apps), 0.0, 0.0), eight.trustees, WEEK)
    table = release.table("goodput")
    tokens = [eight.provider.context_labels(0, name, 0)["context"] for name in CONTEXTS]
    counts = [table.events[table.levels("context").index(token)].tolist() for token in tokens]
    assert counts == [[0, 0, 0, 0, 16], [0, 16, 0, 0, 0]]
    variance = table.noise_variance.max(axis=1) / 100
    first, second = by_context(table.levels("context"), table.events, variance, GOODPUT_EDGES, (0.9, 0.9))
    assert (first.context, first.is_missed, second.is_missed) == (tokens[BAD], True, False)
    assert table.exposure_node_hours.sum() == 5 * 8 * 4 * 4 * 10  # in each band of goodput

    tenant = eight.tenants[0]
    plan = reopened(Plan, tenant.outbox.signed_plans()[0])
    assert "goodput" not in Policy().dimensions  # as shipped
    with pytest.raises(PlanRefused, match="goodput"):
        check_plan(plan, replace(tenant.policy, dimensions=DIMENSIONS[:-1]), tenant.chain.at(plan.directory), 200.0, 8)
