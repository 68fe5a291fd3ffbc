"""Votes from a lease's grant to the name of a leaf, in a federation in process; and tenants that do not take part."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from crypto.errors import PlanRefused
from crypto.ids import LeaseId
from crypto.signing import reopened
from federation.protocol.round_messages import LeaseGrants
from federation.protocol.subjects import Subject
from provider_server.fleet.fabric import Cable, CableEnd, Fabric
from provider_server.fleet.learning.votes import suspected
from provider_server.fleet.leases import Lease
from provider_server.fleet.parts import FabricParts
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import PlanSettings, with_optional
from provider_server.rounds.provider import Provider
from provider_server.rounds.week import federated_week
from simulation.replay.lives import InsecureSilence
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.journal import Unit
from tenant_client.doctor.records.votes import Vote
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.policy import Policy, check_plan
from tenant_client.rounds.tenant import Tenant
from tests.support.factories import a_descriptor

WEEK = (0, 168)
UNITS, NODES, RAILS, LEASES = 4, 3, 2, 8
BAD = 1, 0  # a unit, and a rail
OWN_DIMENSIONS = ("workload", "context", "context_level", "band", "domain")


def node(unit: int, number: int) -> str:
    return f"n{unit}-{number}"


def the_fabric() -> FabricParts:
    names = [(unit, node(unit, number)) for unit in range(UNITS) for number in range(NODES)]
    cables = [
        Cable(CableEnd(name, f"mlx5_{rail}"), CableEnd(f"leaf-{unit}-{rail}", name), rail)
        for unit, name in names
        for rail in range(RAILS)
    ]
    return FabricParts.of(Fabric.of(cables, [name for _, name in names]))


def a_federation(root: Path, *, votes: bool = True) -> Federation:
    shares = with_optional({Subject.VOTES: 0.2})
    settings = PlanSettings(
        1.0, 1e-8, 6, noise_shares=1, owners_minimum=2, marginals=shares, windows=(1,), weeks_per_epoch=1
    )
    dimensions = (*OWN_DIMENSIONS, "part") if votes else OWN_DIMENSIONS
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0, "dimensions": dimensions}
    federation = found(root, 8, settings, policy, InsecureSilence())
    federation.provider.parts = the_fabric()
    for number, tenant in enumerate(federation.tenants):
        run(federation.provider, tenant, number)
    return federation


def run(provider: Provider, tenant: Tenant, number: int) -> None:
    """Eight leases over two units each, which vote for the bad leaf where they use it; one votes twice."""
    labels = provider.context_labels(0, "a100 hall 3", 0)
    for lease in range(LEASES):
        name = LeaseId(bytes([number, lease]) + bytes(14))
        units = lease % UNITS, (lease + 1 + lease // UNITS) % UNITS
        nodes = [node(unit, place) for unit in units for place in range(2)]
        provider.record_leases([Lease(name, tenant.id, len(nodes), 1.0, 100.0, labels)], {name: nodes})
        tenant.journal.add([Unit(str(name), 1.0, {})], [])
        tenant.journal.describe(str(name), 0.0, a_descriptor())
        if BAD[0] in units:
            for at_h in (30.0, 31.0):
                tenant.votes.cast(Vote(str(name), at_h, (nodes[0], nodes[-1]), BAD[1], "flight recorder"))
    tenant.take_leases(provider.grants(tenant.lease_request(*WEEK)))


def in_process(federation: Federation) -> Release:
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(federation.tenants)}
    with local_task():
        tenants = GridTenants(LocalGrid(apps), 0.0, 0.0)
        return federated_week(federation.provider, None, tenants, federation.trustees, WEEK)


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Federation]:
    federation = a_federation(tmp_path)
    yield federation
    federation.close()


def test_the_leaf_that_tenants_vote_for_is_named_and_each_lease_counts_once_in_a_window(eight: Federation) -> None:
    release, provider = in_process(eight), eight.provider
    table = release.table("votes")
    voting = sum(BAD[0] in (lease % UNITS, (lease + 1 + lease // UNITS) % UNITS) for lease in range(LEASES))
    assert table.events.sum() == 8 * voting * 2  # half a vote at each end, once in the window
    tokens = provider.part_tokens(0)
    assert table.events[table.levels("part").index(tokens[BAD[0]][BAD[1]])] == 8 * voting
    first, *_ = suspected(release, provider.store.leases(*WEEK), provider.parts or the_fabric(), tokens)
    assert (first.switch, first.rail, first.jobs) == ("leaf-1-0", 0, 8 * voting)


def test_who_lists_no_parts_owns_none_and_without_owners_no_votes_are_asked_for(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, votes=False)
    plan = in_process(federation).plan
    assert all(marginal.counts is Subject.FAILURES for marginal in plan.marginals)
    assert {dimension.name for dimension in plan.dimensions} <= set(OWN_DIMENSIONS)
    federation.close()


def test_tokens_of_parts_change_with_the_epoch_and_say_which_own_nodes_share_a_leaf(eight: Federation) -> None:
    provider, tenant = eight.provider, eight.tenants[0]
    granted = reopened(LeaseGrants, provider.grants(tenant.lease_request(*WEEK))).leases
    assert granted[0].units[0].nodes == ("n0-0", "n0-1")
    assert granted[0].units[0].rails == granted[4].units[0].rails  # the same leaf in two leases of an epoch
    assert granted[0].units[0].rails[0] != granted[0].units[1].rails[0]
    now, later = (set(chain.from_iterable(provider.part_tokens(epoch))) for epoch in (0, 1))
    assert not now & later
    assert len(now) == UNITS * (RAILS + 1)


def test_a_plan_with_votes_is_refused_before_anything_is_charged(eight: Federation) -> None:
    release = in_process(eight)
    signed = eight.provider.store.rounds.rounds()[0].signed_plan
    tenant = eight.tenants[0]
    assert tenant.open_plan(signed) == release.plan
    directory = tenant.chain.directory
    with pytest.raises(PlanRefused, match=r"it counts by \['part'\]"):
        check_plan(release.plan, Policy(owners_minimum=2, cohort_minimum=2, colluding_share=0.0), directory, 200.0, 8)
