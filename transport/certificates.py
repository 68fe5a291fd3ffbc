"""A server's TLS certificate, signed by itself, which its callers pin.

There is no authority: whoever holds the certificate of a server as its only root accepts this one server key and no
other, and the certificate may vouch for nobody else (it is no CA). ECDSA on P-256, used in TLS 1.3 alone: the tenants'
port has that as its lowest version, gRPC servers and callers have it from `transport.tls`. Every name and address that
callers use must be among `hosts`, since they check it.

Not promised: revocation. A lost key is replaced by telling every caller the new certificate.

    made = make_certificate(["trustee-1.example", "192.0.2.7"], datetime.now(UTC))
"""

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

TEN_YEARS_D = 3652
CLOCKS_DIFFER = timedelta(days=1)

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


def make_certificate(hosts: Sequence[str], now: datetime, lifetime_d: int = TEN_YEARS_D) -> Certificate:
    """A fresh key and a certificate for `hosts`, DNS names or IP addresses, valid from a day before `now`."""
    if not hosts:
        raise ValueError("a certificate is for one host at least")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _described(hosts, now, lifetime_d, key.public_key()).sign(key, SHA256())
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(certificate.public_bytes(Encoding.PEM), key_pem)


def fingerprint(certificate_pem: bytes) -> str:
    """SHA-256 of the certificate in hexadecimal; DecodeError if it is none."""
    try:
        return x509.load_pem_x509_certificate(certificate_pem).fingerprint(SHA256()).hex()
    except ValueError as error:
        raise DecodeError("this is no certificate in PEM form", hint="ask its owner for the file again") from error


def _described(
    hosts: Sequence[str], now: datetime, lifetime_d: int, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Pharoah")])
    return (
        x509.CertificateBuilder(name, name, key, x509.random_serial_number())
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


def last_day(certificate_pem: bytes) -> datetime:
    """When a certificate ends; DecodeError where it is none."""
    try:
        return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc
    except ValueError as error:
        raise DecodeError(f"no certificate: {error}") from error
