"""What a message checks by itself, what ids refuse, and what errors say."""

import math
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from crypto import errors, ids
from crypto.bundle import SKETCH_BYTES, CatalogueEntry, HazardEntry, Judgement, MismatchEntry, Statement
from crypto.errors import DecodeError, PeerFault, PharoahError, Refusal
from crypto.ids import Digest, EncodedElement, Id, LeaseId, RoundId, TenantId, Token
from crypto.messages import (
    LADDER_LABELS,
    Contribution,
    EvaluationRequest,
    GrantedLease,
    Ladder,
    Ownership,
    UnmaskRequest,
    finest_row,
)
from crypto.voprf import MAX_BATCH
from tests.changing import replace

ID_TYPES = [kind for kind in vars(ids).values() if isinstance(kind, type) and issubclass(kind, Id) and kind is not Id]
ERROR_TYPES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PharoahError)]
TENANT, OTHER = TenantId(bytes(16)), TenantId(bytes([1] * 16))


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
            lambda n: Contribution(TENANT, RoundId(bytes(16)), Digest(bytes(32)), 0, bytes(n)),
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


def test_contributors_of_a_group_are_sorted_and_nobody_is_in_two() -> None:
    third = TenantId(bytes([2] * 16))
    request = UnmaskRequest(b"", ((TENANT, OTHER),), None, (), ())
    assert request.contributors == (TENANT, OTHER)
    assert replace(request, groups=((TENANT, third), (OTHER,))).contributors == (TENANT, third, OTHER)
    for wrong, rule in (
        ((), "there is a group at least"),
        (((OTHER, TENANT),), "contributors of a group are sorted"),
        (((TENANT,), (third, OTHER)), "contributors of a group are sorted"),
        (((TENANT, TENANT),), "named once"),
        (((TENANT, OTHER), (OTHER,)), "named once"),
        (((TENANT,), (OTHER,), (TENANT,)), "named once"),
    ):
        with pytest.raises(ValueError, match=rule):
            replace(request, groups=wrong)


def test_tokens_that_are_owned_are_a_sorted_set() -> None:
    one, other = (Token(bytes([n] * 16)) for n in (1, 2))
    assert Ownership(TENANT, 0, ()).tokens == ()
    assert Ownership(TENANT, 0, (one, other)).tokens == (one, other)
    for wrong in ((other, one), (one, one), (one, other, one)):
        with pytest.raises(ValueError, match="sorted and each is named once"):
            Ownership(TENANT, 0, wrong)


def test_a_lease_is_granted_with_its_context_tokens_and_no_others() -> None:
    context, level = (Token(bytes([n] * 16)) for n in (1, 2))
    labels = {"context": str(context), "context_level": str(level)}
    granted = GrantedLease.of(LeaseId(bytes(16)), 3, 1.5, {**labels, "family": "ab" * 16})
    assert granted == GrantedLease(LeaseId(bytes(16)), 3, 1.5, context, level)
    assert granted.labels == labels
    with pytest.raises(KeyError, match="context_level"):
        GrantedLease.of(LeaseId(bytes(16)), 3, 1.5, {"context": str(context)})


# ---- findings ------------------------------------------------------------------------------------------------------

MISMATCH = MismatchEntry(Token(bytes(16)), Token(bytes(16)), 1.0, 2.0, 2.0, 2.0, 0.0, Judgement.WORSE, ())
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
