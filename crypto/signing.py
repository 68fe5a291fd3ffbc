"""Who said it: Ed25519 signatures (RFC 8032) over canonical messages.

A signed message travels as `Signed(signature, body)`. The signature covers a fixed prefix and the SHA-256 of the body;
the body begins with its own label, so that a signature on one kind of message is worthless on another. Nobody trusts a
key that came with a message: the caller passes the key that it has pinned.

Verify, then decode. Of a body whose signature was not checked yet its first field is read, which names the signer, and
the rest is hashed: so a stranger costs no more than that, whatever the bytes would decode to.

`cryptography` is imported with the first key: the machine of a job lacks it, and only reads messages whose signatures
were verified before they were stored.
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from crypto.codec import Bytes, Message, decode, digest, encode, first_field
from crypto.errors import BadSignature
from crypto.ids import Digest, Signature, SignatureBytes, TenantId, VerifyKey

if TYPE_CHECKING:
    from cryptography import x509

M = TypeVar("M", bound=Message)
_PREFIX = b"pharoah/signed/2\0"


class Signed(Message, frozen=True, tag="pharoah/signed/2"):
    """The signature of a sender, and the canonical message that it covers."""

    signature: SignatureBytes
    body: memoryview


class SigningKey:
    """An Ed25519 private key. It never shows its secret: not in repr, not in errors."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._private = Ed25519PrivateKey.from_private_bytes(seed)

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> "SigningKey":
        """A new key from 32 bytes of `random_bytes`."""
        return cls(random_bytes(32))

    @property
    def public(self) -> VerifyKey:
        """The key that others pin."""
        return VerifyKey(self._private.public_key().public_bytes_raw())

    def sign(self, message: Message, protocol: int | None = None) -> bytes:
        """The encoded `Signed` message, in the shape that `protocol` asks for."""
        body = encode(message, protocol)
        return encode(Signed(Signature(self._private.sign(_covered(body))), memoryview(body)))

    def certify(self, described: "x509.CertificateBuilder") -> "x509.Certificate":
        """A certificate under the root of this key (`crypto.roots`)."""
        return described.sign(self._private, None)


def open_signed(kind: type[M], data: Bytes, key: VerifyKey) -> M:
    """The message of type `kind` that the holder of `key` signed; DecodeError or BadSignature otherwise."""
    return open_signed_by(kind, data, lambda _: key)


def open_signed_by(kind: type[M], data: Bytes, key_of: Callable[[Any], VerifyKey]) -> M:
    """As `open_signed`, where the pinned key depends on the sender, which is the first field of the message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed = decode(Signed, data)
    key = key_of(first_field(kind, signed.body))
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signed.signature, _covered(signed.body))
    except InvalidSignature as error:
        raise BadSignature(f"a {kind.__name__} is not signed by the key {key.hex()[:16]}…") from error
    return decode(kind, signed.body)


def reopened(kind: type[M], data: Bytes) -> M:
    """The message in signed bytes that were verified before they were kept."""
    return decode(kind, decode(Signed, data).body)


def name_of(data: Bytes) -> Digest:
    """The digest of the message in signed bytes: the same whoever signed it, and however often."""
    return digest(decode(Signed, data).body)


def _covered(body: Bytes) -> bytes:
    return _PREFIX + digest(body)


def tenant_id(key: VerifyKey) -> TenantId:
    """The id that belongs to a tenant's signing key."""
    return TenantId(hashlib.sha256(b"pharoah/tenant-id/1\0" + key).digest()[:16])
