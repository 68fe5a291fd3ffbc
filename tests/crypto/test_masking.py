"""Masked sums are exact whoever drops out, a missing mask hides everything, and masks are the RFCs' own streams.

The oracle is written here from the RFCs, in integers: X25519 (7748), HKDF-SHA256 (5869) and ChaCha20 (8439).
"""

import hmac
import json
import os
import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256, sha512
from itertools import combinations
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Generator, default_rng

from crypto.codec import decode
from crypto.errors import PeerFault
from crypto.ids import Digest, MaskPublicKey, Nonce, RoundId, TenantId
from crypto.masking import (
    MaskKey,
    MaskStream,
    Words,
    add_words,
    mask_cells,
    sum_of_masks,
    words_from_bytes,
    words_to_bytes,
)
from tests.support.changing import replace
from tests.support.curve25519 import base, clamp, multiply, x25519
from tests.support.hiding import looks_hidden

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "masking.json").read_text())
ROUND, PLAN = RoundId(bytes(range(16))), Digest(bytes(range(32)))
TENANTS = [MaskKey(bytes([1, number] * 16)) for number in range(6)]
TRUSTEES = [MaskKey(bytes([2, number] * 16)) for number in range(3)]
EXTREMES = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63)]


def stream(number: int, index: int, **changes: Any) -> MaskStream:
    """The stream that a tenant shares with a trustee; its contribution's nonce follows from its number."""
    own, peer = TENANTS[number].public, TRUSTEES[index].public
    name = TenantId(bytes([number] * 16))
    shared = MaskStream(ROUND, PLAN, name, own, Nonce(bytes([9, number] * 8)), index + 1, peer)
    return replace(shared, **changes)


def streams(tenant: int, **changes: Any) -> list[MaskStream]:
    """All that hide one contribution."""
    return [stream(tenant, trustee, **changes) for trustee in range(len(TRUSTEES))]


def sent_by(tenant: int, cells: Words, **changes: Any) -> Words:
    return mask_cells(cells, TENANTS[tenant], streams(tenant, **changes))


def unmasked(
    masked: Iterable[Words], contributors: Sequence[int], trustees: Iterable[int] = range(len(TRUSTEES))
) -> Words:
    """What the provider does: the sum of the contributions less every trustee's answer for `contributors`."""
    total = add_words(masked)
    for trustee in trustees:
        total -= sum_of_masks(TRUSTEES[trustee], [stream(tenant, trustee) for tenant in contributors], len(total))
    return total


def insecure_numbers(name: str) -> Generator:
    return default_rng(list(name.encode()))


# ---- exact sums ----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    tables=st.integers(1, 5).flatmap(
        lambda cells: st.dictionaries(
            st.integers(0, len(TENANTS) - 1),
            st.lists(st.sampled_from(EXTREMES) | st.integers(-(2**63), 2**63 - 1), min_size=cells, max_size=cells),
            min_size=1,
        )
    )
)
def test_sums_are_exact_for_every_set_of_contributors(tables: dict[int, list[int]]) -> None:
    sent = [sent_by(number, np.array(counts, np.int64).astype(np.uint64)) for number, counts in tables.items()]
    expected = [sum(column) % 2**64 for column in zip(*tables.values(), strict=True)]
    assert unmasked(sent, list(tables)).tolist() == expected


@pytest.mark.parametrize("size", range(1, len(TENANTS) + 1))
def test_every_drop_out_pattern(size: int) -> None:
    cells = [np.array([number, 10 * number, 2**64 - 1 - number], np.uint64) for number in range(len(TENANTS))]
    sent = [sent_by(number, own) for number, own in enumerate(cells)]
    for present in combinations(range(len(TENANTS)), size):
        total = unmasked([sent[number] for number in present], present)
        assert np.array_equal(total, add_words([cells[number] for number in present]))


def test_masks_of_another_set_do_not_open_the_sum() -> None:
    sent = [sent_by(number, np.zeros(4, np.uint64)) for number in range(3)]
    assert not unmasked(sent, [0, 1, 2]).any()
    for wrong in ([0, 1], [0, 1, 3], [0, 1, 2, 3], [0, 0, 1, 2]):
        assert unmasked(sent, wrong).all()


def test_negative_counts_come_back_negative() -> None:
    sent = [sent_by(number, np.array([-5, 3], np.int64).astype(np.uint64)) for number in (0, 1)]
    assert unmasked(sent, [0, 1]).astype(np.int64).tolist() == [-10, 6]


def test_a_mask_is_the_same_on_both_sides_and_starts_alike_at_every_length() -> None:
    for number, tenant in enumerate(TENANTS):
        for index, trustee in enumerate(TRUSTEES):
            shared = stream(number, index)
            mask = tenant.mask(shared, 9)
            assert mask.dtype == np.uint64
            assert np.array_equal(mask, trustee.mask(shared, 9))
            assert np.array_equal(mask[:3], tenant.mask(shared, 3))


def test_nobody_else_makes_the_mask() -> None:
    for outsider in (TENANTS[1], TRUSTEES[1], MaskKey(os.urandom(32))):
        with pytest.raises(ValueError, match="only the two owners of a mask can make it"):
            outsider.mask(stream(0, 0), 1)


def test_arguments_stay_as_they_are() -> None:
    cells = np.arange(4, dtype=np.uint64)
    sent_by(0, cells)
    add_words([cells, cells])
    assert cells.tolist() == [0, 1, 2, 3]


def test_cells_without_a_mask_do_not_leave() -> None:
    with pytest.raises(ValueError, match="pass at least one trustee"):
        mask_cells(np.zeros(2, np.uint64), TENANTS[0], [])


# ---- fresh masks ---------------------------------------------------------------------------------------------------


def test_every_round_plan_contribution_and_pair_has_a_mask_of_its_own() -> None:
    bound: dict[str, list[Any]] = {
        "round_id": [RoundId(bytes(16)), RoundId(bytes(15) + b"\1"), RoundId(b"\1" + bytes(15))],
        "plan": [Digest(bytes(32)), Digest(bytes(31) + b"\1"), Digest(b"\1" + bytes(31))],
        "nonce": [Nonce(bytes(16)), Nonce(bytes(15) + b"\1"), Nonce(b"\1" + bytes(15))],
        "tenant": [TenantId(b"\xff" * 16), TenantId(bytes(15) + b"\1")],
        "trustee": [0, 256, 2**62],
    }
    pairs = [(tenant, trustee) for tenant in range(len(TENANTS)) for trustee in range(len(TRUSTEES))]
    others = [{field: value} for field, values in bound.items() for value in values]
    masks = {
        tuple(TENANTS[tenant].mask(stream(tenant, trustee, **other), 2).tolist())
        for tenant, trustee in pairs
        for other in others
    }
    assert len(masks) == len(pairs) * len(others)


# ---- what a missing mask hides -------------------------------------------------------------------------------------

CELLS = 2**15  # beyond what `looks_hidden` needs for a bit that is set in 45% of the words; keys are fixed here


def contributions() -> tuple[list[Words], list[Words]]:
    """Small counts of all tenants, as they are and as they are sent."""
    cells = [insecure_numbers(f"tenant {n}").integers(0, 3, CELLS).astype(np.uint64) for n in range(len(TENANTS))]
    return cells, [sent_by(number, own) for number, own in enumerate(cells)]


@pytest.mark.parametrize("missing", range(len(TRUSTEES)))
def test_without_one_trustee_the_sum_is_random(missing: int) -> None:
    cells, sent = contributions()
    everybody = range(len(TENANTS))
    others = [trustee for trustee in range(len(TRUSTEES)) if trustee != missing]
    assert looks_hidden(unmasked(sent, everybody, others))
    assert not looks_hidden(unmasked(sent, everybody))
    assert np.array_equal(unmasked(sent, everybody), add_words(cells))


def test_a_single_contribution_is_random_and_independent_of_what_it_hides() -> None:
    _, sent = contributions()
    assert all(looks_hidden(words) for words in sent)
    assert looks_hidden(np.stack(sent[:2]))
    assert looks_hidden(sent[0] - sent[1])
    assert looks_hidden(sent_by(0, np.zeros(CELLS, np.uint64)))


def test_a_mask_used_twice_would_show() -> None:
    cells, sent = contributions()
    again = sent_by(0, cells[1])
    assert not looks_hidden(sent[0] - again)
    assert not looks_hidden(np.stack([sent[0], again]))
    for change in ({"round_id": RoundId(bytes(16))}, {"plan": Digest(bytes(32))}, {"nonce": Nonce(bytes(16))}):
        fresh = sent_by(0, cells[1], **change)
        assert looks_hidden(sent[0] - fresh)
        assert looks_hidden(np.stack([sent[0], fresh]))


# ---- the primitives, from the RFCs ---------------------------------------------------------------------------------


def hkdf_sha256(secret: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 without a salt."""
    pseudorandom = hmac.digest(bytes(32), secret, "sha256")
    blocks, last = b"", b""
    for counter in range(1, length // 32 + 2):
        last = hmac.digest(pseudorandom, last + info + bytes([counter]), "sha256")
        blocks += last
    return blocks[:length]


def chacha20(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439 §2.3: one block of 64 bytes."""
    start = [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        *struct.unpack("<3I", nonce),
    ]
    state = list(start)
    for _ in range(10):
        for column in range(4):
            quarter_round(state, *(4 * row + column for row in range(4)))
        for diagonal in range(4):
            quarter_round(state, *(4 * row + (diagonal + row) % 4 for row in range(4)))
    return struct.pack("<16I", *((one + two) % 2**32 for one, two in zip(state, start, strict=True)))


def quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) % 2**32
        mixed = state[z] ^ state[x]
        state[z] = (mixed << turn | mixed >> 32 - turn) % 2**32


ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
NINE = b"\x09" + bytes(31)


def test_the_oracle_follows_rfc_7748() -> None:
    alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    bob = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert (x25519(ALICE, NINE).hex(), x25519(BOB, NINE).hex()) == (alice, bob)
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert x25519(ALICE, bytes.fromhex(bob)).hex() == x25519(BOB, bytes.fromhex(alice)).hex() == shared


def test_the_oracle_follows_rfc_5869() -> None:
    expanded = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"  # A.3
    assert hkdf_sha256(b"\x0b" * 22, b"", 42).hex() == expanded


@pytest.mark.parametrize(
    ("key", "counter", "nonce", "block"),
    [
        (  # A.1, test vector 1: the very nonce and counter with which a mask stream begins
            bytes(32),
            0,
            bytes(12),
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (  # A.1, test vector 2: how it goes on
            bytes(32),
            1,
            bytes(12),
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
        (  # §2.3.2
            bytes(range(32)),
            1,
            bytes.fromhex("000000090000004a00000000"),
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
        ),
    ],
)
def test_the_oracle_follows_rfc_8439(key: bytes, counter: int, nonce: bytes, block: str) -> None:
    assert chacha20(key, counter, nonce).hex() == block


def scalar_of(secret: bytes) -> bytes:
    """What X25519 takes: half of SHA-512 of the first derived seed whose Ed25519 key has an even x, RFC 8032 §5.1.5."""
    for attempt in range(256):
        seed = sha256(b"pharoah/exchange-key/1\0" + bytes([attempt]) + secret).digest()
        scalar = sha512(seed).digest()[:32]
        if multiply(clamp(scalar), base())[0] % 2 == 0:
            return scalar
    raise AssertionError("one in two has an even x")


def info(shared: MaskStream) -> bytes:
    """Canonical msgpack, by another hand: the label, and each field in the order of the class."""
    named = shared.tenant, shared.tenant_key, shared.nonce, shared.trustee, shared.trustee_key
    fields = [each if isinstance(each, int) else bytes(each) for each in (shared.round_id, shared.plan, *named)]
    return bytes(msgpack.packb(["pharoah/mask-stream/1", *fields]))


def oracle(secret: bytes, peer: bytes, shared: MaskStream, cells: int) -> list[int]:
    """A mask from nothing but the RFCs and the modules' docstrings."""
    key = hkdf_sha256(x25519(scalar_of(secret), peer), info(shared), 32)
    words = b"".join(chacha20(key, counter, bytes(12)) for counter in range(cells // 8 + 1))
    return list(struct.unpack(f"<{cells}Q", words[: 8 * cells]))


SECRETS = st.binary(min_size=32, max_size=32)


@settings(deadline=None, max_examples=25)
@given(SECRETS, SECRETS, st.data())
def test_a_mask_is_chacha20_under_a_full_hkdf_key(own: bytes, peer: bytes, data: st.DataObject) -> None:
    tenant, trustee = MaskKey(own), MaskKey(peer)
    round_id, name, nonce = (data.draw(st.binary(min_size=16, max_size=16)) for _ in range(3))
    plan, number = Digest(data.draw(SECRETS)), data.draw(st.integers(0, 2**63 - 1))
    shared = MaskStream(RoundId(round_id), plan, TenantId(name), tenant.public, Nonce(nonce), number, trustee.public)
    cells = data.draw(st.integers(0, 40))
    assert tenant.mask(shared, cells).tolist() == oracle(own, trustee.public, shared, cells)
    assert trustee.mask(shared, cells).tolist() == oracle(peer, tenant.public, shared, cells)


def test_a_long_mask_goes_on_with_the_stream() -> None:
    shared = stream(0, 0, tenant_key=MaskKey(ALICE).public, trustee_key=MaskKey(BOB).public)
    key = hkdf_sha256(x25519(scalar_of(ALICE), shared.trustee_key), info(shared), 32)
    assert MaskKey(ALICE).stream_key(shared) == key
    mask = MaskKey(ALICE).mask(shared, 2**17)
    for block in (0, 255, 256, 1023, 1024, 1025, 2047, 2048, 2**14 - 1):
        assert words_to_bytes(mask[8 * block : 8 * block + 8]) == chacha20(key, block, bytes(12))


@pytest.mark.parametrize("cells", [0, 1, 2**13 - 1, 2**13, 2**13 + 1, 2**14, 2**14 + 5])
def test_lengths_around_the_blocks_in_which_masks_are_added(cells: int) -> None:
    whole = [TENANTS[number].mask(stream(number, 0), 2**15)[:cells] for number in (0, 1)]
    own = np.arange(cells, dtype=np.uint64)
    for number in (0, 1):
        assert np.array_equal(mask_cells(own, TENANTS[number], [stream(number, 0)]), own + whole[number])
    answer = sum_of_masks(TRUSTEES[0], [stream(number, 0) for number in (0, 1)], cells)
    assert np.array_equal(answer, whole[0] + whole[1])


def test_a_new_key_comes_from_32_bytes_of_the_given_source() -> None:
    asked: list[int] = []

    def source(length: int) -> bytes:
        asked.append(length)
        return ALICE

    assert MaskKey.generate(source).public == MaskKey(ALICE).public == x25519(scalar_of(ALICE), NINE)
    assert asked == [32]
    assert MaskKey.generate(os.urandom).public != MaskKey.generate(os.urandom).public


def test_a_key_that_went_round_its_type_still_hides_nothing_in_silence() -> None:
    """No `MaskPublicKey` agrees on zero (`tests/crypto/test_ids.py`); if one did, its owner would be at fault."""
    zero = bytes.__new__(MaskPublicKey, bytes(32))
    with pytest.raises(PeerFault, match=zero.hex()) as caught:
        mask_cells(np.zeros(1, np.uint64), TENANTS[0], [*streams(0), stream(0, 0, trustee_key=zero)])
    assert "must publish another" in caught.value.diagnostics()


# ---- words ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_words_travel_little_endian(values: list[int]) -> None:
    data = words_to_bytes(np.array(values, np.uint64))
    assert data == struct.pack(f"<{len(values)}Q", *values)
    back = words_from_bytes(data)
    assert back.tolist() == values
    assert back.dtype == np.uint64


@pytest.mark.parametrize("length", [1, 7, 9, 23])
def test_broken_words_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        words_from_bytes(bytes(length))


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), min_size=1, max_size=6))
def test_words_add_up_modulo_2_to_the_64(vectors: list[list[int]]) -> None:
    total = add_words(np.array(vector, np.uint64) for vector in vectors)
    assert total.tolist() == [sum(column) % 2**64 for column in zip(*vectors, strict=True)]


# ---- vectors -------------------------------------------------------------------------------------------------------

HELD = [[MaskKey(bytes.fromhex(key)) for key in VECTORS[f"insecure_{who}_keys"]] for who in ("tenant", "trustee")]
SHARED = [[decode(MaskStream, bytes.fromhex(each)) for each in row] for row in VECTORS["streams"]]


def words(name: str, number: int) -> Words:
    return words_from_bytes(bytes.fromhex(VECTORS[name][number]))


def test_the_streams_of_the_vectors_say_what_they_are_bound_to() -> None:
    for number, row in enumerate(SHARED):
        for index, shared in enumerate(row):
            assert (shared.round_id.hex(), shared.plan.hex()) == (VECTORS["round_id"], VECTORS["plan"])
            assert (shared.tenant.hex(), shared.nonce.hex()) == (VECTORS["tenants"][number], VECTORS["nonces"][number])
            assert shared.tenant_key.hex() == HELD[0][number].public.hex() == VECTORS["tenant_public_keys"][number]
            assert shared.trustee_key.hex() == HELD[1][index].public.hex() == VECTORS["trustee_public_keys"][index]
            assert shared.trustee == index + 1
            assert info(shared).hex() == VECTORS["streams"][number][index]


def test_keys_and_masks_follow_the_vectors() -> None:
    for number, key in enumerate(HELD[0]):
        assert (
            words_to_bytes(mask_cells(words("cells", number), key, SHARED[number])).hex() == VECTORS["masked"][number]
        )
        secret = bytes.fromhex(VECTORS["insecure_tenant_keys"][number])
        for index, shared in enumerate(SHARED[number]):
            assert key.stream_key(shared).hex() == VECTORS["stream_keys"][number][index]
            mask = words_from_bytes(bytes.fromhex(VECTORS["masks"][number][index])).tolist()
            assert key.mask(shared, 5).tolist() == HELD[1][index].mask(shared, 5).tolist() == mask
            assert oracle(secret, shared.trustee_key, shared, 5) == mask


@pytest.mark.parametrize("case", VECTORS["sums"], ids=lambda case: str(case["contributors"]))
def test_sums_follow_the_vectors(case: dict[str, Any]) -> None:
    total = add_words(words("masked", number) for number in case["contributors"])
    for index, expected in enumerate(case["mask_sums"]):
        answer = sum_of_masks(HELD[1][index], [SHARED[number][index] for number in case["contributors"]], 5)
        assert words_to_bytes(answer).hex() == expected
        total -= answer
    assert words_to_bytes(total).hex() == case["cells"]
