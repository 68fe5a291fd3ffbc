"""Resharing: holders of old shares of a key deal new ones, and the key stays as it is.

Each dealer shares its own share (`threshold.deal_secret`), so its first commitment is its old public share key, which
everybody knows. The new share of a trustee is the sum of what it was dealt, weighted as the old shares would be to
give the key (Desmedt and Jajodia 1997; Herzberg et al. 1995 for the same holders).

Guarantees. The public key is the same, and any t new shares give what t old ones gave. Nobody holds the key in between.
One honest dealer makes the new polynomial independent of the old one, so that t - 1 old shares and t - 1 new ones give
nothing together, if honest holders erase the old ones. A wrong dealing raises TrusteeFault, which names its dealer.

Not promised: anything where t old shares, or t new ones, are in one hand. A dealing goes to its receivers in private.

    >>> import os
    >>> from crypto.ristretto import mul_base
    >>> from crypto.threshold import combine_dealings, deal, group_key
    >>> dealings = {dealer: deal(2, 3, os.urandom) for dealer in (1, 2, 3)}
    >>> committed = {dealer: dealing.commitments for dealer, dealing in dealings.items()}
    >>> key = group_key(2, 3, committed)
    >>> old = [combine_dealings(2, at, {i: d.shares[at - 1] for i, d in dealings.items()}, committed) for at in (1, 2)]
    >>> anew = {share.index: reshare(key, share, os.urandom) for share in old}
    >>> committed = {dealer: dealing.commitments for dealer, dealing in anew.items()}
    >>> third = combine_reshared(key, 3, {dealer: dealing.shares[2] for dealer, dealing in anew.items()}, committed)
    >>> after = reshared_key(key, committed)
    >>> after.public_key == key.public_key, after.share_public_key(3) == mul_base(third.secret)
    (True, True)
"""

import operator
from collections.abc import Mapping
from functools import reduce

from crypto.errors import PeerFault
from crypto.ristretto import Element, RandomBytes, Scalar, dot
from crypto.threshold import (
    LEAVE_OUT,
    Dealing,
    GroupKey,
    KeyShare,
    TrusteeFault,
    deal_secret,
    lagrange_at_zero,
    verify_share,
)
from crypto.voprf import Elements


def reshare(key: GroupKey, share: KeyShare, random_bytes: RandomBytes) -> Dealing:
    """A holder's dealing of its own share to all trustees of `key`."""
    return deal_secret(share.secret, key.threshold, len(key.share_public_keys), random_bytes)


def combine_reshared(
    key: GroupKey, receiver: int, shares: Mapping[int, Scalar], commitments: Mapping[int, Elements]
) -> KeyShare:
    """The new share of `receiver`; both mappings are by dealer, the commitments the same for every trustee.

    TrusteeFault names a dealer of a missing or wrong share, or of another share than its own. PeerFault where fewer
    than the threshold dealt.
    """
    _check_dealers(key, commitments)
    for dealer, committed in sorted(commitments.items()):
        if dealer not in shares:
            raise TrusteeFault(f"dealt no share to trustee {receiver}", trustee=dealer, hint=LEAVE_OUT)
        verify_share(key.threshold, dealer, receiver, shares[dealer], committed)
    weighted = (weight * shares[dealer] for dealer, weight in _weights(commitments))
    return KeyShare(receiver, reduce(operator.add, weighted))


def reshared_key(key: GroupKey, commitments: Mapping[int, Elements]) -> GroupKey:
    """The public side after resharing: the same key, under new share keys. Anybody can compute it; errors as above."""
    _check_dealers(key, commitments)
    weights = [weight for _, weight in _weights(commitments)]
    columns = zip(*(commitments[dealer] for dealer in sorted(commitments)), strict=True)
    joint: Elements = tuple(dot(weights, column) for column in columns)
    if joint[0] != key.public_key:
        raise PeerFault("the share keys before are not those of one key", hint="compare the directories")
    share_keys = tuple(_value_at(joint, index) for index in range(1, len(key.share_public_keys) + 1))
    return GroupKey(key.threshold, key.public_key, share_keys)


def _check_dealers(key: GroupKey, commitments: Mapping[int, Elements]) -> None:
    if len(commitments) < key.threshold:
        raise PeerFault(
            f"{len(commitments)} trustees dealt their shares anew, {key.threshold} are needed", hint="ask more trustees"
        )
    for dealer, committed in sorted(commitments.items()):
        if len(committed) != key.threshold or committed[0] != key.share_public_key(dealer):
            raise TrusteeFault("dealt another share than its own", trustee=dealer, hint=LEAVE_OUT)


def _weights(commitments: Mapping[int, Elements]) -> list[tuple[int, Scalar]]:
    dealers = sorted(commitments)
    return list(zip(dealers, lagrange_at_zero(dealers), strict=True))


def _value_at(joint: Elements, index: int) -> Element:
    return dot([Scalar.from_int(index**exponent) for exponent in range(len(joint))], joint)
