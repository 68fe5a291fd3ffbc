"""Typed identifiers and keys: byte strings of one fixed length that cannot be mistaken for one another.

- Each is a subclass of `bytes` that refuses any other length. All are public: none holds a secret.
- A public key has exactly one valid encoding, since keys are compared as bytes.

Not promised: that the owner holds the private key (`crypto.possession`), or that a point has no component of small
order. Such a key agrees on the same secrets as another one, so every secret is derived from both public keys too.
"""

from typing import Annotated, ClassVar, Self

from msgspec import Meta

_P = 2**255 - 19
_ONES = b"\xff" * 30
_Y_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_Y = (1, _P - 1, 0, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8)  # of orders 1, 2, 4, 8, 8; each x has either sign
_SMALL_EDWARDS = frozenset((y | sign << 255).to_bytes(32, "little") for y in _SMALL_Y for sign in (0, 1))
# u = (1 + y) / (1 - y), RFC 7748 §4.1; 0 stands for orders 1 and 2, and -1 is of order 4 on the twist.
_SMALL_U = (0, 1, _P - 1, *((1 + y) * pow(1 - y, -1, _P) % _P for y in _SMALL_Y[3:]))
_SMALL_MONTGOMERY = frozenset(u.to_bytes(32, "little") for u in _SMALL_U)


class Id(bytes):
    """A byte string of exactly `length` bytes; ValueError for any other length."""

    length: ClassVar[int] = 16

    def __new__(cls, value: bytes) -> Self:
        """The id that `value` spells."""
        if len(value) != cls.length:
            raise ValueError(f"a {cls.__name__} has {cls.length} bytes, not {len(value)}")
        return bytes.__new__(cls, value)

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


class PublicKey(Id):
    """A point of one of the two forms of Curve25519 in its canonical encoding; ValueError for every other.

    Refused are points of small order, which give every peer the same secret and under which one signature
    fits any message (RFC 7748 §6.1, RFC 8032 §5.1.7), numbers from p on, and unused top bits.
    """

    length = 32
    small_order: ClassVar[frozenset[bytes]]
    unused_bits: ClassVar[int]

    def __new__(cls, value: bytes) -> Self:
        """The key in `value`."""
        if len(value) != cls.length:
            raise ValueError(f"a {cls.__name__} has {cls.length} bytes, not {len(value)}")
        key = bytes.__new__(cls, value)  # first, since a decoder hands in whatever was sent: even a map has a length
        top = key[31]
        is_beyond_p = top | 0x80 == 0xFF and key[1:31] == _ONES and key[0] >= 0xED
        if is_beyond_p or top & cls.unused_bits or key in cls.small_order:
            raise ValueError(f"a {cls.__name__} is not canonical or of small order")
        return key


class VerifyKey(PublicKey):
    """An Ed25519 public key (RFC 8032)."""

    small_order = _SMALL_EDWARDS
    unused_bits = 0


class ExchangeKey(PublicKey):
    """An X25519 public key (RFC 7748), of which every other implementation ignores the top bit."""

    small_order = _SMALL_MONTGOMERY
    unused_bits = 0x80


class Signature(Id):
    """An Ed25519 signature (RFC 8032)."""

    length = 64


# A signature as it is decoded: plain bytes of its length, checked in C, since a directory holds thousands of them.
SignatureBytes = Annotated[bytes, Meta(min_length=Signature.length, max_length=Signature.length)]


class MaskPublicKey(ExchangeKey):
    """The key from which tenant and trustee derive their mask stream."""


class SealingPublicKey(ExchangeKey):
    """The key to which dealers seal a trustee's shares."""


class Nonce(Id):
    """16 random bytes that are used once."""


class EncodedElement(Id):
    """An encoded ristretto255 element (RFC 9496). Its validity is checked by `crypto.ristretto`, not here."""

    length = 32


class EncodedProof(Id):
    """A DLEQ proof: challenge and response scalars (RFC 9497 §2.2)."""

    length = 64
