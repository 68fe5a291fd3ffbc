"""The group ristretto255 and its scalar field: two typed values over libsodium (the package rbcl).

Guarantees. `decode` returns a value of the group or field or raises DecodeError, never anything else, and refuses the
identity element, encodings that are not canonical and scalars that are not reduced. Arithmetic is total: it never fails
on values that `decode`, hashing or other arithmetic made. No scalar shows in a `repr` or in an error.

Not promised. Group and scalar operations take constant time because libsodium's do; the Python around them (copies,
allocation, garbage) does not, and secrets stay in the memory of the process until it is reused.

Sources: RFC 9496 (ristretto255), RFC 9380 §5.3.1 (expand_message_xmd) and appendix B (hash_to_ristretto255).

    >>> three = Scalar.from_int(3)
    >>> mul(three.inverse(), mul_base(three)) == mul_base(Scalar.from_int(1))
    True
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from hashlib import sha512
from hmac import compare_digest
from typing import Any, Self

from crypto.errors import DecodeError

RandomBytes = Callable[[int], bytes]
"""A source of so many uniform, independent bytes: `os.urandom` outside of tests."""

ORDER = 2**252 + 27742317777372353535851937790883648493  # RFC 9496 §4.4
ELEMENT_BYTES = 32
SCALAR_BYTES = 32
WIDE_BYTES = 64  # reduced modulo ORDER they are uniform but for 2^-260


@cache
def _sodium() -> Any:
    """The package rbcl, imported at first use: it takes a tenth of a second, and who reads a directory does without."""
    import rbcl

    return rbcl


@dataclass(frozen=True, eq=False, slots=True)
class Scalar:
    """An integer modulo ORDER as 32 bytes, little-endian: usually a secret, so it is hidden and cannot be a key."""

    encoded: bytes = field(repr=False)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The scalar in `data`, 32 bytes below ORDER; DecodeError for anything else."""
        if len(data) != SCALAR_BYTES:
            raise DecodeError(f"a scalar has {SCALAR_BYTES} bytes, this one has {len(data)}")
        scalar = cls._reduced(data + bytes(WIDE_BYTES - SCALAR_BYTES))
        if not compare_digest(scalar.encoded, data):
            raise DecodeError("a scalar is not below the order of the group")
        return scalar

    @classmethod
    def from_int(cls, value: int) -> Self:
        """`value` modulo ORDER. For public numbers only: Python's integers take variable time."""
        return cls((value % ORDER).to_bytes(SCALAR_BYTES, "little"))

    @classmethod
    def random(cls, random_bytes: RandomBytes) -> Self:
        """A uniform scalar other than zero, from 64 bytes read as a little-endian integer (RFC 9497 §4.7.2)."""
        scalar = cls._reduced(random_bytes(WIDE_BYTES))
        if scalar == ZERO:
            raise ValueError("random_bytes gave a zero scalar: the source of randomness is broken")
        return scalar

    @classmethod
    def _reduced(cls, wide: bytes) -> Self:
        return cls(_sodium().crypto_core_ristretto255_scalar_reduce(wide))

    def inverse(self) -> "Scalar":
        """The scalar that gives 1 when multiplied with this one; ValueError for zero."""
        return Scalar(_sodium().crypto_core_ristretto255_scalar_invert(self.encoded))

    def __add__(self, other: "Scalar") -> "Scalar":
        return Scalar(_sodium().crypto_core_ristretto255_scalar_add(self.encoded, other.encoded))

    def __sub__(self, other: "Scalar") -> "Scalar":
        return Scalar(_sodium().crypto_core_ristretto255_scalar_sub(self.encoded, other.encoded))

    def __mul__(self, other: "Scalar") -> "Scalar":
        return Scalar(_sodium().crypto_core_ristretto255_scalar_mul(self.encoded, other.encoded))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and compare_digest(self.encoded, other.encoded)


@dataclass(frozen=True, slots=True)
class Element:
    """A group element as its canonical 32 bytes. From outside it comes through `decode` alone."""

    encoded: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The element in `data`; DecodeError for the identity and for all that is not a canonical encoding."""
        if len(data) != ELEMENT_BYTES:
            raise DecodeError(f"a group element has {ELEMENT_BYTES} bytes, this one has {len(data)}")
        if data == IDENTITY.encoded:
            raise DecodeError("a group element is the identity")
        # libsodium's own check ignores the top bit and so lets a second encoding of each element pass.
        if data[-1] & 0x80 or not _sodium().crypto_core_ristretto255_is_valid_point(data):
            raise DecodeError("a group element is not canonically encoded")
        return cls(data)

    def __add__(self, other: "Element") -> "Element":
        return Element(_sodium().crypto_core_ristretto255_add(self.encoded, other.encoded))

    def __repr__(self) -> str:
        return f"Element({self.encoded.hex()})"


ZERO = Scalar(bytes(SCALAR_BYTES))
IDENTITY = Element(bytes(ELEMENT_BYTES))


def mul(scalar: Scalar, element: Element) -> Element:
    """`element` added to itself `scalar` times."""
    # libsodium reports an invalid element and a product that is the identity alike; only the first is an error here.
    if scalar == ZERO or element == IDENTITY:
        return IDENTITY
    return Element(_sodium().crypto_scalarmult_ristretto255(scalar.encoded, element.encoded))


def mul_base(scalar: Scalar) -> Element:
    """The generator added to itself `scalar` times: the public key of a secret."""
    return Element(_sodium().crypto_scalarmult_ristretto255_base_allow_scalar_zero(scalar.encoded))


def dot(scalars: Iterable[Scalar], elements: Iterable[Element]) -> Element:
    """Sum of scalar times element over at least one pair; ValueError where the two differ in length."""
    return reduce(operator.add, (mul(scalar, element) for scalar, element in zip(scalars, elements, strict=True)))


def hash_to_group(message: bytes, dst: bytes) -> Element:
    """An element that nobody knows the logarithm of (RFC 9380, appendix B). `dst` separates domains, 1–255 bytes."""
    return Element(_sodium().crypto_core_ristretto255_from_hash(expand_message_xmd(message, dst, WIDE_BYTES)))


def hash_to_scalar(message: bytes, dst: bytes) -> Scalar:
    """A scalar that looks uniform (RFC 9497 §4.1). `dst` separates domains, 1–255 bytes."""
    return Scalar._reduced(expand_message_xmd(message, dst, WIDE_BYTES))


def expand_message_xmd(message: bytes, dst: bytes, length: int) -> bytes:
    """`length` (1–16,320) bytes that look uniform, from SHA-512 (RFC 9380 §5.3.1); ValueError out of range."""
    blocks = -(-length // sha512().digest_size)
    if not 1 <= blocks <= 255 or not 1 <= len(dst) <= 255:
        raise ValueError(f"cannot expand to {length} bytes under a label of {len(dst)} bytes")
    suffix = dst + bytes([len(dst)])
    first = sha512(bytes(sha512().block_size) + message + length.to_bytes(2) + b"\0" + suffix).digest()
    block, expanded = bytes(len(first)), b""
    for counter in range(1, blocks + 1):
        mixed = bytes(a ^ b for a, b in zip(first, block, strict=True))
        block = sha512(mixed + bytes([counter]) + suffix).digest()
        expanded += block
    return expanded[:length]
