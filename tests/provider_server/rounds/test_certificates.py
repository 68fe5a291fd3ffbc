"""Certificates under an identity, over real TLS: renewed without a word to callers, and made by nobody else."""

import os
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from crypto.errors import Unreachable
from crypto.roots import root_of
from crypto.signing import SigningKey
from federation.base.key_files import read_key
from federation.base.web.guard import Receive, Scope, Send
from federation.protocol.enrolment import open_trustee_card
from federation.protocol.services import PROVIDER, ProviderMethod
from federation.transport.certificates import Certificate, ends, hosts_of, issue, make_certificate, warn_of_end
from federation.transport.client import Peer
from federation.transport.server import Method, serve
from provider_server.rounds.home import create
from provider_server.rounds.network.connections import DEFAULT_LIMITS
from provider_server.rounds.network.listeners import Listener
from tests.provider_server.program.test_provider_verbs import told

HOST = "127.0.0.1"


@cache
def owner() -> SigningKey:
    return SigningKey.generate(os.urandom)


@cache
def stranger() -> SigningKey:
    return SigningKey.generate(os.urandom)


def now() -> datetime:
    return datetime.now(UTC)


def asked_by_grpc(served: Certificate, root: bytes) -> bytes:
    """What a caller hears that trusts `root`; Unreachable if it takes the server for another."""
    methods: dict[str, Method] = {ProviderMethod.BUNDLE: lambda data: data + b" heard"}
    with (
        serve(PROVIDER, methods, f"{HOST}:0", served.certificate_pem, served.key_pem) as server,
        Peer(f"{HOST}:{server.port}", root, retries=0) as peer,
    ):
        return peer.call(ProviderMethod.BUNDLE, b"asked")


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def asked_by_http(served: Certificate, root: bytes, folder: Path) -> bytes:
    """The same at the tenants' port, whose TLS is another library's; a node trusts it in this way."""
    files = folder / "tls.pem", folder / "tls.key"
    files[0].write_bytes(served.certificate_pem)
    files[1].write_bytes(served.key_pem)
    trusting = ssl.create_default_context(cadata=root.decode())
    trusting.minimum_version = ssl.TLSVersion.TLSv1_3
    with (
        closing(Listener(hello, socket.create_server((HOST, 0)), files, DEFAULT_LIMITS)) as listener,
        httpx.Client(verify=trusting) as client,
    ):
        return client.get(f"https://{listener.address}/").content


# ---- renewed ---------------------------------------------------------------------------------------------------------


def test_who_knows_the_identity_alone_goes_on_after_a_renewal(tmp_path: Path) -> None:
    first, second = (issue(owner(), [HOST], now()) for _ in range(2))
    assert first.fingerprint != second.fingerprint
    assert first.key_pem != second.key_pem
    known = root_of(owner().public)
    for served in (first, second):
        assert asked_by_grpc(served, known) == b"asked heard"
        assert asked_by_http(served, known, tmp_path) == b"hello"


def test_a_provider_renews_its_certificate_by_a_verb(tmp_path: Path) -> None:
    home = tmp_path / "provider"
    create(home, [HOST, "provider.example"], os.urandom, now())
    identity, before = SigningKey(read_key(home / "signing.key")).public, (home / "tls.pem").read_bytes()
    (row,) = told("provider", "renew-certificate", "--home", home, "--days", 40)
    after = Certificate((home / "tls.pem").read_bytes(), (home / "tls.key").read_bytes())
    assert after.certificate_pem != before
    assert row["hosts"] == hosts_of(after.certificate_pem) == hosts_of(before)
    assert timedelta(days=39) < ends(after.certificate_pem) - now() < timedelta(days=40)
    assert (home / "tls.key").stat().st_mode & 0o777 == 0o600
    assert asked_by_grpc(after, root_of(identity)) == b"asked heard"
    told("provider", "renew-certificate", "--home", home, "--host", "elsewhere.example")
    assert hosts_of((home / "tls.pem").read_bytes()) == ["elsewhere.example"]


def test_a_trustee_renews_its_certificate_and_its_card_stays(tmp_path: Path) -> None:
    home = tmp_path / "trustee"
    told("trustee", "init", "--home", home, "--address", f"{HOST}:7100", "--name", "trustee.example")
    card, before = (home / "trustee.card").read_bytes(), (home / "tls.crt").read_bytes()
    row = told("trustee", "keys", "renew-certificate", "--home", home)
    after = Certificate((home / "tls.crt").read_bytes(), (home / "tls.key").read_bytes())
    assert (home / "trustee.card").read_bytes() == card
    assert after.certificate_pem != before
    assert row["hosts"] == hosts_of(after.certificate_pem) == [HOST, "trustee.example"]
    assert asked_by_grpc(after, root_of(open_trustee_card(card).verify_key)) == b"asked heard"
    assert told("trustee", "keys", "renew-certificate", "--home", home, "--name", "b.example")["hosts"] == [
        HOST,
        "b.example",
    ]


# ---- by nobody else --------------------------------------------------------------------------------------------------


def as_if_under(root: bytes, key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> Certificate:
    """A certificate that names `root` as its issuer, and is signed by another key."""
    known, fresh = x509.load_pem_x509_certificate(root), issue(stranger(), [HOST], now())
    subject = x509.load_pem_x509_certificate(fresh.certificate_pem)
    keyed = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        known.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    )
    builder = x509.CertificateBuilder(
        known.subject,
        subject.subject,
        subject.public_key(),
        x509.random_serial_number(),
        subject.not_valid_before_utc,
        subject.not_valid_after_utc,
        [one for one in subject.extensions if not isinstance(one.value, x509.AuthorityKeyIdentifier)],
    ).add_extension(keyed, critical=False)
    made = builder.sign(key, SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None)
    return Certificate(made.public_bytes(Encoding.PEM) + root, fresh.key_pem)


def by_a_stolen_server_key() -> Certificate:
    """Whoever has the key of one server of the owner signs for another server with it."""
    stolen = issue(owner(), ["elsewhere.example"], now())
    key = load_pem_private_key(stolen.key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    leaf = x509.load_pem_x509_certificate(stolen.certificate_pem)
    fresh = issue(stranger(), [HOST], now())
    subject = x509.load_pem_x509_certificate(fresh.certificate_pem)
    builder = x509.CertificateBuilder(
        leaf.subject,
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Somebody")]),
        subject.public_key(),
        x509.random_serial_number(),
        subject.not_valid_before_utc,
        subject.not_valid_after_utc,
        [one for one in subject.extensions if not isinstance(one.value, x509.AuthorityKeyIdentifier)],
    )
    made = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    return Certificate(made + stolen.certificate_pem, fresh.key_pem)


def forged_root() -> tuple[bytes, Ed25519PrivateKey]:
    """A root of the owner's name with the attacker's key, and that key."""
    key, known = Ed25519PrivateKey.generate(), x509.load_pem_x509_certificate(root_of(owner().public))
    public = key.public_key()
    builder = x509.CertificateBuilder(
        known.subject,
        known.issuer,
        public,
        known.serial_number,
        known.not_valid_before_utc,
        known.not_valid_after_utc,
        [one for one in known.extensions if not isinstance(one.value, x509.SubjectKeyIdentifier)],
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM), key


def under_a_forged_root() -> Certificate:
    forged, key = forged_root()
    return as_if_under(forged, key)


ATTACKS: dict[str, Callable[[], Certificate]] = {
    "another identity": lambda: issue(stranger(), [HOST], now()),
    "signs itself": lambda: make_certificate([HOST], now()),
    "the owner's name, another signature": lambda: as_if_under(root_of(owner().public), Ed25519PrivateKey.generate()),
    "signed by the key that everybody knows": lambda: as_if_under(
        root_of(owner().public), Ed25519PrivateKey.from_private_bytes(bytes(32))
    ),
    "a root of the owner's name": under_a_forged_root,
    "signed by the key of another server": by_a_stolen_server_key,
    "another host": lambda: issue(owner(), ["elsewhere.example"], now()),
    "has ended": lambda: issue(owner(), [HOST], now() - timedelta(days=10), lifetime_d=9),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_certificate_that_the_owner_did_not_sign_for_this_server_and_time_is_refused(
    attack: str, tmp_path: Path
) -> None:
    served, known = ATTACKS[attack](), root_of(owner().public)
    with pytest.raises(Unreachable, match=r"(?i)certificate|hostname"):
        asked_by_grpc(served, known)
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asked_by_http(served, known, tmp_path)


def test_the_root_is_one_for_all_and_holds_nothing_but_the_key() -> None:
    made = x509.load_pem_x509_certificate(root_of(owner().public))
    root_of.cache_clear()
    assert root_of(owner().public) == made.public_bytes(Encoding.PEM)
    assert root_of(stranger().public) != root_of(owner().public)
    assert made.public_key().public_bytes_raw() == owner().public  # type: ignore[union-attr]
    leaf = x509.load_pem_x509_certificate(issue(owner(), [HOST], now()).certificate_pem)
    leaf.verify_directly_issued_by(made)


# ---- in time ---------------------------------------------------------------------------------------------------------


def test_an_owner_is_warned_thirty_days_before_the_end(caplog: pytest.LogCaptureFixture) -> None:
    made = issue(owner(), [HOST], now(), lifetime_d=100).certificate_pem
    end = ends(made)
    warn_of_end(made, end - timedelta(days=30, seconds=1))
    assert not caplog.records
    for at in (end - timedelta(days=29), end + timedelta(days=1)):
        warn_of_end(made, at)
    assert ["renew-certificate" in one.getMessage() for one in caplog.records] == [True, True]
    assert [vars(one)["days_left"] for one in caplog.records] == [29, -1]
