"""Typed identifiers and keys: byte strings of one fixed length that cannot be mistaken for one another.

Each is a subclass of `bytes`, so it hashes, compares and travels as bytes, and each refuses any other length. A public
key is besides the only encoding of a point that can serve as a key: whoever compares two keys compares bytes, so there
must not be two byte strings for one key. All of these are public: none holds a secret.

Not promised: that anybody holds the private key (`crypto.possession`), or that a point has no part of small order
beside its large one. Such a key agrees on the same secrets as another one, so every secret is derived with both public
keys.
"""

from typing import ClassVar, Self

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


def _is_reduced(value: bytes) -> bool:
    """Whether the 255 low bits are a number below p, so that no other encoding spells the same one."""
    return value[1:31] != _ONES or value[31] | 0x80 != 0xFF or value[0] < 0xED


class VerifyKey(Id):
    """An Ed25519 public key (RFC 8032): canonical and of large order, or else a neutral "key" would sign anything."""

    length = 32

    def __new__(cls, value: bytes) -> Self:
        """The key in `value`; ValueError for every other encoding of a point, and for the 8 points of small order."""
        key = super().__new__(cls, value)
        if key in _SMALL_EDWARDS or not _is_reduced(key):
            raise ValueError(f"a {cls.__name__} is not canonical or of small order")
        return key


class ExchangeKey(Id):
    """An X25519 public key (RFC 7748), whose ignored top bit is clear, below p, and not of small order (§6.1)."""

    length = 32

    def __new__(cls, value: bytes) -> Self:
        """The key in `value`; ValueError for every other encoding of it, and for one that agrees on zero."""
        key = super().__new__(cls, value)
        if key in _SMALL_MONTGOMERY or key[31] & 0x80 or not _is_reduced(key):
            raise ValueError(f"a {cls.__name__} is not canonical or of small order")
        return key


class Signature(Id):
    """An Ed25519 signature (RFC 8032)."""

    length = 64


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
