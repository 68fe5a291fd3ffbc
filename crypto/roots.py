"""The identity key of a provider or trustee as a root of TLS: whoever knows the key knows the servers behind it.

    signing key ──signs──▶ certificate of a server              made by its owner (federation.transport.certificates)
    verify key  ──is the root of──▶ what its callers trust      made here, alike by everybody, from the key alone

So a certificate can be renewed without a word to anybody: nobody pins it. A root is a name and a public key (RFC 5280,
section 6.1.1 d); TLS libraries want it in the form of a certificate and do not look at the signature of one that they
were told to trust. It is made with a key that everybody knows.

A signature on a certificate is none on a message of this project, nor the other way round: a certificate's covered
bytes begin with an ASN.1 sequence (0x30), a message's with the label of `crypto.signing`.

Not promised: that a stolen key of a server is worth nothing before its certificate ends.
"""

from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from crypto.ids import VerifyKey

_NOBODY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_BEGINS, _NEVER_ENDS = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_SIGNS_CERTIFICATES_ONLY = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@lru_cache(maxsize=64)
def root_of(identity: VerifyKey) -> bytes:
    """What callers of the holder of `identity` trust, PEM; the same bytes for everybody."""
    key = Ed25519PublicKey.from_public_bytes(identity)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Pharoah {identity.hex()[:40]}")])
    return (
        x509.CertificateBuilder(name, name, key, serial_number=1)
        .not_valid_before(_BEGINS)
        .not_valid_after(_NEVER_ENDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES_ONLY, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .sign(_NOBODY, None)
        .public_bytes(Encoding.PEM)
    )
