"""A trustee: meters what it evaluates, unmasks one set per round, and remembers both."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest

from crypto import voprf
from crypto.codec import decode, encode
from crypto.errors import AlreadyAnswered, BadSignature, CohortTooSmall, DecodeError, QuotaExceeded
from crypto.ids import EncodedElement, Signature
from crypto.masking import MaskKey, add_words, mask_cells, words_from_bytes
from crypto.messages import EvaluationRequest, EvaluationResponse, Member, UnmaskRequest, UnmaskShare
from crypto.plan import Plan
from crypto.ristretto import Element
from crypto.signing import Signed, SigningKey
from crypto.threshold import KeyShare
from tenant_client.trustee import Trustee, TrusteeLimits
from tests.factories import TENANTS, Cast, a_plan, keys, plan_digest, signed

EVERYBODY = tuple(range(TENANTS))


def a_request(elements: int = 1, *, tenant: int = 0, epoch: int = 0) -> bytes:
    """A request as a tenant signs it; a new one each time."""
    blinding = voprf.blind([bytes([number]) for number in range(elements)], os.urandom)
    encoded = tuple(EncodedElement(element.encoded) for element in blinding.elements)
    return keys().tenants[tenant][0].sign(EvaluationRequest(keys().tenant_id(tenant), epoch, encoded))


def an_unmasking(plan: Plan, tenants: Sequence[int] = EVERYBODY, signing_key: SigningKey | None = None) -> bytes:
    """A request as the provider signs it."""
    contributors = tuple(sorted(keys().tenant_id(tenant) for tenant in tenants))
    return (signing_key or keys().provider).sign(UnmaskRequest(signed(plan), contributors))


def masks(share: bytes) -> set[int]:
    return set(map(int, words_from_bytes(decode(UnmaskShare, share).mask_sum)))


# ---- evaluating ----------------------------------------------------------------------------------------------------


def test_an_evaluation_carries_a_proof_for_this_trustees_share_key(cast: Cast) -> None:
    request = a_request(3)
    response = decode(EvaluationResponse, cast.trustee(2).evaluate(request))
    asked = decode(EvaluationRequest, decode(Signed, request).body)
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
    assert "cached for the epoch" in refusal.value.diagnostics()
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


def test_only_what_a_tenant_of_the_directory_signed_is_evaluated(cast: Cast) -> None:
    trustee = cast.trustee()
    stranger = SigningKey.generate(os.urandom)
    asked = decode(EvaluationRequest, decode(Signed, a_request()).body)
    own_name = replace(asked, tenant=Member(stranger.public, keys().directory.members[0].mask_key).tenant)
    unsigned = encode(Signed(encode(asked), Signature(bytes(64))))
    for request in (stranger.sign(asked), stranger.sign(own_name), unsigned, keys().provider.sign(asked)):
        with pytest.raises(BadSignature):
            trustee.evaluate(request)
    for request in (b"", encode(asked), an_unmasking(a_plan())):
        with pytest.raises(DecodeError):
            trustee.evaluate(request)
    assert trustee.evaluations() == {}


def test_a_tenant_cannot_spend_the_quota_of_another(cast: Cast) -> None:
    trustee = cast.trustee()
    as_another = EvaluationRequest(keys().tenant_id(1), 0, (EncodedElement(Element.decode(an_element()).encoded),))
    with pytest.raises(BadSignature):
        trustee.evaluate(keys().tenants[0][0].sign(as_another))
    assert trustee.evaluations() == {}


@pytest.mark.parametrize("element", [bytes(32), b"\xff" * 32], ids=["identity", "not canonical"])
def test_an_element_that_is_none_is_neither_evaluated_nor_metered(cast: Cast, element: bytes) -> None:
    trustee = cast.trustee()
    asked = EvaluationRequest(keys().tenant_id(0), 0, (an_element(), EncodedElement(element)))
    with pytest.raises(DecodeError):
        trustee.evaluate(keys().tenants[0][0].sign(asked))
    assert trustee.evaluations() == {}


def an_element() -> EncodedElement:
    return EncodedElement(voprf.blind([b"x"], os.urandom).elements[0].encoded)


# ---- unmasking -----------------------------------------------------------------------------------------------------


def test_a_share_is_the_sum_of_the_masks_of_the_named_contributors(cast: Cast) -> None:
    plan, named = a_plan(), (0, 2, 4)
    share = decode(UnmaskShare, cast.trustee(4).unmask(an_unmasking(plan, named)))
    bound = plan.round_id, plan_digest(signed(plan))
    nothing = np.zeros(plan.cells, np.uint64)
    trustee_key = [keys().directory.trustees[3].mask_key]
    expected = add_words(mask_cells(nothing, keys().tenants[tenant][1], trustee_key, *bound) for tenant in named)
    assert (share.trustee, share.round_id) == (4, plan.round_id)
    assert words_from_bytes(share.mask_sum).tolist() == expected.tolist()


def test_the_same_request_has_the_same_answer_and_another_set_none(cast: Cast) -> None:
    plan = a_plan()
    first = cast.trustee().unmask(an_unmasking(plan))
    for trustee in (cast.trustee(), cast.trustee()):  # reopened twice
        assert trustee.unmask(an_unmasking(plan)) == first
        for fewer in ((0, 1, 2), (0, 1, 2, 3)):
            with pytest.raises(AlreadyAnswered, match="unmasked another set"):
                trustee.unmask(an_unmasking(plan, fewer))
        assert trustee.unmask(an_unmasking(plan)) == first


def test_another_round_is_another_matter(cast: Cast) -> None:
    trustee = cast.trustee()
    one, other = (trustee.unmask(an_unmasking(a_plan(number))) for number in (1, 2))
    assert not masks(one) & masks(other)


def test_of_two_sets_asked_for_at_the_same_time_one_is_answered(cast: Cast) -> None:
    """Whether the provider asks one process or two: the difference of two sets would be a single contribution."""
    for number, trustees in enumerate([[cast.trustee()] * 2, [cast.trustee(), cast.trustee()]], start=1):
        plan, barrier = a_plan(number), Barrier(2, timeout=30)

        def ask(trustee: Trustee, tenants: tuple[int, ...], plan: Plan = plan, barrier: Barrier = barrier) -> bool:
            barrier.wait()
            try:
                trustee.unmask(an_unmasking(plan, tenants))
            except AlreadyAnswered:
                return False
            return True

        with ThreadPoolExecutor(2) as threads:
            answered = list(threads.map(ask, trustees, [EVERYBODY, EVERYBODY[1:]]))
        assert sum(answered) == 1


def test_fewer_than_the_plans_minimum_are_not_unmasked_and_the_minimum_is(cast: Cast) -> None:
    trustee = cast.trustee()
    with pytest.raises(CohortTooSmall, match="has 3 contributions, 4 are needed"):
        trustee.unmask(an_unmasking(a_plan(cohort_minimum=4), (0, 1, 2)))
    trustee.unmask(an_unmasking(a_plan(cohort_minimum=4), (0, 1, 2, 3)))


def test_fewer_than_the_trustees_own_minimum_are_not_unmasked_and_the_minimum_is(cast: Cast) -> None:
    trustee = cast.trustee(limits=TrusteeLimits(cohort_minimum=4))
    plan = a_plan(cohort_minimum=2)
    with pytest.raises(CohortTooSmall, match="has 3 contributions, 4 are needed"):
        trustee.unmask(an_unmasking(plan, (0, 1, 2)))
    trustee.unmask(an_unmasking(plan, (0, 1, 2, 3)))


def test_only_what_the_provider_signed_is_unmasked(cast: Cast) -> None:
    trustee, plan = cast.trustee(), a_plan()
    contributors = tuple(sorted(keys().tenant_id(tenant) for tenant in EVERYBODY))
    stranger = SigningKey.generate(os.urandom)
    asked = UnmaskRequest(signed(plan), contributors)
    unsigned = encode(Signed(encode(asked), Signature(bytes(64))))
    own_plan = UnmaskRequest(stranger.sign(plan), contributors)
    for request in (stranger.sign(asked), keys().tenants[0][0].sign(asked), unsigned, keys().provider.sign(own_plan)):
        with pytest.raises(BadSignature):
            trustee.unmask(request)
    for request in (b"", encode(asked), keys().provider.sign(UnmaskRequest(b"no plan", contributors)), a_request()):
        with pytest.raises(DecodeError):
            trustee.unmask(request)
    trustee.unmask(an_unmasking(plan))  # nothing of all this was an answer


def test_a_contributor_outside_the_directory_is_named_and_the_round_stays_open(cast: Cast) -> None:
    trustee, plan = cast.trustee(), a_plan()
    stranger = Member(SigningKey.generate(os.urandom).public, MaskKey.generate(os.urandom).public).tenant
    contributors = tuple(sorted([stranger, *(keys().tenant_id(tenant) for tenant in EVERYBODY)]))
    with pytest.raises(BadSignature, match=stranger.hex()[:12]):
        trustee.unmask(keys().provider.sign(UnmaskRequest(signed(plan), contributors)))
    trustee.unmask(an_unmasking(plan))


def test_a_plan_swapped_for_a_laxer_one_unmasks_nothing_of_the_first(cast: Cast) -> None:
    """Tenants masked under a plan of four; the provider shows the trustee one of two with the same round id."""
    seen, shown = a_plan(cohort_minimum=4), a_plan(cohort_minimum=2)
    assert seen.round_id == shown.round_id
    honest, fooled = cast.trustee(4), cast.trustee(5)
    for trustee in (honest, fooled):
        with pytest.raises(CohortTooSmall):
            trustee.unmask(an_unmasking(seen, (0, 1)))
    useless = masks(fooled.unmask(an_unmasking(shown, (0, 1))))
    key, digest = keys().directory.trustees[4].mask_key, plan_digest(signed(seen))
    wanted = add_words(keys().tenants[tenant][1].mask(key, seen.round_id, digest, seen.cells) for tenant in (0, 1))
    assert not useless & set(map(int, wanted))
    with pytest.raises(AlreadyAnswered):
        fooled.unmask(an_unmasking(seen))
    honest.unmask(an_unmasking(seen))


# ---- secrets -------------------------------------------------------------------------------------------------------


def test_no_secret_shows_in_a_repr(cast: Cast) -> None:
    share, _ = keys().trustees[0]
    secret = share.secret.encoded
    for shown in (repr(cast.trustee(1)), repr(share), str(KeyShare(1, share.secret)), repr(keys().provider)):
        assert secret.hex() not in shown
        assert str(secret) not in shown
        assert str(int.from_bytes(secret, "little")) not in shown
