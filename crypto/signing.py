"""Who said it: Ed25519 signatures (RFC 8032) over canonical messages.

A signed message travels as `Signed(body, signature)`. The signature covers a fixed prefix and the body; the body begins
with its own label, so that a signature on one kind of message is worthless on another. Nobody trusts a key that came
with a message: the caller passes the key that it has pinned.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from crypto.codec import Message, decode, encode
from crypto.errors import BadSignature
from crypto.ids import Signature, TenantId, VerifyKey

M = TypeVar("M", bound=Message)
SIGNED_PREFIX = b"pharoah/signed/1\0"


@dataclass(frozen=True)
class Signed:
    """A canonical message and the signature of its sender."""

    LABEL: ClassVar[str] = "pharoah/signed/1"
    body: bytes
    signature: Signature


class SigningKey:
    """An Ed25519 private key. It never shows its secret: not in repr, not in errors."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> "SigningKey":
        """A new key from 32 bytes of `random_bytes`."""
        return cls(random_bytes(32))

    @property
    def public(self) -> VerifyKey:
        """The key that others pin."""
        return VerifyKey(self._private.public_key().public_bytes_raw())

    def sign(self, message: Message) -> bytes:
        """The encoded `Signed` message."""
        body = encode(message)
        return encode(Signed(body, Signature(self._private.sign(SIGNED_PREFIX + body))))


def open_signed(kind: type[M], data: bytes, key: VerifyKey) -> M:
    """The message of type `kind` that the holder of `key` signed; DecodeError or BadSignature otherwise."""
    return open_signed_by(kind, data, lambda _: key)


def open_signed_by(kind: type[M], data: bytes, key_of: Callable[[M], VerifyKey]) -> M:
    """As `open_signed`, where the pinned key depends on the sender that the message names."""
    signed = decode(Signed, data)
    message = decode(kind, signed.body)
    key = key_of(message)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signed.signature, SIGNED_PREFIX + signed.body)
    except InvalidSignature as error:
        raise BadSignature(f"a {kind.__name__} is not signed by the key {key.hex()[:16]}…") from error
    return message


def tenant_id(key: VerifyKey) -> TenantId:
    """The id that belongs to a tenant's signing key."""
    return TenantId(hashlib.sha256(b"pharoah/tenant-id/1\0" + key).digest()[:16])
