"""Any three of five give a mask key back, two give nothing, and shares of another key are seen at once."""

import os
from itertools import combinations

import numpy as np
import pytest

from crypto.errors import PeerFault
from crypto.ids import Digest, MaskPublicKey, Nonce, RoundId, TenantId
from crypto.mask_custody import check_committed, deal_mask_key, recovered
from crypto.masking import MaskKey, MaskStream
from crypto.ristretto import Scalar, mul_base
from crypto.threshold import TrusteeFault, verify_share
from tests.support.curve25519 import aliases

T, N = 3, 5


def test_any_three_of_five_give_the_very_key_back() -> None:
    for number in range(8):  # both signs of x, and every residue of the scalar
        key = MaskKey(bytes([number]) * 32)
        dealt = deal_mask_key(key, T, N, os.urandom)
        check_committed(key.public, dealt.commitments)
        for chosen in combinations(range(1, N + 1), T):
            again = recovered(key.public, T, {index: dealt.shares[index - 1] for index in chosen})
            assert (again.public, again.scalar) == (key.public, key.scalar)


def test_a_recovered_key_makes_the_same_masks() -> None:
    """Among tenants that know nothing of it: with each the shared secret is the same."""
    key, tenant = MaskKey.generate(os.urandom), MaskKey.generate(os.urandom)
    dealt = deal_mask_key(key, T, N, os.urandom)
    again = recovered(key.public, T, dict(enumerate(dealt.shares, 1)))
    named = RoundId(bytes(16)), Digest(bytes(32)), TenantId(bytes(16))
    stream = MaskStream(*named, tenant.public, Nonce(bytes(16)), 3, key.public)
    masks = [holder.mask(stream, 100) for holder in (key, again, tenant)]
    assert np.array_equal(masks[0], masks[1])
    assert np.array_equal(masks[0], masks[2])


def test_two_shares_give_nothing() -> None:
    """Too few are refused; taken all the same, they give another key, and fit every key equally well."""
    key = MaskKey.generate(os.urandom)
    dealt = deal_mask_key(key, T, N, os.urandom)
    two = {1: dealt.shares[0], 4: dealt.shares[3]}
    with pytest.raises(PeerFault, match=r"2 shares of the mask key .* are there, 3 are needed"):
        recovered(key.public, T, two)
    with pytest.raises(PeerFault, match="give another key"):
        recovered(key.public, 2, two)


def test_shares_of_another_key_are_seen_by_whoever_gets_one() -> None:
    key, other = MaskKey.generate(os.urandom), MaskKey.generate(os.urandom)
    dealt = deal_mask_key(other, T, N, os.urandom)
    with pytest.raises(PeerFault, match="shares were dealt of another key"):
        check_committed(key.public, dealt.commitments)
    one_more = Scalar.from_int((key.scalar + 1) % (2**252 + 27742317777372353535851937790883648493))
    with pytest.raises(PeerFault, match="shares were dealt of another key"):
        check_committed(key.public, (mul_base(one_more), *dealt.commitments[1:]))


def test_a_wrong_share_does_not_fit_the_commitments() -> None:
    dealt = deal_mask_key(MaskKey.generate(os.urandom), T, N, os.urandom)
    verify_share(T, 3, 1, dealt.shares[0], dealt.commitments)
    with pytest.raises(TrusteeFault, match="trustee 3 dealt a share to trustee 2"):
        verify_share(T, 3, 2, dealt.shares[0], dealt.commitments)


def test_a_key_plus_a_point_of_small_order_is_not_recovered_as_that() -> None:
    """Its commitments fit, up to torsion; what is recovered is compared with the key that was published."""
    key = MaskKey.generate(os.urandom)
    dealt = deal_mask_key(key, T, N, os.urandom)
    shares = dict(enumerate(dealt.shares, 1))
    for alias in aliases(key.public):
        if alias[31] < 0x80 and alias != bytes(key.public):
            with pytest.raises(PeerFault, match="give another key"):
                recovered(MaskPublicKey(alias), T, shares)


def test_no_secret_is_shown() -> None:
    key = MaskKey.generate(os.urandom)
    again = recovered(key.public, T, dict(enumerate(deal_mask_key(key, T, N, os.urandom).shares, 1)))
    for holder in (key, again):
        assert str(holder.scalar) not in repr(holder)
        assert holder.scalar.to_bytes(32, "little").hex() not in repr(holder)
