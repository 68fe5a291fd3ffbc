"""A key has one encoding, and no point of small order is a key: what is compared as bytes must be one to one.

Which encodings are to be refused comes from the curve in integers (`tests/support/curve25519.py`); how dangerous they
are, from the very library that Pharoah verifies and exchanges with.
"""

import json
import os
from collections.abc import Callable
from hashlib import sha512
from itertools import count
from pathlib import Path

import msgpack
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, strategies as st

from crypto import ids
from crypto.codec import decode, first_field
from crypto.errors import DecodeError
from crypto.ids import Id, MaskPublicKey, SealingPublicKey, VerifyKey
from crypto.possession import MaskKeyClaim
from tests.support.curve25519 import (
    NEUTRAL,
    TOP_BIT,
    P,
    Point,
    base,
    compress,
    edwards,
    montgomery,
    multiply,
    negative,
    torsion,
    with_y,
    x25519,
)

EXCHANGE_KEYS = [MaskPublicKey, SealingPublicKey]
KEYS: list[type[Id]] = [VerifyKey, *EXCHANGE_KEYS]


def encoded(value: int) -> bytes:
    return value.to_bytes(32, "little")


def spellings(values: set[int]) -> list[bytes]:
    """All 256-bit strings that stand for these numbers below p where the top bit is read apart."""
    low = {value + more for value in values for more in (0, P) if value + more < TOP_BIT}
    return [encoded(value + top) for value in sorted(low) for top in (0, TOP_BIT)]


def is_refused(kind: Callable[[bytes], Id], value: bytes) -> bool:
    try:
        key = kind(value)
    except ValueError:
        return True
    assert bytes(key) == value
    return False


# ---- the oracle itself ---------------------------------------------------------------------------------------------


def test_the_torsion_of_the_oracle_is_the_group_of_order_8() -> None:
    orders = [next(n for n in range(1, 9) if multiply(n, point) == NEUTRAL) for point in torsion()]
    assert sorted(orders) == [1, 2, 4, 4, 8, 8, 8, 8]
    assert len({compress(point) for point in torsion()}) == 8
    for x, y in torsion():
        assert (-x * x + y * y - 1 + 121665 * pow(121666, -1, P) * x * x * y * y) % P == 0


def test_the_oracle_follows_the_library_on_random_keys() -> None:
    for _ in range(20):
        secret = os.urandom(32)
        scalar = sha512(secret).digest()[:32]
        point = multiply(int.from_bytes(scalar, "little") & ~7 & (2**254 - 1) | 2**254, base())
        assert compress(point) == Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        exchange = X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()
        assert encoded(montgomery(point)) == x25519(scalar, encoded(9)) == exchange


# ---- Ed25519 -------------------------------------------------------------------------------------------------------

SMALL_Y = {y for _, y in torsion()}

# The list of libsodium (crypto_sign/ed25519/ref10, ge25519_has_small_order), without the top bit: other hands' numbers.
LIBSODIUM_Y = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def test_the_y_of_order_8_is_the_one_that_everybody_knows() -> None:
    assert encoded(ids._Y_OF_ORDER_8).hex() == LIBSODIUM_Y[2]
    point = with_y(ids._Y_OF_ORDER_8)
    assert point is not None
    assert multiply(4, point) == (0, P - 1)
    assert multiply(8, point) == NEUTRAL
    assert {low.hex() for low in spellings(SMALL_Y) if low[31] < 0x80} == set(LIBSODIUM_Y)


@pytest.mark.parametrize("value", spellings(SMALL_Y), ids=bytes.hex)
def test_every_spelling_of_a_point_of_small_order_is_no_verify_key(value: bytes) -> None:
    assert is_refused(VerifyKey, value)


def test_both_signs_of_all_eight_points_are_among_them() -> None:
    points = {compress(point) for point in torsion()} | {compress(negative(point)) for point in torsion()}
    assert points <= set(spellings(SMALL_Y))
    assert len(spellings(SMALL_Y)) == 14


@pytest.mark.parametrize("y", range(P, TOP_BIT))
def test_a_y_that_is_not_reduced_is_no_verify_key(y: int) -> None:
    assert is_refused(VerifyKey, encoded(y))
    assert is_refused(VerifyKey, encoded(y + TOP_BIT))
    assert y % P < 19


def test_the_neighbours_of_what_is_refused_are_not() -> None:
    """A rule that refuses one more than it should is found here: there the oracle decides every case."""
    near = {abs(y + off) % P for y in SMALL_Y for off in range(-40, 41)}
    for value in spellings(near):
        y = int.from_bytes(value, "little") % TOP_BIT
        assert is_refused(VerifyKey, value) == (y >= P or y in SMALL_Y), value.hex()


# The neutral element and the signature of R = neutral, s = 0: s·B = R + h·A whatever h is.
NEUTRAL_KEY, NEUTRAL_SIGNATURE = compress(NEUTRAL), compress(NEUTRAL) + bytes(32)


@given(st.binary(max_size=64))
def test_the_neutral_key_signs_anything_and_is_no_verify_key(message: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(NEUTRAL_KEY).verify(NEUTRAL_SIGNATURE, message)  # the library says yes
    assert is_refused(VerifyKey, NEUTRAL_KEY)


@pytest.mark.parametrize("point", torsion(), ids=lambda point: compress(point).hex()[:8])
def test_every_key_of_small_order_signs_something_without_a_private_key(point: Point) -> None:
    """One message in its order is enough, and whoever forges chooses the message."""
    key = Ed25519PublicKey.from_public_bytes(compress(point))
    assert next(number for number in count() if verifies(key, b"message %d" % number)) < 100
    assert is_refused(VerifyKey, compress(point))


def verifies(key: Ed25519PublicKey, message: bytes) -> bool:
    try:
        key.verify(NEUTRAL_SIGNATURE, message)
    except InvalidSignature:
        return False
    return True


# ---- X25519 --------------------------------------------------------------------------------------------------------

SMALL_U = {montgomery(point) for point in torsion()} | {P - 1}  # −1 is of order 4 on the twist

# As Bernstein lists them at https://cr.yp.to/ecdh.html, "How do I validate Curve25519 public keys?"
BERNSTEIN_U = {
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2**255 - 19 - 1,
    2**255 - 19,
    2**255 - 19 + 1,
    2**255 - 19 + 325606250916557431795983626356110631294008115727848805560023387167927233504,
    2**255 - 19 + 39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2 * (2**255 - 19) - 1,
    2 * (2**255 - 19),
    2 * (2**255 - 19) + 1,
}


@pytest.mark.parametrize("kind", EXCHANGE_KEYS)
@pytest.mark.parametrize("value", spellings(SMALL_U), ids=bytes.hex)
def test_every_spelling_of_a_u_of_small_order_agrees_on_zero_and_is_no_key(kind: type[Id], value: bytes) -> None:
    assert x25519(os.urandom(32), value) == bytes(32)
    with pytest.raises(ValueError, match="shared key"):  # the library's word for it
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(value))
    assert is_refused(kind, value)


@pytest.mark.parametrize("kind", EXCHANGE_KEYS)
def test_the_list_of_those_who_made_the_curve_is_refused(kind: type[Id]) -> None:
    assert {u % TOP_BIT % P for u in BERNSTEIN_U} >= SMALL_U
    assert all(is_refused(kind, encoded(u)) for u in BERNSTEIN_U if u < 2**256)


@pytest.mark.parametrize("kind", EXCHANGE_KEYS)
@pytest.mark.parametrize("u", range(P, TOP_BIT))
def test_a_u_that_is_not_reduced_is_no_key(kind: type[Id], u: int) -> None:
    """Though it would agree on what its reduced form agrees on: two byte strings, one key."""
    assert is_refused(kind, encoded(u))
    assert is_refused(kind, encoded(u + TOP_BIT))
    secret = os.urandom(32)
    assert x25519(secret, encoded(u)) == x25519(secret, encoded(u % P))


@pytest.mark.parametrize("kind", EXCHANGE_KEYS)
def test_the_neighbours_of_a_refused_u_are_keys_unless_the_top_bit_is_set(kind: type[Id]) -> None:
    near = {abs(u + off) % P for u in SMALL_U for off in range(-40, 41)}
    for value in spellings(near):
        u = int.from_bytes(value, "little")
        assert is_refused(kind, value) == (u >= P or u in SMALL_U), value.hex()


@pytest.mark.parametrize("kind", EXCHANGE_KEYS)
def test_the_top_bit_makes_no_second_key(kind: type[Id]) -> None:
    """RFC 7748 §5 ignores it, so that both agree on one secret."""
    for _ in range(50):
        private, public = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
        flipped = public[:31] + bytes([public[31] ^ 0x80])
        shared = [private.exchange(X25519PublicKey.from_public_bytes(each)) for each in (public, flipped)]
        assert shared[0] == shared[1]
        assert kind(public) == public
        assert is_refused(kind, flipped)


# ---- any key -------------------------------------------------------------------------------------------------------


def test_no_honest_key_is_refused() -> None:
    for _ in range(5_000):
        VerifyKey(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
        public = X25519PrivateKey.generate().public_key().public_bytes_raw()
        MaskPublicKey(public)
        SealingPublicKey(public)


@pytest.mark.parametrize("kind", EXCHANGE_KEYS)
@given(st.binary(min_size=32, max_size=32) | st.integers(P - 40, 2**255 + 40).map(encoded))
def test_an_exchange_key_is_refused_exactly_where_another_spells_it_or_it_agrees_on_zero(
    kind: type[Id], value: bytes
) -> None:
    u = int.from_bytes(value, "little")
    assert is_refused(kind, value) == (u >= P or x25519(b"\1" * 32, value) == bytes(32))


@given(st.binary(min_size=32, max_size=32) | st.integers(P - 40, 2**255 + 40).map(encoded))
def test_a_verify_key_that_is_a_point_is_refused_exactly_where_8_makes_it_neutral_or_another_spells_it(
    value: bytes,
) -> None:
    y = int.from_bytes(value, "little") % TOP_BIT
    point = with_y(y % P)
    if y >= P or point is not None:
        assert is_refused(VerifyKey, value) == (y >= P or multiply(8, point or NEUTRAL) == NEUTRAL)


@pytest.mark.parametrize("kind", KEYS)
@given(st.binary(max_size=80).filter(lambda value: len(value) != 32))
def test_no_other_length_is_a_key(kind: type[Id], value: bytes) -> None:
    with pytest.raises(ValueError, match="has 32 bytes, not"):
        kind(value)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("length", [0, 1, 30, 31, 33, 64])
@pytest.mark.parametrize("filler", [b"\0", b"\x7f", b"\x80", b"\xff"])
def test_nor_is_a_run_of_one_byte_of_another_length(kind: type[Id], length: int, filler: bytes) -> None:
    """31 bytes of 0xff once raised an IndexError, which whoever decodes foreign bytes does not expect."""
    with pytest.raises(ValueError, match=f"has 32 bytes, not {length}"):
        kind(filler * length)


HONEST = encoded(9), encoded(16)  # the base point of X25519 and a u of its subgroup; the first is a y of edwards25519


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "bad", [*spellings(SMALL_U & SMALL_Y), encoded(P + 9), encoded(2**256 - 1), b"\xff" * 31, b"", b"\xff" * 33]
)
def test_what_is_no_key_does_not_decode(place: int, bad: bytes) -> None:
    """Both key types, where foreign bytes become keys."""
    fields: list[object] = [*HONEST, 7]
    assert decode(MaskKeyClaim, msgpack.packb([MaskKeyClaim.LABEL, *fields])) == MaskKeyClaim(
        VerifyKey(HONEST[0]), MaskPublicKey(HONEST[1]), 7
    )
    fields[place] = bad
    with pytest.raises(DecodeError, match="MaskKeyClaim"):
        decode(MaskKeyClaim, msgpack.packb([MaskKeyClaim.LABEL, *fields]))


OTHER_TYPES: list[object] = [
    dict.fromkeys(range(100, 132), 0),
    dict.fromkeys(map(str, range(32)), 0),
    [1] * 32,
    [[1] * 32] * 32,
    "a" * 32,
    7,
    1.5,
    None,
    True,
    msgpack.ExtType(5, b"x" * 32),
    msgpack.Timestamp(5, 0),
]


@pytest.mark.parametrize("other", OTHER_TYPES, ids=lambda other: type(other).__name__)
def test_what_is_no_byte_string_is_no_key_and_no_other_error(other: object) -> None:
    """A map of 32 entries once raised a KeyError: it has a length, and an order, and no place 31."""
    spoilt = msgpack.packb([MaskKeyClaim.LABEL, other, HONEST[1], 7])
    with pytest.raises(DecodeError, match="MaskKeyClaim"):
        decode(MaskKeyClaim, spoilt)
    try:
        signer = first_field(MaskKeyClaim, spoilt)
    except DecodeError:
        return
    assert type(signer) is VerifyKey, "32 small numbers spell one, before anything is verified"


def test_a_u_of_the_twist_is_a_key_that_nobody_can_prove() -> None:
    """X25519 takes it; no point of edwards25519 has this u, so there is no twin (`tests/crypto/test_possession.py`)."""
    assert edwards(2) is None
    assert not is_refused(MaskPublicKey, encoded(2))


# ---- vectors -------------------------------------------------------------------------------------------------------

VECTORS: dict[str, list[dict[str, str]]] = json.loads((Path(__file__).parents[1] / "vectors" / "keys.json").read_text())


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(kind, bad) for kind in KEYS for bad in VECTORS["bad_verify_keys" if kind is VerifyKey else "bad_exchange_keys"]],
    ids=lambda value: value.__name__ if isinstance(value, type) else f"{value['comment']} {value['encoded'][:8]}",
)
def test_the_bad_keys_of_the_vectors_are_refused(kind: type[Id], bad: dict[str, str]) -> None:
    assert is_refused(kind, bytes.fromhex(bad["encoded"]))
