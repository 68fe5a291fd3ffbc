"""Leases that the provider granted: only those whose workload is known start, only one's own, and only once."""

import pytest

from crypto.errors import BadSignature, DecodeError, PeerFault
from crypto.messages import LADDER_LABELS, GrantedLease, LeaseGrants, LeaseRequest
from crypto.signing import open_signed
from tenant_client.journal import Unit
from tests.factories import Cast, a_descriptor, keys, lease_id, token

LEASES = [lease_id(0, number) for number in range(3)]


def grants(tenant: int = 0, epoch: int = 0, count: int = 3) -> bytes:
    leases = tuple(
        GrantedLease(lease_id(tenant, number), epoch, 1.0 + number, token("context"), token("context level"))
        for number in range(count)
    )
    return keys().provider.sign(LeaseGrants(keys().tenant_id(tenant), leases))


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
    units, asked = tenant.journal.units(), tenant.evaluations()
    assert asked
    assert tenant.take_leases(grants()) == 1
    assert (tenant.journal.units(), tenant.evaluations()) == (units, asked)
    assert len(tenant.journal.tell(0, 0, 168)) == 1


def test_grants_of_another_tenant_are_refused(cast: Cast) -> None:
    tenant = cast.tenant(0, trustees=cast.trustees())
    tenant.journal.add([Unit(str(lease_id(1, 0)), 1.0, {})], [])
    tenant.journal.describe(str(lease_id(1, 0)), 3600.0, a_descriptor())
    with pytest.raises(PeerFault, match="another tenant"):
        tenant.take_leases(grants(tenant=1))
    assert not tenant.journal.tell(0, 0, 168)
    assert not tenant.evaluations()


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
