"""Shares are dealt anew: the key stays, old and new shares give nothing together, whoever cheats is named."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import pytest

from crypto.errors import PeerFault
from crypto.resharing import combine_reshared, reshare, reshared_key
from crypto.ristretto import ZERO, Scalar, mul_base
from crypto.threshold import (
    Dealing,
    GroupKey,
    KeyShare,
    TrusteeFault,
    combine_dealings,
    combine_evaluations,
    deal,
    group_key,
    lagrange_at_zero,
)
from crypto.voprf import Elements, blind, blind_evaluate, finalize

T, N = 3, 5


@dataclass(frozen=True)
class Shared:
    """A key and all of its shares."""

    key: GroupKey
    shares: tuple[KeyShare, ...]


def shared() -> Shared:
    dealings = {dealer: deal(T, N, os.urandom) for dealer in range(1, N + 1)}
    committed = commitments(dealings)
    shares = (
        combine_dealings(T, index, {dealer: dealt.shares[index - 1] for dealer, dealt in dealings.items()}, committed)
        for index in range(1, N + 1)
    )
    return Shared(group_key(T, N, committed), tuple(shares))


def commitments(dealings: Mapping[int, Dealing]) -> dict[int, Elements]:
    return {dealer: dealt.commitments for dealer, dealt in dealings.items()}


def dealt_anew(before: Shared, dealers: tuple[int, ...]) -> dict[int, Dealing]:
    return {dealer: reshare(before.key, before.shares[dealer - 1], os.urandom) for dealer in dealers}


def after(before: Shared, dealings: Mapping[int, Dealing]) -> Shared:
    committed = commitments(dealings)
    shares = (
        combine_reshared(
            before.key, index, {dealer: dealt.shares[index - 1] for dealer, dealt in dealings.items()}, committed
        )
        for index in range(1, N + 1)
    )
    return Shared(reshared_key(before.key, committed), tuple(shares))


def interpolated(points: Mapping[int, Scalar]) -> Scalar:
    weights = zip(lagrange_at_zero(points.keys()), points.values(), strict=True)
    return sum((weight * value for weight, value in weights), ZERO)


@pytest.mark.parametrize("dealers", [(1, 2, 3), (2, 4, 5), (1, 2, 3, 5), (1, 2, 3, 4, 5)])
def test_the_key_stays_and_any_three_new_shares_make_it(dealers: tuple[int, ...]) -> None:
    """Also where the seats of two are empty: nobody needs to know what they held."""
    before = shared()
    renewed = after(before, dealt_anew(before, dealers))
    assert renewed.key.public_key == before.key.public_key
    assert [mul_base(share.secret) for share in renewed.shares] == list(renewed.key.share_public_keys)
    for chosen in combinations(renewed.shares, T):
        assert mul_base(interpolated({share.index: share.secret for share in chosen})) == before.key.public_key


def test_tokens_are_the_same_after_resharing() -> None:
    before = shared()
    renewed = after(before, dealt_anew(before, (1, 3, 4)))
    blinding = blind([b"descriptor"], os.urandom)
    tokens = [
        finalize(
            blinding,
            combine_evaluations(
                state.key,
                blinding.elements,
                {share.index: blind_evaluate(share.secret, blinding.elements, os.urandom) for share in some},
            ),
        )
        for state, some in ((before, before.shares[:3]), (renewed, renewed.shares[2:]))
    ]
    assert tokens[0] == tokens[1]


def test_old_shares_with_new_ones_give_nothing() -> None:
    """Two thieves a year apart have two old and two new shares; every three or four of these miss the key.

    Whichever secret one guesses, there is a polynomial through the old points and one through the new that have it at
    zero, and the public keys of the new shares lie on a third: so the points exclude no key.
    """
    before = shared()
    renewed = after(before, dealt_anew(before, (1, 2, 3)))
    old, new = before.shares[:2], renewed.shares[2:4]
    key = before.key.public_key
    for chosen in [*combinations([*old, *new], 3), (*old, *new)]:
        assert mul_base(interpolated({share.index: share.secret for share in chosen})) != key
    # The same seat before and after is no second point of one polynomial either.
    for share in before.shares:
        assert renewed.shares[share.index - 1].secret != share.secret
    again = after(before, dealt_anew(before, (1, 2, 3)))
    assert [share.secret for share in again.shares] != [share.secret for share in renewed.shares]


def test_an_old_share_proves_nothing_under_the_new_keys() -> None:
    before = shared()
    renewed = after(before, dealt_anew(before, (1, 2, 3)))
    blinding = blind([b"descriptor"], os.urandom)
    answers = {
        share.index: blind_evaluate(share.secret, blinding.elements, os.urandom)
        for share in (before.shares[0], *renewed.shares[1:3])
    }
    with pytest.raises(TrusteeFault, match="trustee 1 sent a wrong evaluation"):
        combine_evaluations(renewed.key, blinding.elements, answers)


def test_who_deals_another_share_than_its_own_is_named() -> None:
    """It would change the key: to one that the dealer knows, if it saw what the others dealt."""
    before = shared()
    dealings = dealt_anew(before, (1, 2, 3))
    dealings[2] = reshare(before.key, KeyShare(2, Scalar.from_int(7)), os.urandom)
    for refused in (lambda: reshared_key(before.key, commitments(dealings)), lambda: after(before, dealings)):
        with pytest.raises(TrusteeFault, match="trustee 2 dealt another share than its own") as fault:
            refused()
        assert fault.value.trustee == 2


def test_who_deals_a_wrong_share_or_none_is_named_by_its_receiver() -> None:
    before = shared()
    dealings = dealt_anew(before, (1, 2, 3))
    shares = {dealer: dealt.shares[3] for dealer, dealt in dealings.items()}
    with pytest.raises(TrusteeFault, match="trustee 3 dealt a share to trustee 4 that does not fit"):
        combine_reshared(before.key, 4, {**shares, 3: Scalar.from_int(5)}, commitments(dealings))
    del shares[1]
    with pytest.raises(TrusteeFault, match="trustee 1 dealt no share to trustee 4"):
        combine_reshared(before.key, 4, shares, commitments(dealings))


def test_two_of_five_cannot_hand_the_key_over() -> None:
    before = shared()
    with pytest.raises(PeerFault, match="2 trustees dealt their shares anew, 3 are needed"):
        reshared_key(before.key, commitments(dealt_anew(before, (4, 5))))


def test_share_keys_that_are_not_of_one_key_are_refused() -> None:
    before, other = shared(), shared()
    forged = GroupKey(T, other.key.public_key, before.key.share_public_keys)
    with pytest.raises(PeerFault, match="not those of one key"):
        reshared_key(forged, commitments(dealt_anew(before, (1, 2, 3))))
