"""Shares of a mask key, kept by other trustees, so that the key outlives its owner's machine.

The private key of X25519 is a scalar k, a multiple of 8 in [2^254, 2^255) (RFC 7748 §5). Its owner shares k mod L, L
being the order of ristretto255, with Feldman commitments (`crypto.threshold`); L is odd, so k mod L and the three bits
that are zero give k back. The first commitment is k times the base point of ristretto255, the public key k times that
of curve25519: one point up to torsion, since 1/s² is a u-coordinate of the element that s encodes (RFC 9496 §4.3.1, RFC
7748 §4.1). So whoever gets a share sees that it belongs to the very key that was published.

Guarantees. Any t shares that fit the commitments give the key; fewer than t tell nothing that the public key does not.
A recovered key is compared with the published one. No secret shows in a `repr`.

Not promised: that an owner deals, or that it forgets its key. A recovered key makes masks and no proof of possession.

    >>> import os
    >>> from crypto.masking import MaskKey
    >>> key = MaskKey.generate(os.urandom)
    >>> dealt = deal_mask_key(key, 2, 3, os.urandom)
    >>> check_committed(key.public, dealt.commitments)
    >>> recovered(key.public, 2, {3: dealt.shares[2], 1: dealt.shares[0]}).public == key.public
    True
"""

import operator
from collections.abc import Mapping
from functools import reduce

from crypto.errors import PeerFault
from crypto.ids import MaskPublicKey
from crypto.masking import MaskKey
from crypto.ristretto import ORDER, RandomBytes, Scalar
from crypto.threshold import Dealing, deal_secret, lagrange_at_zero
from crypto.voprf import Elements

_P = 2**255 - 19
_A = 486662


def deal_mask_key(key: MaskKey, threshold: int, trustees: int, random_bytes: RandomBytes) -> Dealing:
    """Shares of a mask key for trustees 1 to `trustees`, any `threshold` of which give it back."""
    return deal_secret(Scalar.from_int(key.scalar % ORDER), threshold, trustees, random_bytes)


def check_committed(public: MaskPublicKey, commitments: Elements) -> None:
    """PeerFault unless the first commitment is to the private key of `public`."""
    encoded = int.from_bytes(commitments[0].encoded, "little")
    u = pow(encoded * encoded, -1, _P)
    if _quadrupled(u) != _quadrupled(int.from_bytes(public, "little")):
        raise PeerFault(
            f"shares were dealt of another key than the mask key {public.hex()[:16]}…",
            hint="its owner deals again; without it the key is lost with its owner",
        )


def recovered(public: MaskPublicKey, threshold: int, shares: Mapping[int, Scalar]) -> MaskKey:
    """The mask key behind `public` from the shares of at least `threshold` trustees, each verified before."""
    if len(shares) < threshold:
        raise PeerFault(
            f"{len(shares)} shares of the mask key {public.hex()[:16]}… are there, {threshold} are needed",
            hint="ask more trustees for theirs",
        )
    weights = lagrange_at_zero(shares)
    weighted = (weight * share for weight, share in zip(weights, shares.values(), strict=True))
    residue = int.from_bytes(reduce(operator.add, weighted).encoded, "little")
    scalar = residue + ORDER * (-residue * pow(ORDER, -1, 8) % 8)
    key = MaskKey.from_scalar((scalar % 2**256).to_bytes(32, "little"))
    if key.public != public:
        raise PeerFault(
            f"the shares give another key than the mask key {public.hex()[:16]}…",
            hint="its owner dealt a key of its own",
        )
    return key


def _quadrupled(u: int) -> int:
    """The u-coordinate of four times a point, which forgets torsion of order 1, 2 and 4."""
    for _ in range(2):
        u = pow(u * u - 1, 2, _P) * pow(4 * u * (u * u + _A * u + 1), -1, _P) % _P
    return u
