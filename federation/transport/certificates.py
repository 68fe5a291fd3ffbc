"""A server's TLS certificate: issued under the identity of its owner, or signed by itself.

Whoever knows the signing key of a provider or trustee trusts what `issue` makes with it (`crypto.roots`), each in its
time, and so an owner renews a certificate alone. One of `make_certificate` is signed by itself: its callers pin just
that one. Neither may vouch for another (it is no CA). ECDSA on P-256, used in TLS 1.3 alone: the tenants' port has that
as its lowest version, gRPC servers and callers have it from `federation.base.tls`. Every name and address that
callers use must be among `hosts`, since they check it.

Not promised: revocation. Whoever steals the key of an issued certificate can pass for its server until the end of it.

    made = issue(signing_key, ["trustee-1.example", "192.0.2.7"], datetime.now(UTC))
    peer = Peer("trustee-1.example:7100", root_of(signing_key.public))
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from crypto.errors import DecodeError
from crypto.roots import root_of
from crypto.signing import SigningKey

logger = logging.getLogger(__name__)

YEAR_D, TEN_YEARS_D = 366, 3652
EXPIRES_SOON_D, WARN_EVERY_S = 30.0, 86_400.0
CLOCKS_DIFFER = timedelta(days=1)

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Pharoah")])
_SIGNS_HANDSHAKES_ONLY = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Certificate:
    """A certificate for everybody and its key for the server alone, both PEM."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """What two people compare on the telephone."""
        return fingerprint(self.certificate_pem)


def issue(identity: SigningKey, hosts: Sequence[str], now: datetime, lifetime_d: int = YEAR_D) -> Certificate:
    """A fresh key and a certificate for `hosts` under the root of `identity`, which follows it in the PEM."""
    key, root = ec.generate_private_key(ec.SECP256R1()), x509.load_pem_x509_certificate(root_of(identity.public))
    keyed = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    )
    described = _described(hosts, now, lifetime_d, key.public_key()).issuer_name(root.subject)
    made = identity.certify(described.add_extension(keyed, critical=False))
    return Certificate(made.public_bytes(Encoding.PEM) + root_of(identity.public), _pem(key))


def make_certificate(hosts: Sequence[str], now: datetime, lifetime_d: int = TEN_YEARS_D) -> Certificate:
    """A fresh key and a certificate for `hosts` that signs itself, valid from a day before `now`."""
    key = ec.generate_private_key(ec.SECP256R1())
    described = _described(hosts, now, lifetime_d, key.public_key()).issuer_name(_NAME)
    return Certificate(described.sign(key, SHA256()).public_bytes(Encoding.PEM), _pem(key))


def hosts_of(certificate_pem: bytes) -> list[str]:
    """The names and addresses that the certificate is for."""
    named = _first(certificate_pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(host.value) for host in named]


def ends(certificate_pem: bytes) -> datetime:
    """When callers begin to refuse the certificate."""
    return _first(certificate_pem).not_valid_after_utc


def days_left(certificate_pem: bytes, now: datetime) -> float:
    """Days until callers begin to refuse the certificate; below zero after that."""
    return (ends(certificate_pem) - now) / timedelta(days=1)


def warn_of_end(certificate_pem: bytes, now: datetime) -> None:
    """Logs a warning if the certificate ends within `EXPIRES_SOON_D` days, or has ended."""
    left_d = days_left(certificate_pem, now)
    if left_d < EXPIRES_SOON_D:
        logger.warning(
            "the TLS certificate ends at %s: make a new one with `renew-certificate`, and restart `serve`",
            ends(certificate_pem).isoformat(),
            extra={"event": "certificate", "days_left": math.floor(left_d)},
        )


def fingerprint(certificate_pem: bytes) -> str:
    """SHA-256 of the certificate in hexadecimal; DecodeError if it is none."""
    return _first(certificate_pem).fingerprint(SHA256()).hex()


def _first(certificate_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise DecodeError("not a certificate in PEM form", hint="ask its owner for the file again") from error


def _described(
    hosts: Sequence[str], now: datetime, lifetime_d: int, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    if not hosts:
        raise ValueError("a certificate is for one host at least")
    return (
        x509.CertificateBuilder(None, _NAME, key, x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=lifetime_d))
        .add_extension(x509.SubjectAlternativeName([_named(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_SIGNS_HANDSHAKES_ONLY, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
