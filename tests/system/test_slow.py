"""Slow units from the journal's step times to the name of a context, in a federation in process."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from crypto.ids import LeaseId
from federation.protocol.subjects import Subject
from provider_server.fleet.analysis.slow_contexts import slow_contexts
from provider_server.fleet.leases import Lease
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import PlanSettings, with_optional
from provider_server.rounds.week import federated_week
from simulation.replay.lives import InsecureSilence
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.paces import Paces, Slice
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease
from tests.support.factories import a_descriptor

WEEK = (0, 168)
CONTEXTS = ("hall 1", "hall 2", "hall 3")
SLOW = 2


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Federation]:
    shares = with_optional({Subject.SPEED: 0.2})
    settings = PlanSettings(
        1.0, 1e-8, 6, noise_shares=1, owners_minimum=2, marginals=shares, windows=(1,), weeks_per_epoch=1
    )
    dimensions = ("workload", "context", "context_level", "band", "domain", "pace")
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0, "dimensions": dimensions}
    federation = found(tmp_path, 8, settings, policy, InsecureSilence())
    for number in range(8):
        run(federation, number)
    yield federation
    federation.close()


def run(federation: Federation, number: int) -> None:
    """One lease after another, each on another context; a fifth slower on the slow one."""
    provider, tenant = federation.provider, federation.tenants[number]
    for lease in range(6):
        name, start_h, place = LeaseId(bytes([number, lease]) + bytes(14)), 1.0 + 20 * lease, lease % len(CONTEXTS)
        labels = provider.context_labels(0, CONTEXTS[place], 0)
        provider.record_leases([Lease(name, tenant.id, 4, start_h, start_h + 10, labels)])
        tenant.start_leases([StartedLease(name, start_h, labels, a_descriptor())], 0)
        step_s = 1.2 if place == SLOW else 1.0
        slices = [Slice(int(3600 * start_h) + 600 * at, timed=100, stepping_s=100 * step_s) for at in range(3)]
        Paces(tenant._connection).keep(str(name), 1, slices)


def test_units_on_the_slow_context_are_counted_and_it_is_named(eight: Federation) -> None:
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(eight.tenants)}
    with local_task():
        release = federated_week(eight.provider, None, GridTenants(LocalGrid(apps), 0.0, 0.0), eight.trustees, WEEK)
    table = release.table("speed")
    tokens = [eight.provider.context_labels(0, name, 0)["context"] for name in CONTEXTS]
    counts = [table.events[table.levels("context").index(token)].tolist() for token in tokens]
    assert counts == [[0, 8], [0, 16], [16, 0]]  # the first lease of each tenant follows none
    slow, usual = (table.at("pace", pace).events * 20 for pace in ("slow", "usual"))
    first, *_ = slow_contexts(table.levels("context"), slow, usual, np.zeros(3))
    assert first.context == tokens[SLOW]
    assert table.exposure_node_hours.sum() == 2 * 8 * 6 * 4 * 10  # in either level of pace
