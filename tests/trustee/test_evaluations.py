"""What a trustee evaluates, for whom, and how much: by its own meter, its own clock, and once for each request."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from crypto import voprf
from crypto.codec import decode, encode
from crypto.errors import BadSignature, DecodeError, PeerFault, QuotaExceeded
from crypto.ids import EncodedElement, Signature
from crypto.ristretto import Element
from crypto.signing import Signed, SigningKey, reopened, tenant_id
from federation.protocol.directory import Chain, next_entry
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.round_messages import DirectoryUpdate, EvaluationRequest, EvaluationResponse
from tests.support.changing import replace
from tests.support.factories import WEEKS_PER_EPOCH, Cast, a_plan, keys
from tests.trustee.test_trustee import a_newcomer, an_element, an_unmasking
from trustee.meter import EpochNotCurrent
from trustee.trustee import Trustee, TrusteeLimits


def a_request(
    elements: int = 1, *, tenant: int = 0, epoch: int = 0, trustee: int = 3, signing: SigningKey | None = None
) -> bytes:
    """A request to a trustee as a tenant signs it; a new one each time."""
    blinding = voprf.blind([bytes([number]) for number in range(elements)], os.urandom)
    encoded = tuple(EncodedElement(element.encoded) for element in blinding.elements)
    key = signing or keys().tenants[tenant][0]
    return key.sign(EvaluationRequest(tenant_id(key.public), trustee, epoch, encoded))


# ---- evaluating ----------------------------------------------------------------------------------------------------


def test_an_evaluation_carries_a_proof_for_this_trustees_share_key(cast: Cast) -> None:
    request = a_request(3, trustee=2)
    response = decode(EvaluationResponse, cast.trustee(2).evaluate(request))
    asked = reopened(EvaluationRequest, request)
    blinded = [Element.decode(element) for element in asked.elements]
    answered = tuple(Element.decode(element) for element in response.elements)
    share_key = Element.decode(keys().directory.trustees[1].share_key)
    voprf.verify_proof(share_key, blinded, voprf.Evaluation(answered, voprf.Proof.decode(response.proof)))
    assert response.trustee == 2


def test_evaluations_are_metered_by_tenant_and_epoch(cast: Cast) -> None:
    trustee = cast.trustee()
    for elements, tenant, epoch in [(3, 0, 0), (2, 0, 0), (4, 0, 1), (1, 2, 0)]:
        trustee.evaluate(a_request(elements, tenant=tenant, epoch=epoch))
    one, other = keys().tenant_id(0), keys().tenant_id(2)
    assert trustee.evaluations() == {(one, 0): 5, (one, 1): 4, (other, 0): 1}


def test_the_quota_is_granted_to_the_last_element_and_no_further(cast: Cast) -> None:
    trustee = cast.trustee(limits=TrusteeLimits(evaluations_per_epoch=5))
    trustee.evaluate(a_request(3))
    with pytest.raises(QuotaExceeded, match="asked for 6 evaluations in epoch 0, 5 are granted"):
        trustee.evaluate(a_request(3))
    trustee.evaluate(a_request(2))
    with pytest.raises(QuotaExceeded) as refusal:
        trustee.evaluate(a_request(1))
    assert "wait for the next epoch" in refusal.value.diagnostics()
    trustee.evaluate(a_request(5, tenant=1))
    trustee.evaluate(a_request(5, epoch=1))


def test_the_meter_survives_a_restart(cast: Cast) -> None:
    limits = TrusteeLimits(evaluations_per_epoch=5)
    cast.trustee(limits=limits).evaluate(a_request(4))
    later = cast.trustee(limits=limits)
    assert later.evaluations() == {(keys().tenant_id(0), 0): 4}
    with pytest.raises(QuotaExceeded):
        later.evaluate(a_request(2))


def test_requests_at_the_same_time_are_all_metered(cast: Cast) -> None:
    trustee, barrier = cast.trustee(limits=TrusteeLimits(evaluations_per_epoch=20)), Barrier(8, timeout=30)

    def ask(tenant: int) -> bool:
        barrier.wait()
        try:
            trustee.evaluate(a_request(5, tenant=tenant))
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        answered = list(threads.map(ask, [0] * 6 + [1, 1]))
    assert (sum(answered[:6]), sum(answered[6:])) == (4, 2)
    assert trustee.evaluations() == {(keys().tenant_id(0), 0): 20, (keys().tenant_id(1), 0): 10}


def test_a_request_to_one_trustee_is_refused_by_every_other_one_and_charged_by_none(cast: Cast) -> None:
    """Or one trustee, who sees the request first, would spend the tenant's quota at all of them."""
    trustees = cast.trustees(TrusteeLimits(evaluations_per_epoch=4))
    requests = {trustee.index: a_request(4, trustee=trustee.index) for trustee in trustees}
    for trustee in trustees:
        for index, request in requests.items():
            if index != trustee.index:
                with pytest.raises(PeerFault, match=f"this request is for trustee {index}, not {trustee.index}"):
                    trustee.evaluate(request)
        assert trustee.evaluations() == {}
    for trustee in trustees:
        trustee.evaluate(requests[trustee.index])
        assert trustee.evaluations() == {(keys().tenant_id(0), 0): 4}


def test_a_repeated_request_has_the_same_answer_and_costs_nothing(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the evaluation: what was answered is kept. Also after a restart, and with no quota left."""
    limits = TrusteeLimits(evaluations_per_epoch=4)
    one, other = a_request(3), a_request(1)
    first = cast.trustee(limits=limits).evaluate(one)
    again = cast.trustee(limits=limits)
    second = again.evaluate(other)
    with pytest.raises(QuotaExceeded):
        again.evaluate(a_request(1))
    monkeypatch.setattr(voprf, "blind_evaluate", None)
    assert [again.evaluate(request) for request in (one, other) * 3] == [first, second] * 3
    assert again.evaluations() == {(keys().tenant_id(0), 0): 4}


def test_the_same_elements_in_another_request_are_charged_again(cast: Cast) -> None:
    """What is kept is the answer to a request, not to an element: of another tenant or epoch it is new."""
    trustee = cast.trustee()
    asked = reopened(EvaluationRequest, a_request(2))
    other = replace(asked, tenant=keys().tenant_id(1))
    requests = [
        keys().tenants[0][0].sign(asked),
        keys().tenants[1][0].sign(other),
        keys().tenants[0][0].sign(replace(asked, epoch=1)),
        keys().tenants[0][0].sign(replace(asked, elements=asked.elements[::-1])),
    ]
    assert len({trustee.evaluate(request) for request in requests}) == 4
    assert trustee.evaluations() == {
        (keys().tenant_id(0), 0): 4,
        (keys().tenant_id(0), 1): 2,
        (keys().tenant_id(1), 0): 2,
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_one_request_from_two_threads_at_once_is_charged_once(
    cast: Cast, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have evaluated before either has charged, in one process or in two over one memory."""
    met, evaluate = Barrier(2, timeout=30), voprf.blind_evaluate

    def together(*arguments: Any) -> voprf.Evaluation:
        met.wait()
        return evaluate(*arguments)

    monkeypatch.setattr(voprf, "blind_evaluate", together)
    limits, request = TrusteeLimits(evaluations_per_epoch=3), a_request(3)
    trustees = [cast.trustee(limits=limits) for _ in range(processes)] * (2 // processes)
    with ThreadPoolExecutor(2) as threads:
        answers = set(threads.map(lambda trustee: trustee.evaluate(request), trustees))
    assert len(answers) == 1
    assert trustees[0].evaluations() == {(keys().tenant_id(0), 0): 3}
    assert {cast.trustee(limits=limits).evaluate(request)} == answers


def test_an_answer_is_kept_while_its_epoch_may_be_asked_for(cast: Cast) -> None:
    hours = [0.0]
    trustee = cast.trustee(limits=TrusteeLimits(now_hour=lambda: hours[0]))
    request = a_request(3)
    first = trustee.evaluate(request)
    hours[0] = (2 * WEEKS_PER_EPOCH - 1) * float(HOURS_PER_WEEK)
    trustee.evaluate(a_request(epoch=1))
    trustee.evaluate(a_request(epoch=1, tenant=1))
    assert trustee.evaluate(request) == first
    hours[0] = 2 * WEEKS_PER_EPOCH * float(HOURS_PER_WEEK)
    trustee.evaluate(a_request(epoch=2))
    with pytest.raises(EpochNotCurrent):
        trustee.evaluate(request)  # nobody needs it, and it is not evaluated anew
    assert trustee.evaluations()[keys().tenant_id(0), 0] == 3


def test_a_request_for_a_far_epoch_costs_nobody_a_kept_answer(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at a trustee without a clock, nor, for the next epoch, at one with a clock."""
    last_hour = (2 * WEEKS_PER_EPOCH - 1) * float(HOURS_PER_WEEK)
    for limits, epoch in ((TrusteeLimits(), 10**6), (TrusteeLimits(now_hour=lambda: last_hour), 2)):
        trustee, request = cast.trustee(limits=limits), a_request(3)
        first = trustee.evaluate(request)
        trustee.evaluate(a_request(epoch=epoch, tenant=1))
        with monkeypatch.context() as only_kept:
            only_kept.setattr(voprf, "blind_evaluate", None)
            assert trustee.evaluate(request) == first


def test_only_what_a_tenant_of_the_directory_signed_is_evaluated(cast: Cast) -> None:
    trustee = cast.trustee()
    stranger = SigningKey.generate(os.urandom)
    asked = reopened(EvaluationRequest, a_request())
    own_name = replace(asked, tenant=tenant_id(stranger.public))
    unsigned = encode(Signed(Signature(bytes(64)), memoryview(encode(asked))))
    for request in (stranger.sign(asked), stranger.sign(own_name), unsigned, keys().provider.sign(asked)):
        with pytest.raises(BadSignature):
            trustee.evaluate(request)
    for request in (b"", encode(asked), an_unmasking(a_plan())):
        with pytest.raises(DecodeError):
            trustee.evaluate(request)
    assert trustee.evaluations() == {}


def test_a_tenant_cannot_spend_the_quota_of_another(cast: Cast) -> None:
    trustee = cast.trustee()
    as_another = EvaluationRequest(keys().tenant_id(1), 3, 0, (an_element(),))
    with pytest.raises(BadSignature):
        trustee.evaluate(keys().tenants[0][0].sign(as_another))
    assert trustee.evaluations() == {}


@pytest.mark.parametrize("element", [bytes(32), b"\xff" * 32], ids=["identity", "not canonical"])
def test_an_element_that_is_none_is_neither_evaluated_nor_metered(cast: Cast, element: bytes) -> None:
    trustee = cast.trustee()
    asked = EvaluationRequest(keys().tenant_id(0), 3, 0, (an_element(), EncodedElement(element)))
    with pytest.raises(DecodeError):
        trustee.evaluate(keys().tenants[0][0].sign(asked))
    assert trustee.evaluations() == {}


def at_week(week: float) -> TrusteeLimits:
    return TrusteeLimits(now_hour=lambda: week * HOURS_PER_WEEK)


@pytest.mark.parametrize(
    ("week", "granted"),
    [
        (0, {0, 1}),
        (WEEKS_PER_EPOCH - 0.001, {0, 1}),
        (WEEKS_PER_EPOCH, {0, 1, 2}),
        (3.5 * WEEKS_PER_EPOCH, {2, 3, 4}),
        (100 * WEEKS_PER_EPOCH, set()),
    ],
)
def test_only_epochs_about_now_are_evaluated_and_no_other_is_metered(
    cast: Cast, week: float, granted: set[int]
) -> None:
    trustee = cast.trustee(limits=at_week(week))
    for epoch in range(6):
        if epoch in granted:
            trustee.evaluate(a_request(epoch=epoch))
            continue
        with pytest.raises(EpochNotCurrent, match=f"requested epoch {epoch}, current") as refusal:
            trustee.evaluate(a_request(epoch=epoch))
        assert "clocks" in refusal.value.diagnostics()
    assert {epoch for _, epoch in trustee.evaluations()} == granted


def test_the_clock_is_read_when_it_is_asked(cast: Cast) -> None:
    hours = [0.0]
    trustee = cast.trustee(limits=TrusteeLimits(now_hour=lambda: hours[0]))
    with pytest.raises(EpochNotCurrent):
        trustee.evaluate(a_request(epoch=2))
    hours[0] = 2 * WEEKS_PER_EPOCH * float(HOURS_PER_WEEK)
    trustee.evaluate(a_request(epoch=2))
    with pytest.raises(EpochNotCurrent):
        trustee.evaluate(a_request(epoch=0))


# ---- quotas of those who joined lately -----------------------------------------------------------------------------

FLOOR, QUOTA, INVENTED = 2, 12, 50


def with_newcomers(cast: Cast, now_hour: Callable[[], float] | None, count: int) -> tuple[Trustee, list[SigningKey]]:
    """A trustee that follows the directory in which so many have joined, and their keys."""
    newcomers = [a_newcomer() for _ in range(count)]
    founding = Chain.begin(keys().founding, keys().provider.public).directory
    entry = keys().provider.sign(next_entry(founding, joined=[member for _, _, member in newcomers]))
    limits = TrusteeLimits(evaluations_per_epoch=QUOTA, evaluations_floor=FLOOR, now_hour=now_hour)
    trustee = cast.trustee(limits=limits)
    trustee.follow(encode(DirectoryUpdate((entry,))))
    return trustee, [signing for signing, _, _ in newcomers]


def spend(trustee: Trustee, signing: SigningKey, epoch: int = 0) -> int:
    """Asks for one element after the other until it is refused; how many were evaluated."""
    for spent in range(QUOTA + 1):
        try:
            trustee.evaluate(a_request(signing=signing, epoch=epoch))
        except QuotaExceeded:
            return spent
    raise AssertionError("more than any quota was granted")


@pytest.mark.parametrize("clock", [None, lambda: 0.0], ids=["no clock", "clock"])
def test_an_honest_newcomer_has_its_floor_beside_fifty_invented_members(
    cast: Cast, clock: Callable[[], float] | None
) -> None:
    trustee, (honest, late, *invented) = with_newcomers(cast, clock, INVENTED + 2)
    trustee.evaluate(a_request(signing=honest))
    spent = [spend(trustee, signing) for signing in invented]
    assert spent == [QUOTA, *[FLOOR] * (INVENTED - 1)]  # the first of them took what there was beyond the floors
    assert sum(spent) == INVENTED * FLOOR + (QUOTA - FLOOR)
    assert 1 + spend(trustee, honest) == FLOOR
    assert spend(trustee, late) == FLOOR
    for signing, _ in keys().tenants:
        assert spend(trustee, signing) == QUOTA  # founders take no part in that


def test_what_there_is_beyond_the_floors_is_shared_however_it_is_asked_for(cast: Cast) -> None:
    """In turns, and two elements at once: never more than all the floors and one surplus, and all of it is there."""
    trustee, invented = with_newcomers(cast, lambda: 0.0, 6)
    for turn in range(2 * QUOTA):
        for signing in invented[turn % 3 :]:
            try:
                trustee.evaluate(a_request(1 + turn % 2, signing=signing))
            except QuotaExceeded:
                continue
    spent = trustee.evaluations()
    assert sum(spent.values()) == 6 * FLOOR + (QUOTA - FLOOR)
    assert min(spent.values()) >= FLOOR
    assert len([count for count in spent.values() if count > FLOOR]) > 1


def test_a_quota_that_is_lowered_leaves_every_newcomer_its_floor(cast: Cast) -> None:
    trustee, (greedy, honest) = with_newcomers(cast, lambda: 0.0, 2)
    assert spend(trustee, greedy) == QUOTA
    lower = TrusteeLimits(evaluations_per_epoch=QUOTA // 2, evaluations_floor=FLOOR, now_hour=lambda: 0.0)
    assert spend(cast.trustee(limits=lower), honest) == FLOOR


def test_newcomers_at_the_same_time_share_one_surplus(cast: Cast) -> None:
    trustee, invented = with_newcomers(cast, lambda: 0.0, 6)
    with ThreadPoolExecutor(6) as threads:
        spent = list(threads.map(lambda signing: spend(trustee, signing), invented))
    assert sum(spent) == 6 * FLOOR + (QUOTA - FLOOR)
    assert min(spent) >= FLOOR


def test_a_newcomer_alone_has_the_quota_of_everybody(cast: Cast) -> None:
    trustee, (honest,) = with_newcomers(cast, lambda: 0.0, 1)
    assert spend(trustee, honest) == QUOTA


def test_who_joined_long_ago_by_the_trustees_clock_shares_with_nobody(cast: Cast) -> None:
    """Long ago is two epochs, from the hour at which this trustee first saw the member, across restarts."""
    hours, joined = [0.0], 100.0
    hours[0] = joined
    _, (one, other) = with_newcomers(cast, lambda: hours[0], 2)
    limits = TrusteeLimits(evaluations_per_epoch=QUOTA, evaluations_floor=FLOOR, now_hour=lambda: hours[0])
    trustee = cast.trustee(limits=limits)
    two_epochs = 2 * WEEKS_PER_EPOCH * float(HOURS_PER_WEEK)
    hours[0] = joined + two_epochs
    assert [spend(trustee, signing, epoch=2) for signing in (one, other)] == [QUOTA, FLOOR]
    hours[0] = joined + two_epochs + 0.001
    reopened_later = cast.trustee(limits=limits)
    assert [spend(reopened_later, signing, epoch=3) for signing in (one, other)] == [QUOTA, QUOTA]


def test_without_a_clock_nobody_has_joined_long_ago(cast: Cast) -> None:
    trustee, (one, other) = with_newcomers(cast, None, 2)
    for epoch in (0, 1, 1000):
        assert [spend(trustee, signing, epoch) for signing in (one, other)] == [QUOTA, FLOOR]


def test_who_leaves_and_comes_back_has_joined_when_it_did(cast: Cast) -> None:
    hours = [0.0]
    (signing, _, member), (recent, _, other) = a_newcomer(), a_newcomer()
    founding = Chain.begin(keys().founding, keys().provider.public)
    limits = TrusteeLimits(evaluations_per_epoch=QUOTA, evaluations_floor=FLOOR, now_hour=lambda: hours[0])
    trustee, chain = cast.trustee(limits=limits), founding
    for change in ({"joined": [member]}, {"left": [member.tenant]}, {"joined": [member, other]}):
        entry = keys().provider.sign(next_entry(chain.directory, **change))
        chain = chain.extended([entry])
        trustee.follow(encode(DirectoryUpdate((entry,))))
        hours[0] += WEEKS_PER_EPOCH * float(HOURS_PER_WEEK)
    assert [spend(trustee, key, epoch=3) for key in (recent, signing)] == [QUOTA, QUOTA]
