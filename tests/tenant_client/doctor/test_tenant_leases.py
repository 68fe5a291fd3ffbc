"""Leases that the provider granted: only those whose workload is known start, only one's own, and only once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from crypto.errors import BadSignature, DecodeError, PeerFault
from crypto.ids import LeaseId
from crypto.signing import open_signed
from federation.protocol.bundle import Bundle, CatalogueEntry
from federation.protocol.plan import Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import LADDER_LABELS, GrantedLease, LeaseGrants, LeaseRequest
from federation.protocol.services import ProviderMethod
from federation.protocol.versions import PROTOCOL
from provider_server.rounds.planning import MarginalSpec
from tenant_client.doctor.records.journal import Failure, GrantChanged, Unit
from tenant_client.doctor.workload.descriptor import own_sketch
from tenant_client.program.service import answering
from tenant_client.rounds.tenant import Tenant
from tests.support.changing import replace
from tests.support.factories import Cast, InsecureSilence, a_descriptor, a_plan, keys, lease_id, signed, token

LEASES = [lease_id(0, number) for number in range(3)]


def a_grant(number: int = 0, tenant: int = 0, **changes: Any) -> GrantedLease:
    lease = GrantedLease(lease_id(tenant, number), 0, 1.0 + number, token("context"), token("context level"), 4)
    return replace(lease, **changes)


def granted(*leases: GrantedLease, tenant: int = 0) -> bytes:
    return keys().provider.sign(LeaseGrants(keys().tenant_id(tenant), leases))


def grants(tenant: int = 0) -> bytes:
    return granted(*(a_grant(number, tenant) for number in range(3)), tenant=tenant)


def describing(tenant: Tenant, *leases: LeaseId) -> Tenant:
    """Jobs ran on these leases, and what they were is known."""
    tenant.journal.add([Unit(str(lease), 1.0, {}) for lease in leases], [])
    for lease in leases:
        tenant.journal.describe(str(lease), 3600.0, a_descriptor())
    return tenant


@dataclass
class Asked:
    """The provider's online service, as far as leases go."""

    questions: list[bytes] = field(default_factory=list)
    protocol: int = PROTOCOL

    def call(self, method: ProviderMethod, request: bytes) -> bytes:
        assert method is ProviderMethod.LEASES
        self.questions.append(request)
        return grants()


def test_a_node_that_missed_the_question_for_its_leases_counts_them_all_the_same(cast: Cast) -> None:
    """It was killed when leases were asked for, and is back for the counts."""
    lease, provider = LEASES[0], Asked()
    there = describing(cast.tenant(trustees=cast.trustees(), sampler=InsecureSilence()), lease)
    there.record([Failure(str(lease), 20.0, 19.0, "nvlink_error")])
    plan = a_plan()
    assert not there.journal.labels(str(lease))  # so its failures have no place in any table
    answering(there, provider, lambda: there.policy)(Query.CONTRIBUTION, signed(plan))  # type: ignore[arg-type]
    assert there.journal.labels(str(lease)).keys() == {"context", "context_level", *LADDER_LABELS}
    assert [open_signed(LeaseRequest, one, keys().tenants[0][0].public).start_hour for one in provider.questions] == [1]
    answering(there, provider, lambda: there.policy)(Query.CONTRIBUTION, signed(plan))  # type: ignore[arg-type]
    assert len(provider.questions) == 1  # nothing waits any more


def test_the_request_names_the_tenant_and_is_signed(cast: Cast) -> None:
    tenant = cast.tenant()
    asked = open_signed(LeaseRequest, tenant.lease_request(0, 168), keys().tenants[0][0].public)
    assert (asked.tenant, asked.start_hour, asked.end_hour) == (tenant.id, 0, 168)


def test_only_described_workloads_start(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.journal.add([Unit(str(lease), 1.0, {}) for lease in LEASES[:2]], [])
    tenant.journal.describe(str(LEASES[0]), 3600.0, a_descriptor())
    assert tenant.take_leases(grants()) == 1
    labels = {unit.unit: unit.labels for unit in tenant.journal.units()}
    assert labels[str(LEASES[0])].keys() == {"context", "context_level", *LADDER_LABELS}
    assert not labels[str(LEASES[1])]  # it ran, and nobody knows what it was
    assert str(LEASES[2]) not in labels
    tenant.journal.describe(str(LEASES[1]), 7200.0, a_descriptor("other"))
    assert tenant.take_leases(grants()) == 2


def test_what_started_is_told_to_the_provider_and_nothing_else(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.journal.add([Unit(str(lease), 1.0, {}) for lease in LEASES[:2]], [])
    tenant.journal.describe(str(LEASES[1]), 3600.0, a_descriptor())
    tenant.take_leases(grants())
    told = tenant.journal.tell(0, 0, 168)
    assert [lease for workload in told for lease in workload.leases] == [LEASES[1]]


def test_repeated_calls_change_nothing_and_ask_no_trustee_again(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.journal.add([Unit(str(LEASES[0]), 1.0, {})], [])
    tenant.journal.describe(str(LEASES[0]), 3600.0, a_descriptor())
    assert tenant.take_leases(grants()) == 1
    units, asked = tenant.journal.units(), tenant.tokens.evaluations()
    assert asked
    assert tenant.take_leases(grants()) == 1
    assert (tenant.journal.units(), tenant.tokens.evaluations()) == (units, asked)
    assert len(tenant.journal.tell(0, 0, 168)) == 1


def test_grants_of_another_tenant_are_refused(cast: Cast) -> None:
    tenant = cast.tenant(0, trustees=cast.trustees())
    tenant.journal.add([Unit(str(lease_id(1, 0)), 1.0, {})], [])
    tenant.journal.describe(str(lease_id(1, 0)), 3600.0, a_descriptor())
    with pytest.raises(PeerFault, match="another tenant"):
        tenant.take_leases(grants(tenant=1))
    assert not tenant.journal.tell(0, 0, 168)
    assert not tenant.tokens.evaluations()


def test_grants_that_the_provider_did_not_sign_are_refused(cast: Cast) -> None:
    tenant = cast.tenant()
    forged = keys().tenants[1][0].sign(LeaseGrants(tenant.id, ()))
    with pytest.raises(BadSignature):
        tenant.take_leases(forged)
    with pytest.raises(DecodeError):
        tenant.take_leases(b"leases")


def test_nothing_starts_while_too_few_trustees_answer(cast: Cast) -> None:
    """What was granted is taken the next time: nothing is journalled by halves."""
    tenant = cast.tenant(trustees=cast.trustees()[:2])
    tenant.journal.add([Unit(str(LEASES[0]), 1.0, {})], [])
    tenant.journal.describe(str(LEASES[0]), 3600.0, a_descriptor())
    with pytest.raises(PeerFault, match="only 2 of 3 trustees"):
        tenant.take_leases(grants())
    assert not tenant.journal.tell(0, 0, 168)
    assert not tenant.journal.units()[0].labels


# ---- another token for a lease that was granted --------------------------------------------------------------------


def other_token(lease: GrantedLease) -> GrantedLease:
    return replace(lease, context=token("another context"))


CHANGED: list[Callable[[GrantedLease], GrantedLease]] = [
    other_token,
    lambda lease: replace(lease, context_level=token("another level")),
    lambda lease: replace(lease, context=lease.context_level, context_level=lease.context),
    lambda lease: replace(lease, epoch=1),
]


@pytest.mark.parametrize("changed", CHANGED, ids=["context", "level", "swapped", "epoch"])
def test_the_same_lease_under_another_token_is_refused_and_both_grants_are_kept_as_proof(
    cast: Cast, changed: Callable[[GrantedLease], GrantedLease]
) -> None:
    """Whoever owned both by its own word would stand behind two rows with one lease."""
    tenant = describing(cast.tenant(trustees=cast.trustees()), *LEASES)
    first, other = grants(), granted(a_grant(0), changed(a_grant(1)), a_grant(2))
    tenant.take_leases(first)
    before, word = tenant.journal.units(), held(tenant)
    for again in (tenant, cast.tenant(trustees=cast.trustees())):
        with pytest.raises(GrantChanged, match=f"lease {LEASES[1]} was granted before with other tokens") as fault:
            again.take_leases(other)
        assert "proof" in fault.value.diagnostics()
        assert again.grants.refused() == [(LEASES[1], first, other)]
        assert (again.journal.units(), held(again)) == (before, word)
    for grant, tokens in ((first, a_grant(1)), (other, changed(a_grant(1)))):
        assert tokens in open_signed(LeaseGrants, grant, keys().provider.public).leases
    assert tenant.take_leases(first) == 3  # the first grant stays


def held(tenant: Tenant) -> set[str]:
    """What the tenant would sign that it holds, after it was asked about everything."""
    for epoch in (0, 1):
        tenant.journal.tell(epoch, 0, 1000)
    return {str(one) for epoch in (0, 1) for one in tenant.journal.held(epoch, 0, 1000)}


def test_the_same_grant_again_is_fine_and_so_is_a_longer_list(cast: Cast) -> None:
    """The provider is asked again and again, for windows that overlap, and what it says of hours is no token."""
    tenant = describing(cast.tenant(trustees=cast.trustees()), *LEASES)
    lists = [granted(a_grant(0)), grants(), granted(a_grant(2), a_grant(1)), granted(replace(a_grant(1), start_h=1.5))]
    assert [tenant.take_leases(one) for one in lists * 2] == [1, 3, 2, 1] * 2
    assert tenant.grants.refused() == []
    assert str(token("context")) in held(tenant)
    (kept,) = tenant._connection.execute("SELECT count(*) FROM grants").fetchone()
    assert kept == 2  # of each lease the first, and no list that says nothing new


def test_a_token_is_fixed_by_the_first_grant_and_not_by_the_first_job(cast: Cast) -> None:
    """Of a lease whose workload is not known yet the provider cannot change its mind either."""
    tenant = cast.tenant(trustees=cast.trustees())
    assert tenant.take_leases(granted(a_grant())) == 0
    describing(tenant, LEASES[0])
    with pytest.raises(GrantChanged):
        tenant.take_leases(granted(other_token(a_grant())))
    assert tenant.journal.labels(str(LEASES[0])) == {}
    assert tenant.take_leases(granted(a_grant())) == 1
    assert tenant.journal.labels(str(LEASES[0]))["context"] == str(token("context"))


def test_a_changed_grant_costs_the_other_leases_of_its_list_nothing(cast: Cast) -> None:
    tenant = describing(cast.tenant(trustees=cast.trustees()), *LEASES)
    tenant.take_leases(granted(a_grant(1)))
    with pytest.raises(GrantChanged):
        tenant.take_leases(granted(a_grant(0), other_token(a_grant(1)), a_grant(2)))
    assert str(token("context")) in held(tenant)
    assert str(token("another context")) not in held(tenant)


def test_one_list_that_grants_a_lease_twice_differently_is_its_own_proof(cast: Cast) -> None:
    tenant = describing(cast.tenant(trustees=cast.trustees()), LEASES[0])
    both = granted(a_grant(), other_token(a_grant()))
    with pytest.raises(GrantChanged):
        tenant.take_leases(both)
    assert tenant.grants.refused() == [(LEASES[0], both, both)]
    assert held(tenant) == set()


def test_every_other_grant_is_kept_and_each_once(cast: Cast) -> None:
    tenant = cast.tenant()
    first = granted(a_grant())
    tenant.take_leases(first)
    others = [granted(changed(a_grant())) for changed in CHANGED]
    for other in [*others, *others]:
        with pytest.raises(GrantChanged):
            tenant.take_leases(other)
    assert sorted(tenant.grants.refused()) == sorted((LEASES[0], first, other) for other in others)


def test_grants_of_another_tenant_or_of_a_stranger_are_no_proof(cast: Cast) -> None:
    tenant = cast.tenant()
    tenant.take_leases(grants())
    with pytest.raises(PeerFault, match="another tenant"):
        tenant.take_leases(granted(other_token(a_grant()), tenant=1))
    with pytest.raises(BadSignature):
        tenant.take_leases(keys().tenants[1][0].sign(LeaseGrants(tenant.id, (other_token(a_grant()),))))
    assert tenant.grants.refused() == []


def test_a_catalogue_that_comes_later_does_not_change_the_tokens_of_a_lease(cast: Cast) -> None:
    """Or a provider would choose by its catalogue whose failures stay in a row that their owners have signed for."""
    tenant = describing(cast.tenant(trustees=cast.trustees()), *LEASES[:2])
    tenant.take_leases(granted(a_grant(0)))
    word, labels = held(tenant), tenant.journal.labels(str(LEASES[0]))
    assert set(labels.values()) == word
    benchmark = CatalogueEntry("llama", own_sketch(a_descriptor()).to_bytes())
    tenant.accept(keys().provider.sign(Bundle(1, 0, 168, (benchmark,), (), (), None)))
    tenant.take_leases(granted(a_grant(0), a_grant(1)))
    assert tenant.journal.labels(str(LEASES[0])) == labels
    assert tenant.journal.labels(str(LEASES[1]))["archetype"] != labels["archetype"]  # a new lease goes by the new one
    assert labels["archetype"] in held(tenant) & word


# ---- jobs that ran on no lease of the provider ---------------------------------------------------------------------


def causes() -> Plan:
    """A plan without tokens."""
    return a_plan(marginals=(MarginalSpec("causes", ("domain", "reason"), (), 1.0),))


def test_a_failure_counts_from_the_grant_of_its_lease_on(cast: Cast) -> None:
    tenant = describing(cast.tenant(trustees=cast.trustees()), LEASES[0])
    tenant.record([Failure(str(LEASES[0]), 30.0, 29.0, "nvlink_error")])
    for plan in (causes(), a_plan()):
        assert sum(int(table.sum()) for table in tenant.counts(plan)) == 0
    tenant.take_leases(granted(a_grant(0)))
    assert [int(table.sum()) for table in tenant.counts(causes())] == [1]
