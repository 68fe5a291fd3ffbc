"""The provider's online service over gRPC: what anybody gets, and what only the tenant that signed gets."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from crypto.bundle import Bundle
from crypto.codec import decode
from crypto.directory import Chain
from crypto.errors import BadSignature, DecodeError, PeerFault, Refusal
from crypto.messages import DirectoryUpdate, LeaseGrants, LeaseRequest
from crypto.services import ProviderMethod
from crypto.signing import SigningKey, open_signed
from provider_server.online import serve_online
from simulation.federation import Federation
from tests.federations import LEASES, NEWCOMER, WEEKS, Grounds, begin, lease_id
from transport.certificates import make_certificate
from transport.client import Peer

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("online")
    with Grounds.founded(root, 3).opened(root) as parties:
        for number in range(2):
            begin(parties, number)
        yield parties


@pytest.fixture(scope="module")
def peer(federation: Federation) -> Iterator[Peer]:
    made = make_certificate([HOST], datetime.now(UTC))
    with (
        serve_online(federation.provider, f"{HOST}:0", made.certificate_pem, made.key_pem) as server,
        Peer(f"{HOST}:{server.port}", made.certificate_pem) as asked,
    ):
        yield asked


def granted(federation: Federation, peer: Peer, request: bytes) -> LeaseGrants:
    return open_signed(LeaseGrants, peer.call(ProviderMethod.LEASES, request), federation.provider.directory.provider)


def test_anybody_gets_the_directory_and_what_is_new_in_it(federation: Federation, peer: Peer) -> None:
    first, *later = decode(DirectoryUpdate, peer.call(ProviderMethod.DIRECTORY, b"")).entries
    chain = Chain.begin(first, federation.provider.directory.provider).extended(later)
    assert {member.tenant for member in chain.directory.members} >= {tenant.id for tenant in federation.tenants}
    federation.provider.enrol([NEWCOMER])
    newer = decode(DirectoryUpdate, peer.call(ProviderMethod.DIRECTORY, b"anything")).entries
    assert chain.extended(newer).directory.by_id[NEWCOMER.tenant] == NEWCOMER


def test_a_tenant_gets_its_own_leases_and_no_others(federation: Federation, peer: Peer) -> None:
    for number, leases in ((0, LEASES), (1, LEASES), (2, 0)):
        tenant = federation.tenants[number]
        grants = granted(federation, peer, tenant.lease_request(*WEEKS[0]))
        assert grants.tenant == tenant.id
        assert [lease.lease for lease in grants.leases] == [
            lease_id(number, WEEKS[0], lease) for lease in range(leases)
        ]


def test_leases_are_those_that_began_in_the_hours_asked_about(federation: Federation, peer: Peer) -> None:
    tenant = federation.tenants[0]
    assert not granted(federation, peer, tenant.lease_request(2, 168)).leases
    assert len(granted(federation, peer, tenant.lease_request(1, 2)).leases) == LEASES


def test_another_tenants_signature_gives_no_leases(federation: Federation, peer: Peer) -> None:
    asked = LeaseRequest(federation.tenants[0].id, *WEEKS[0])
    forged = federation.tenants[1]._signing_key.sign(asked)
    with pytest.raises(BadSignature):
        peer.call(ProviderMethod.LEASES, forged)
    assert granted(federation, peer, federation.tenants[0]._signing_key.sign(asked)).leases  # the signature decides


def test_a_stranger_gets_no_leases(federation: Federation, peer: Peer) -> None:
    stranger = SigningKey.generate(os.urandom)
    with pytest.raises((BadSignature, PeerFault, Refusal)):
        peer.call(ProviderMethod.LEASES, stranger.sign(LeaseRequest(federation.tenants[0].id, *WEEKS[0])))
    with pytest.raises(DecodeError):
        peer.call(ProviderMethod.LEASES, b"give me all leases")


def test_a_replayed_request_serves_nobody_else(federation: Federation, peer: Peer) -> None:
    """Whoever has the bytes of a request gets an answer that names its signer, and no other tenant takes it."""
    replayed = federation.tenants[0].lease_request(*WEEKS[0])
    answer = peer.call(ProviderMethod.LEASES, replayed)
    with pytest.raises(PeerFault, match="another tenant"):
        federation.tenants[1].take_leases(answer)
    assert federation.tenants[0].take_leases(answer) == 0  # nothing is described here


def test_the_bundle_comes_after_the_first_and_not_before(federation: Federation, peer: Peer) -> None:
    with pytest.raises(Refusal, match="no bundle") as caught:
        peer.call(ProviderMethod.BUNDLE, b"")
    assert "after the first round" in caught.value.hint
    published = federation.provider.publish_catalogue(())
    assert peer.call(ProviderMethod.BUNDLE, b"") == published
    assert open_signed(Bundle, published, federation.provider.directory.provider).number == 0
