"""Typed identifiers and keys: byte strings of one fixed length that cannot be mistaken for one another.

Each is a subclass of `bytes`, so it hashes, compares and travels as bytes, and each refuses any other length. All of
them are public: none of these types holds a secret.
"""

from typing import ClassVar, Self


class Id(bytes):
    """A byte string of exactly `length` bytes; ValueError for any other length."""

    length: ClassVar[int] = 16

    def __new__(cls, value: bytes) -> Self:
        """The id that `value` spells."""
        if len(value) != cls.length:
            raise ValueError(f"a {cls.__name__} has {cls.length} bytes, not {len(value)}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()[:12]}…)"

    def __str__(self) -> str:
        return self.hex()


class TenantId(Id):
    """First 16 bytes of SHA-256 over the tenant's signing key, so that an id cannot be claimed by another key."""


class LeaseId(Id):
    """The provider's name for one allocation of nodes to one job."""


class RoundId(Id):
    """The provider's name for one federated round; masks and answers are bound to it."""


class Token(Id):
    """An opaque stand-in of a rung of a workload's ladder (VOPRF output) or of a hardware context (provider's HMAC)."""


class Digest(Id):
    """SHA-256 of an encoded message."""

    length = 32


class VerifyKey(Id):
    """An Ed25519 public key (RFC 8032)."""

    length = 32


class Signature(Id):
    """An Ed25519 signature (RFC 8032)."""

    length = 64


class MaskPublicKey(Id):
    """An X25519 public key (RFC 7748) from which tenant and trustee derive their mask stream."""

    length = 32


class EncodedElement(Id):
    """An encoded ristretto255 element (RFC 9496). Its validity is checked by `crypto.ristretto`, not here."""

    length = 32


class EncodedProof(Id):
    """A DLEQ proof: challenge and response scalars (RFC 9497 §2.2)."""

    length = 64
