"""Five trustees make a key that none of them holds, by files; whoever cheats or is cheated is named."""

import json
import logging
import os
import re
import stat
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings, strategies as st

from crypto.codec import Message, decode, digest, encode
from crypto.errors import BadSignature, DecodeError, PeerFault
from crypto.ids import Digest, EncodedElement, MaskPublicKey, RoundId, SealingPublicKey
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim
from crypto.ristretto import SCALAR_BYTES, ZERO, Element, Scalar, mul_base
from crypto.signing import Signed, SigningKey, reopened
from crypto.threshold import GroupKey, KeyShare, TrusteeFault, combine_evaluations, lagrange_at_zero
from crypto.voprf import Evaluation, Proof, blind, evaluate, finalize
from federation.base.key_files import HomeError
from federation.base.pinned_directory import NotEnrolled
from federation.base.settings import load
from federation.protocol.ceremony import (
    CeremonyRefused,
    Committee,
    Dealing,
    KeptShare,
    committee,
    deal,
    kind_of,
    own_share,
)
from federation.protocol.directory import Chain, Directory, Fork, Member, TrustChanged, next_entry
from federation.protocol.enrolment import (
    SEALED_BYTES,
    CardList,
    MemberCard,
    OtherFingerprint,
    SealingKey,
    TrusteeCard,
    card_list,
    check_fingerprint,
    fingerprint,
    host_of,
    open_member_card,
    open_trustee_card,
)
from federation.protocol.invitation import Invitation, accept
from federation.protocol.round_messages import EvaluationRequest, EvaluationResponse
from federation.protocol.warnings import CellNoise, Claims, WarnedSum
from tests.support import calling, schemas
from tests.support.changing import replace
from tests.support.curve25519 import aliases
from trustee import home as trustee_home
from trustee.cli import app
from trustee.settings import TrusteeSettings, TrusteeTable
from trustee.trustee import TrusteeLimits

T, N = 3, 5
SECRET_FILES = ("signing.key", "mask.key", "sealing.key", "share.key", "tls.key")


# ---- parties in memory -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Party:
    """A trustee before there is a key."""

    signing_secret: bytes
    mask_secret: bytes
    sealing: SealingKey
    number: int

    @cached_property
    def signing(self) -> SigningKey:
        return SigningKey(self.signing_secret)

    @cached_property
    def mask(self) -> MaskKey:
        return MaskKey(self.mask_secret)

    @cached_property
    def card(self) -> TrusteeCard:
        return TrusteeCard.of(
            self.signing,
            self.mask,
            self.sealing.public,
            made_hour=400_000,
            address=f"trustee-{self.number}.example:7100",
        )

    @property
    def signed_card(self) -> bytes:
        return self.signing.sign(self.card)


def a_party(number: int) -> Party:
    return Party(os.urandom(32), os.urandom(32), SealingKey(os.urandom(32)), number)


@cache
def parties() -> tuple[Party, ...]:
    """Five, in the order of their indices."""
    return tuple(sorted(map(a_party, range(N)), key=lambda party: party.card.verify_key))


@cache
def cards() -> CardList:
    return card_list(party.card for party in parties())


@cache
def dealings() -> tuple[bytes, ...]:
    return tuple(deal(party.signing, cards(), T, os.urandom) for party in parties())


def share_of(party: Party, dealt: Sequence[bytes]) -> KeyShare:
    return own_share(cards(), dealt, party.card.verify_key, party.sealing)


def altered(index: int, **changes: Any) -> list[bytes]:
    """All dealings, where the trustee of that index signed another than the honest one."""
    party = parties()[index - 1]
    honest = reopened(Dealing, dealings()[index - 1])
    return [*dealings()[: index - 1], party.signing.sign(replace(honest, **changes)), *dealings()[index:]]


def dealing_of(index: int) -> Dealing:
    return reopened(Dealing, dealings()[index - 1])


def node_key(curve: ec.EllipticCurve | None = None) -> bytes:
    public = ec.generate_private_key(curve or ec.SECP384R1()).public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


@cache
def a_tenant() -> tuple[SigningKey, MemberCard]:
    signing = SigningKey(os.urandom(32))
    return signing, MemberCard(Member.of(signing, MaskKey(os.urandom(32)), 0), node_key())


def an_invitation(provider: SigningKey, made: Committee, **changes: Any) -> Invitation:
    entry = made.founding_entry(provider.public, 13, [a_tenant()[1].member])
    places = "p.example:9092", "p.example:9093"
    return replace(Invitation(provider.public, (provider.sign(entry),), *places), **changes)


# ---- an honest ceremony ----------------------------------------------------------------------------------------------


def test_everybody_computes_the_same_committee_in_whatever_order_files_come() -> None:
    made = committee(cards(), dealings())
    shuffled = card_list(party.card for party in reversed(parties()))
    assert encode(committee(shuffled, dealings()[::-1])) == encode(made)
    assert [trustee.index for trustee in made.trustees] == [1, 2, 3, 4, 5]
    assert [trustee.verify_key for trustee in made.trustees] == sorted(card.verify_key for card in cards().cards)
    assert decode(Committee, encode(made)) == made


def test_every_share_belongs_to_the_committee_and_any_three_make_the_key() -> None:
    made = committee(cards(), dealings())
    shares = [share_of(party, dealings()) for party in parties()]
    for share in shares:
        made.check_share(share)
        with pytest.raises(CeremonyRefused):
            made.check_share(KeyShare(share.index % N + 1, share.secret))
    for chosen in combinations(shares, T):
        assert mul_base(interpolated(chosen)).encoded == made.group_key
    assert mul_base(interpolated(shares[: T - 1])).encoded != made.group_key


def interpolated(shares: Sequence[KeyShare]) -> Scalar:
    weights = lagrange_at_zero([share.index for share in shares])
    return sum((weight * share.secret for weight, share in zip(weights, shares, strict=True)), ZERO)


def test_dealing_again_makes_another_key() -> None:
    again = [deal(party.signing, cards(), T, os.urandom) for party in parties()]
    assert committee(cards(), again).group_key != committee(cards(), dealings()).group_key


# ---- cheats, and who is named ----------------------------------------------------------------------------------------


def address(index: int) -> str:
    return re.escape(cards().cards[index - 1].address)


def test_a_card_with_a_wrong_signature_is_named() -> None:
    signed = decode(Signed, parties()[0].signed_card)
    moved = encode(replace(parties()[0].card, address="evil.example:1"))
    for forged in (Signed(bytes(64), signed.body), Signed(signed.signature, memoryview(moved))):
        with pytest.raises(BadSignature, match="this TrusteeCard is not signed by its own key") as caught:
            open_trustee_card(encode(forged))
        assert "ask its owner" in caught.value.hint


def test_a_card_cannot_pass_as_a_dealing_nor_the_other_way_round() -> None:
    assert kind_of(parties()[0].signed_card) is TrusteeCard
    assert kind_of(dealings()[0]) is Dealing
    with pytest.raises(DecodeError):
        open_trustee_card(dealings()[0])
    with pytest.raises(DecodeError):
        committee(cards(), [parties()[0].signed_card])
    with pytest.raises(DecodeError, match="neither"):
        kind_of(a_tenant()[0].sign(a_tenant()[1]))


def test_a_card_whose_mask_key_is_not_held_is_refused() -> None:
    """Its owner signs what it likes; that it holds the mask key, the mask key itself must say."""
    thief, victim = parties()[0], parties()[1].card
    keys = [victim.mask_key, *(MaskPublicKey(alias) for alias in aliases(victim.mask_key) if alias[31] < 0x80)]
    assert len(keys) == 8
    for key in keys:
        claim = MaskKeyClaim(thief.card.verify_key, key, thief.card.made_hour)
        for proof in (victim.possession, thief.card.possession, thief.mask.prove(claim), bytes(64)):
            with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
                open_trustee_card(thief.signing.sign(replace(thief.card, mask_key=key, possession=proof)))
    with pytest.raises(BadSignature, match="no valid proof of possession"):
        open_trustee_card(thief.signing.sign(replace(thief.card, made_hour=400_001)))
    assert open_trustee_card(thief.signed_card) == thief.card


@pytest.mark.parametrize("field", ["verify_key", "mask_key", "sealing_key"])
def test_a_card_with_a_key_that_is_none_does_not_decode(field: str) -> None:
    """Small order, p and more, and the top bit where nothing reads it: neither a card nor what is signed over it."""
    party = parties()[0]
    key: bytes = getattr(party.card, field)
    hostile = [bytes(32), b"\1" + bytes(31), b"\xed" + b"\xff" * 30 + b"\x7f", b"\xff" * 32]
    if field != "verify_key":  # there the top bit is the sign of another point
        hostile.append(key[:31] + bytes([key[31] ^ 0x80]))
    for bad in hostile:
        body = encode(party.card).replace(key, bad)
        signature = party.signing._private.sign(b"pharoah/signed/2\0" + digest(body))
        with pytest.raises(DecodeError, match=f"TrusteeCard.{field}"):
            open_trustee_card(encode(Signed(signature, memoryview(body))))


@pytest.mark.parametrize("field", ["verify_key", "mask_key", "sealing_key"])
def test_two_cards_with_one_key_are_both_named(field: str) -> None:
    first, second = parties()[0].card, parties()[1].card
    copy = replace(second, **{field: getattr(first, field)})
    with pytest.raises(PeerFault, match="have one key") as caught:
        card_list([first, copy])
    assert first.address in caught.value.what
    assert second.address in caught.value.what
    with pytest.raises(ValueError, match="key"):
        CardList(tuple(sorted([first, copy], key=lambda card: card.verify_key)))


def test_a_card_that_is_there_twice_is_named() -> None:
    with pytest.raises(PeerFault, match=f"{address(2)} .* was passed twice"):
        card_list([*cards().cards, cards().cards[1]])


def test_whoever_was_given_another_list_is_named() -> None:
    stranger = a_party(9)
    fourth = parties()[3]
    other_list = card_list([*(party.card for party in parties()[1:]), stranger.card])
    theirs = deal(fourth.signing, other_list, T, os.urandom)
    with pytest.raises(
        PeerFault, match=f"another list of cards than the 5 here: the trustee at {address(4)}"
    ) as caught:
        committee(cards(), [*dealings()[:3], theirs, *dealings()[4:]])
    assert not any(card.address in caught.value.what for card in cards().cards if card != fourth.card)
    assert "compare the fingerprints of the lists" in caught.value.hint


def test_missing_dealings_are_named() -> None:
    with pytest.raises(PeerFault, match=f"missing for the trustee at {address(2)} .*, the trustee at {address(5)}"):
        committee(cards(), [dealings()[0], dealings()[2], dealings()[3]])


def test_a_dealing_that_is_there_twice_is_named() -> None:
    with pytest.raises(PeerFault, match=f"the dealing of the trustee at {address(3)} .* was passed twice"):
        committee(cards(), [*dealings(), dealings()[2]])
    second = deal(parties()[2].signing, cards(), T, os.urandom)
    with pytest.raises(TrusteeFault, match=f"trustee 3 at {address(3)} dealt twice, differently") as caught:
        committee(cards(), [*dealings(), second])
    assert caught.value.trustee == 3


def test_a_dealing_of_a_stranger_or_in_anothers_name_is_refused() -> None:
    stranger = a_party(9)
    with_him = card_list([*cards().cards, stranger.card])
    with pytest.raises(PeerFault, match=f"{stranger.card.verify_key.hex()[:16]}… has no card"):
        committee(cards(), [*dealings(), deal(stranger.signing, with_him, T, os.urandom)])
    forged = stranger.signing.sign(dealing_of(2))
    with pytest.raises(BadSignature, match=f"in the name of the trustee at {address(2)}"):
        committee(cards(), [dealings()[0], forged, *dealings()[2:]])


def test_a_share_that_does_not_open_names_its_dealer() -> None:
    sealed = list(dealing_of(4).sealed)
    sealed[0], sealed[1] = sealed[1], sealed[0]
    dealt = altered(4, sealed=tuple(sealed))
    for victim in parties()[:2]:
        with pytest.raises(TrusteeFault, match=f"trustee 4 at {address(4)} sealed .* does not open") as caught:
            share_of(victim, dealt)
        assert caught.value.trustee == 4
    assert share_of(parties()[2], dealt).index == 3


def test_a_share_that_was_sealed_by_another_dealer_does_not_open() -> None:
    with pytest.raises(TrusteeFault, match=r"trustee 4 .* does not open"):
        share_of(parties()[0], altered(4, sealed=dealing_of(5).sealed, commitments=dealing_of(5).commitments))


def test_a_share_that_does_not_fit_names_its_dealer() -> None:
    honest = dealing_of(2)
    info = b"pharoah/sealed-share/1\0" + cards().name + honest.dealer + (5).to_bytes(8)
    wrong = cards().cards[4].seal(Scalar.from_int(7), info)
    dealt = altered(2, sealed=(*honest.sealed[:4], wrong))
    with pytest.raises(
        TrusteeFault, match=f"trustee 2 at {address(2)} dealt trustee 5 a share that does not fit"
    ) as caught:
        share_of(parties()[4], dealt)
    assert caught.value.trustee == 2
    assert share_of(parties()[0], dealt).index == 1, "only the cheated one can see it"


def test_other_bad_dealings_name_their_dealer() -> None:
    element = EncodedElement(mul_base(Scalar.from_int(3)).encoded)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"sealed": dealing_of(3).sealed[:-1]}, "sealed 4 shares for 5 trustees"),
        ({"threshold": 2, "commitments": (element, element)}, "a threshold of 2, most others for 3"),
        ({"commitments": (element, element, EncodedElement(bytes(32)))}, "an invalid commitment"),
        ({"commitments": (element, element, EncodedElement(b"\xff" * 32))}, "an invalid commitment"),
    ]
    for changes, said in cases:
        with pytest.raises(TrusteeFault, match=f"trustee 3 at {address(3)} .*{said}"):
            committee(cards(), altered(3, **changes))


def test_a_dealing_has_a_commitment_for_each_coefficient() -> None:
    first, second, third = dealing_of(3).commitments
    assert replace(dealing_of(3), threshold=1, commitments=(first,)).threshold == 1
    for threshold, commitments in ((0, ()), (T, (first, second)), (T, (first, second, third, first))):
        with pytest.raises(ValueError, match="one commitment for each of `threshold` coefficients"):
            replace(dealing_of(3), threshold=threshold, commitments=commitments)


def test_a_sealed_share_has_its_length() -> None:
    assert {len(share) for share in dealing_of(3).sealed} == {SEALED_BYTES}
    for length in (0, SEALED_BYTES - 1, SEALED_BYTES + 1):
        with pytest.raises(ValueError, match=f"a sealed share has {SEALED_BYTES} bytes"):
            replace(dealing_of(3), sealed=(*dealing_of(3).sealed[1:], bytes(length)))


def test_a_sealing_key_that_went_round_its_type_is_named() -> None:
    """No `SealingPublicKey` hides nothing (`tests/crypto/test_ids.py`), and the library would refuse one that did."""
    weak = replace(parties()[0].card, sealing_key=bytes.__new__(SealingPublicKey, bytes(32)))
    with pytest.raises(PeerFault, match=f"sealing key on the card of the trustee at {address(1)} .* is of small order"):
        deal(parties()[1].signing, card_list([weak, *cards().cards[1:]]), T, os.urandom)


def test_a_share_that_was_sealed_to_an_alias_does_not_open() -> None:
    """Sealing keys are proved by nobody: whoever shows an alias of another one's gets nothing that opens.

    HPKE binds the receiver's public key (RFC 9180 §4.1), and the card that was shown is in the list that all compare.
    """
    receiver = parties()[0]
    for alias in aliases(receiver.card.sealing_key):
        if alias[31] < 0x80:
            posing = replace(receiver.card, sealing_key=SealingPublicKey(alias))
            with pytest.raises(DecodeError, match="does not open"):
                receiver.sealing.open(posing.seal(Scalar.from_int(7), b"info"), b"info")
    sealed = receiver.card.seal(Scalar.from_int(7), b"info")
    assert receiver.sealing.open(sealed, b"info") == Scalar.from_int(7)


def test_a_dealer_that_deals_twice_is_seen_by_comparing_committees() -> None:
    second = deal(parties()[2].signing, cards(), T, os.urandom)
    told = committee(cards(), [*dealings()[:2], second, *dealings()[3:]])
    assert fingerprint(told.name) != fingerprint(committee(cards(), dealings()).name)


@pytest.mark.parametrize(("trustees", "threshold"), [(2, 2), (2, 1), (3, 1), (3, 3), (5, 4), (5, 0), (4, 3)])
def test_too_few_trustees_or_a_wrong_threshold_are_refused(trustees: int, threshold: int) -> None:
    few = card_list(party.card for party in parties()[:trustees])
    with pytest.raises(CeremonyRefused):
        deal(parties()[0].signing, few, threshold, os.urandom)


@pytest.mark.parametrize(("trustees", "threshold"), [(3, 2), (4, 2), (5, 2), (5, 3)])
def test_thresholds_from_two_to_a_majority_are_taken(trustees: int, threshold: int) -> None:
    few = card_list(party.card for party in parties()[:trustees])
    dealt = [deal(party.signing, few, threshold, os.urandom) for party in parties()[:trustees]]
    assert committee(few, dealt).threshold == threshold


def test_a_share_opens_with_ones_own_keys_alone() -> None:
    with pytest.raises(CeremonyRefused, match="not the one on the card"):
        own_share(cards(), dealings(), parties()[0].card.verify_key, parties()[1].sealing)
    with pytest.raises(PeerFault, match="has no card"):
        own_share(cards(), dealings(), a_party(9).card.verify_key, parties()[1].sealing)


# ---- cards of tenants, invitations, fingerprints ---------------------------------------------------------------------


def test_a_member_card_is_signed_by_the_tenant_throughout() -> None:
    signing, card = a_tenant()
    assert open_member_card(signing.sign(card)) == card
    with pytest.raises(BadSignature, match="this MemberCard is not signed by its own key"):
        open_member_card(SigningKey(os.urandom(32)).sign(card))
    swapped = replace(card.member, mask_key=MaskKey(os.urandom(32)).public)
    with pytest.raises(BadSignature, match=r"mask key of tenant .* is not signed by the tenant"):
        open_member_card(signing.sign(replace(card, member=swapped)))


def test_a_member_card_whose_mask_key_is_not_held_is_refused() -> None:
    signing, card = a_tenant()
    victim = parties()[1].card
    claim = MaskKeyClaim(card.member.verify_key, victim.mask_key, card.member.made_hour)
    signed = decode(Signed, signing.sign(claim)).signature
    for proof in (victim.possession, card.member.possession, signed):
        posing = replace(card.member, mask_key=victim.mask_key, claim=signed, possession=proof)
        with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
            open_member_card(signing.sign(replace(card, member=posing)))


@pytest.mark.parametrize("wrong", [b"", b"ssh-foo AAAA", b"ecdsa-sha2-nistp384 AAAA", b"\xff", b"P-256", b"comment"])
def test_a_node_key_is_one_bare_p384_key(wrong: bytes) -> None:
    key = {b"P-256": node_key(ec.SECP256R1()), b"comment": node_key() + b" me@example"}.get(wrong, wrong)
    with pytest.raises(ValueError, match="node key"):
        replace(a_tenant()[1], node_key=key)


def test_a_node_key_that_is_a_compressed_point_is_none() -> None:
    name, wire = node_key().split()
    point = b64decode(wire)
    at = point.index(b"\x61\x04") + 1  # a length of 97, then 4 for "both coordinates follow"
    compressed = b64encode(point[:at] + b"\2" + point[at + 1 :])
    with pytest.raises(ValueError, match="node key"):
        replace(a_tenant()[1], node_key=name + b" " + compressed)


def test_an_invitation_brings_the_providers_directory() -> None:
    provider = SigningKey(os.urandom(32))
    made = committee(cards(), dealings())
    invitation = an_invitation(provider, made)
    invited, chain = accept(provider.sign(invitation))
    assert invited == invitation
    assert invited.provider == provider.public
    made.check_seated(chain.directory)
    with pytest.raises(BadSignature, match="this Invitation is not signed by its own key"):
        accept(SigningKey(os.urandom(32)).sign(invitation))
    stranger = SigningKey(os.urandom(32))
    with pytest.raises(BadSignature, match="a DirectoryEntry is not signed by the key"):
        accept(stranger.sign(replace(invitation, provider=stranger.public)))
    another_start = provider.sign(made.founding_entry(provider.public, 14, []))
    with pytest.raises(Fork):
        accept(provider.sign(replace(invitation, entries=(*invitation.entries, another_start))))


def test_a_directory_with_another_trustee_key_or_threshold_is_refused() -> None:
    made = committee(cards(), dealings())
    moved = replace(made.trustees[3], address="elsewhere.example:1")
    others = [
        (replace(made, threshold=2), "key or threshold"),
        (replace(made, group_key=EncodedElement(mul_base(Scalar.from_int(2)).encoded)), "key or threshold"),
        (replace(made, trustees=(*made.trustees[:3], moved, made.trustees[4])), f"trustee 4 at {address(4)}"),
        (replace(made, trustees=made.trustees[:4]), "4 trustees"),
    ]
    for other, said in others:
        with pytest.raises(TrustChanged, match=said):
            made.check_seated(directory_of(other))


def directory_of(made: Committee) -> Directory:
    provider = SigningKey(os.urandom(32))
    return Chain.begin(provider.sign(made.founding_entry(provider.public, 13, [])), provider.public).directory


@pytest.mark.parametrize(
    "wrong", ["", "localhost", "localhost:0", "localhost:65536", "a b:1", "::1:80", "[zz]:1", "[1]:1", "h:1\n", "ä:1"]
)
def test_what_is_no_address_is_on_no_card(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"address|permitted|octets|At least"):
        replace(parties()[0].card, address=wrong)


def test_hosts_of_addresses() -> None:
    assert [host_of(each) for each in ("a.example:1", "192.0.2.1:65535", "[2001:DB8::7]:80")] == [
        "a.example",
        "192.0.2.1",
        "2001:db8::7",
    ]


def test_fingerprints_are_compared_whatever_their_spelling() -> None:
    name = Digest(bytes(range(32)))
    shown = fingerprint(name)
    assert re.fullmatch("([0-9a-f]{4} ){7}[0-9a-f]{4}", shown)
    for said in (shown, shown.upper(), shown.replace(" ", "-"), shown.replace(" ", ""), name.hex()):
        check_fingerprint(said, name)
    for said in ("", "0001", shown[:-1] + "0", name.hex()[:-2], shown + " 10"):
        with pytest.raises(OtherFingerprint):
            check_fingerprint(said, name)


# ---- any bytes -------------------------------------------------------------------------------------------------------


def valid_messages() -> list[Message]:
    share = KeptShare.of(share_of(parties()[0], dealings()))
    made = committee(cards(), dealings())
    invitation = an_invitation(SigningKey(os.urandom(32)), made)
    return [parties()[0].card, a_tenant()[1], cards(), dealing_of(1), made, share, invitation]


KINDS: tuple[type[Any], ...] = (TrusteeCard, MemberCard, CardList, Dealing, Committee, KeptShare, Invitation)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_any_bytes_become_a_message_or_a_decode_error(kind: type[Any], data: st.DataObject) -> None:
    (valid,) = [encode(message) for message in valid_messages_once() if isinstance(message, kind)]
    at = data.draw(st.integers(0, len(valid) - 1))
    hostile = data.draw(
        st.binary(max_size=80)
        | st.binary(max_size=4).map(lambda some: valid[:at] + some + valid[at + 1 :])
        | st.just(valid[:at])
    )
    try:
        message = decode(kind, hostile)
    except DecodeError:
        return
    assert encode(message) == hostile


@cache
def valid_messages_once() -> list[Message]:
    return valid_messages()


@given(st.integers(0, 2**20), st.integers(1, 255), st.sampled_from(["card", "dealing", "member", "invitation"]))
@settings(deadline=None, max_examples=200)
def test_a_file_with_one_byte_changed_is_never_taken(place: int, change: int, which: str) -> None:
    valid, taken = files_and_readers()[which]
    spoilt = bytearray(valid)
    spoilt[place % len(valid)] ^= change
    with pytest.raises((DecodeError, PeerFault)):
        taken(bytes(spoilt))


@given(st.binary(max_size=200), st.sampled_from(["card", "dealing", "member", "invitation"]))
@settings(deadline=None)
def test_garbage_signed_or_not_is_a_decode_error(garbage: bytes, which: str) -> None:
    _, taken = files_and_readers()[which]
    for hostile in (garbage, encode(Signed(bytes(64), memoryview(garbage)))):
        with pytest.raises(DecodeError):
            taken(hostile)


@cache
def files_and_readers() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    provider = SigningKey(os.urandom(32))
    signing, member = a_tenant()
    invitation = provider.sign(an_invitation(provider, committee(cards(), dealings())))
    return {
        "card": (parties()[0].signed_card, open_trustee_card),
        "dealing": (dealings()[0], lambda spoilt: committee(cards(), [spoilt, *dealings()[1:]])),
        "member": (signing.sign(member), open_member_card),
        "invitation": (invitation, accept),
    }


# ---- the same by files, through the command line ---------------------------------------------------------------------


called = partial(calling.call, app)


@dataclass
class Ceremony:
    """Five homes below one folder, what was handed over, and all that was ever printed."""

    folder: Path
    said: list[str]

    def home(self, number: int) -> Path:
        return self.folder / f"trustee-{number}"

    @property
    def cards(self) -> list[Path]:
        return [self.home(number) / "trustee.card" for number in range(N)]

    @property
    def dealings(self) -> list[Path]:
        return [self.folder / f"{number}.dealing" for number in range(N)]

    def call(self, *words: object, code: int = 0) -> click.testing.Result:
        result = called(*words)
        self.said += [result.stdout, result.stderr]
        assert result.exit_code == code, result.output
        return result

    def init(self) -> None:
        for number in range(N):
            names = ["--name", f"trustee-{number}.internal", "--name", "192.0.2.9"]
            self.call("init", "--home", self.home(number), "--address", f"localhost:{7100 + number}", *names)

    def deal(self) -> None:
        for number, out in enumerate(self.dealings):
            self.call("ceremony", "deal", *self.cards, "--home", self.home(number), "--threshold", T, "--out", out)

    def combine(self, number: int, code: int = 0) -> click.testing.Result:
        files = [*self.dealings, *self.cards]
        return self.call("ceremony", "combine", *files, "--home", self.home(number), code=code)


@pytest.fixture
def ceremony(tmp_path: Path) -> Ceremony:
    made = Ceremony(tmp_path, [])
    made.init()
    made.deal()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def enrolled(ceremony: Ceremony) -> Invitation:
    """Combines, founds a directory with one tenant, and enrols all trustees in it."""
    for number in range(N):
        ceremony.combine(number)
    provider = SigningKey(os.urandom(32))
    made = trustee_home.kept_committee(ceremony.home(0))
    invitation = an_invitation(provider, made)
    file = ceremony.folder / "invitation"
    file.write_bytes(provider.sign(invitation))
    _, chain = accept(file.read_bytes())
    for number in range(N):
        head = fingerprint(chain.directory.head)
        ceremony.call("join", file, "--home", ceremony.home(number), "--head", head)
    return invitation


def test_a_ceremony_of_files_ends_in_one_committee_whose_trustees_evaluate(ceremony: Ceremony) -> None:
    enrolled(ceremony)
    kept = {(ceremony.home(number) / "committee").read_bytes() for number in range(N)}
    assert len(kept) == 1
    made = decode(Committee, kept.pop())
    key = GroupKey(
        made.threshold,
        Element.decode(made.group_key),
        tuple(Element.decode(trustee.share_key) for trustee in made.trustees),
    )
    blinding = blind([b"a rung"], os.urandom)
    first, second = (
        finalize(blinding, combine_evaluations(key, blinding.elements, answers(ceremony, homes, blinding.elements)))
        for homes in ((0, 1, 2), (2, 3, 4))
    )
    assert first == second
    shares = [decode(KeptShare, (ceremony.home(number) / "share.key").read_bytes()).share for number in range(N)]
    assert first == finalize(blinding, evaluate(interpolated(shares[:T]), blinding.elements))


def answers(ceremony: Ceremony, homes: Sequence[int], blinded: Sequence[Element]) -> dict[int, Evaluation]:
    signing, card = a_tenant()
    asked = tuple(EncodedElement(element.encoded) for element in blinded)
    found = {}
    for number in homes:
        with closing(trustee_home.open_trustee(ceremony.home(number), os.urandom, TrusteeLimits())) as trustee:
            request = EvaluationRequest(card.member.tenant, trustee.index, 0, asked)
            response = decode(EvaluationResponse, trustee.evaluate(signing.sign(request)))
        elements = tuple(Element.decode(element) for element in response.elements)
        found[response.trustee] = Evaluation(elements, Proof.decode(response.proof))
    return found


def test_the_log_shows_what_was_asked(ceremony: Ceremony) -> None:
    enrolled(ceremony)
    empty = schemas.held("pharoah-trustee log", ceremony.call("log", "--home", ceremony.home(3), "--json").stdout)
    assert empty == {"evaluations": [], "rounds": [], "conflicts": [], "warnings": None}
    answers(ceremony, [3], blind([b"one", b"two"], os.urandom).elements)
    shown = schemas.held("pharoah-trustee log", ceremony.call("log", "--home", ceremony.home(3), "--json").stdout)
    tenant = str(a_tenant()[1].member.tenant)
    assert shown["evaluations"] == [{"tenant": tenant, "epoch": 0, "elements": 2}]
    assert "2 blinded elements" in ceremony.call("log", "--home", ceremony.home(3)).stdout


def test_the_log_shows_the_verdict_on_warnings_that_records_prove(
    ceremony: Ceremony, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(ceremony)
    record = ceremony.folder / "record"
    record.write_bytes(b"no record")
    broken = ceremony.call("log", "--home", ceremony.home(3), "--record", record, code=2)
    assert "not a valid RoundRecord" in broken.stderr
    noise = CellNoise("discrete_laplace", 10.0, 1.0)
    vain = WarnedSum(0, 168, 10.0, 2000.0, 100.0, 0.0, 0.0, Claims(0.6, 0.0), noise)
    monkeypatch.setattr("trustee.verbs.opened_record", lambda *_: SimpleNamespace(warned=vain))
    text = ceremony.call("log", "--home", ceremony.home(3), "--record", record, code=1).stdout
    assert "it claims 60%, nothing; precision is below its claim" in text


def test_the_log_shows_conflicts_with_their_proof_and_warns(ceremony: Ceremony) -> None:
    enrolled(ceremony)
    round_id, request = RoundId(b"r" * 16), encode(Signed(bytes(64), memoryview(b"a set")))
    with closing(trustee_home.open_trustee(ceremony.home(3), os.urandom, TrusteeLimits())) as trustee:
        trustee._connection.execute("INSERT INTO endorsed VALUES (?, ?)", (bytes(round_id), request))
        trustee._connection.execute("INSERT INTO conflicts VALUES (?, ?)", (bytes(round_id), b"another set"))
    result = ceremony.call("log", "--home", ceremony.home(3), "--json", code=1)
    assert "two sets for one round" in result.stderr
    shown = schemas.held("pharoah-trustee log", result.stdout)
    assert shown["rounds"] == [{"round_id": str(round_id), "request": str(digest(b"a set")), "unmasked": False}]
    assert shown["conflicts"] == [{"round_id": str(round_id), "proof": b"another set".hex()}]
    text = ceremony.call("log", "--home", ceremony.home(3), code=1).stdout
    assert f"round {round_id}: set {digest(b'a set').hex()[:16]}… endorsed" in text


def test_all_read_the_same_fingerprints(ceremony: Ceremony) -> None:
    shown = {
        json.loads(
            ceremony.call("ceremony", "combine", *ceremony.cards, *ceremony.dealings, "--home", home, "--json").stdout
        )["fingerprint"]
        for home in map(ceremony.home, range(N))
    }
    assert len(shown) == 1
    listed = re.findall(r"^list +(.*)$", "".join(ceremony.said), re.MULTILINE)
    assert len(listed) == N
    assert len(set(listed)) == 1
    card = open_trustee_card(ceremony.cards[2].read_bytes())
    assert fingerprint(digest(encode(card))) in "".join(ceremony.said)


def test_secrets_are_private_files_and_never_shown(ceremony: Ceremony, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    enrolled(ceremony)
    for number in range(N):
        home = ceremony.home(number)
        assert mode(home) == 0o700
        assert {file.name: mode(file) for file in home.iterdir()} == dict.fromkeys(
            [
                *SECRET_FILES,
                *("tls.crt", "trustee.card", "trustee.toml", "trustee.schema.json", "committee", "trustee.db"),
            ],
            0o600,
        )
    public = [*ceremony.cards, *ceremony.dealings, ceremony.home(0) / "committee", ceremony.folder / "invitation"]
    seen = "".join([*ceremony.said, caplog.text]).encode() + b"".join(file.read_bytes() for file in public)
    for secret in secrets(ceremony):
        assert secret not in seen
        assert secret.hex().encode() not in seen
        assert repr(secret).encode() not in seen


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("trustee-1.example:7101", "0.0.0.0:7101"),
        ("127.0.0.1:7101", "127.0.0.1:7101"),
        ("localhost:81", "localhost:81"),
        ("[2001:db8::7]:7101", "[::]:7101"),
    ],
)
def test_a_trustee_listens_at_the_port_of_its_address(address: str, listen: str, tmp_path: Path) -> None:
    trustee_home.create(tmp_path / "trustee", address, [], os.urandom, datetime.now(UTC))
    assert load(TrusteeSettings, tmp_path / "trustee" / "trustee.toml", {}).trustee == TrusteeTable(listen=listen)


def secrets(ceremony: Ceremony) -> Iterator[bytes]:
    for number in range(N):
        home = ceremony.home(number)
        yield from ((home / name).read_bytes() for name in ("signing.key", "mask.key", "sealing.key", "tls.key"))
        yield decode(KeptShare, (home / "share.key").read_bytes()).secret


def test_a_kept_share_has_its_secret() -> None:
    with pytest.raises(TypeError, match="secret"):
        KeptShare(1)  # type: ignore[call-arg]
    with pytest.raises(DecodeError, match="KeptShare"):
        decode(KeptShare, msgpack.packb([KeptShare.LABEL, 1]))
    assert KeptShare(1, bytes(SCALAR_BYTES)).index == 1
    for index, length in ((0, SCALAR_BYTES), (-1, SCALAR_BYTES), (1, SCALAR_BYTES - 1), (1, SCALAR_BYTES + 1)):
        with pytest.raises(ValueError, match="a number from 1 and one scalar"):
            KeptShare(index, bytes(length))


def test_no_secret_shows_in_a_repr() -> None:
    share = share_of(parties()[0], dealings())
    sealing = SealingKey(b"\x07" * 32)
    for shown in (repr(KeptShare.of(share)), repr(share), str(sealing), repr(sealing)):
        for secret in (share.secret.encoded, b"\x07" * 32):
            assert secret.hex() not in shown
            assert repr(secret) not in shown


def test_the_program_itself_combines_and_shows_no_secret(ceremony: Ceremony) -> None:
    words = ["ceremony", "combine", *ceremony.cards, *ceremony.dealings, "--home", ceremony.home(1)]
    program = [sys.executable, "-c", "from trustee.cli import app; app()", *map(str, words)]
    done = subprocess.run(program, capture_output=True, check=True)
    secret = decode(KeptShare, (ceremony.home(1) / "share.key").read_bytes()).secret
    assert fingerprint(trustee_home.kept_committee(ceremony.home(1)).name).encode() in done.stdout
    assert done.stderr.startswith(b"next: ")
    assert secret not in done.stdout + done.stderr
    assert secret.hex().encode() not in done.stdout + done.stderr


# ---- what the verbs refuse -------------------------------------------------------------------------------------------


def test_nothing_is_ever_overwritten(ceremony: Ceremony) -> None:
    ceremony.combine(0)
    before = {file: file.read_bytes() for file in ceremony.folder.rglob("*") if file.is_file()}
    again = ceremony.call("init", "--home", ceremony.home(0), "--address", "localhost:1", code=2)
    assert "signing.key" in again.stderr
    assert "keys are never overwritten" in again.stderr
    words = ["--home", ceremony.home(0), "--threshold", 2, "--out", ceremony.dealings[0]]
    assert "0.dealing" in ceremony.call("ceremony", "deal", *ceremony.cards, *words, code=2).stderr
    assert "share.key" in ceremony.combine(0, code=2).stderr
    assert {file: file.read_bytes() for file in ceremony.folder.rglob("*") if file.is_file()} == before


def test_init_leaves_the_home_of_somebody_else_alone(tmp_path: Path) -> None:
    (tmp_path / "mask.key").write_bytes(b"a tenant's")
    assert "mask.key" in called("init", "--home", tmp_path, "--address", "localhost:1").stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mask.key"]


@pytest.mark.parametrize("words", [["--address", "localhost"], ["--address", "a:1", "--name", "no name"]])
def test_init_takes_addresses_and_names_only(tmp_path: Path, words: list[str]) -> None:
    result = called("init", "--home", tmp_path / "home", *words)
    assert result.exit_code == 2
    assert "host:port" in re.sub(r"[^\w:]+", " ", result.stderr)
    assert not (tmp_path / "home").exists()


def test_the_file_at_fault_is_named(ceremony: Ceremony) -> None:
    spoilt = bytearray(ceremony.cards[3].read_bytes())
    spoilt[-1] ^= 1
    ceremony.cards[3].write_bytes(spoilt)
    result = ceremony.combine(0, code=2)
    assert f"error: {ceremony.cards[3]}: this TrusteeCard is not signed by its own key" in result.stderr
    assert "hint: " in result.stderr
    ceremony.cards[3].write_bytes(b"something else")
    assert str(ceremony.cards[3]) in ceremony.combine(0, code=2).stderr
    assert not (ceremony.home(0) / "share.key").exists()


def test_a_missing_dealing_is_named_by_the_verb(ceremony: Ceremony) -> None:
    result = ceremony.call(
        "ceremony", "combine", *ceremony.cards, *ceremony.dealings[1:], "--home", ceremony.home(2), code=2
    )
    assert "a dealing is missing for the trustee at localhost:7100" in result.stderr
    assert not (ceremony.home(2) / "committee").exists()


def test_ones_own_card_must_be_in_the_list_unchanged(ceremony: Ceremony) -> None:
    words = ["--threshold", 2, "--out", ceremony.folder / "new.dealing", "--home", ceremony.home(4)]
    assert (
        "none of the 4 cards is that of"
        in ceremony.call("ceremony", "deal", *ceremony.cards[:4], *words, code=2).stderr
    )
    assert not (ceremony.folder / "new.dealing").exists()


def test_fewer_than_three_are_refused_and_fewer_than_five_warned_about(ceremony: Ceremony) -> None:
    words = ["--threshold", 2, "--out", ceremony.folder / "new.dealing", "--home", ceremony.home(0)]
    assert "2 trustees are too few" in ceremony.call("ceremony", "deal", *ceremony.cards[:2], *words, code=2).stderr
    assert not any("warning" in said for said in ceremony.said)
    assert "warning: only 3 trustees" in ceremony.call("ceremony", "deal", *ceremony.cards[:3], *words).stderr


def test_a_trustee_enrols_only_where_it_sits_as_in_its_ceremony(ceremony: Ceremony) -> None:
    for number in range(N):
        ceremony.combine(number)
    provider = SigningKey(os.urandom(32))
    made = trustee_home.kept_committee(ceremony.home(0))
    third, swapped_to = made.trustees[2], MaskKey(os.urandom(32))
    claim = MaskKeyClaim(third.verify_key, swapped_to.public, third.made_hour)
    swapped = replace(third, mask_key=swapped_to.public, possession=swapped_to.prove(claim))
    other = replace(made, trustees=(*made.trustees[:2], swapped, *made.trustees[3:]))
    file = ceremony.folder / "invitation"
    file.write_bytes(provider.sign(an_invitation(provider, other)))
    result = ceremony.call("join", file, "--home", ceremony.home(0), code=2)
    assert f"trustee 3 at {swapped.address}" in result.stderr
    file.write_bytes(provider.sign(an_invitation(provider, made)))
    assert "fingerprint" in ceremony.call("join", file, "--home", ceremony.home(0), "--head", "0000", code=2).stderr
    assert not (ceremony.home(0) / "trustee.db").exists()
    ceremony.call("join", file, "--home", ceremony.home(0))


def test_a_later_invitation_adds_members_and_a_fork_is_refused(ceremony: Ceremony) -> None:
    invitation = enrolled(ceremony)
    home, file = ceremony.home(0), ceremony.folder / "invitation"
    stranger = SigningKey(os.urandom(32))
    fork = an_invitation(stranger, trustee_home.kept_committee(home))
    file.write_bytes(stranger.sign(fork))
    assert ceremony.call("join", file, "--home", home, code=2).stderr.startswith("pharoah-trustee: error: ")
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        assert trustee.chain.entries == invitation.entries


def test_a_longer_chain_is_followed(tmp_path: Path) -> None:
    provider, home = SigningKey(os.urandom(32)), tmp_path / "home"
    made, party = committee(cards(), dealings()), parties()[0]
    settle(home, party, made)
    first = an_invitation(provider, made)
    _, chain = accept(provider.sign(first))
    trustee_home.enrol(home, chain, os.urandom)
    joined = Member.of(SigningKey(os.urandom(32)), MaskKey(os.urandom(32)), 0)
    longer = chain.extended([provider.sign(next_entry(chain.directory, joined=[joined]))])
    trustee_home.enrol(home, longer, os.urandom)
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        assert trustee.chain.directory.head == longer.directory.head
        assert len(trustee.chain.directory.members) == 2


def test_a_trustee_does_not_open_under_another_committees_directory(tmp_path: Path) -> None:
    provider, home = SigningKey(os.urandom(32)), tmp_path / "home"
    made = committee(cards(), dealings())
    settle(home, parties()[0], made)
    trustee_home.enrol(home, accept(provider.sign(an_invitation(provider, made)))[1], os.urandom)
    trustee_home.open_trustee(home, os.urandom, TrusteeLimits()).close()
    moved = replace(made.trustees[4], address="elsewhere.example:1")
    (home / "committee").write_bytes(encode(replace(made, trustees=(*made.trustees[:4], moved))))
    with pytest.raises(TrustChanged, match="trustee 5 at elsewhere"):
        trustee_home.open_trustee(home, os.urandom, TrusteeLimits())


def settle(home: Path, party: Party, made: Committee) -> None:
    """A home whose keys are those of a party in memory, so that its share can be kept there."""
    home.mkdir()
    trustee_home.keep(home, share_of(party, dealings()), made)
    (home / "signing.key").write_bytes(party.signing_secret)
    (home / "mask.key").write_bytes(party.mask_secret)


def test_files_that_do_not_belong_together_are_noticed(tmp_path: Path) -> None:
    made = committee(cards(), dealings())
    settle(tmp_path / "home", parties()[0], made)
    home = tmp_path / "home"
    with pytest.raises(NotEnrolled) as caught:
        trustee_home.open_trustee(home, os.urandom, TrusteeLimits())
    assert "trustee join" in caught.value.hint
    (home / "mask.key").write_bytes(os.urandom(32))
    with pytest.raises(HomeError, match="not those of the ceremony"):
        trustee_home.open_trustee(home, os.urandom, TrusteeLimits())
    (home / "share.key").write_bytes(encode(KeptShare.of(share_of(parties()[1], dealings()))))
    with pytest.raises(HomeError, match="not those of the ceremony"):
        trustee_home.open_trustee(home, os.urandom, TrusteeLimits())
    (home / "share.key").write_bytes(encode(KeptShare(1, Scalar.from_int(5).encoded)))
    with pytest.raises(CeremonyRefused, match="not one of this committee"):
        trustee_home.open_trustee(home, os.urandom, TrusteeLimits())
    with pytest.raises(HomeError, match=r"share\.key"):
        trustee_home.open_trustee(tmp_path, os.urandom, TrusteeLimits())
