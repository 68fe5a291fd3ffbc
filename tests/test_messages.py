"""What a message checks by itself, what ids refuse, and what errors say."""

import hashlib
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crypto import errors, ids
from crypto.bundle import SKETCH_BYTES, CatalogueEntry, HazardEntry, MismatchEntry, Statement
from crypto.codec import decode, encode
from crypto.errors import BadSignature, DecodeError, PeerFault, PharoahError, Refusal
from crypto.ids import Digest, EncodedElement, Id, MaskPublicKey, RoundId, TenantId, Token, VerifyKey
from crypto.messages import (
    LADDER_LABELS,
    Contribution,
    Directory,
    EvaluationRequest,
    Ladder,
    Member,
    TrusteeRecord,
    UnmaskRequest,
    finest_row,
)
from crypto.voprf import MAX_BATCH

ID_TYPES = [kind for kind in vars(ids).values() if isinstance(kind, type) and issubclass(kind, Id) and kind is not Id]
ERROR_TYPES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PharoahError)]
TENANT, OTHER = TenantId(bytes(16)), TenantId(bytes([1] * 16))
MEMBER = Member(VerifyKey(bytes(range(32))), MaskPublicKey(bytes(32)))
TRUSTEE = TrusteeRecord(1, EncodedElement(bytes(32)), MaskPublicKey(bytes(32)))
DIRECTORY = Directory(VerifyKey(bytes(32)), 1, EncodedElement(bytes(32)), (TRUSTEE,), (MEMBER,))


# ---- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ID_TYPES)
def test_an_id_has_exactly_its_length(kind: type[Id]) -> None:
    value = os.urandom(kind.length)
    assert kind(value) == value
    assert hash(kind(value)) == hash(value)
    for length in (0, kind.length - 1, kind.length + 1, 2 * kind.length):
        with pytest.raises(ValueError, match=f"a {kind.__name__} has {kind.length} bytes, not {length}"):
            kind(bytes(length))


@pytest.mark.parametrize("kind", ID_TYPES)
def test_an_id_shows_as_hexadecimal(kind: type[Id]) -> None:
    value = kind(bytes(range(kind.length)))
    assert str(value) == bytes(value).hex()
    assert repr(value) == f"{kind.__name__}(000102030405…)"


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ERROR_TYPES)
def test_an_error_states_the_fact_and_then_the_remedy(kind: type[PharoahError]) -> None:
    error = kind("the plan is gone", hint="ask again")
    assert (str(error), error.diagnostics()) == ("the plan is gone", "the plan is gone\nhint: ask again")
    assert kind("the plan is gone", hint="").diagnostics() == "the plan is gone"
    default = kind("the plan is gone")
    assert default.hint == kind.default_hint
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert (type(copy), copy.what, copy.hint) == (kind, error.what, error.hint)


def test_a_peers_fault_a_damaged_message_and_a_refusal_are_never_the_same() -> None:
    families = (DecodeError, PeerFault, Refusal)
    for kind in ERROR_TYPES:
        assert sum(issubclass(kind, family) for family in families) == (kind is not PharoahError)


# ---- rules of single messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "within", "beyond", "rule"),
    [
        (
            lambda n: EvaluationRequest(TENANT, 1, (EncodedElement(bytes(32)),) * n),
            (1, MAX_BATCH),
            (0, MAX_BATCH + 1),
            f"a request holds 1 to {MAX_BATCH} elements",
        ),
        (
            lambda n: Contribution(TENANT, RoundId(bytes(16)), Digest(bytes(32)), bytes(n)),
            (0, 8, 80),
            (1, 7, 9),
            "cells are 64-bit words",
        ),
        (
            lambda n: CatalogueEntry("resnet", bytes(n)),
            (SKETCH_BYTES,),
            (0, SKETCH_BYTES - 1, SKETCH_BYTES + 1),
            f"a sketch has {SKETCH_BYTES} bytes",
        ),
    ],
)
def test_lengths(make: Callable[[int], object], within: tuple[int, ...], beyond: tuple[int, ...], rule: str) -> None:
    for length in within:
        make(length)
    for length in beyond:
        with pytest.raises(ValueError, match=rule):
            make(length)


def test_contributors_are_a_sorted_set() -> None:
    UnmaskRequest(b"", ())
    request = UnmaskRequest(b"", (TENANT, OTHER))
    for wrong in ((OTHER, TENANT), (TENANT, TENANT), (TENANT, OTHER, OTHER)):
        with pytest.raises(ValueError, match="sorted and each is named once"):
            replace(request, contributors=wrong)


# ---- the directory -------------------------------------------------------------------------------------------------


def test_the_directory_finds_keys_by_the_id_that_follows_from_them() -> None:
    identity = hashlib.sha256(b"pharoah/tenant-id/1\0" + MEMBER.verify_key).digest()[:16]
    assert MEMBER.tenant == identity
    assert DIRECTORY.member(TenantId(identity)) is MEMBER
    assert DIRECTORY.verify_key(MEMBER) == MEMBER.verify_key
    assert decode(Directory, encode(DIRECTORY)).member(MEMBER.tenant) == MEMBER


def test_a_stranger_is_a_bad_signature_with_a_remedy() -> None:
    with pytest.raises(BadSignature, match=r"tenant 000000000000… is not in the directory") as caught:
        DIRECTORY.member(TENANT)
    assert caught.value.hint == "enrol it first"


def test_a_directory_with_several_of_each_travels() -> None:
    second = TrusteeRecord(2, EncodedElement(bytes(32)), MaskPublicKey(bytes([1] * 32)))
    member = Member(VerifyKey(bytes(32)), MaskPublicKey(bytes([1] * 32)))
    directory = replace(DIRECTORY, threshold=2, trustees=(TRUSTEE, second), members=(MEMBER, member))
    assert decode(Directory, encode(directory)) == directory


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"threshold": 0}, "between 1 and the number of trustees"),
        ({"threshold": 2}, "between 1 and the number of trustees"),
        ({"trustees": ()}, "between 1 and the number of trustees"),
        ({"trustees": (TRUSTEE, replace(TRUSTEE, mask_key=MaskPublicKey(bytes([1] * 32))))}, "each number once"),
        ({"trustees": (replace(TRUSTEE, index=0),)}, "numbered from 1"),
        ({"trustees": (TRUSTEE, replace(TRUSTEE, index=2))}, "the same key of a trustee"),
        ({"members": (MEMBER, replace(MEMBER, mask_key=MaskPublicKey(bytes([1] * 32))))}, "the same key of a member"),
        ({"members": (MEMBER, replace(MEMBER, verify_key=VerifyKey(bytes(32))))}, "the same key of a member"),
    ],
)
def test_nobody_is_in_a_directory_twice_and_enough_trustees_are(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        replace(DIRECTORY, **change)


# ---- findings ------------------------------------------------------------------------------------------------------

MISMATCH = MismatchEntry(Token(bytes(16)), Token(bytes(16)), 1.0, 2.0, 2.0, 2.0, 0.0)
HAZARD = HazardEntry(Token(bytes(16)), "0", 0.0, 0.0, 0.0)
STATEMENT = Statement(1.0, 0.0, "discrete_laplace", 1, 3)


@pytest.mark.parametrize(
    ("entry", "field", "value"),
    [
        (MISMATCH, "probability_worse", 1.0000001),
        (MISMATCH, "probability_worse", -1e-9),
        (MISMATCH, "probability_worse", math.nan),
        (MISMATCH, "risk_ratio_low", 2.1),
        (MISMATCH, "risk_ratio_low", -0.1),
        (MISMATCH, "risk_ratio_low", math.nan),
        (MISMATCH, "risk_ratio_high", 1.9),
        (MISMATCH, "risk_ratio_high", math.inf),
        (MISMATCH, "risk_ratio", math.nan),
        (MISMATCH, "expected_failures", -1.0),
        (MISMATCH, "expected_failures", math.inf),
        (HAZARD, "rate", 0.1),
        (HAZARD, "rate_low", -0.1),
        (HAZARD, "rate_high", math.inf),
        (STATEMENT, "epsilon", 0.0),
        (STATEMENT, "epsilon", math.nan),
        (STATEMENT, "delta", 1.0),
    ],
)
def test_findings_out_of_range_are_none(entry: Any, field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field.split("_")[0]):
        replace(entry, **{field: value})


# ---- ladders -------------------------------------------------------------------------------------------------------


def test_a_ladder_names_its_rungs_but_neither_the_exact_token_nor_the_bands() -> None:
    family, archetype, subarchetype, exact, band = (Token(bytes([n] * 16)) for n in range(5))
    labels = Ladder(family, archetype, subarchetype, exact, (band,)).labels
    assert labels == {"family": str(family), "archetype": str(archetype), "subarchetype": str(subarchetype)}


def test_counts_fall_back_to_the_finest_rung_that_has_a_row() -> None:
    labels = {rung: f"token of {rung}" for rung in LADDER_LABELS}
    for position, rung in enumerate(LADDER_LABELS):
        assert finest_row(labels, {labels[coarser] for coarser in LADDER_LABELS[position:]}) == labels[rung]
    assert finest_row(labels, {"another token"}) == ""
    assert finest_row({}, {"another token"}) == ""
