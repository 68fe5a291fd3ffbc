"""Curve25519 in integers, from RFC 7748 and RFC 8032: an oracle that shares no line with the code under test.

Points are affine on edwards25519, −x² + y² = 1 + d·x²·y². The group has order 8·L; `TORSION` are its 8 points of small
order, found here by multiplying with L. Slow, and not for secrets.
"""

from functools import cache
from itertools import count

Point = tuple[int, int]

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
NEUTRAL: Point = (0, 1)
TOP_BIT = 2**255


def add(one: Point, other: Point) -> Point:
    """RFC 8032 §5.1.4: complete, so it doubles as well."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def multiply(scalar: int, point: Point) -> Point:
    total = NEUTRAL
    for bit in f"{scalar:b}":
        total = add(total, total)
        total = add(total, point) if bit == "1" else total
    return total


def negative(point: Point) -> Point:
    return -point[0] % P, point[1]


def with_y(y: int) -> Point | None:
    """The point of this y whose x is even; None where there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    return (P - x if x % 2 else x), y


def compress(point: Point) -> bytes:
    """RFC 8032 §5.1.2."""
    return (point[1] | point[0] % 2 << 255).to_bytes(32, "little")


@cache
def base() -> Point:
    """The base point, y = 4/5, x even."""
    point = with_y(4 * pow(5, -1, P) % P)
    assert point is not None
    return point


@cache
def torsion() -> tuple[Point, ...]:
    """The 8 points of small order, the neutral one first: multiples of one of order 8."""
    for y in count(2):
        point = with_y(y)
        eighth = multiply(L, point) if point else NEUTRAL
        if multiply(4, eighth) != NEUTRAL:
            return tuple(multiply(number, eighth) for number in range(8))
    raise AssertionError("half of all points have a part of order 8")


def montgomery(point: Point) -> int:
    """u = (1 + y) / (1 − y), RFC 7748 §4.1; 0 for the neutral point, as everywhere in X25519."""
    y = point[1]
    return (1 + y) * pow(1 - y, P - 2, P) % P


def edwards(u: int) -> Point | None:
    """A point whose u this is; None for a u of the twist."""
    return with_y((u - 1) * pow(u + 1, P - 2, P) % P)


def clamp(secret: bytes) -> int:
    """RFC 7748 §5: the scalar that 32 bytes stand for."""
    return int.from_bytes(secret, "little") & ~7 & (2**254 - 1) | 2**254


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748 §5: the Montgomery ladder, by double-and-add on u-coordinates; takes any 32 bytes, as it should."""
    u = int.from_bytes(public, "little") % TOP_BIT % P
    low, high = (1, 0), (u, 1)
    for bit in f"{clamp(private):0255b}":
        total = _ladder_sum(low, high, u)
        low, high = (total, _ladder_double(high)) if bit == "1" else (_ladder_double(low), total)
    return (low[0] * pow(low[1], P - 2, P) % P).to_bytes(32, "little")


def _ladder_sum(left: Point, right: Point, difference: int) -> Point:
    (x1, z1), (x2, z2) = left, right
    one, two = (x1 - z1) * (x2 + z2), (x1 + z1) * (x2 - z2)
    return (one + two) ** 2 % P, difference * (one - two) ** 2 % P


def _ladder_double(point: Point) -> Point:
    x, z = point
    plus, minus = (x + z) ** 2 % P, (x - z) ** 2 % P
    gap = plus - minus
    return plus * minus % P, gap * (plus + 121665 * gap) % P


def aliases(public: bytes) -> list[bytes]:
    """Every other encoding that agrees on the same X25519 secrets as this key, if it is one of the curve.

    The top bit is ignored, u ≥ p is reduced, and a clamped scalar is a multiple of 8, so that adding a point of small
    order changes nothing.
    """
    point = edwards(int.from_bytes(public, "little"))
    assert point is not None
    shifted = {montgomery(add(point, small)) for small in torsion()}
    values = {value | top for u in shifted for value in (u, u + P) if value < TOP_BIT for top in (0, TOP_BIT)}
    return [value.to_bytes(32, "little") for value in sorted(values) if value.to_bytes(32, "little") != public]
