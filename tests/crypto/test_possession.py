"""Nobody publishes another one's mask key, in whatever encoding; and if two keys agree, their masks do not.

The alias attack is shown to be real first, with the library's own X25519. The curve is computed in integers
(`tests/support/curve25519.py`), and claims are encoded here by msgpack alone.
"""

import json
import os
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings, strategies as st

from crypto.codec import decode, encode
from crypto.errors import BadSignature, DecodeError
from crypto.ids import Digest, MaskPublicKey, Nonce, RoundId, Signature, TenantId, VerifyKey
from crypto.masking import MaskKey, MaskStream, Words, mask_cells
from crypto.possession import MaskKeyClaim, check_possession
from crypto.signing import Signed, SigningKey
from tests.support.changing import replace
from tests.support.curve25519 import (
    NEUTRAL,
    L,
    P,
    Point,
    add,
    aliases,
    base,
    clamp,
    compress,
    edwards,
    montgomery,
    multiply,
    negative,
    torsion,
    x25519,
)
from tests.support.hiding import looks_hidden

PREFIX = b"pharoah/possession/1\0"
SECRET = bytes(range(32))
OWNER, THIEF = SigningKey(b"\1" * 32), SigningKey(b"\2" * 32)
KEY, OTHER = MaskKey(SECRET), MaskKey(b"\3" * 32)
CLAIM = MaskKeyClaim(OWNER.public, KEY.public, 400_000)
PROOF = KEY.prove(CLAIM)


def seed_of(secret: bytes) -> bytes:
    """The first of the derived seeds whose point has an even x, in integers."""
    derived = (sha256(b"pharoah/exchange-key/1\0" + bytes([attempt]) + secret).digest() for attempt in range(256))
    return next(seed for seed in derived if multiply(scalar_of(seed), base())[0] % 2 == 0)


def scalar_of(seed: bytes) -> int:
    """RFC 8032 §5.1.5."""
    return clamp(sha512(seed).digest()[:32])


def covered(claim: MaskKeyClaim) -> bytes:
    """What a proof is a signature over."""
    fields = [bytes(claim.owner), bytes(claim.mask_key), claim.made_hour]
    return PREFIX + bytes(msgpack.packb(["pharoah/mask-key-claim/2", *fields]))


def is_proved(claim: MaskKeyClaim, proof: bytes) -> bool:
    try:
        check_possession(claim, Signature(proof))
    except BadSignature:
        return False
    return True


def twin_of(key: bytes) -> Point:
    """The point with an even x whose u is the key."""
    point = edwards(int.from_bytes(key, "little"))
    assert point is not None
    return point


# ---- the honest run ------------------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(0, 2**63 - 1))
def test_whoever_holds_a_key_proves_it_for_every_owner_and_hour(secret: bytes, owner: bytes, hour: int) -> None:
    key = MaskKey(secret)
    claim = MaskKeyClaim(SigningKey(owner).public, key.public, hour)
    check_possession(claim, key.prove(claim))
    assert key.prove(claim) == key.prove(claim)  # RFC 8032: no randomness that could fail


@settings(max_examples=25)
@given(st.binary(min_size=32, max_size=32))
def test_the_key_is_made_as_the_docstring_says(secret: bytes) -> None:
    """One scalar, two curves: computed in integers, by the library's Ed25519 and by its X25519."""
    seed = seed_of(secret)
    scalar = scalar_of(seed)
    twin = multiply(scalar, base())
    public = MaskKey(secret).public
    assert montgomery(twin).to_bytes(32, "little") == public
    assert x25519(sha512(seed).digest()[:32], (9).to_bytes(32, "little")) == public
    exchange = X25519PrivateKey.from_private_bytes(scalar.to_bytes(32, "little"))
    assert exchange.public_key().public_bytes_raw() == public
    assert compress(twin) == Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert twin == twin_of(public)


def test_both_kinds_of_seed_are_met() -> None:
    """The first derived seed serves half of all secrets; here are some of either kind."""
    secrets = [bytes([number]) * 32 for number in range(10)]
    assert {seed_of(secret) == sha256(b"pharoah/exchange-key/1\0\0" + secret).digest() for secret in secrets} == {
        True,
        False,
    }


def test_a_proof_is_the_twins_signature_over_prefix_and_claim() -> None:
    assert encode(CLAIM) == covered(CLAIM).removeprefix(PREFIX)
    Ed25519PublicKey.from_public_bytes(compress(twin_of(KEY.public))).verify(PROOF, covered(CLAIM))
    assert Ed25519PrivateKey.from_private_bytes(seed_of(SECRET)).sign(covered(CLAIM)) == PROOF


def test_a_mask_key_has_no_secret_that_shows() -> None:
    secret = os.urandom(32)
    key, seed = MaskKey(secret), seed_of(secret)
    shown = f"{key!r} {key} {vars(key)!r}"
    for hidden in (secret, seed, sha512(seed).digest()[:32], scalar_of(seed).to_bytes(32, "little")):
        assert hidden.hex() not in shown
        assert repr(hidden)[2:-1] not in shown


# ---- the attack is real --------------------------------------------------------------------------------------------


def encodings() -> list[bytes]:
    """All 15 others of KEY: 8 points of the curve, each with the top bit set or not."""
    return aliases(KEY.public)


def test_eight_points_and_the_top_bit_give_fifteen_aliases() -> None:
    assert len(set(encodings())) == 15
    assert KEY.public not in encodings()
    assert bytes(KEY.public[:31]) + bytes([KEY.public[31] ^ 0x80]) in encodings()
    shifted = {montgomery(add(twin_of(KEY.public), small)) for small in torsion() if small != NEUTRAL}
    assert {u.to_bytes(32, "little") for u in shifted} <= set(encodings())
    assert len(shifted) == 7


@pytest.mark.parametrize("alias", encodings(), ids=bytes.hex)
def test_everybody_agrees_on_one_secret_with_a_key_and_with_its_alias(alias: bytes) -> None:
    for _ in range(5):
        tenant = X25519PrivateKey.generate()
        shared = tenant.exchange(X25519PublicKey.from_public_bytes(alias))
        assert shared == tenant.exchange(X25519PublicKey.from_public_bytes(KEY.public))
        assert shared == x25519(tenant.private_bytes_raw(), alias)


def canonical() -> list[MaskPublicKey]:
    """The aliases that are keys by their encoding: those of another point."""
    return [MaskPublicKey(alias) for alias in encodings() if alias[31] < 0x80]


def test_the_encoding_alone_stops_the_top_bit_and_nothing_else() -> None:
    assert len(canonical()) == 7
    for alias in set(encodings()) - set(map(bytes, canonical())):
        with pytest.raises(ValueError, match="not canonical"):
            MaskPublicKey(alias)


# ---- (a) nobody proves another one's key ---------------------------------------------------------------------------


def forgeries(claim: MaskKeyClaim) -> dict[str, bytes]:
    """What somebody can put forward who saw PROOF and knows everything but the private key of `claim`."""
    commitment, response = PROOF[:32], int.from_bytes(PROOF[32:], "little")
    thief_claim = replace(claim, mask_key=OTHER.public)
    return {
        "the honest proof": PROOF,
        "the honest proof, s + L": commitment + (response + L).to_bytes(32, "little"),
        "the honest proof, -s": commitment + (L - response).to_bytes(32, "little"),
        "the thief's own mask key": OTHER.prove(claim),
        "the thief's own claim": OTHER.prove(thief_claim),
        "the thief's signing key": Ed25519PrivateKey.from_private_bytes(b"\2" * 32).sign(covered(claim)),
        "the owner's signing key": Ed25519PrivateKey.from_private_bytes(b"\1" * 32).sign(covered(claim)),
        "zeros": bytes(64),
        "the neutral element": compress(NEUTRAL) + bytes(32),
        "the key itself": compress(twin_of(claim.mask_key)) + bytes(32),
        "the key itself, s = 1": compress(twin_of(claim.mask_key)) + (1).to_bytes(32, "little"),
        **{f"a point of small order {number}": compress(small) + bytes(32) for number, small in enumerate(torsion())},
        **{f"R moved by {number}": moved(PROOF, small) for number, small in enumerate(torsion()) if small != NEUTRAL},
        **{f"chosen response {number}": forged(claim, number) for number in range(32)},
    }


def moved(proof: bytes, small: Point) -> bytes:
    """The honest proof with a point of small order added to R, which verifiers that multiply by 8 cannot tell apart."""
    y = int.from_bytes(proof[:32], "little")
    point = edwards_with(y % 2**255, y >> 255)
    return compress(add(point, small)) + proof[32:]


def edwards_with(y: int, sign: int) -> Point:
    u = (1 + y) * pow(1 - y, -1, P) % P
    even = twin_of(u.to_bytes(32, "little"))
    return negative(even) if sign else even


def forged(claim: MaskKeyClaim, number: int) -> bytes:
    """R = s·B − c·A for chosen s and c; it would verify if the hash happened to be c."""
    commitment = add(multiply(number + 1, base()), negative(multiply(number, twin_of(claim.mask_key))))
    return compress(commitment) + (number + 1).to_bytes(32, "little")


@pytest.mark.parametrize("alias", canonical(), ids=bytes.hex)
def test_nobody_proves_an_alias_of_an_honest_key(alias: MaskPublicKey) -> None:
    for owner in (OWNER.public, THIEF.public):
        claim = MaskKeyClaim(owner, alias, CLAIM.made_hour)
        for comment, forgery in forgeries(claim).items():
            assert not is_proved(claim, forgery), comment


def test_nobody_proves_the_honest_key_itself_for_another_owner_or_hour() -> None:
    for claim in (
        replace(CLAIM, owner=THIEF.public),
        replace(CLAIM, made_hour=CLAIM.made_hour + 1),
        replace(CLAIM, made_hour=0),
        MaskKeyClaim(THIEF.public, KEY.public, 2**63 - 1),
    ):
        for comment, forgery in forgeries(claim).items():
            assert not is_proved(claim, forgery), comment
    assert is_proved(CLAIM, PROOF)


def test_the_honest_proof_has_no_second_form() -> None:
    """Of the forgeries for the honest claim itself the honest proof alone is one."""
    proved = [comment for comment, forgery in forgeries(CLAIM).items() if is_proved(CLAIM, forgery)]
    assert proved == ["the honest proof"]
    for position in range(8 * Signature.length):
        flipped = bytearray(PROOF)
        flipped[position // 8] ^= 1 << position % 8
        assert not is_proved(CLAIM, bytes(flipped))


@given(st.binary(min_size=64, max_size=64))
def test_random_bytes_prove_nothing(proof: bytes) -> None:
    assert not is_proved(CLAIM, proof)


def test_a_proof_for_another_purpose_proves_nothing() -> None:
    """The signatures of messages have a prefix of their own, even where the same key made them."""
    twin = Ed25519PrivateKey.from_private_bytes(seed_of(SECRET))
    for prefix in (b"", b"pharoah/signed/2\0", PREFIX[:-1], b"pharoah/possession/2\0"):
        assert not is_proved(CLAIM, twin.sign(prefix + encode(CLAIM)))
        assert not is_proved(CLAIM, twin.sign(prefix + sha256(encode(CLAIM)).digest()))
    assert not is_proved(CLAIM, decode(Signed, SigningKey(seed_of(SECRET)).sign(CLAIM)).signature)


@pytest.mark.parametrize("u", [u for u in range(2, 12) if edwards(u) is None])
def test_a_key_without_a_twin_is_nobodys(u: int) -> None:
    """A u of the twist, where X25519 works as well: no signature verifies, and no other error comes of it."""
    key = MaskPublicKey(u.to_bytes(32, "little"))
    claim = replace(CLAIM, mask_key=key)
    for proof in (PROOF, OTHER.prove(claim), bytes(64), compress(NEUTRAL) + bytes(32)):
        with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
            check_possession(claim, Signature(proof))


def test_the_other_twin_does_not_sign() -> None:
    """Of A and −A, which have one u, the one whose x is even: its private scalar is known to be L − a, and refused."""
    scalar, nonce = L - scalar_of(seed_of(SECRET)) % L, 12345
    odd = negative(twin_of(KEY.public))
    assert multiply(scalar, base()) == odd
    proof = signature(scalar, odd, nonce, CLAIM)
    Ed25519PublicKey.from_public_bytes(compress(odd)).verify(proof, covered(CLAIM))
    assert not is_proved(CLAIM, proof)
    assert is_proved(CLAIM, signature(L - scalar, twin_of(KEY.public), nonce, CLAIM))


def signature(scalar: int, public: Point, nonce: int, claim: MaskKeyClaim) -> bytes:
    """RFC 8032 §5.1.6 for a scalar and a nonce that somebody chose."""
    commitment = compress(multiply(nonce, base()))
    challenge = int.from_bytes(sha512(commitment + compress(public) + covered(claim)).digest(), "little")
    return commitment + ((nonce + challenge * scalar) % L).to_bytes(32, "little")


# ---- (b) where two keys agree, their masks do not ------------------------------------------------------------------


@pytest.mark.parametrize("alias", canonical(), ids=bytes.hex)
def test_only_the_holder_itself_could_prove_an_alias(alias: MaskPublicKey) -> None:
    """It tries nonces until the challenge is a multiple of 8. So possession alone would not do: see the masks below."""
    claim = replace(CLAIM, mask_key=alias)
    scalar, point = scalar_of(seed_of(SECRET)), twin_of(alias)
    if add(point, negative(twin_of(KEY.public))) not in torsion():
        scalar = L - scalar % L  # the alias of −A, whose x is even
    assert any(is_proved(claim, signature(scalar, point, nonce, claim)) for nonce in range(1, 200))


ROWS, CELLS = 16, 2**11
TENANT = MaskKey(os.urandom(32))


def stream(trustee_key: MaskPublicKey, nonce: bytes, trustee: int = 1) -> MaskStream:
    bound = RoundId(bytes(16)), Digest(bytes(32)), TenantId(bytes(16)), TENANT.public, Nonce(nonce)
    return MaskStream(*bound, trustee, trustee_key)


def masks_of(trustee_key: MaskPublicKey, nonces: list[bytes]) -> Words:
    return np.stack([TENANT.mask(stream(trustee_key, nonce), CELLS) for nonce in nonces])


@pytest.mark.parametrize("alias", canonical(), ids=bytes.hex)
def test_the_masks_of_a_key_and_of_its_alias_are_unrelated(alias: MaskPublicKey) -> None:
    """Though trustee and tenant agree on one secret. Were the keys not in the KDF, the masks would be equal."""
    nonces = [os.urandom(16) for _ in range(ROWS)]
    honest, other = masks_of(KEY.public, nonces), masks_of(alias, nonces)
    assert looks_hidden(honest + other)
    assert looks_hidden(honest - other)
    assert looks_hidden(honest ^ other)
    assert not looks_hidden(honest + honest)
    assert not looks_hidden(honest - honest)


@pytest.mark.parametrize("alias", canonical(), ids=bytes.hex)
def test_a_contribution_to_a_committee_with_an_alias_stays_hidden(alias: MaskPublicKey) -> None:
    """The attack as it was: the provider and the trustee of OTHER take their mask off, and see x + 2·M no more."""
    cells, nonces = np.arange(CELLS, dtype=np.uint64) % np.uint64(5), [os.urandom(16) for _ in range(ROWS)]
    seen = [seen_by_the_thief(cells, nonce, [KEY.public, alias, OTHER.public]) for nonce in nonces]
    assert looks_hidden(np.stack(seen))
    as_it_was = [cells + 2 * TENANT.mask(stream(KEY.public, nonce), CELLS) for nonce in nonces]
    assert not looks_hidden(np.stack(as_it_was))
    assert np.array_equal(np.stack(as_it_was)[0] % 2, cells % 2)


def seen_by_the_thief(cells: Words, nonce: bytes, committee: list[MaskPublicKey]) -> Words:
    streams = [stream(key, nonce, index) for index, key in enumerate(committee, 1)]
    return mask_cells(cells, TENANT, streams) - OTHER.mask(streams[-1], len(cells))


def test_a_members_alias_does_not_count_its_victim_twice() -> None:
    """A colluding member that is enrolled with an alias of the victim's key sends the victim's words once more."""
    victim, trustee = KEY, OTHER
    alias = canonical()[0]
    honest = MaskStream(
        RoundId(bytes(16)), Digest(bytes(32)), TenantId(b"v" * 16), victim.public, Nonce(bytes(16)), 1, trustee.public
    )
    sent = mask_cells(np.full(CELLS, 7, np.uint64), victim, [honest])
    posing = replace(honest, tenant=TenantId(b"t" * 16), tenant_key=alias)
    answer = trustee.mask(honest, CELLS) + trustee.mask(posing, CELLS)
    assert (2 * sent - 2 * trustee.mask(honest, CELLS) == 14).all(), "the victim twice, were the two masks equal"
    assert (2 * sent - answer != 14).all()


@pytest.mark.parametrize(
    "change",
    [
        {"round_id": RoundId(b"\1" * 16)},
        {"plan": Digest(b"\1" * 32)},
        {"tenant": TenantId(b"\1" * 16)},
        {"nonce": Nonce(b"\1" * 16)},
        {"trustee": 2},
        {"trustee_key": canonical()[0]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_field_of_a_stream_makes_a_mask_of_its_own(change: dict[str, Any]) -> None:
    whole = stream(KEY.public, bytes(16))
    other = replace(whole, **change)
    cells = ROWS * CELLS
    one, two = TENANT.mask(whole, cells), TENANT.mask(other, cells)
    assert looks_hidden(one + two)
    assert looks_hidden(one - two)
    assert looks_hidden(np.stack([one, two]))
    assert not looks_hidden(one - TENANT.mask(whole, cells))


def test_verify_keys_and_mask_keys_are_not_one_thing() -> None:
    """A claim names both; neither passes for the other, though both are 32 bytes of one curve."""
    assert type(CLAIM.owner) is VerifyKey
    assert type(decode(MaskKeyClaim, encode(CLAIM)).mask_key) is MaskPublicKey
    swapped = MaskKeyClaim(VerifyKey(KEY.public), MaskPublicKey(OWNER.public), CLAIM.made_hour)
    assert not is_proved(swapped, PROOF)


# ---- vectors -------------------------------------------------------------------------------------------------------

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "keys.json").read_text())


@pytest.mark.parametrize("number", range(3))
def test_claims_and_proofs_follow_the_vectors(number: int) -> None:
    names = ("insecure_mask_keys", "mask_keys", "claims", "proofs")
    secret, public, said, proof = (bytes.fromhex(VECTORS[name][number]) for name in names)
    claim = decode(MaskKeyClaim, said)
    assert MaskKey(secret).public == claim.mask_key == public
    assert covered(claim) == PREFIX + said
    assert (
        MaskKey(secret).prove(claim)
        == proof
        == Ed25519PrivateKey.from_private_bytes(seed_of(secret)).sign(covered(claim))
    )
    check_possession(claim, Signature(proof))


@pytest.mark.parametrize("bad", VECTORS["bad_possession"], ids=lambda bad: str(bad["comment"]))
def test_the_bad_proofs_of_the_vectors_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises((BadSignature, DecodeError)) as caught:
        check_possession(decode(MaskKeyClaim, bytes.fromhex(bad["claim"])), Signature(bytes.fromhex(bad["proof"])))
    assert type(caught.value).__name__ == bad["error"]
    assert caught.value.hint
