"""A change of epoch over the in-process grid: tokens change, and what was learnt goes on where tenants link them.

An epoch is a week here. Every tenant runs the same workload on the same context in both weeks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from crypto.ids import LeaseId, Token
from crypto.signing import open_signed_by, reopened
from federation.protocol.plan import Mechanism, Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import LADDER_LABELS, Registration, TokenLink
from provider_server.fleet.learning.findings import Findings, learn
from provider_server.fleet.leases import Lease, context_links
from provider_server.fleet.own_failures import OwnRecord
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import MARGINALS, PlanSettings
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.week import federated_week
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.journal import Failure
from tenant_client.rounds.disclosure import owner_view
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease
from tests.support.changing import replace
from tests.support.factories import a_descriptor
from tests.support.federations import InsecureWhisper
from tests.support.seats import Holders, renew_mask_keys

TENANTS, CONTEXT = 4, "a100 hall 3"
WINDOWS = tuple((168 * week, 168 * (week + 1)) for week in range(3))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    settings = PlanSettings(
        epsilon=1.0,
        delta=1e-8,
        cohort_minimum=3,
        noise_shares=1,
        owners_minimum=3,
        marginals=MARGINALS[:2],
        mechanism=Mechanism.DISCRETE_GAUSSIAN,  # the scaling of which makes room for a whisper
        windows=(1,),
        weeks_per_epoch=1,
    )
    policy = {"owners_minimum": 3, "cohort_minimum": 3, "colluding_share": 0.0}
    with closing(found(tmp_path, TENANTS, settings, policy, InsecureWhisper())) as opened:
        yield opened


def consenting(federation: Federation, tenants: int) -> None:
    for tenant in federation.tenants[:tenants]:
        tenant.policy = replace(tenant.policy, link_epochs=True)


def begin_leases(federation: Federation, week: int, *, weeks: int = 1) -> list[LeaseId]:
    """Each tenant has a lease of its own that begins this week."""
    provider, (start, end), leases = federation.provider, WINDOWS[week], []
    for number, tenant in enumerate(federation.tenants):
        labels, lease = provider.context_labels(start, CONTEXT, 0), LeaseId(bytes([number, week, weeks]) + bytes(13))
        provider.record_leases([Lease(lease, tenant.id, 4, start + 1.0, end + 168.0 * (weeks - 1) - 1.0, labels)])
        tenant.start_leases([StartedLease(lease, start + 1.0, labels, a_descriptor())], provider.epoch(start))
        leases.append(lease)
    return leases


def fail(federation: Federation, leases: Sequence[LeaseId], week: int) -> None:
    """Each lease fails once this week."""
    at = WINDOWS[week][0] + 30.0
    for tenant, lease in zip(federation.tenants, leases, strict=True):
        tenant.record([Failure(str(lease), at, 29.0, "nvlink_error")])


def a_week(federation: Federation, week: int) -> Release:
    """Each tenant has a lease of its own this week, which fails once."""
    fail(federation, begin_leases(federation, week), week)
    return hold(federation, week)


def hold(federation: Federation, week: int) -> Release:
    """The round over a week, before which the mask trustees make new keys: those of before served an epoch."""
    provider, (start, end) = federation.provider, WINDOWS[week]
    if provider.plans():
        renew_mask_keys(Holders.founded(federation), federation)
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(federation.tenants)}
    with local_task():
        return federated_week(provider, None, GridTenants(LocalGrid(apps), 0.0, 0.0), federation.trustees, (start, end))


class Seen:
    """A learner that keeps what it was given."""

    releases: Sequence[Release] = ()
    leases: Sequence[Lease] = ()

    def __call__(self, releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> Findings:
        self.releases, self.leases = releases, leases
        return learn(releases, leases, own)


def learnt(federation: Federation) -> tuple[Findings, Seen]:
    seen, provider = Seen(), federation.provider

    def contexts(before: int, now: int) -> dict[str, str]:
        return context_links(provider._context_secret, before, now, [CONTEXT], range(2))

    publisher = Publisher(provider.store, provider._signing_key, seen, contexts=contexts)
    return publisher.learn(publisher.releases()), seen


def counted(findings: Findings, seen: Seen) -> dict[str, float]:
    """The failures that the learner was shown of each workload that it found a pair of."""
    tables = [release.table("pairs").marginal("workload") for release in seen.releases]
    return {
        pair.workload: sum(
            float(table.events[table.levels("workload").index(pair.workload)])
            for table in tables
            if pair.workload in table.levels("workload")
        )
        for pair in findings.pairs
    }


def test_what_was_learnt_of_a_pair_goes_on_in_the_next_epoch_where_owners_enough_consent(
    federation: Federation,
) -> None:
    consenting(federation, 3)
    made = [a_week(federation, week) for week in range(3)]
    tokens = [made_.plan.dimensions[0].levels for made_ in made]
    assert len({*tokens}) == 3  # every epoch has tokens of its own
    findings, seen = learnt(federation)
    ((workload, failures),) = counted(findings, seen).items()
    assert (workload,) == tokens[2]
    assert failures == pytest.approx(3 * TENANTS, abs=1.0)
    assert {lease.labels["subarchetype"] for lease in seen.leases} == {workload}
    assert {release.table("pairs").levels("context") for release in seen.releases} == {
        made[2].table("pairs").levels("context")
    }
    assert [workloads(release) for release in federation.provider.store.releases()] == tokens  # what is stored stays


def workloads(release: Release) -> tuple[str, ...]:
    return release.plan.dimensions[0].levels


@pytest.mark.parametrize("tenants", [0, 2])
def test_without_consent_of_as_many_as_a_row_needs_each_epoch_begins_anew(federation: Federation, tenants: int) -> None:
    consenting(federation, tenants)
    made = [a_week(federation, week) for week in range(2)]
    failures = counted(*learnt(federation))
    assert sorted(failures) == sorted(token for release in made for token in workloads(release))
    assert list(failures.values()) == pytest.approx([TENANTS, TENANTS], abs=1.0)


def test_a_lease_that_runs_over_a_change_of_epoch_counts_on_neither_side_after_it(federation: Federation) -> None:
    long = begin_leases(federation, 0, weeks=2)
    fail(federation, long, 0)
    hold(federation, 0)
    fail(federation, long, 1)
    release = a_week(federation, 1)
    workloads = release.table("pairs").marginal("workload")
    assert workloads.events.sum() == pytest.approx(TENANTS, abs=1.0)  # of the leases that began in this epoch
    assert workloads.exposure_node_hours.sum() == pytest.approx(4 * 166 * TENANTS)
    assert len(federation.provider.store.leases(*WINDOWS[1])) == 2 * TENANTS  # though the long ones run, too


def registration(federation: Federation, tenant: int, week: int) -> Registration:
    request = federation.provider.registration_request(WINDOWS[week])
    answer = federation.tenants[tenant].answer(Query.REGISTRATIONS, request)
    return open_signed_by(Registration, answer, federation.provider.directory.verify_key)


def test_a_tenant_links_only_if_its_policy_says_so_and_only_what_it_ran_in_both_epochs(federation: Federation) -> None:
    consenting(federation, 1)
    for week in range(2):
        a_week(federation, week)
    assert registration(federation, 0, 0).links == ()
    links, told = registration(federation, 0, 1).links, registration(federation, 0, 1).workloads
    assert {str(link.now) for link in links} == {*told[0].ladder.labels.values()}
    before = registration(federation, 0, 0).workloads[0].ladder
    assert {str(link.before) for link in links} == {str(getattr(before, rung)) for rung in LADDER_LABELS}
    assert registration(federation, 1, 1).links == ()
    shown = owner_view.sent(federation.tenants[0]).links
    assert {(one.epoch, one.token_before, one.token_now) for one in shown} == {
        (1, str(link.before), str(link.now)) for link in links
    }
    assert owner_view.sent(federation.tenants[1]).links == ()
    federation.tenants[0].policy = replace(federation.tenants[0].policy, link_epochs=False)
    assert registration(federation, 0, 1).links == ()


def test_a_link_of_tokens_that_a_tenant_does_not_hold_is_dropped(federation: Federation) -> None:
    for week in range(2):
        a_week(federation, week)
    liar, provider = federation.tenants[0], federation.provider
    honest = registration(federation, 0, 1)
    before = registration(federation, 0, 0).workloads[0].ladder.subarchetype
    now, foreign = honest.workloads[0].ladder.subarchetype, Token(os.urandom(Token.length))
    for link in (TokenLink(before, foreign), TokenLink(foreign, now)):
        provider.register(liar._signing_key.sign(replace(honest, links=(link,))))
        assert provider.store.links(1) == []
    provider.register(liar._signing_key.sign(replace(honest, links=(TokenLink(before, now),))))
    assert provider.store.links(1) == [(liar.id, TokenLink(before, now))]
    assert provider.store.links(0) == []
    assert reopened(Plan, provider.store.rounds.rounds()[0].signed_plan).epoch == 0
