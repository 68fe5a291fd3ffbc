"""Any bytes become a valid message whose encoding they are, or DecodeError, and nothing else ever.

The messages are drawn from the annotations, the codec's own source of truth; what the annotations do not say, because a
message checks it itself, is in `SHAPED`. Hostile bytes are valid ones taken apart and packed again by `pack`, which
knows every way of msgpack to say the same thing.
"""

import json
import math
import re
import struct
import traceback
import tracemalloc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from msgspec.structs import astuple, fields

from crypto import codec
from crypto.codec import (
    INTEGER_END,
    MAX_MESSAGE_BYTES,
    MAX_TEXT_CHARACTERS,
    decode,
    digest,
    encode,
    first_field,
)
from crypto.errors import DecodeError
from crypto.ids import (
    Digest,
    EncodedElement,
    ExchangeKey,
    Id,
    LeaseId,
    MaskPublicKey,
    RoundId,
    TenantId,
    Token,
    VerifyKey,
)
from federation.protocol import (
    anchors,
    ceremony,
    endorsed,
    enrolment,
    invitation,
    pass_messages,
    round_messages,
    service_messages,
)
from federation.protocol.attendance import MOST_LAYERS
from federation.protocol.bundle import (
    LONGEST_NAME,
    SKETCH_BYTES,
    Bundle,
    Catalogue,
    CatalogueEntry,
    ContextName,
    HazardEntry,
    MismatchEntry,
    PairJudgement,
    RuleEntry,
    Statement,
)
from federation.protocol.causes import Domain
from federation.protocol.directory import DirectoryEntry, Member
from federation.protocol.enrolment import SEALED_BYTES
from federation.protocol.evidence import LEVELS, Evidence, PairEvidence
from federation.protocol.plan import (
    LARGEST_NOISE_SCALE,
    Marginal,
    MaskTrustee,
    Mechanism,
    NoiseLayers,
    Plan,
    PlanDimension,
)
from federation.protocol.round_messages import Contribution, EvaluationRequest, Ownership, UnmaskRequest, UnmaskShare
from federation.protocol.seats import Reseating, Seats, TrusteeRecord
from federation.protocol.service_messages import SESSION_BYTES, Action, Hint, HintState, LeaseEnd, Suspicion
from federation.protocol.subjects import TOKEN_DIMENSIONS
from tests.support.changing import replace
from tests.support.specimens import (
    ADDRESSES,
    MESSAGES,
    NODE_KEY,
    Tree,
    a_header,
    field_hints,
    hint_of,
    plain,
    specimen,
    tree_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")  # of a certificate whose bits were flipped
every_message = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: str(kind.__name__))
# Building a Plan discards nothing but takes many draws; a slow machine is no reason to fail.
patient = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


# ---- messages from their annotations --------------------------------------------------------------------------------

EDGES = [0, 1, 127, 128, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, INTEGER_END - 1]
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.sampled_from(EDGES) | st.integers(0, INTEGER_END - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=40),
    bytes: st.binary(max_size=40) | st.sampled_from([bytes(255), bytes(256), bytes(2**16)]),
}
SCALARS[memoryview] = SCALARS[bytes].map(memoryview)
LABELS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2).map(json.dumps)
NODE_NAMES = st.lists(st.text(max_size=5), max_size=3).map(json.dumps)
TENANTS = st.binary(min_size=16, max_size=16).map(TenantId)
SHAPED: dict[tuple[type, str], Callable[[], st.SearchStrategy[Any]]] = {
    (Contribution, "cells"): lambda: (
        st.lists(st.binary(min_size=8, max_size=8), max_size=5).map(b"".join).map(memoryview)
    ),
    (UnmaskRequest, "groups"): lambda: groups(),
    (endorsed.EndorsedSet, "tenants"): lambda: st.lists(TENANTS, max_size=3, unique=True).map(
        lambda tenants: tuple(sorted(tenants))
    ),
    (LeaseEnd, "number"): lambda: st.integers(1, INTEGER_END - 1),
    (Statement, "epsilon"): lambda: st.floats(0, exclude_min=True, allow_infinity=False),
    (Statement, "delta"): lambda: st.floats(0, 1, exclude_max=True),
    (ContextName, "name"): lambda: st.text(min_size=1, max_size=LONGEST_NAME),
    (Bundle, "context_names"): lambda: context_names(),
    (CatalogueEntry, "sketch"): lambda: st.binary(min_size=SKETCH_BYTES, max_size=SKETCH_BYTES),
    (Catalogue, "entries"): lambda: entries(),
    (enrolment.TrusteeCard, "address"): lambda: st.sampled_from(ADDRESSES),
    (enrolment.MemberCard, "node_key"): lambda: st.just(NODE_KEY),
    (ceremony.KeptShare, "index"): lambda: st.integers(1, INTEGER_END - 1),
    (ceremony.KeptShare, "secret"): lambda: st.binary(min_size=32, max_size=32),
    (invitation.Invitation, "entries"): lambda: st.lists(SCALARS[bytes], min_size=1, max_size=3).map(tuple),
    (invitation.Invitation, "superlink"): lambda: st.sampled_from(ADDRESSES),
    (invitation.Invitation, "online"): lambda: st.sampled_from(ADDRESSES),
    (anchors.AnchorRequest, "number"): lambda: st.integers(1, INTEGER_END - 1),
    (service_messages.Session, "token"): lambda: st.binary(min_size=SESSION_BYTES, max_size=SESSION_BYTES),
    (service_messages.CheckAnswer, "verdict"): lambda: st.sampled_from(
        [int(verdict) for verdict in service_messages.CheckVerdict]
    ),
    (service_messages.Outcome, "hint"): lambda: st.integers(1, INTEGER_END - 1),
    (service_messages.Outcome, "shortfall_percent"): lambda: st.floats(0, 100),
}


def entries() -> st.SearchStrategy[Any]:
    """Of a catalogue: each name once, in order."""
    unsorted: st.SearchStrategy[Any] = st.lists(valid(CatalogueEntry), max_size=3, unique_by=lambda one: str(one.name))
    return unsorted.map(lambda them: tuple(sorted(them, key=lambda one: str(one.name))))


def context_names() -> st.SearchStrategy[Any]:
    """Of a bundle: one for each context."""
    named: st.SearchStrategy[Any] = st.lists(valid(ContextName), max_size=3, unique_by=lambda one: str(one.context))
    return named.map(tuple)


def groups() -> st.SearchStrategy[tuple[tuple[bytes, ...], ...]]:
    """Of a request: nobody in two, in order within each; none where a round is given up."""
    members = st.lists(TENANTS, max_size=5, unique=True)
    return st.builds(dealt, members, st.integers(0, 3))


def dealt(members: list[TenantId], number: int) -> tuple[tuple[bytes, ...], ...]:
    return tuple(tuple(map(a_header, sorted(members[start::number]))) for start in range(number))


def from_hint(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is Annotated:
        return constrained(*get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(from_hint(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*(st.none() if each is type(None) else from_hint(each) for each in get_args(hint)))
    if issubclass(hint, msgspec.Struct):
        return valid(hint)
    if issubclass(hint, (VerifyKey, ExchangeKey)):
        return st.binary(min_size=30, max_size=30).map(lambda middle: hint(b"\x09" + middle + b"\x3f"))
    if issubclass(hint, Id):
        return st.binary(min_size=hint.length, max_size=hint.length).map(hint)
    return st.sampled_from(list(hint)) if issubclass(hint, StrEnum) else SCALARS[hint]


def constrained(base: Any, rule: msgspec.Meta) -> st.SearchStrategy[Any]:
    if get_origin(base) is tuple:
        least, most = rule.min_length or 0, min(3, rule.max_length or 3)
        return st.lists(from_hint(get_args(base)[0]), min_size=least, max_size=max(least, most)).map(tuple)
    if base is int:
        low, high = int(rule.ge or 0), int(INTEGER_END - 1 if rule.le is None else rule.le)
        return st.integers(low, high) | st.sampled_from([edge for edge in EDGES if low <= edge <= high])
    if base is bytes:
        return st.binary(min_size=rule.min_length or 0, max_size=rule.max_length)
    return SCALARS[base]


@cache
def valid(kind: Any) -> st.SearchStrategy[Any]:
    """Every valid message or record of `kind`."""
    if kind in COMPOSED:
        return COMPOSED[kind]()
    drawn = {
        field.name: SHAPED.get((kind, field.name), lambda hint=field.type: from_hint(hint))() for field in fields(kind)
    }
    return st.builds(kind, **drawn)


NOT_NEGATIVE = st.floats(0, allow_infinity=False)


def intervals() -> st.SearchStrategy[list[float]]:
    """Low, middle, high."""
    return st.lists(NOT_NEGATIVE, min_size=3, max_size=3).map(sorted)


@st.composite
def mismatches(draw: st.DrawFn) -> MismatchEntry:
    low, middle, high = draw(intervals())
    workload, context = draw(from_hint(Token)), draw(from_hint(Token))
    judgement, better = draw(st.sampled_from(PairJudgement)), draw(st.lists(from_hint(Token), max_size=2).map(tuple))
    told = draw(NOT_NEGATIVE), judgement, better
    return MismatchEntry(workload, context, draw(st.floats(0, 1)), middle, low, high, *told)


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    """Evidence is of as many pairs and hazards as there are findings."""
    drawn: dict[str, Any] = {
        field.name: draw(SHAPED.get((Bundle, field.name), lambda hint=field.type: from_hint(hint))())
        for field in fields(Bundle)
        if field.name != "evidence"
    }
    rates = draw(exactly(len(drawn["hazards"]), NOT_NEGATIVE))
    pairs = draw(exactly(len(drawn["mismatches"]), pairs_evidence()))
    prior, rounds = draw(exactly(LEVELS, SCALARS[float])), draw(exactly(2, from_hint(RoundId)))
    known = Evidence(rounds, prior, draw(NOT_NEGATIVE), rates, pairs)
    return Bundle(**drawn, evidence=draw(st.sampled_from([None, known])))


def exactly(number: int, each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(each, min_size=number, max_size=number).map(tuple)


def pairs_evidence() -> st.SearchStrategy[PairEvidence]:
    positive = st.floats(0, exclude_min=True, allow_infinity=False)
    levels = st.binary(min_size=LEVELS, max_size=LEVELS)
    return st.builds(PairEvidence, positive, NOT_NEGATIVE, NOT_NEGATIVE, levels, st.just(b"") | levels)


@st.composite
def rules(draw: st.DrawFn) -> RuleEntry:
    low, middle, high = draw(intervals())
    return RuleEntry(draw(st.lists(SCALARS[str], max_size=3).map(tuple)), middle, low, high, draw(SCALARS[float]))


@st.composite
def hazards(draw: st.DrawFn) -> HazardEntry:
    low, middle, high = draw(intervals())
    return HazardEntry(draw(from_hint(Token)), draw(SCALARS[str]), middle, low, high)


@st.composite
def hints(draw: st.DrawFn) -> Hint:
    low, middle, high = draw(intervals())
    return Hint(
        number=draw(st.integers(1, INTEGER_END - 1)),
        at_h=draw(SCALARS[float]),
        lease=draw(from_hint(LeaseId)),
        state=draw(st.sampled_from(HintState)),
        suspicion=draw(st.sampled_from(Suspicion)),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        probability=draw(st.floats(0, 1)),
        within_hours=draw(SCALARS[float]),
        action=draw(st.sampled_from(Action)),
        times=draw(st.integers(1, 2**40)),
    )


@st.composite
def directory_entries(draw: st.DrawFn) -> DirectoryEntry:
    """Nobody twice: trustees are numbered in any order, every key differs from the others of its kind."""
    free_fields = ("number", "previous", "provider", "group_key", "left")
    free = {name: draw(from_hint(hint_of(DirectoryEntry, name))) for name in free_fields}
    numbers = draw(st.integers(1, 3).flatmap(lambda count: st.permutations(range(1, count + 1))))
    trustees = [replace(draw(valid(TrusteeRecord)), index=number) for number in numbers]
    keys = st.tuples(from_hint(VerifyKey), from_hint(MaskPublicKey))
    distinct = (lambda pair: pair[0], lambda pair: pair[1])
    own = draw(st.lists(keys, min_size=len(numbers), max_size=len(numbers), unique_by=distinct))
    named = [replace(one, verify_key=key, mask_key=mask) for one, (key, mask) in zip(trustees, own, strict=True)]
    members = draw(
        st.lists(valid(Member), max_size=3, unique_by=(lambda one: one.verify_key, lambda one: one.mask_key))
    )
    return DirectoryEntry(
        threshold=draw(st.integers(1, len(numbers))),
        trustees=tuple(named),
        weeks_per_epoch=draw(st.integers(1, 2**40)),
        joined=tuple(members),
        **free,
    )


@st.composite
def card_lists(draw: st.DrawFn) -> enrolment.CardList:
    """In the order of their keys, no key twice."""
    own = ("verify_key", "mask_key", "sealing_key")
    distinct = tuple(lambda card, name=name: getattr(card, name) for name in own)
    drawn = draw(st.lists(valid(enrolment.TrusteeCard), max_size=3, unique_by=distinct))
    return enrolment.CardList(tuple(sorted(drawn, key=lambda card: card.verify_key)))


@st.composite
def registration_requests(draw: st.DrawFn) -> round_messages.RegistrationRequest:
    """Hours in order."""
    start, length = draw(st.integers(0, 2**40)), draw(st.integers(1, 2**40))
    return round_messages.RegistrationRequest(draw(SCALARS[int]), start, start + length)


@st.composite
def ownerships(draw: st.DrawFn) -> Ownership:
    """Tokens in order, hours too."""
    tokens = tuple(sorted(draw(st.sets(from_hint(Token), max_size=4))))
    start, length = draw(st.integers(0, 2**40)), draw(st.integers(1, 2**40))
    return Ownership(draw(TENANTS), draw(SCALARS[int]), start, start + length, tokens)


@st.composite
def dealings(draw: st.DrawFn) -> ceremony.Dealing:
    """As many commitments as the threshold."""
    committed = draw(st.lists(from_hint(EncodedElement), min_size=1, max_size=3))
    sealed = draw(st.lists(st.binary(min_size=SEALED_BYTES, max_size=SEALED_BYTES), max_size=3))
    dealer, named = draw(from_hint(VerifyKey)), draw(from_hint(Digest))
    return ceremony.Dealing(dealer, named, len(committed), tuple(committed), tuple(sealed))


@st.composite
def committees(draw: st.DrawFn) -> ceremony.Committee:
    """Numbered from 1, in order."""
    drawn = draw(st.lists(valid(TrusteeRecord), min_size=1, max_size=3))
    trustees = tuple(replace(one, index=index) for index, one in enumerate(drawn, 1))
    return ceremony.Committee(draw(st.integers(1, len(trustees))), draw(from_hint(EncodedElement)), trustees)


@st.composite
def seats(draw: st.DrawFn) -> Seats:
    """Numbered from 1, in order, and no key twice."""
    distinct = (lambda one: one.verify_key, lambda one: one.mask_key)
    drawn = draw(st.lists(valid(TrusteeRecord), min_size=1, max_size=3, unique_by=distinct))
    return Seats(tuple(replace(one, index=index) for index, one in enumerate(drawn, 1)))


@st.composite
def reseatings(draw: st.DrawFn) -> Reseating:
    """An entry with the trustees of some seats."""
    handovers = draw(st.lists(st.binary(max_size=40), max_size=3))
    return Reseating(draw(SCALARS[int]), draw(from_hint(Digest)), draw(seats()).trustees, tuple(handovers))


@st.composite
def pass_keys(draw: st.DrawFn) -> pass_messages.PassKeys:
    """An entry with keys of passes, each of which is there once."""
    keys = draw(st.lists(from_hint(EncodedElement), min_size=1, max_size=3, unique=True))
    head = draw(SCALARS[int]), draw(from_hint(Digest)), draw(SCALARS[int])
    return pass_messages.PassKeys(*head, draw(st.integers(1, 64)), tuple(keys))


@st.composite
def context_pages(draw: st.DrawFn) -> pass_messages.ContextPage:
    """The rows of one context and the hazards of one level."""
    context, level = draw(from_hint(Token)), draw(from_hint(Token))
    rows = tuple(replace(row, context=context) for row in draw(st.lists(mismatches(), max_size=3)))
    hazards_there = tuple(replace(row, context_level=level) for row in draw(st.lists(hazards(), max_size=3)))
    elsewhere = tuple(draw(st.lists(from_hint(Token), max_size=3)))
    return pass_messages.ContextPage(draw(SCALARS[int]), rows, elsewhere, hazards_there)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan has rules across its fields, so its strategy follows them; the fields without rules follow the hints."""
    names = draw(st.lists(st.sampled_from([*sorted(TOKEN_DIMENSIONS), "band", "other"]), min_size=1, unique=True))
    mechanism = draw(st.sampled_from(Mechanism))
    noise_shares = draw(st.integers(1, 2**40))
    layers = st.builds(NoiseLayers, st.integers(noise_shares + 1, 2**41), st.integers(1, MOST_LAYERS))
    windows = sorted(draw(st.sets(st.integers(0, 2**40), min_size=2, max_size=5)))
    at = draw(st.integers(1, len(windows) - 1))
    free = {name: draw(from_hint(hint_of(Plan, name))) for name in ("round_id", "directory", "epoch", "owners_minimum")}
    return Plan(
        **free,
        start_hour=windows[at - 1],
        end_hour=windows[at],
        windows=tuple(windows),
        dimensions=tuple(draw(plan_dimensions(name)) for name in names),
        band_edges_hours=tuple(sorted(draw(st.sets(SCALARS[float], min_size=2, max_size=4)))),
        marginals=tuple(
            draw(marginals(name, names, LARGEST_NOISE_SCALE[mechanism]))
            for name in draw(
                st.lists(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), min_size=1, max_size=3, unique=True)
            )
        ),
        failures_per_unit=draw(st.integers(1, 2**20)),
        mechanism=mechanism,
        epsilon=draw(st.floats(0, exclude_min=True, allow_infinity=False)),
        delta=draw(st.floats(0, 1, exclude_max=True)),
        cohort_minimum=noise_shares + draw(st.integers(0, 2**40)),
        noise_shares=noise_shares,
        trustees=tuple(draw(st.lists(valid(MaskTrustee), min_size=1, max_size=3, unique_by=lambda each: each.index))),
        noise_layers=draw(st.none() | layers),
    )


@st.composite
def plan_dimensions(draw: st.DrawFn, name: str) -> PlanDimension:
    levels = tuple(draw(st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True)))
    owned = name in TOKEN_DIMENSIONS or draw(st.booleans())
    return PlanDimension(name, levels, tuple(draw(SCALARS[int]) for _ in levels) if owned else ())


@st.composite
def marginals(draw: st.DrawFn, name: str, known: list[str], largest: float) -> Marginal:
    dimensions = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    domains = draw(st.lists(st.sampled_from(Domain), max_size=3))
    return Marginal(name, tuple(dimensions), tuple(domains), draw(st.floats(0, largest, exclude_min=True)))


COMPOSED: dict[type, Callable[[], st.SearchStrategy[Any]]] = {
    Plan: lambda: plans(),
    DirectoryEntry: lambda: directory_entries(),
    enrolment.CardList: lambda: card_lists(),
    Ownership: lambda: ownerships(),
    round_messages.RegistrationRequest: lambda: registration_requests(),
    ceremony.Dealing: lambda: dealings(),
    ceremony.Committee: lambda: committees(),
    Seats: lambda: seats(),
    Reseating: lambda: reseatings(),
    pass_messages.PassKeys: lambda: pass_keys(),
    pass_messages.ContextPage: lambda: context_pages(),
    Bundle: lambda: bundles(),
    MismatchEntry: lambda: mismatches(),
    HazardEntry: lambda: hazards(),
    RuleEntry: lambda: rules(),
    Hint: lambda: hints(),
}


# ---- the invariant --------------------------------------------------------------------------------------------------


def message_or_refusal(kind: Any, data: bytes) -> Any:
    """The invariant of this module, whatever `data` is; the message, or None for a refusal."""
    caught = refused(kind, data)
    if caught is not None:
        assert caught.what.startswith(f"not a valid {kind.__name__}: ")
        assert caught.hint
        return None
    message = decode(kind, data)
    assert type(message) is kind
    assert encode(message) == data
    return message


def refused(kind: Any, data: bytes) -> DecodeError | None:
    try:
        decode(kind, data)
    except DecodeError as error:
        return error
    return None


def refusal(kind: Any, data: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(kind, data)
    return caught.value.what


def test_the_messages_of_this_test_are_all_that_there_are() -> None:
    root = Path(codec.__file__).parents[1]
    sources = [
        path
        for package in ("crypto", "federation", "trustee", "tenant_client", "provider_server")
        for path in root.glob(f"{package}/**/*.py")
    ]
    labels = [label for path in sources for label in re.findall(r'tag="([^"]+)"', path.read_text())]
    assert sorted(labels) == sorted(kind.LABEL for kind in MESSAGES)
    assert len(set(labels)) == len(labels)
    assert all(kind.__struct_config__.frozen and kind.__struct_config__.forbid_unknown_fields for kind in MESSAGES)


@every_message
@settings(patient, max_examples=20)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: Any, data: st.DataObject) -> None:
    message = data.draw(valid(kind))
    encoded = encode(message)
    assert decode(kind, encoded) == message
    assert message_or_refusal(kind, encoded) == message
    assert len(digest(encoded)) == 32
    assert [type(value) for value in astuple(decode(kind, encoded))] == [type(value) for value in astuple(message)]


@every_message
def test_the_first_field_is_read_without_the_rest(kind: Any) -> None:
    message = specimen(kind)
    label, first, *rest = tree_of(message)
    assert first_field(kind, encode(message)) == astuple(message)[0]
    assert first_field(kind, msgpack.packb([label, first, *rest, [[None] * 5]])) == astuple(message)[0]
    for spoilt in ([label], ["x", first, *rest], [label, {}, *rest]):
        with pytest.raises(DecodeError):
            first_field(kind, msgpack.packb(spoilt))


@every_message
def test_specimens_are_valid_and_have_no_empty_list(kind: Any) -> None:
    message = specimen(kind)
    assert message_or_refusal(kind, encode(message)) == message


# ---- damaged messages -----------------------------------------------------------------------------------------------


@every_message
@settings(max_examples=25)
@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\x90")
@example(data=b"\xc1")
def test_any_bytes(kind: Any, data: bytes) -> None:
    assert message_or_refusal(kind, data) is None
    items = len(fields(kind)) + 1
    message_or_refusal(kind, bytes([0x90 | items]) + msgpack.packb(kind.LABEL) + data)


@every_message
def test_a_truncated_message_is_refused_at_every_length(kind: Any) -> None:
    encoded = encode(specimen(kind))
    for length in range(len(encoded)):
        refusal(kind, encoded[:length])


@every_message
@settings(max_examples=10)
@given(tail=st.binary(min_size=1, max_size=20))
def test_an_extended_message_is_refused(kind: Any, tail: bytes) -> None:
    assert "it is cut short, malformed" in refusal(kind, encode(specimen(kind)) + tail)


@every_message
def test_a_message_with_a_flipped_bit_is_another_message_or_refused(kind: Any) -> None:
    encoded = encode(specimen(kind))
    for position in range(8 * min(len(encoded), 200)):
        flipped = bytearray(encoded)
        flipped[position // 8] ^= 1 << position % 8
        is_minus_zero = struct.pack(">Bd", 0xCB, -0.0) in flipped  # equals zero
        assert message_or_refusal(kind, bytes(flipped)) != specimen(kind) or is_minus_zero


@patient
@given(data=st.data(), kind=st.sampled_from(MESSAGES))
def test_damaged_messages(data: st.DataObject, kind: Any) -> None:
    encoded = bytearray(encode(data.draw(valid(kind))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(encoded)))
        length = data.draw(st.integers(0, 3))
        encoded[place : place + length] = data.draw(st.binary(max_size=3))
    message_or_refusal(kind, bytes(encoded))


# ---- the same content, said in another way --------------------------------------------------------------------------

INTEGERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
LENGTHS = {">B": 2**8, ">H": 2**16, ">I": 2**32}
TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
BINARIES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
ARRAYS = {0xDC: ">H", 0xDD: ">I"}

Pick = Callable[[list[bytes]], bytes]


def pack(value: Tree, pick: Pick) -> bytes:
    """`value` in msgpack, where `pick` chooses each header among all that a lenient reader takes for the same."""
    if isinstance(value, list):
        return pick(headers(ARRAYS, len(value), 0x90, 16)) + b"".join(pack(item, pick) for item in value)
    if isinstance(value, str):
        encoded = value.encode()
        return pick([*headers(TEXTS, len(encoded), 0xA0, 32), *headers(BINARIES, len(encoded))]) + encoded
    if isinstance(value, bytes):
        return pick([*headers(BINARIES, len(value)), *headers(TEXTS, len(value), 0xA0, 32)]) + value
    if isinstance(value, float):
        return pick([struct.pack(">Bd", 0xCB, value), *narrow(value)])
    if isinstance(value, bool):
        return pick([b"\xc3" if value else b"\xc2"])
    if isinstance(value, int):
        return pick([*([bytes([value])] if value < 128 else []), *integers(value)])
    assert value is None
    return b"\xc0"


def headers(wide: dict[int, str], length: int, fix: int = 0, fix_end: int = 0) -> list[bytes]:
    """Every header that states `length`, the shortest first."""
    short = [bytes([fix | length])] if length < fix_end else []
    return short + [
        struct.pack(">B", tag) + struct.pack(form, length) for tag, form in wide.items() if length < LENGTHS[form]
    ]


def narrow(value: float) -> list[bytes]:
    try:
        return [struct.pack(">Bf", 0xCA, value)]
    except OverflowError:
        return []


def integers(value: int) -> Iterator[bytes]:
    for tag, form in INTEGERS.items():
        bits = 8 * struct.calcsize(form) - form[1].islower()
        if value < 2**bits:
            yield struct.pack(">B", tag) + struct.pack(form, value)


@every_message
def test_the_shortest_form_is_the_canonical_one(kind: Any) -> None:
    assert pack(tree_of(specimen(kind)), lambda forms: forms[0]) == encode(specimen(kind))


@every_message
def test_every_other_form_of_every_value_is_refused(kind: Any) -> None:
    tree, canonical = tree_of(specimen(kind)), encode(specimen(kind))
    spoilt = {with_one_other_form(tree, place, form) for place in range(values_in(tree)) for form in range(1, 10)}
    spoilt.discard(canonical)
    assert len(spoilt) > 2 * (len(fields(kind)) + 2)
    for data in spoilt:
        refusal(kind, data)


def values_in(tree: Tree) -> int:
    return 1 + sum(values_in(item) for item in tree) if isinstance(tree, list) else 1


def with_one_other_form(tree: Tree, place: int, form: int) -> bytes:
    """The message in canonical form but for its value number `place`, which takes its form number `form`, if any."""
    seen = iter(range(10**9))

    def pick(forms: list[bytes]) -> bytes:
        return forms[form] if next(seen) == place and form < len(forms) else forms[0]

    return pack(tree, pick)


@patient
@given(data=st.data(), kind=st.sampled_from(MESSAGES))
def test_one_message_has_one_encoding(data: st.DataObject, kind: Any) -> None:
    message = data.draw(valid(kind))
    other = pack(tree_of(message), lambda forms: data.draw(st.sampled_from(forms)))
    if other == encode(message):
        assert decode(kind, other) == message
    else:
        refusal(kind, other)


# ---- values that never travel ---------------------------------------------------------------------------------------

HOSTILE = {
    "not a number": struct.pack(">Bd", 0xCB, math.nan),
    "infinity": struct.pack(">Bd", 0xCB, math.inf),
    "float32": struct.pack(">Bf", 0xCA, 2.5),
    "float32 not a number": struct.pack(">Bf", 0xCA, math.nan),
    "minus one": b"\xff",
    "minus 2^63": struct.pack(">Bq", 0xD3, -(2**63)),
    "2^63": struct.pack(">BQ", 0xCF, 2**63),
    "2^64 - 1": struct.pack(">BQ", 0xCF, 2**64 - 1),
    "nil": b"\xc0",
    "true": b"\xc3",
    "false": b"\xc2",
    "never used": b"\xc1",
    "extension": b"\xd4\x05\x00",
    "long extension": b"\xc9\xff\xff\xff\xff\x05",
    "timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "bad timestamp": b"\xc7\x0c\xff" + b"\xff" * 12,
    "empty map": b"\x80",
    "map": b"\x81\xa1a\x01",
    "map with a list as key": b"\x81\x91\x01\x01",
    "map with a number as key": b"\x81\x01\x01",
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge list": b"\xdd\xff\xff\xff\xff",
    "huge list of lists": b"\xdd\xff\xff\xff\xff" * 600,
    "huge text": b"\xdb\xff\xff\xff\xff",
    "huge bytes": b"\xc6\xff\xff\xff\xff",
    "empty list": b"\x90",
    "nested lists": b"\x91" * 500 + b"\xc0",
    "deeply nested lists": b"\x91" * 100_000,
    "deeply nested maps": b"\x81\xa1a" * 100_000,
    "text that is not UTF-8": b"\xa2\xff\xfe",
    "text with a surrogate": b"\xa3\xed\xa0\x80",
    "empty text": b"\xa0",
    "text too long": msgpack.packb("x" * (MAX_TEXT_CHARACTERS + 1)),
    "empty bytes": b"\xc4\x00",
    "17 bytes": msgpack.packb(bytes(17)),
}
BOOLEAN = ("true", "false")
NEVER = [name for name in HOSTILE if name not in {"nil", "empty list", "empty text", "empty bytes", "17 bytes"}]


class Raw(bytes):
    """Bytes that `pack_raw` copies as they are."""


def pack_raw(tree: Tree) -> bytes:
    """Canonical msgpack, but for `Raw` parts."""
    if isinstance(tree, Raw):
        return bytes(tree)
    if isinstance(tree, list):
        return headers(ARRAYS, len(tree), 0x90, 16)[0] + b"".join(pack_raw(item) for item in tree)
    return pack(tree, lambda forms: forms[0])


def replaced(tree: Tree, value: Tree) -> Iterator[Tree]:
    """`tree` with one of its parts, at any depth, replaced by `value`: one tree per part."""
    yield value
    if isinstance(tree, list):
        for position, item in enumerate(tree):
            for spoilt in replaced(item, value):
                yield [*tree[:position], spoilt, *tree[position + 1 :]]


@contextmanager
def case(name: str) -> Iterator[None]:
    """One turn of a loop; what fails in it says which one it was. A test each would be thousands."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name!r}")
        raise


@every_message
def test_a_hostile_value_in_any_place(kind: Any) -> None:
    tree, has_boolean = tree_of(specimen(kind)), bool in dict(field_hints(kind)).values()
    for hostile, value in HOSTILE.items():
        with case(hostile):
            for spoilt in replaced(tree, Raw(value)):
                message = message_or_refusal(kind, pack_raw(spoilt))
                fits = hostile in BOOLEAN and has_boolean
                assert message is None or fits or hostile not in NEVER


@every_message
def test_a_part_left_out_or_sent_twice_is_refused(kind: Any) -> None:
    def parts(tree: Tree) -> Iterator[Tree]:
        for position in range(len(tree)):
            yield tree[:position] + tree[position + 1 :]
            yield tree[: position + 1] + tree[position:]

    for spoilt in parts(tree_of(specimen(kind))):
        refusal(kind, pack_raw(spoilt))


@pytest.mark.parametrize("filler", [b"\xc0", b"\x80", b"\x90", b"\x91\xc0", b"\x81\xa0\xc0", b"\xcd\xff\xff"])
def test_refusing_takes_no_more_memory_than_the_message(filler: bytes) -> None:
    size = 4 * 2**20
    elements = struct.pack(">BI", 0xDD, size // len(filler)) + filler * (size // len(filler))
    for start in (b"", b"\x94" + msgpack.packb(EvaluationRequest.LABEL) + msgpack.packb(bytes(16)) + b"\x01"):
        data = start + elements
        tracemalloc.start()
        refusal(EvaluationRequest, data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(data)


# ---- labels and limits ----------------------------------------------------------------------------------------------


@every_message
def test_another_kind_of_message_is_refused_by_its_label(kind: Any) -> None:
    others: list[Any] = [other for other in MESSAGES if other is not kind]
    for other in others:
        with case(other.__name__):
            said = refusal(kind, encode(specimen(other)))
            assert said == f"not a valid {kind.__name__}: it is not labelled {kind.LABEL!r}"


@every_message
def test_another_version_is_refused_by_its_label(kind: Any) -> None:
    _, *values = tree_of(specimen(kind))
    for label in (kind.LABEL + "x", kind.LABEL + "00000", kind.LABEL.upper(), "", 1, None, [kind.LABEL]):
        assert "is not labelled" in refusal(kind, pack_raw([label, *values]))
    family, _, number = kind.LABEL.rpartition("/")
    others = {int(number) + 1: "newer", 9999: "newer"} | ({int(number) - 1: "older"} if int(number) > 1 else {})
    for other, age in others.items():
        assert f"it is {family}/{other}, from {age} software" in refusal(kind, pack_raw([f"{family}/{other}", *values]))


def test_a_message_of_the_largest_size_is_read_and_one_byte_more_is_not() -> None:
    empty = len(encode(a_share(2**16)))  # a length of 4 bytes, as the largest has
    largest = a_share(MAX_MESSAGE_BYTES - empty + 2**16)
    encoded = encode(largest)
    assert len(encoded) == MAX_MESSAGE_BYTES
    assert decode(UnmaskShare, encoded) == largest
    beyond = encode(a_share(len(largest.mask_sums[0]) + 1))
    assert f"are more than the limit of {MAX_MESSAGE_BYTES}" in refusal(UnmaskShare, beyond)


def a_share(length: int, trustee: int = 1) -> UnmaskShare:
    return UnmaskShare(trustee, RoundId(bytes(16)), Digest(bytes(32)), (bytes(length),))


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (
            lambda excess: a_share(0, INTEGER_END - 1 + excess),
            "trustee must be int <= 9223372036854775807",
        ),
        (lambda excess: a_share(0, -excess), "trustee must be int >= 0"),
        (
            lambda excess: Bundle(1, 1, 1, (CatalogueEntry("x" * (4096 + excess), bytes(512)),), (), (), None),
            "catalogue[0].name must be str of length <= 4096",
        ),
    ],
)
def test_limits_of_numbers_and_texts(message: Callable[[int], Any], rule: str) -> None:
    within, beyond = message(0), message(1)
    assert message_or_refusal(type(within), encode(within)) == within
    assert rule in refusal(type(beyond), encode(beyond))


# ---- what an error says ---------------------------------------------------------------------------------------------

MARKER = "payload_7f3a91"
MARKED: list[Tree] = [MARKER, MARKER.encode(), [MARKER], [MARKER.encode()], {MARKER: MARKER}, b"\xff" + MARKER.encode()]


def everything_about(error: BaseException) -> str:
    """All that a log could get hold of: text, remedy and the whole chain of causes."""
    shown = [getattr(error, "diagnostics", str)(), repr(error), *traceback.format_exception(error)]
    return "\n".join(shown)


@every_message
def test_an_error_names_the_field_and_never_shows_the_payload(kind: Any) -> None:
    label, *values = tree_of(specimen(kind))
    for position, (name, hint) in enumerate(field_hints(kind)):
        for marked in MARKED:
            data = msgpack.packb([label, *values[:position], marked, *values[position + 1 :]])
            if anything_is_fine(hint, marked):
                continue
            with pytest.raises(DecodeError) as caught:
                decode(kind, data)
            assert f"{kind.__name__}.{name}" in caught.value.what
            shown = everything_about(caught.value)
            assert MARKER not in shown
            assert MARKER.encode().hex() not in shown


def memory_as_bytes(hint: Any) -> Any:
    return bytes if hint is memoryview else hint


def anything_is_fine(hint: Any, marked: Tree) -> bool:
    """Whether a field may hold whatever bytes or text somebody likes."""
    hint = memory_as_bytes(plain(hint))
    if get_origin(hint) is tuple:
        return isinstance(marked, list) and all(anything_is_fine(get_args(hint)[0], one) for one in marked)
    return type(marked) in {bytes, str} & {hint, *get_args(hint)}


@every_message
def test_an_error_deep_in_a_message_never_shows_the_payload(kind: Any) -> None:
    for marked in (MARKER * 400, MARKER.encode(), Raw(b"\xad\xff" + MARKER[:12].encode())):
        for spoilt in replaced(tree_of(specimen(kind)), marked):
            error = refused(kind, pack_raw(spoilt))
            assert error is None or MARKER[:12] not in everything_about(error)


def test_errors_name_places_in_lists() -> None:
    label, *values = tree_of(specimen(Plan))
    values[6][1][1] = ["0", 7]
    assert "Plan.dimensions[1].levels[1] must be str, got int" in refusal(Plan, msgpack.packb([label, *values]))
    values[6][1][1] = ["0", Raw(b"\xa1\xff")]
    assert "it is cut short, malformed, or not UTF-8" in refusal(Plan, pack_raw([label, *values]))
    values[6][1][1] = ["0", "0"]
    assert "Plan.dimensions[1]: dimension 'band' needs levels, each once" in refusal(Plan, pack_raw([label, *values]))
    values[6][1][0] = MARKER * 10
    assert "Plan.dimensions[1]: the name of a dimension must be" in refusal(Plan, pack_raw([label, *values]))


def test_a_name_outside_an_enumeration_is_answered_with_the_names_in_it() -> None:
    tree = tree_of(specimen(Plan))
    tree[11] = "gaussian"
    assert "Plan.mechanism must be one of discrete_gaussian, discrete_laplace" in refusal(Plan, pack_raw(tree))
