"""Masked sums are exact whoever drops out, a missing mask hides everything, and masks are the RFCs' own streams.

The oracle is written here from the RFCs, in integers: X25519 (7748), HKDF-SHA256 (5869) and ChaCha20 (8439).
"""

import hmac
import json
import os
import struct
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Generator, default_rng
from scipy.stats import chi2

from crypto.errors import PeerFault
from crypto.ids import Digest, MaskPublicKey, RoundId
from crypto.masking import MaskKey, Words, add_words, mask_cells, sum_of_masks, words_from_bytes, words_to_bytes

VECTORS = json.loads((Path(__file__).parent / "vectors" / "masking.json").read_text())
ROUND, PLAN = RoundId(bytes(range(16))), Digest(bytes(range(32)))
TENANTS = [MaskKey(bytes([1, number] * 16)) for number in range(6)]
TRUSTEES = [MaskKey(bytes([2, number] * 16)) for number in range(3)]
COMMITTEE = [trustee.public for trustee in TRUSTEES]
EXTREMES = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63)]


def unmasked(masked: Iterable[Words], contributors: Iterable[int], trustees: Iterable[MaskKey] = TRUSTEES) -> Words:
    """What the provider does: the sum of the contributions less every trustee's answer for `contributors`."""
    total = add_words(masked)
    keys = [TENANTS[number].public for number in contributors]
    for trustee in trustees:
        total -= sum_of_masks(trustee, keys, ROUND, PLAN, len(total))
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
    sent = [
        mask_cells(np.array(counts, np.int64).astype(np.uint64), TENANTS[number], COMMITTEE, ROUND, PLAN)
        for number, counts in tables.items()
    ]
    expected = [sum(column) % 2**64 for column in zip(*tables.values(), strict=True)]
    assert unmasked(sent, tables).tolist() == expected


@pytest.mark.parametrize("size", range(1, len(TENANTS) + 1))
def test_every_drop_out_pattern(size: int) -> None:
    cells = [np.array([number, 10 * number, 2**64 - 1 - number], np.uint64) for number in range(len(TENANTS))]
    sent = [mask_cells(own, key, COMMITTEE, ROUND, PLAN) for own, key in zip(cells, TENANTS, strict=True)]
    for present in combinations(range(len(TENANTS)), size):
        total = unmasked([sent[number] for number in present], present)
        assert np.array_equal(total, add_words([cells[number] for number in present]))


def test_masks_of_another_set_do_not_open_the_sum() -> None:
    sent = [mask_cells(np.zeros(4, np.uint64), key, COMMITTEE, ROUND, PLAN) for key in TENANTS[:3]]
    assert not unmasked(sent, [0, 1, 2]).any()
    for wrong in ([0, 1], [0, 1, 3], [0, 1, 2, 3], [0, 0, 1, 2]):
        assert unmasked(sent, wrong).all()


def test_negative_counts_come_back_negative() -> None:
    sent = [
        mask_cells(np.array([-5, 3], np.int64).astype(np.uint64), TENANTS[number], COMMITTEE, ROUND, PLAN)
        for number in (0, 1)
    ]
    assert unmasked(sent, [0, 1]).astype(np.int64).tolist() == [-10, 6]


def test_a_mask_is_the_same_on_both_sides_and_starts_alike_at_every_length() -> None:
    for tenant in TENANTS:
        for trustee in TRUSTEES:
            mask = tenant.mask(trustee.public, ROUND, PLAN, 9)
            assert mask.dtype == np.uint64
            assert np.array_equal(mask, trustee.mask(tenant.public, ROUND, PLAN, 9))
            assert np.array_equal(mask[:3], tenant.mask(trustee.public, ROUND, PLAN, 3))


def test_arguments_stay_as_they_are() -> None:
    cells = np.arange(4, dtype=np.uint64)
    mask_cells(cells, TENANTS[0], COMMITTEE, ROUND, PLAN)
    add_words([cells, cells])
    assert cells.tolist() == [0, 1, 2, 3]


def test_cells_without_a_mask_do_not_leave() -> None:
    with pytest.raises(ValueError, match="name at least one trustee"):
        mask_cells(np.zeros(2, np.uint64), TENANTS[0], [], ROUND, PLAN)


# ---- fresh masks ---------------------------------------------------------------------------------------------------


def test_every_round_plan_and_pair_has_a_mask_of_its_own() -> None:
    rounds = [RoundId(bytes(16)), RoundId(bytes(15) + b"\1"), RoundId(b"\1" + bytes(15))]
    plans = [Digest(bytes(32)), Digest(bytes(31) + b"\1"), Digest(b"\1" + bytes(31))]
    masks = {
        tuple(tenant.mask(peer, round_id, plan, 2).tolist())
        for tenant in TENANTS
        for peer in COMMITTEE
        for round_id in rounds
        for plan in plans
    }
    assert len(masks) == len(TENANTS) * len(COMMITTEE) * len(rounds) * len(plans)


# ---- what a missing mask hides -------------------------------------------------------------------------------------

CELLS = 2**14  # 131,072 bytes
FALSE_ALARM = 1e-6


def looks_uniform(words: Words) -> bool:
    """Chi-square tests of the byte values and of the 64 bits, together at a false alarm rate of `FALSE_ALARM`.

    The first sees one word in 20 that is zero, the second one bit of 64 that is set in 45% of the words (its statistic
    then rises by 4 · CELLS · 0.05² = 164 above 64 ± 11, where the threshold is 135); each misses less than once in
    1000. All keys here are fixed, so that neither happens by chance from run to run.
    """
    data = np.frombuffer(words_to_bytes(words), np.uint8)
    counts = np.bincount(data, minlength=256)
    expected = len(data) / 256
    of_bytes = float(((counts - expected) ** 2 / expected).sum())
    ones = np.unpackbits(data.reshape(-1, 8), axis=1).sum(axis=0)
    of_bits = float(((ones - len(words) / 2) ** 2 / (len(words) / 4)).sum())
    return of_bytes < chi2.isf(FALSE_ALARM / 2, 255) and of_bits < chi2.isf(FALSE_ALARM / 2, 64)


def contributions() -> tuple[list[Words], list[Words]]:
    """Small counts of all tenants, as they are and as they are sent."""
    cells = [insecure_numbers(f"tenant {n}").integers(0, 3, CELLS).astype(np.uint64) for n in range(len(TENANTS))]
    return cells, [mask_cells(own, key, COMMITTEE, ROUND, PLAN) for own, key in zip(cells, TENANTS, strict=True)]


@pytest.mark.parametrize("missing", range(len(TRUSTEES)))
def test_without_one_trustee_the_sum_is_random(missing: int) -> None:
    cells, sent = contributions()
    everybody = range(len(TENANTS))
    others = [trustee for number, trustee in enumerate(TRUSTEES) if number != missing]
    assert looks_uniform(unmasked(sent, everybody, others))
    assert not looks_uniform(unmasked(sent, everybody))
    assert np.array_equal(unmasked(sent, everybody), add_words(cells))


def test_a_single_contribution_is_random_and_independent_of_what_it_hides() -> None:
    _, sent = contributions()
    assert all(looks_uniform(words) for words in sent)
    assert looks_uniform(sent[0] - sent[1])
    assert looks_uniform(mask_cells(np.zeros(CELLS, np.uint64), TENANTS[0], COMMITTEE, ROUND, PLAN))


@pytest.mark.parametrize(
    "biased",
    [
        lambda words, rng: np.where(rng.random(CELLS) < 0.1, words & np.uint64(2**64 - 1 - 2**7), words),
        lambda words, rng: np.where(rng.random(CELLS) < 0.05, np.uint64(0), words),
        lambda words, rng: words % np.uint64(2**63 - 25),
    ],
    ids=["a bit of 64 is set in 45% of the words", "one word in 20 is zero", "the highest bit is never set"],
)
def test_the_test_of_uniformity_can_fail(biased: Callable[[Words, Generator], Words]) -> None:
    rng = insecure_numbers("bias")
    words = rng.integers(0, 2**64, CELLS, np.uint64, endpoint=False)
    assert looks_uniform(words)
    assert not looks_uniform(biased(words, rng))


def test_a_mask_used_twice_would_show() -> None:
    cells, sent = contributions()
    again = mask_cells(cells[1], TENANTS[0], COMMITTEE, ROUND, PLAN)
    assert not looks_uniform(sent[0] - again)
    fresh = mask_cells(cells[1], TENANTS[0], COMMITTEE, RoundId(bytes(16)), PLAN)
    assert looks_uniform(sent[0] - fresh)


# ---- the primitives, from the RFCs ---------------------------------------------------------------------------------

PRIME = 2**255 - 19


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748 §5: the Montgomery ladder, by double-and-add on x-coordinates."""
    scalar = int.from_bytes(private, "little") & ~7 & (2**254 - 1) | 2**254
    u = int.from_bytes(public, "little") % 2**255 % PRIME
    low, high = (1, 0), (u, 1)
    for bit in f"{scalar:0255b}":
        total = ladder_sum(low, high, u)
        low, high = (total, ladder_double(high)) if bit == "1" else (ladder_double(low), total)
    return (low[0] * pow(low[1], PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def ladder_sum(left: tuple[int, int], right: tuple[int, int], difference: int) -> tuple[int, int]:
    (x1, z1), (x2, z2) = left, right
    one, two = (x1 - z1) * (x2 + z2), (x1 + z1) * (x2 - z2)
    return (one + two) ** 2 % PRIME, difference * (one - two) ** 2 % PRIME


def ladder_double(point: tuple[int, int]) -> tuple[int, int]:
    x, z = point
    plus, minus = (x + z) ** 2 % PRIME, (x - z) ** 2 % PRIME
    gap = plus - minus
    return plus * minus % PRIME, gap * (plus + 121665 * gap) % PRIME


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


def test_the_oracle_and_the_keys_follow_rfc_7748() -> None:
    alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    bob = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert x25519(ALICE, NINE).hex() == MaskKey(ALICE).public.hex() == alice
    assert x25519(BOB, NINE).hex() == MaskKey(BOB).public.hex() == bob
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert x25519(ALICE, MaskKey(BOB).public).hex() == x25519(BOB, MaskKey(ALICE).public).hex() == shared


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


def oracle(private: bytes, peer: bytes, round_id: bytes, plan: bytes, cells: int) -> list[int]:
    """A mask from nothing but the RFCs and the module's docstring."""
    key = hkdf_sha256(x25519(private, peer), b"pharoah/mask/1\0" + round_id + plan, 32)
    stream = b"".join(chacha20(key, counter, bytes(12)) for counter in range(cells // 8 + 1))
    return list(struct.unpack(f"<{cells}Q", stream[: 8 * cells]))


@settings(deadline=None, max_examples=25)
@given(*[st.binary(min_size=32, max_size=32)] * 2, st.binary(min_size=16, max_size=16), st.integers(0, 40))
def test_a_mask_is_chacha20_under_a_full_hkdf_key(private: bytes, peer: bytes, round_id: bytes, cells: int) -> None:
    public = MaskKey(peer).public
    mask = MaskKey(private).mask(public, RoundId(round_id), PLAN, cells)
    assert mask.tolist() == oracle(private, public, round_id, PLAN, cells)


def test_a_long_mask_goes_on_with_the_stream() -> None:
    public = MaskKey(BOB).public
    key = hkdf_sha256(x25519(ALICE, public), b"pharoah/mask/1\0" + ROUND + PLAN, 32)
    mask = MaskKey(ALICE).mask(public, ROUND, PLAN, 2**17)
    for block in (0, 255, 256, 1023, 1024, 1025, 2047, 2048, 2**14 - 1):
        assert words_to_bytes(mask[8 * block : 8 * block + 8]) == chacha20(key, block, bytes(12))


@pytest.mark.parametrize("cells", [0, 1, 2**13 - 1, 2**13, 2**13 + 1, 2**14, 2**14 + 5])
def test_lengths_around_the_blocks_in_which_masks_are_added(cells: int) -> None:
    whole = [key.mask(TRUSTEES[0].public, ROUND, PLAN, 2**15)[:cells] for key in TENANTS[:2]]
    own = np.arange(cells, dtype=np.uint64)
    for number in (0, 1):
        assert np.array_equal(mask_cells(own, TENANTS[number], COMMITTEE[:1], ROUND, PLAN), own + whole[number])
    answer = sum_of_masks(TRUSTEES[0], [key.public for key in TENANTS[:2]], ROUND, PLAN, cells)
    assert np.array_equal(answer, whole[0] + whole[1])


def test_a_new_key_comes_from_32_bytes_of_the_given_source() -> None:
    asked: list[int] = []

    def source(length: int) -> bytes:
        asked.append(length)
        return ALICE

    assert MaskKey.generate(source).public == MaskKey(ALICE).public
    assert asked == [32]
    assert MaskKey.generate(os.urandom).public != MaskKey.generate(os.urandom).public


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


def test_keys_and_masks_follow_the_vectors() -> None:
    round_id, plan = RoundId(bytes.fromhex(VECTORS["round_id"])), Digest(bytes.fromhex(VECTORS["plan"]))
    publics = [MaskPublicKey(bytes.fromhex(key)) for key in VECTORS["trustee_public_keys"]]
    for secret, public in zip(VECTORS["insecure_trustee_keys"], publics, strict=True):
        assert MaskKey(bytes.fromhex(secret)).public == public
    for number, secret in enumerate(VECTORS["insecure_tenant_keys"]):
        key, cells = MaskKey(bytes.fromhex(secret)), words_from_bytes(bytes.fromhex(VECTORS["cells"][number]))
        assert key.public.hex() == VECTORS["tenant_public_keys"][number]
        assert words_to_bytes(mask_cells(cells, key, publics, round_id, plan)).hex() == VECTORS["masked"][number]
        for public, mask in zip(publics, VECTORS["masks"][number], strict=True):
            assert words_to_bytes(key.mask(public, round_id, plan, 5)).hex() == mask
            expected = oracle(bytes.fromhex(secret), public, round_id, plan, 5)
            assert words_from_bytes(bytes.fromhex(mask)).tolist() == expected


@pytest.mark.parametrize("case", VECTORS["sums"], ids=lambda case: str(case["contributors"]))
def test_sums_follow_the_vectors(case: dict[str, Any]) -> None:
    round_id, plan = RoundId(bytes.fromhex(VECTORS["round_id"])), Digest(bytes.fromhex(VECTORS["plan"]))
    keys = [MaskPublicKey(bytes.fromhex(VECTORS["tenant_public_keys"][number])) for number in case["contributors"]]
    total = add_words(words_from_bytes(bytes.fromhex(VECTORS["masked"][number])) for number in case["contributors"])
    for secret, expected in zip(VECTORS["insecure_trustee_keys"], case["mask_sums"], strict=True):
        answer = sum_of_masks(MaskKey(bytes.fromhex(secret)), keys, round_id, plan, 5)
        assert words_to_bytes(answer).hex() == expected
        total -= answer
    assert words_to_bytes(total).hex() == case["cells"]


@pytest.mark.parametrize("bad", VECTORS["bad_public_keys"], ids=lambda bad: str(bad["comment"]))
def test_a_key_that_hides_nothing_is_its_owners_fault(bad: dict[str, str]) -> None:
    key = MaskPublicKey(bytes.fromhex(bad["encoded"]))
    assert x25519(os.urandom(32), key) == bytes(32)
    uses: list[Callable[[], Words]] = [
        lambda: TENANTS[0].mask(key, ROUND, PLAN, 1),
        lambda: mask_cells(np.zeros(1, np.uint64), TENANTS[0], [*COMMITTEE, key], ROUND, PLAN),
        lambda: sum_of_masks(TRUSTEES[0], [TENANTS[0].public, key], ROUND, PLAN, 1),
    ]
    for use in uses:
        with pytest.raises(PeerFault, match=bad["encoded"]) as caught:
            use()
        assert "must publish another" in caught.value.diagnostics()
