"""A signature holds for one message of one kind by one pinned key, and a private key never shows."""

import hashlib
import os
import pickle
import traceback
from collections.abc import Callable

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings, strategies as st

from crypto.codec import decode, digest, encode
from crypto.errors import BadSignature, DecodeError, PeerFault
from crypto.ids import Digest, EncodedElement, LeaseId, Nonce, RoundId, Signature, TenantId, VerifyKey
from crypto.masking import MaskKey
from crypto.signing import Signed, SigningKey, name_of, open_signed, open_signed_by, reopened, tenant_id
from federation.protocol.directory import Directory, Member
from federation.protocol.round_messages import ContributionHeader, Receipt, RegistrationRequest
from tests.support.changing import replace

SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")  # RFC 8032 §7.1, test 1
KEY, STRANGER = SigningKey(SEED), SigningKey(bytes(range(32)))
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group of Ed25519, RFC 8032 §5.1
RECEIPT = Receipt(Digest(bytes(32)))


def header(key: SigningKey) -> ContributionHeader:
    nonce, cells = Nonce(b"\1" * 16), Digest(b"\2" * 32)
    return ContributionHeader(tenant_id(key.public), RoundId(bytes(16)), Digest(bytes(32)), 0, nonce, cells)


def directory(*keys: SigningKey) -> Directory:
    """These members and nothing else."""
    members = [Member.of(key, MaskKey(bytes([number]) * 32), 0) for number, key in enumerate(keys)]
    by_id = {member.tenant: member for member in members}
    return Directory(Digest(bytes(32)), 0, KEY.public, 1, EncodedElement(bytes(32)), (), 13, by_id, {})


# ---- what is signed ------------------------------------------------------------------------------------------------


def test_keys_follow_rfc_8032() -> None:
    assert KEY.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    empty = (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595b"
        "be24655141438e7a100b"
    )
    Ed25519PublicKey.from_public_bytes(KEY.public).verify(bytes.fromhex(empty), b"")


def test_the_signature_covers_the_prefix_and_the_body() -> None:
    signed = decode(Signed, KEY.sign(RECEIPT))
    assert bytes(signed.body) == encode(RECEIPT)
    covered = b"pharoah/signed/2\0" + hashlib.sha256(encode(RECEIPT)).digest()
    Ed25519PublicKey.from_public_bytes(KEY.public).verify(signed.signature, covered)
    assert KEY.sign(RECEIPT) == KEY.sign(RECEIPT)  # RFC 8032: no randomness that could fail


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_what_a_key_signs_its_public_key_opens(seed: bytes, content: bytes) -> None:
    key, message = SigningKey(seed), Receipt(Digest(content))
    assert open_signed(Receipt, key.sign(message), key.public) == message


def test_a_new_key_comes_from_32_bytes_of_the_given_source() -> None:
    asked: list[int] = []

    def source(length: int) -> bytes:
        asked.append(length)
        return SEED

    assert SigningKey.generate(source).public == KEY.public
    assert asked == [32]


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_another_key_is_a_bad_signature() -> None:
    with pytest.raises(
        BadSignature, match=f"a Receipt is not signed by the key {STRANGER.public.hex()[:16]}…"
    ) as caught:
        open_signed(Receipt, KEY.sign(RECEIPT), STRANGER.public)
    assert "compare the pinned key" in caught.value.diagnostics()
    assert isinstance(caught.value, PeerFault)


def test_every_flipped_bit_is_refused() -> None:
    data = KEY.sign(RECEIPT)
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises((BadSignature, DecodeError)):
            open_signed(Receipt, bytes(flipped), KEY.public)


def test_every_flipped_bit_of_the_signature_itself_is_a_bad_signature() -> None:
    signed = decode(Signed, KEY.sign(RECEIPT))
    for position in range(8 * Signature.length):
        flipped = bytearray(signed.signature)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(BadSignature):
            open_signed(Receipt, encode(replace(signed, signature=Signature(bytes(flipped)))), KEY.public)


def test_a_signature_has_no_second_form() -> None:
    signed = decode(Signed, KEY.sign(RECEIPT))
    response = int.from_bytes(signed.signature[32:], "little")
    again = Signature(signed.signature[:32] + (response + ORDER).to_bytes(32, "little"))
    with pytest.raises(BadSignature):
        open_signed(Receipt, encode(replace(signed, signature=again)), KEY.public)


def test_a_signed_message_of_another_kind_does_not_open() -> None:
    request = RegistrationRequest(1, 2, 3)
    with pytest.raises(DecodeError, match="not a valid Receipt"):
        open_signed(Receipt, KEY.sign(request), KEY.public)
    with pytest.raises(DecodeError, match="not a valid Signed"):
        open_signed(Receipt, encode(RECEIPT), KEY.public)
    with pytest.raises(DecodeError, match="not a valid Receipt"):
        open_signed(Receipt, KEY.sign(decode(Signed, KEY.sign(RECEIPT))), KEY.public)


def test_a_signature_moved_to_another_message_is_worthless() -> None:
    receipt, request = decode(Signed, KEY.sign(RECEIPT)), decode(Signed, KEY.sign(RegistrationRequest(1, 2, 3)))
    with pytest.raises(BadSignature):
        open_signed(RegistrationRequest, encode(replace(request, signature=receipt.signature)), KEY.public)
    with pytest.raises(BadSignature):
        open_signed(Receipt, encode(replace(receipt, signature=request.signature)), KEY.public)


@pytest.mark.parametrize("prefix", [b"", b"pharoah/signed/1\0", b"pharoah/signed/2", b"pharoah/possession/1\0"])
@pytest.mark.parametrize("covered", [bytes, lambda body: hashlib.sha256(body).digest()])
def test_a_signature_made_for_another_purpose_is_worthless(prefix: bytes, covered: Callable[[bytes], bytes]) -> None:
    body = encode(RECEIPT)
    signature = Signature(Ed25519PrivateKey.from_private_bytes(SEED).sign(prefix + covered(body)))
    with pytest.raises(BadSignature):
        open_signed(Receipt, encode(Signed(signature, memoryview(body))), KEY.public)


def test_the_prefix_is_followed_by_the_digest_and_not_by_the_body() -> None:
    """Whoever gets the digest of a message signed, as a body of its own, has not got the message signed."""
    body = encode(RECEIPT)
    signature = Ed25519PrivateKey.from_private_bytes(SEED).sign(b"pharoah/signed/2\0" + body)
    with pytest.raises(BadSignature):
        open_signed(Receipt, encode(Signed(signature, memoryview(body))), KEY.public)


def test_an_impossible_public_key_opens_nothing() -> None:
    """y = 2 belongs to no point, and no type can see that."""
    with pytest.raises(BadSignature):
        open_signed(Receipt, KEY.sign(RECEIPT), VerifyKey(b"\x02" + bytes(31)))


def test_the_neutral_key_that_signs_anything_is_no_key() -> None:
    """The library verifies it, so only the type stands between a stranger and a member's name."""
    neutral = b"\1" + bytes(31)
    signed = encode(Signed(neutral + bytes(32), memoryview(encode(RECEIPT))))
    with pytest.raises(ValueError, match="small order"):
        VerifyKey(neutral)
    posing = bytes.__new__(VerifyKey, neutral)
    assert open_signed(Receipt, signed, posing) == RECEIPT


# ---- keys that depend on the sender --------------------------------------------------------------------------------


def test_the_sender_named_in_the_message_chooses_the_key() -> None:
    known = directory(KEY, STRANGER)
    for key in (KEY, STRANGER):
        message = header(key)
        assert open_signed_by(ContributionHeader, key.sign(message), known.verify_key) == message


def test_a_stranger_is_refused_whatever_it_signs() -> None:
    with pytest.raises(BadSignature, match="is not in the directory"):
        open_signed_by(ContributionHeader, STRANGER.sign(header(STRANGER)), directory(KEY).verify_key)


def test_nobody_signs_in_the_name_of_another_member() -> None:
    with pytest.raises(BadSignature, match="is not signed by the key"):
        open_signed_by(ContributionHeader, STRANGER.sign(header(KEY)), directory(KEY, STRANGER).verify_key)


def test_no_key_is_looked_up_for_bytes_that_are_no_message() -> None:
    def never(_: TenantId) -> VerifyKey:
        raise AssertionError("looked up")

    for body in (KEY.sign(RECEIPT), encode(Signed(bytes(64), memoryview(b"garbage"))), b"garbage"):
        with pytest.raises(DecodeError):
            open_signed_by(ContributionHeader, body, never)


# ---- verify, then decode -------------------------------------------------------------------------------------------


KEY_NAME = bytes(tenant_id(KEY.public))
SPOILT: bytes = msgpack.packb([ContributionHeader.LABEL, KEY_NAME, "no round", -1, [[[]]], None, {}])


def test_what_is_not_signed_is_never_decoded() -> None:
    """The signature is refused, not the values beyond the first field: nobody has looked at them."""
    asked: list[TenantId] = []

    def key_of(tenant: TenantId) -> VerifyKey:
        asked.append(tenant)
        return KEY.public

    with pytest.raises(BadSignature):
        open_signed_by(ContributionHeader, encode(Signed(bytes(64), memoryview(SPOILT))), key_of)
    assert asked == [tenant_id(KEY.public)]


def test_what_is_signed_and_no_message_is_a_decode_error_after_all() -> None:
    covered = b"pharoah/signed/2\0" + hashlib.sha256(SPOILT).digest()
    signed = encode(Signed(Ed25519PrivateKey.from_private_bytes(SEED).sign(covered), memoryview(SPOILT)))
    with pytest.raises(DecodeError, match="ContributionHeader"):
        open_signed_by(ContributionHeader, signed, lambda _: KEY.public)


def test_a_second_spelling_of_the_sender_is_verified_as_it_was_sent_and_is_no_message() -> None:
    """A longer length before the name reads the same; its signer can make such bytes, and nobody takes them."""
    body = encode(header(KEY))
    longer = body.replace(b"\xc4\x10" + KEY_NAME, b"\xc5\x00\x10" + KEY_NAME)
    assert len(longer) == len(body) + 1
    signature = decode(Signed, KEY.sign(header(KEY))).signature
    with pytest.raises(BadSignature):
        open_signed_by(ContributionHeader, encode(Signed(signature, memoryview(longer))), lambda _: KEY.public)
    covered = b"pharoah/signed/2\0" + hashlib.sha256(longer).digest()
    own = Ed25519PrivateKey.from_private_bytes(SEED).sign(covered)
    with pytest.raises(DecodeError, match="not canonical"):
        open_signed_by(ContributionHeader, encode(Signed(own, memoryview(longer))), lambda _: KEY.public)


def test_a_message_has_one_name_whoever_signed_it() -> None:
    ours, theirs = KEY.sign(header(KEY)), STRANGER.sign(header(KEY))
    assert ours != theirs
    assert name_of(ours) == name_of(theirs) == digest(encode(header(KEY)))
    assert name_of(ours) != name_of(KEY.sign(header(STRANGER)))
    assert reopened(ContributionHeader, theirs) == header(KEY)


# ---- ids and keys --------------------------------------------------------------------------------------------------


def test_an_id_belongs_to_one_key() -> None:
    assert tenant_id(KEY.public) == hashlib.sha256(b"pharoah/tenant-id/1\0" + KEY.public).digest()[:16]
    assert len({tenant_id(SigningKey(bytes([number]) * 32).public) for number in range(100)}) == 100
    assert isinstance(tenant_id(KEY.public), TenantId)
    assert not isinstance(tenant_id(KEY.public), LeaseId)


# ---- secrets -------------------------------------------------------------------------------------------------------


def forms(secret: bytes) -> list[str]:
    """What a secret looks like in a text."""
    numbers = ", ".join(str(byte) for byte in secret)
    return [secret.hex(), secret.hex().upper(), repr(secret)[2:-1], numbers, str(int.from_bytes(secret, "little"))]


@pytest.mark.parametrize("make", [SigningKey, MaskKey])
def test_a_private_key_does_not_show(make: Callable[[bytes], SigningKey | MaskKey]) -> None:
    secret = os.urandom(32)
    key = make(secret)
    shown = "".join((repr(key), str(key), f"{key}", repr(vars(key)), repr([key]), repr(key.public)))
    assert not [form for form in forms(secret) if form in shown]
    assert key.public.hex()[:12] in shown
    with pytest.raises(TypeError):
        pickle.dumps(key)


@pytest.mark.parametrize("make", [SigningKey, MaskKey])
@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_secret_of_a_wrong_length_is_refused_without_showing_it(
    make: Callable[[bytes], SigningKey | MaskKey], length: int
) -> None:
    secret = os.urandom(length)
    with pytest.raises(ValueError, match="32 bytes") as caught:
        make(secret)
    shown = "".join(traceback.format_exception(caught.value))
    assert not [form for form in forms(secret) if len(secret) > 1 and form in shown]


def test_errors_of_opening_show_no_secret() -> None:
    with pytest.raises(BadSignature) as caught:
        open_signed(Receipt, KEY.sign(RECEIPT), STRANGER.public)
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.diagnostics()
    assert not [form for form in forms(SEED) + forms(bytes(range(32))) if form in shown]
