"""What a message checks by itself, what ids refuse, and what errors say."""

import math
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from crypto import errors, ids
from crypto.codec import Message, decode, digest, encode
from crypto.errors import BadSignature, DecodeError, PeerFault, PharoahError, Refusal
from crypto.ids import (
    MAX_BATCH,
    Digest,
    EncodedElement,
    EncodedProof,
    Id,
    LeaseId,
    Nonce,
    RoundId,
    TenantId,
    Token,
    VerifyKey,
)
from crypto.signing import SigningKey
from federation.protocol.bundle import (
    SKETCH_BYTES,
    Bundle,
    CatalogueEntry,
    HazardEntry,
    MismatchEntry,
    PairJudgement,
    Statement,
)
from federation.protocol.evidence import LEVELS, Evidence, PairEvidence
from federation.protocol.round_messages import (
    LADDER_LABELS,
    Contribution,
    ContributionHeader,
    EvaluationRequest,
    EvaluationResponse,
    GrantedLease,
    Ladder,
    Ownership,
    UnmaskRequest,
    finest_row,
    opened_contribution,
)
from federation.protocol.service_messages import (
    SESSION_BYTES,
    Action,
    Hint,
    HintState,
    Outcome,
    Session,
    Suspicion,
    WatchRequest,
)
from tests.support.changing import replace

NO_KINDS = (Id, ids.PublicKey)  # what others have in common
ID_TYPES = [
    kind for kind in vars(ids).values() if isinstance(kind, type) and issubclass(kind, Id) and kind not in NO_KINDS
]
ERROR_TYPES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PharoahError)]
TENANT, OTHER, THIRD = (TenantId(bytes([n] * 16)) for n in range(3))
ONE, ANOTHER = (Token(bytes([n] * 16)) for n in (1, 2))
SIGNING, CELLS = SigningKey(bytes(32)), bytes(range(16))


# ---- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ID_TYPES)
def test_an_id_has_exactly_its_length(kind: type[Id]) -> None:
    value = os.urandom(kind.length - 1) + b"\1"  # of a key, the last byte says that it is canonical
    assert kind(value) == value
    assert hash(kind(value)) == hash(value)
    for length in (0, kind.length - 1, kind.length + 1, 2 * kind.length):
        for filled in (bytes(length), os.urandom(length), b"\xff" * length):
            with pytest.raises(ValueError, match=f"a {kind.__name__} has {kind.length} bytes, not {length}"):
                kind(filled)


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
            lambda n: EvaluationRequest(TENANT, 1, 1, (EncodedElement(bytes(32)),) * n),
            (1, MAX_BATCH),
            (0, MAX_BATCH + 1),
            r"EvaluationRequest\.elements must be array of length",
        ),
        (
            lambda n: EvaluationResponse(1, (EncodedElement(bytes(32)),) * n, EncodedProof(bytes(64))),
            (0, MAX_BATCH),
            (MAX_BATCH + 1,),
            r"EvaluationResponse\.elements must be array of length <= 32",
        ),
    ],
)
def test_a_message_beyond_its_bounds_is_none(
    make: Callable[[int], Message], within: tuple[int, ...], beyond: tuple[int, ...], rule: str
) -> None:
    for number in within:
        assert decode(type(make(number)), encode(make(number))) == make(number)
    for number in beyond:
        with pytest.raises(DecodeError, match=rule):
            decode(type(make(number)), encode(make(number)))


@pytest.mark.parametrize(
    ("make", "within", "beyond", "rule"),
    [
        (lambda n: Contribution(b"", memoryview(bytes(n))), (0, 8, 80), (1, 7, 9), "cells are 64-bit words"),
        (
            lambda n: CatalogueEntry("resnet", bytes(n)),
            (SKETCH_BYTES,),
            (0, SKETCH_BYTES - 1, SKETCH_BYTES + 1),
            f"a sketch has {SKETCH_BYTES} bytes",
        ),
        (
            lambda n: Session(bytes(n), 0),
            (SESSION_BYTES,),
            (0, SESSION_BYTES - 1, SESSION_BYTES + 1),
            f"a session's token has {SESSION_BYTES} bytes",
        ),
    ],
)
def test_lengths(make: Callable[[int], object], within: tuple[int, ...], beyond: tuple[int, ...], rule: str) -> None:
    for length in within:
        make(length)
    for length in beyond:
        with pytest.raises(ValueError, match=rule):
            make(length)


def a_header(tenant: TenantId = TENANT) -> ContributionHeader:
    return ContributionHeader(tenant, RoundId(bytes(16)), Digest(bytes(32)), 0, Nonce(bytes(16)), digest(CELLS))


def test_contributors_of_a_group_are_sorted_and_nobody_is_in_two() -> None:
    one, other, third = (SIGNING.sign(a_header(tenant)) for tenant in (TENANT, OTHER, THIRD))
    request = UnmaskRequest(b"", ((one, other),), ())
    assert request.contributors == (TENANT, OTHER)
    assert request.headers == ((a_header(TENANT), a_header(OTHER)),)
    assert replace(request, groups=((one, third), (other,))).contributors == (TENANT, THIRD, OTHER)
    again = SIGNING.sign(replace(a_header(), nonce=Nonce(b"n" * 16)))  # another contribution of the first
    for wrong, rule in (
        (((other, one),), "contributors of a group are sorted"),
        (((one,), (third, other)), "contributors of a group are sorted"),
        (((one, one),), "named once"),
        (((one, again),), "named once"),
        (((one, other), (other,)), "named once"),
        (((one,), (other,), (again,)), "named once"),
    ):
        with pytest.raises(ValueError, match=rule):
            replace(request, groups=wrong)


def test_what_is_no_header_makes_no_request() -> None:
    for wrong in (b"", b"a header", encode(a_header()), SIGNING.sign(Ownership(TENANT, 0, 0, 1, ()))):
        with pytest.raises(ValueError, match="a group names what is not a valid"):
            UnmaskRequest(b"", ((wrong,),), ())


def test_a_contribution_is_opened_by_the_key_of_its_tenant_and_only_with_the_cells_that_were_signed() -> None:
    asked: list[TenantId] = []

    def key_of(tenant: TenantId) -> VerifyKey:
        asked.append(tenant)
        return SIGNING.public

    header, contribution = opened_contribution(contributed(SIGNING, CELLS), key_of)
    assert (header, bytes(contribution.cells), asked) == (a_header(), CELLS, [TENANT])
    for other in (b"", bytes(8), CELLS[::-1], CELLS + bytes(8)):
        with pytest.raises(BadSignature, match=f"tenant {TENANT.hex()[:12]}… signed other cells"):
            opened_contribution(contributed(SIGNING, other), key_of)
    with pytest.raises(BadSignature, match="is not signed by the key"):
        opened_contribution(contributed(SigningKey(b"s" * 32), CELLS), key_of)


def contributed(signing: SigningKey, cells: bytes) -> bytes:
    return encode(Contribution(signing.sign(a_header()), memoryview(cells)))


def test_tokens_that_are_owned_are_a_sorted_set_of_a_window() -> None:
    assert Ownership(TENANT, 0, 0, 1, ()).tokens == ()
    assert Ownership(TENANT, 0, 0, 1, (ONE, ANOTHER)).tokens == (ONE, ANOTHER)
    for wrong in ((ANOTHER, ONE), (ONE, ONE), (ONE, ANOTHER, ONE)):
        with pytest.raises(ValueError, match="sorted and each is named once"):
            Ownership(TENANT, 0, 0, 1, wrong)
    for start_hour, end_hour in ((0, 0), (168, 168), (169, 168)):
        with pytest.raises(ValueError, match="end after they begin"):
            Ownership(TENANT, 0, start_hour, end_hour, (ONE,))


def test_a_lease_is_granted_with_its_context_tokens_and_no_others() -> None:
    context, level = (Token(bytes([n] * 16)) for n in (1, 2))
    labels = {"context": str(context), "context_level": str(level)}
    granted = GrantedLease.of(LeaseId(bytes(16)), 3, 1.5, {**labels, "family": "ab" * 16}, 4)
    assert granted == GrantedLease(LeaseId(bytes(16)), 3, 1.5, context, level, 4)
    assert granted.labels == labels
    with pytest.raises(KeyError, match="context_level"):
        GrantedLease.of(LeaseId(bytes(16)), 3, 1.5, {"context": str(context)}, 4)


# ---- findings ------------------------------------------------------------------------------------------------------

MISMATCH = MismatchEntry(Token(bytes(16)), Token(bytes(16)), 1.0, 2.0, 2.0, 2.0, 0.0, PairJudgement.WORSE, ())
HAZARD = HazardEntry(Token(bytes(16)), "0", 0.0, 0.0, 0.0)
BEHIND = PairEvidence(1.0, 0.0, 0.0, bytes(LEVELS))
EVIDENCE = Evidence((), (0.0,) * LEVELS, 0.0, (1.0,), (BEHIND,))
STATEMENT = Statement(1.0, 0.0, "discrete_laplace", 1, 3)
HINT = Hint(
    1, 0.0, LeaseId(bytes(16)), HintState.RAISED, Suspicion.MEMORY, 2.0, 2.0, 2.0, 0.0, 24.0, Action.MOVE, 1
)  # fmt: skip
OUTCOME = Outcome(b"", 1, LeaseId(bytes(16)), Suspicion.MEMORY, confirmed=True, shortfall_percent=0.0)


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
        (BEHIND, "usual", 0.0),
        (BEHIND, "usual", math.nan),
        (BEHIND, "usual_log_sd", -1e-9),
        (BEHIND, "usual_rate", -1e-9),
        (BEHIND, "below", bytes(LEVELS + 1)),
        (BEHIND, "lent", bytes(LEVELS - 1)),
        (EVIDENCE, "log_prior", (0.0,) * (LEVELS - 1)),
        (EVIDENCE, "lease_shape", -1e-9),
        (EVIDENCE, "hazards", (-1e-9,)),
        (Bundle(1, 0, 168, (), (MISMATCH,), (HAZARD,), None), "evidence", replace(EVIDENCE, pairs=())),
        (Bundle(1, 0, 168, (), (MISMATCH,), (HAZARD,), None), "evidence", replace(EVIDENCE, hazards=())),
        (STATEMENT, "epsilon", 0.0),
        (STATEMENT, "epsilon", math.nan),
        (STATEMENT, "delta", 1.0),
        (STATEMENT, "delta", -1e-300),
        (HINT, "ratio_low", -1e-9),
        (HINT, "ratio_low", 2.1),
        (HINT, "ratio_high", 1.9),
        (HINT, "ratio_high", math.inf),
        (HINT, "probability", -1e-9),
        (HINT, "probability", 1.0000001),
        (OUTCOME, "shortfall_percent", -1e-9),
        (OUTCOME, "shortfall_percent", 100.0000001),
    ],
)
def test_findings_out_of_range_are_none(entry: Any, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field.split("_")[0]):
        replace(entry, **{field: value})


@pytest.mark.parametrize(
    ("entry", "field", "value"),
    [
        (MISMATCH, "probability_worse", 0.0),
        (MISMATCH, "risk_ratio_low", 0.0),
        (HAZARD, "rate_high", 1e300),
        (BEHIND, "usual", 1e-300),
        (Bundle(1, 0, 168, (), (MISMATCH,), (HAZARD,), None), "evidence", EVIDENCE),
        (STATEMENT, "epsilon", 1e-300),
        (STATEMENT, "delta", math.nextafter(1.0, 0.0)),
        (HINT, "ratio_low", 0.0),
        (HINT, "ratio_high", 1e300),
        (HINT, "probability", 1.0),
        (OUTCOME, "shortfall_percent", 100.0),
    ],
)
def test_findings_at_the_end_of_their_range_are_some(entry: Any, field: str, value: Any) -> None:
    assert getattr(replace(entry, **{field: value}), field) == value


@pytest.mark.parametrize(("entry", "field"), [(HINT, "number"), (HINT, "times"), (OUTCOME, "hint")])
def test_hints_are_numbered_from_one(entry: Any, field: str) -> None:
    assert getattr(entry, field) == 1
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="numbered from 1 on"):
            replace(entry, **{field: wrong})


def test_hints_after_none_are_all_of_them() -> None:
    assert WatchRequest(b"", 0).after == 0
    with pytest.raises(ValueError, match="numbered from 1 on"):
        WatchRequest(b"", -1)


# ---- ladders -------------------------------------------------------------------------------------------------------


def test_a_ladder_names_its_rungs_but_not_the_exact_token() -> None:
    family, archetype, subarchetype, exact = (Token(bytes([n] * 16)) for n in range(4))
    labels = Ladder(family, archetype, subarchetype, exact).labels
    assert labels == {"family": str(family), "archetype": str(archetype), "subarchetype": str(subarchetype)}


def test_counts_fall_back_to_the_finest_rung_that_has_a_row() -> None:
    labels = {rung: f"token of {rung}" for rung in LADDER_LABELS}
    for position, rung in enumerate(LADDER_LABELS):
        assert finest_row(labels, {labels[coarser] for coarser in LADDER_LABELS[position:]}) == labels[rung]
    assert finest_row(labels, {"another token"}) == ""
    assert finest_row({}, {"another token"}) == ""
