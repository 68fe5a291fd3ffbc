"""A mask key serves one epoch: what was under it stays closed, whoever gets hold of it after that.

Epochs have thirteen weeks, and windows are weeks. Trustees 3 to 5 mask.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import pytest

from crypto.codec import decode, encode
from crypto.errors import PlanRefused
from crypto.masking import MaskKey, Words, add_words, words_from_bytes
from crypto.signing import reopened
from federation.protocol.directory import Chain, Directory, SeatsChanged, UnknownHead, next_entry, reseating
from federation.protocol.endorsed import EndedRound, EndorsedSet, check_ended
from federation.protocol.enrolment import SealingKey
from federation.protocol.plan import HOURS_PER_WEEK, MaskTrustee, Plan
from federation.protocol.round_messages import (
    Contribution,
    DirectoryUpdate,
    EvaluationRequest,
    UnmaskCall,
    UnmaskRequest,
)
from tests.support.changing import replace
from tests.support.factories import Cast, InsecureSilence, a_plan, header_of, keys, signed, stream_of
from tests.support.seats import Holder, Holders, committee_of, hand_keys
from tests.trustee.test_trustee import (
    EPOCH,
    EVERYBODY,
    a_call,
    a_header,
    a_week,
    an_element,
    an_unmasking,
    given_up,
    sums,
    unmasked,
)
from trustee.trustee import Trustee, TrusteeLimits

LOST = 5


@cache
def founders() -> Holders:
    """Those of the directory that everybody pinned."""
    holders = [
        Holder(word, mask, SealingKey(os.urandom(32)), f"t{share.index}.example:1")
        for share, word, mask in keys().trustees
    ]
    return Holders(holders, {share.index: share for share, *_ in keys().trustees}, committee_of(keys().directory))


def founding() -> Chain:
    return Chain.begin(keys().founding, keys().provider.public)


def handed(holders: list[Holder]) -> tuple[Holders, Chain]:
    """The founders hand over to `holders`; the chain with the entry that tells it."""
    after, handovers = founders().handed_over(holders, (1, 3, 4))
    chain = founding()
    entry = keys().provider.sign(reseating(chain.directory, after.committee.trustees, handovers))
    return after, chain.extended([entry])


def update(chain: Chain) -> bytes:
    return encode(DirectoryUpdate(chain.entries))


def under(plan: Plan, directory: Directory) -> Plan:
    """The same plan under the head and the mask keys of a directory."""
    masking = tuple(MaskTrustee(record.index, record.mask_key) for record in directory.trustees[-3:])
    return replace(plan, directory=directory.head, trustees=masking)


def next_epoch(week: int = 1) -> Plan:
    hour = EPOCH + HOURS_PER_WEEK * (week - 1)
    return a_plan(20 + week, window=(hour, hour + HOURS_PER_WEEK))


def without_masks(plan: Plan, contribution: bytes, stolen: dict[int, MaskKey]) -> Words:
    """What is left of a tenant's words when these mask keys of trustees take their masks off."""
    header = header_of(contribution)
    tenant = keys().directory.member(header.tenant).mask_key
    streams = {index: stream_of(header, tenant, MaskTrustee(index, key.public)) for index, key in stolen.items()}
    masks = add_words(stolen[index].mask(stream, plan.words) for index, stream in streams.items())
    return words_from_bytes(decode(Contribution, contribution).cells) - masks


def old_keys() -> dict[int, MaskKey]:
    return {share.index: mask for share, _, mask in keys().trustees[-3:]}


# ---- the attack ------------------------------------------------------------------------------------------------------


def test_retired_keys_read_nothing_of_who_knows_the_newest_seats(cast: Cast) -> None:
    """The provider got hold of all three mask keys after they were renewed, and plans under them and their old head."""
    told, untold = (cast.tenant(number, sampler=InsecureSilence()) for number in (0, 1))
    first = a_week(1)
    answers = [tenant.contribute(signed(first)) for tenant in (told, untold)]
    for answer in answers:  # what three keys are good for: it is all zeros here
        assert not without_masks(first, answer, old_keys()).any()
    after, chain = handed(founders().with_new_masks())
    told.follow(update(chain))
    for plan in (next_epoch(), a_week(2)):
        with pytest.raises(SeatsChanged, match="seats of trustees changed"):
            told.contribute(signed(plan))
        with pytest.raises(PlanRefused, match=r"trustees \[3, 4, 5\] are not in the directory with these keys"):
            told.contribute(signed(replace(plan, directory=chain.directory.head)))
    with pytest.raises(PlanRefused, match=r"mask keys of trustees \[3, 4, 5\] served another epoch") as refusal:
        untold.contribute(signed(next_epoch()))
    assert "renew-mask-key" in refusal.value.hint
    honest = under(next_epoch(), chain.directory)
    assert without_masks(honest, told.contribute(signed(honest)), old_keys()).any()
    with pytest.raises(UnknownHead):
        untold.contribute(signed(honest))
    untold.follow(update(chain))
    untold.contribute(signed(honest))
    assert after.committee.trustees == told.chain.directory.trustees


@pytest.mark.parametrize("index", [1, 2, 3, 4, 5])
def test_no_trustee_endorses_what_is_under_retired_keys(cast: Cast, index: int) -> None:
    """Under their own head, or under the newest; of another epoch, or of the one that they served."""
    after, chain = handed(founders().with_new_masks())
    trustee = cast.trustee(index)
    trustee.endorse(an_unmasking(a_week(1)))
    hand_keys(trustee, after)
    trustee.follow(update(chain))
    for plan in (next_epoch(), a_week(2)):
        for bad in (plan, replace(plan, directory=chain.directory.head)):
            with pytest.raises(SeatsChanged, match=r"other mask keys than the directory, of trustees \[3, 4, 5\]"):
                trustee.endorse(an_unmasking(bad))
    assert len(trustee.rounds()) == 1
    assert trustee.conflicts() == []
    trustee.endorse(an_unmasking(under(next_epoch(), chain.directory)))


# ---- one epoch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [1, 3])
def test_a_plan_of_another_epoch_under_a_used_mask_key_is_refused_until_all_are_new(cast: Cast, index: int) -> None:
    trustee = cast.trustee(index)
    trustee.endorse(an_unmasking(a_week(13)))
    with pytest.raises(PlanRefused, match=r"served another epoch, of trustees \[3, 4, 5\]") as refusal:
        trustee.endorse(an_unmasking(next_epoch()))
    assert "`pharoah-trustee keys renew-mask-key`" in refusal.value.hint
    two, chain = handed(founders().with_new_masks((3, 4)))
    hand_keys(trustee, two)
    trustee.follow(update(chain))
    with pytest.raises(PlanRefused, match=r"served another epoch, of trustees \[5\]"):
        trustee.endorse(an_unmasking(under(next_epoch(), chain.directory)))
    assert trustee.conflicts() == []
    trustee.endorse(an_unmasking(under(a_week(12), chain.directory)))  # the keys of 3 and 4 serve this epoch now
    with pytest.raises(PlanRefused, match=r"served another epoch, of trustees \[3, 4, 5\]"):
        trustee.endorse(an_unmasking(under(next_epoch(), chain.directory)))
    trustee.endorse(given_up(next_epoch()))  # which opens nothing


def test_a_round_that_was_given_up_used_its_mask_keys_too(cast: Cast) -> None:
    """Tenants may have answered it, and their answers are still there."""
    trustee = cast.trustee()
    trustee.endorse(given_up(a_week(13)))
    with pytest.raises(PlanRefused, match="served another epoch"):
        trustee.endorse(an_unmasking(next_epoch()))


# ---- erased ----------------------------------------------------------------------------------------------------------


def test_a_mask_key_is_forgotten_when_the_directory_shows_another(cast: Cast) -> None:
    after, chain = handed(founders().with_new_masks())
    trustee, old, opened, bound = cast.trustee(), keys().trustees[2][2], a_week(1), a_week(2)
    share = unmasked(trustee, an_unmasking(opened), opened)
    word = trustee.endorse(an_unmasking(bound))
    hand_keys(trustee, after)
    assert trustee.unmask(a_call(an_unmasking(opened), opened)) == share  # until then it answers again
    trustee.follow(update(chain))
    assert trustee._mask_keys.keys() == {after.holders[2].mask.public} != {old.public}
    assert trustee.endorse(an_unmasking(bound)) == word
    for plan in (opened, bound):
        with pytest.raises(PlanRefused, match="trustee 3 has no mask key for round") as refusal:
            trustee.unmask(a_call(an_unmasking(plan), plan))
        assert "handover take" in refusal.value.hint
    assert [done for *_, done in trustee.rounds()] == [True, False]


def test_a_mask_key_is_forgotten_soon_after_its_epoch_whatever_the_provider_does(cast: Cast) -> None:
    """The last window's round has as much time as the window is long."""
    clock = [EPOCH + HOURS_PER_WEEK - 0.01]
    limits = TrusteeLimits(now_hour=lambda: clock[0])
    first = cast.trustee(limits=limits)
    assert first.has_mask_key
    last = a_week(13)
    unmasked(first, an_unmasking(last), last)
    first.close()
    trustee = cast.trustee(limits=limits)
    trustee.unmask(a_call(an_unmasking(last), last))
    clock[0] += 0.02
    trustee.forget_spent()
    assert not trustee.has_mask_key
    assert trustee._mask_keys == {}
    assert cast.trustee(limits=limits)._mask_keys == {}  # reopened
    with pytest.raises(PlanRefused, match="has no mask key"):
        trustee.unmask(a_call(an_unmasking(last), last))
    with pytest.raises(PlanRefused, match="has no mask key"):
        trustee.endorse(an_unmasking(a_week(12)))
    tenant = keys().tenants[0][0]
    trustee.evaluate(tenant.sign(EvaluationRequest(keys().tenant_id(0), 3, 1, (an_element(),))))
    after, chain = handed(founders().with_new_masks())
    hand_keys(trustee, after)
    trustee.follow(update(chain))
    assert trustee.has_mask_key
    plan = under(next_epoch(), chain.directory)
    unmasked(trustee, an_unmasking(plan), plan)


def test_a_mask_key_that_served_nobody_yet_is_kept(cast: Cast) -> None:
    trustee = cast.trustee(limits=TrusteeLimits(now_hour=lambda: 9.0 * EPOCH))
    trustee.forget_spent()
    assert trustee.has_mask_key


# ---- a successor within an epoch -------------------------------------------------------------------------------------


@pytest.fixture
def succeeded(cast: Cast) -> Iterator[tuple[list[Trustee], Chain]]:
    """A week is opened, then the last trustee is lost: four that stay, its successor, and the chain."""
    opened = a_week(1)
    staying = [cast.trustee(index) for index in range(1, LOST)]
    for trustee in staying[2:]:
        unmasked(trustee, an_unmasking(opened), opened)
    successor = Holder.new()
    after, chain = handed(founders().with_successor(LOST, successor))
    for trustee in staying:
        hand_keys(trustee, after)
        trustee.follow(update(chain))
    own = after.shares[LOST], successor.signing, successor.mask
    with closing(Trustee(*own, chain.entries, cast.root / "successor.db", os.urandom)) as newest:
        yield [*staying, newest], chain


def test_the_open_round_of_a_lost_trustee_is_given_up_with_its_successor(
    succeeded: tuple[list[Trustee], Chain],
) -> None:
    trustees, chain = succeeded
    plan = a_week(2)
    for trustee in trustees:
        with pytest.raises(SeatsChanged, match=r"of trustees \[5\]"):
            trustee.endorse(an_unmasking(plan))
    words = tuple(trustee.endorse(given_up(plan)) for trustee in trustees[1:])
    empty = EndorsedSet.of(plan, reopened(UnmaskRequest, given_up(plan)))
    assert check_ended(EndedRound(empty, words), chain).tenants == ()
    assert all(trustee.conflicts() == [] for trustee in trustees)


def test_the_epoch_goes_on_with_the_mask_key_of_the_successor_and_those_of_the_others(
    succeeded: tuple[list[Trustee], Chain],
) -> None:
    trustees, chain = succeeded
    plan = under(a_week(3), chain.directory)
    words = tuple(trustee.endorse(an_unmasking(plan)) for trustee in trustees[1:])
    shares = [sums(trustee.unmask(encode(UnmaskCall(an_unmasking(plan), words)))) for trustee in trustees[2:]]
    for (found,), masking in zip(shares, plan.trustees, strict=True):
        expected = add_words(
            mask.mask(stream_of(a_header(plan, number), mask.public, masking), plan.words)
            for number, (_, mask) in enumerate(keys().tenants)
            if number in EVERYBODY
        )
        assert found.tolist() == expected.tolist()


# ---- the directory ---------------------------------------------------------------------------------------------------


def test_seats_are_the_same_until_somebody_hands_over() -> None:
    """Members that join change no seat; a renewal of shares alone does, though all mask keys stay."""
    before = founding()
    grown = before.extended([keys().provider.sign(next_entry(before.directory))])
    assert grown.has_same_seats(before.directory.head)
    assert grown.has_same_seats(grown.directory.head)
    _, renewed = handed(list(founders().holders))
    assert not renewed.has_same_seats(before.directory.head)
    assert renewed.has_same_seats(renewed.directory.head)
    with pytest.raises(UnknownHead):
        before.has_same_seats(renewed.directory.head)
