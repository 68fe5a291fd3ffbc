"""From rungs to tokens: equal for equal workloads, whoever asks and whoever answers, and readable to nobody."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import combinations, product

import msgpack
import pytest

from crypto import voprf
from crypto.codec import decode, encode
from crypto.errors import PeerFault
from crypto.ids import EncodedElement
from crypto.ristretto import hash_to_group
from crypto.signing import reopened
from crypto.threshold import lagrange_at_zero
from federation.protocol.round_messages import EvaluationRequest, EvaluationResponse, Ladder
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.workload.descriptor import rungs
from tenant_client.rounds.tokens import TokenSource, TrusteeService
from tests.support.changing import replace
from tests.support.factories import Cast, a_descriptor, keys
from trustee.trustee import Trustee, TrusteeLimits

RUNGS = rungs(a_descriptor(), ())
OTHER = rungs(a_descriptor("mixtral"), ())
INPUTS = len(RUNGS.inputs)

Tamper = Callable[[EvaluationResponse], bytes]
Open = Callable[..., TokenSource]


@pytest.fixture
def source(cast: Cast) -> Iterator[Open]:
    """Opens a tenant's source of tokens; one of the same tenant again has the same cache."""
    with ExitStack() as opened:

        def open_source(trustees: Sequence[TrusteeService], tenant: int = 0) -> TokenSource:
            connection = opened.enter_context(closing(open_database(cast.root / f"tokens-{tenant}.db")))
            return TokenSource(keys().directory, trustees, keys().tenants[tenant][0], connection, os.urandom)

        yield open_source


class Recording:
    """A trustee on a line that is tapped."""

    def __init__(self, trustee: TrusteeService) -> None:
        self.index = trustee.index
        self.requests: list[bytes] = []
        self._trustee = trustee

    def evaluate(self, request: bytes) -> bytes:
        self.requests.append(request)
        return self._trustee.evaluate(request)

    def unmask(self, request: bytes) -> bytes:
        raise NotImplementedError


class Lying(Recording):
    """A trustee that tampers with every answer."""

    def __init__(self, trustee: TrusteeService, tamper: Tamper) -> None:
        super().__init__(trustee)
        self._tamper = tamper

    def evaluate(self, request: bytes) -> bytes:
        return self._tamper(decode(EvaluationResponse, super().evaluate(request)))


class Passing(Recording):
    """A trustee that passes every request on, five times, before it answers."""

    def __init__(self, trustee: TrusteeService, others: Sequence[TrusteeService]) -> None:
        super().__init__(trustee)
        self._others = others

    def evaluate(self, request: bytes) -> bytes:
        for other in [*self._others] * 5:
            with pytest.raises(PeerFault, match=f"this request is for trustee 1, not {other.index}"):
                other.evaluate(request)
        return super().evaluate(request)


def another_element(said: EvaluationResponse) -> bytes:
    return encode(replace(said, elements=(said.elements[1], *said.elements[1:])))


def another_order(said: EvaluationResponse) -> bytes:
    return encode(replace(said, elements=said.elements[::-1]))


def one_less(said: EvaluationResponse) -> bytes:
    return encode(replace(said, elements=said.elements[:-1]))


def one_more(said: EvaluationResponse) -> bytes:
    return encode(replace(said, elements=(*said.elements, said.elements[0])))


def no_element(said: EvaluationResponse) -> bytes:
    return encode(replace(said, elements=(EncodedElement(b"\xff" * 32), *said.elements[1:])))


def another_name(said: EvaluationResponse) -> bytes:
    return encode(replace(said, trustee=said.trustee % 5 + 1))


def half_a_message(said: EvaluationResponse) -> bytes:
    return encode(said)[:100]


LIES: list[Tamper] = [another_element, another_order, one_less, one_more, no_element, another_name, half_a_message]


# ---- equality ------------------------------------------------------------------------------------------------------


def test_equal_workloads_of_two_tenants_have_equal_tokens(cast: Cast, source: Open) -> None:
    trustees = cast.trustees()
    assert source(trustees, 0).ladder(RUNGS, 3) == source(trustees, 1).ladder(RUNGS, 3)


def test_tokens_change_with_the_epoch_and_with_the_workload(cast: Cast, source: Open) -> None:
    own = source(cast.trustees())
    ladders = [own.ladder(RUNGS, 3), own.ladder(RUNGS, 4), own.ladder(OTHER, 3)]
    seen = [
        set(tokens(ladder)) - shared
        for ladder, shared in zip(ladders, [set(), set(), {ladders[0].family}], strict=True)
    ]
    assert [len(tokens(ladder)) for ladder in ladders] == [INPUTS] * 3
    assert not any(one & other for one, other in combinations(seen, 2))


def test_rungs_that_two_workloads_share_have_one_token(cast: Cast, source: Open) -> None:
    own = source(cast.trustees())
    newer = rungs(a_descriptor(versions=(("nccl", "2.22"), ("torch", "2.4"))), ())
    one, other = own.ladder(RUNGS, 3), own.ladder(newer, 3)
    assert (one.family, one.archetype) == (other.family, other.archetype)
    assert one.subarchetype != other.subarchetype
    assert one.exact != other.exact


def test_a_token_is_the_function_of_rfc_9497_under_the_key_that_nobody_holds(cast: Cast, source: Open) -> None:
    """Checked by putting the key together, which takes three trustees who should never do so."""
    shares = [share for share, _, _ in keys().trustees[:3]]
    weights = lagrange_at_zero([share.index for share in shares])
    terms = [weight * share.secret for weight, share in zip(weights, shares, strict=True)]
    inputs = [msgpack.packb(["pharoah/rung/1", 3, rung]) for rung in RUNGS.inputs]
    blinding = voprf.blind(inputs, os.urandom)
    evaluated = voprf.evaluate(terms[0] + terms[1] + terms[2], blinding.elements)
    expected = [output[:16] for output in voprf.finalize(blinding, evaluated)]
    assert list(tokens(source(cast.trustees()).ladder(RUNGS, 3))) == expected


@pytest.mark.parametrize("three", list(combinations(range(5), 3)))
def test_tokens_do_not_depend_on_which_trustees_answer(cast: Cast, source: Open, three: tuple[int, ...]) -> None:
    trustees = cast.trustees()
    chosen = [trustees[number] for number in reversed(three)]
    assert source(chosen, 0).ladder(RUNGS, 3) == source(trustees, 1).ladder(RUNGS, 3)


# ---- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tamper", "liars"),
    [*product(LIES, [(0, 2)]), *product([another_element], [(0,), (2,), (0, 1), (1, 2)])],
)
def test_lying_trustees_are_named_and_replaced(
    cast: Cast, source: Open, caplog: pytest.LogCaptureFixture, tamper: Tamper, liars: tuple[int, ...]
) -> None:
    honest = cast.trustees()
    mixed = [Lying(trustee, tamper) if number in liars else trustee for number, trustee in enumerate(honest)]
    with caplog.at_level(logging.WARNING, logger="tenant_client.rounds.tokens"):
        ladder = source(mixed, 0).ladder(RUNGS, 3)
    assert ladder == source(honest, 1).ladder(RUNGS, 3)
    assert sorted(record.getMessage()[:10] for record in caplog.records) == [f"trustee {liar + 1}:" for liar in liars]


@pytest.mark.parametrize("tamper", LIES)
def test_with_too_few_honest_trustees_there_are_no_tokens_and_nothing_is_cached(
    cast: Cast, source: Open, tamper: Tamper
) -> None:
    honest = cast.trustees()
    lying = [Lying(trustee, tamper) for trustee in honest[:3]]
    with pytest.raises(PeerFault, match="only 2 of 3 trustees evaluated") as fault:
        source([*lying, *honest[3:]]).ladder(RUNGS, 3)
    assert all(f"trustee {index}" in fault.value.what for index in (1, 2, 3))
    with pytest.raises(PeerFault, match="only 0 of 3 trustees"):
        source([]).ladder(RUNGS, 3)  # a cached token would need no trustee


def test_a_trustee_that_refuses_is_replaced(cast: Cast, source: Open, caplog: pytest.LogCaptureFixture) -> None:
    strict = [cast.trustee(index, TrusteeLimits(evaluations_per_epoch=INPUTS - 1)) for index in (1, 2)]
    source([*strict, *(cast.trustee(index) for index in (3, 4, 5))]).ladder(RUNGS, 3)
    assert [record.getMessage()[:25] for record in caplog.records] == [
        "trustee 1: QuotaExceeded:",
        "trustee 2: QuotaExceeded:",
    ]


def test_a_trustee_that_fails_in_our_own_process_is_a_bug_and_not_replaced(cast: Cast, source: Open) -> None:
    def bug(said: EvaluationResponse) -> bytes:
        raise KeyError(said.trustee)

    honest = cast.trustees()
    with pytest.raises(KeyError):
        source([Lying(honest[0], bug), *honest[1:]]).ladder(RUNGS, 3)


# ---- the cache -----------------------------------------------------------------------------------------------------


def test_the_quota_is_spent_once_per_workload_and_epoch(cast: Cast, source: Open) -> None:
    trustees = cast.trustees(TrusteeLimits(evaluations_per_epoch=INPUTS))
    first = source(trustees).ladder(RUNGS, 3)
    for again in (source(trustees), source([])):
        assert again.ladder(RUNGS, 3) == first
    source(trustees).ladder(RUNGS, 4)
    tenant = keys().tenant_id(0)
    assert trustees[0].evaluations() == {(tenant, 3): INPUTS, (tenant, 4): INPUTS}
    assert trustees[4].evaluations() == {}
    with pytest.raises(PeerFault, match="QuotaExceeded"):
        source(trustees).ladder(OTHER, 3)


def test_a_request_for_a_few_new_rungs_has_the_size_of_any_other(cast: Cast, source: Open) -> None:
    tapped = tap(cast.trustees())
    own = source(tapped)
    own.ladder(RUNGS, 3)
    own.ladder(rungs(a_descriptor(versions=()), ()), 3)
    own.ladder(RUNGS, 3)  # nothing is new
    assert [len(blinded(request)) for request in tapped[0].requests] == [INPUTS, INPUTS]


def test_the_cache_names_no_rung(cast: Cast, source: Open) -> None:
    source(cast.trustees()).ladder(RUNGS, 3)
    for path in cast.root.glob("tokens-0.db*"):
        data = path.read_bytes()
        assert not any(rung in data for rung in RUNGS.inputs)
        assert b"aten::" not in data


# ---- what was asked ----------------------------------------------------------------------------------------------


def test_every_element_that_left_is_noted_and_added_up(cast: Cast, source: Open) -> None:
    own = source(cast.trustees())
    own.ladder(RUNGS, 3)
    own.ladder(RUNGS, 3)  # cached: nothing leaves
    assert asked(cast) == {(3, trustee): INPUTS for trustee in (1, 2, 3)}
    own.ladder(rungs(a_descriptor(versions=()), ()), 3)
    own.ladder(RUNGS, 4)
    assert asked(cast) == {(epoch, trustee): INPUTS * (5 - epoch) for epoch in (3, 4) for trustee in (1, 2, 3)}


def test_what_a_trustee_was_sent_and_did_not_evaluate_is_noted_too(cast: Cast, source: Open) -> None:
    strict = cast.trustee(1, TrusteeLimits(evaluations_per_epoch=INPUTS - 1))
    with pytest.raises(PeerFault, match="only 1 of 3"):
        source([strict, cast.trustee(2)]).ladder(RUNGS, 3)
    assert asked(cast) == {(3, 1): INPUTS, (3, 2): INPUTS}


def test_elements_are_noted_before_they_leave(cast: Cast, source: Open) -> None:
    seen = []

    def look(said: EvaluationResponse) -> bytes:
        seen.append(asked(cast))
        return encode(said)

    source([Lying(trustee, look) for trustee in cast.trustees()]).ladder(RUNGS, 3)
    assert seen == [{(3, trustee): INPUTS for trustee in range(1, last + 1)} for last in (1, 2, 3)]


def asked(cast: Cast, tenant: int = 0) -> dict[tuple[int, int], int]:
    """What the tenant's file says of it: elements by epoch and trustee, as another process reads them."""
    with closing(open_database(cast.root / f"tokens-{tenant}.db")) as connection:
        rows = connection.execute("SELECT epoch, trustee, elements FROM asked")
        return {(epoch, trustee): elements for epoch, trustee, elements in rows}


# ---- secrecy -------------------------------------------------------------------------------------------------------


def test_nothing_that_reaches_a_trustee_can_be_read(cast: Cast, source: Open) -> None:
    tapped = tap(cast.trustees())
    source(tapped).ladder(RUNGS, 3)
    (request,) = tapped[0].requests
    assert all(name.encode() in b"".join(RUNGS.inputs) for name in words())  # so that the search below could find them
    assert not any(name.encode() in request for name in words())
    assert not any(rung in request or rung[:16] in request for rung in RUNGS.inputs)
    unblinded = {hash_to_group(item, voprf.HASH_TO_GROUP + voprf.Mode.VOPRF.context).encoded for item in inputs(3)}
    assert not unblinded & set(blinded(request))


def test_two_requests_for_one_workload_have_no_element_in_common(cast: Cast, source: Open) -> None:
    tapped = tap(cast.trustees())
    for tenant in (0, 1):
        source(tapped, tenant).ladder(RUNGS, 3)
    one, other = (set(blinded(request)) for request in tapped[0].requests)
    assert len(one) == len(other) == INPUTS
    assert not one & other


def test_every_trustee_that_is_asked_gets_the_same_elements_in_its_own_name_and_the_others_none(
    cast: Cast, source: Open
) -> None:
    tapped = tap(cast.trustees())
    source(tapped).ladder(RUNGS, 3)
    assert [len(trustee.requests) for trustee in tapped] == [1, 1, 1, 0, 0]
    asked = [reopened(EvaluationRequest, trustee.requests[0]) for trustee in tapped[:3]]
    assert [request.trustee for request in asked] == [1, 2, 3]
    assert len({request.elements for request in asked}) == 1


def test_one_trustee_cannot_spend_a_tenants_quota_at_the_others(cast: Cast, source: Open) -> None:
    """It passes on what it was asked, to those that were not asked and to those that were."""
    honest = cast.trustees(TrusteeLimits(evaluations_per_epoch=2 * INPUTS))
    first = tap(honest)
    own = source([Passing(first[0], honest[1:]), *first[1:]])
    own.ladder(RUNGS, 3)
    spent = [trustee.evaluations().get((keys().tenant_id(0), 3), 0) for trustee in honest]
    assert spent == [INPUTS, INPUTS, INPUTS, 0, 0]
    own.ladder(OTHER, 3)  # the quota is there for the other half


def tap(trustees: Sequence[Trustee]) -> list[Recording]:
    return [Recording(trustee) for trustee in trustees]


def blinded(request: bytes) -> tuple[EncodedElement, ...]:
    return reopened(EvaluationRequest, request).elements


def inputs(epoch: int) -> list[bytes]:
    """What goes into the function: label, epoch and rung."""
    return [msgpack.packb(["pharoah/rung/1", epoch, rung]) for rung in RUNGS.inputs]


def words() -> list[str]:
    """What a reader would look for."""
    descriptor = a_descriptor()
    named = [name for name, _ in descriptor.operators] + [kind for kind, _, _ in descriptor.collectives]
    return [*named, descriptor.precision, "nccl", "torch", *descriptor.kernel_families]


def tokens(ladder: Ladder) -> tuple[bytes, ...]:
    return (ladder.family, ladder.archetype, ladder.subarchetype, ladder.exact)
