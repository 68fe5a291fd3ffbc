"""Who was counted: a set stands by the word of a quorum, and what no set speaks of is not counted again."""

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from crypto.codec import decode, encode
from crypto.errors import BadSignature, DecodeError, PeerFault
from crypto.ids import Digest
from crypto.signing import Signed, SigningKey
from federation.protocol.directory import Chain, UnknownHead, next_entry
from federation.protocol.endorsed import (
    EndedRound,
    EndedRounds,
    EndorsedSet,
    check_ended,
    uncounted_since,
)
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Endorsement, UnmaskRequest
from tests.support.changing import replace
from tests.support.endorsing import QUORUM, ended, endorsed, endorsed_set
from tests.support.factories import TENANTS, Cast, a_plan, header_of, keys, signed

PLAN = a_plan()
WINDOWS = 13


def chain() -> Chain:
    return Chain.begin(keys().founding, keys().provider.public)


def of_window(number: int) -> Plan:
    return a_plan(number + 1, window=(168 * number, 168 * number + 168))


# ---- the set -------------------------------------------------------------------------------------------------------


def test_a_set_names_its_tenants_in_order_and_each_once() -> None:
    whole = endorsed_set(PLAN, range(TENANTS))
    assert len(whole.tenants) == TENANTS
    for wrong in (whole.tenants[::-1], whole.tenants[:1] * 2):
        with pytest.raises(ValueError, match="the tenants of a set are sorted and each is named once"):
            replace(whole, tenants=wrong)


def test_the_set_of_a_request_names_who_is_in_any_of_its_groups(cast: Cast) -> None:
    sent = {number: cast.tenant(number).contribute(signed(PLAN)) for number in (0, 1, 2)}
    order = sorted(sent, key=keys().tenant_id)
    headers = [keys().tenants[number][0].sign(header_of(sent[number])) for number in order]
    one, other, third = headers
    for groups in (((one, other, third),), ((one,), (other, third)), ((third,), (one, other))):
        assert EndorsedSet.of(PLAN, UnmaskRequest(signed(PLAN), groups, ())) == endorsed_set(PLAN, order)


def test_a_round_that_was_given_up_has_the_empty_set() -> None:
    given_up = EndorsedSet.of(PLAN, UnmaskRequest(signed(PLAN), (), ()))
    assert given_up == endorsed_set(PLAN, ())
    assert check_ended(endorsed(given_up), chain()) == given_up


def test_sets_that_differ_in_anything_have_different_names() -> None:
    whole = endorsed_set(PLAN, range(3))
    others = [endorsed_set(PLAN, (0, 1)), endorsed_set(PLAN, ()), endorsed_set(a_plan(2), range(3))]
    others += [replace(whole, epoch=1), replace(whole, start_hour=1), replace(whole, end_hour=169)]
    others.append(replace(whole, directory=Digest(bytes(32))))
    assert len({one.name for one in (whole, *others)}) == 1 + len(others)


# ---- the word of a quorum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trustees", [QUORUM, (2, 3, 4, 5), (5, 4, 3, 2, 1)])
def test_a_set_that_a_quorum_endorsed_stands(trustees: tuple[int, ...]) -> None:
    assert check_ended(ended(PLAN, (0, 1, 2), trustees), chain()) == endorsed_set(PLAN, (0, 1, 2))


def words_of(of: EndorsedSet, *trustees: int) -> tuple[bytes, ...]:
    return endorsed(of, trustees).endorsements


def of_another_round() -> tuple[bytes, ...]:
    """The word of a trustee that it will unmask the set's namesake in another round."""
    said = Endorsement(4, a_plan(2).round_id, Digest(bytes(32)), endorsed_set(PLAN, ()).name)
    return (keys().trustees[3][1].sign(said),)


TOO_FEW: Mapping[str, tuple[bytes, ...]] = {
    "none": (),
    "one too few": words_of(endorsed_set(PLAN, ()), 1, 2, 3),
    "one twice": words_of(endorsed_set(PLAN, ()), 1, 2, 3, 3),
    "one of another set": words_of(endorsed_set(PLAN, ()), 1, 2, 3) + words_of(endorsed_set(PLAN, (0,)), 4),
    "one of another round": words_of(endorsed_set(PLAN, ()), 1, 2, 3) + of_another_round(),
}


@pytest.mark.parametrize("name", TOO_FEW)
def test_a_set_that_fewer_endorsed_does_not(name: str) -> None:
    with pytest.raises(PeerFault, match=r"[03] trustees endorsed the set") as fault:
        check_ended(EndedRound(endorsed_set(PLAN, ()), TOO_FEW[name]), chain())
    assert "4 are needed" in fault.value.what


def test_words_under_other_keys_than_those_of_the_seat_are_none() -> None:
    good = ended(PLAN, ())
    stranger = SigningKey(bytes(32)).sign(decode(Endorsement, decode(Signed, good.endorsements[0]).body))
    with pytest.raises(BadSignature):
        check_ended(replace(good, endorsements=(stranger, *good.endorsements[1:])), chain())
    in_anothers_name = keys().trustees[0][1].sign(Endorsement(5, PLAN.round_id, Digest(bytes(32)), good.endorsed.name))
    with pytest.raises(BadSignature):
        check_ended(replace(good, endorsements=(*good.endorsements[:3], in_anothers_name)), chain())


def test_what_is_no_endorsement_is_refused() -> None:
    for wrong in (b"", b"a word", signed(PLAN)):
        with pytest.raises((DecodeError, BadSignature)):
            check_ended(replace(ended(PLAN, ()), endorsements=(wrong,)), chain())


def test_the_head_of_a_set_must_be_known() -> None:
    later = next_entry(keys().directory, left=[keys().tenant_id(4)])
    longer = chain().extended([keys().provider.sign(later)])
    of = replace(endorsed_set(PLAN, (0,)), directory=longer.directory.head)
    assert check_ended(endorsed(of), longer) == of
    with pytest.raises(UnknownHead):
        check_ended(endorsed(of), chain())
    assert check_ended(ended(PLAN, (0,)), longer) == endorsed_set(PLAN, (0,))  # an older head is known still


# ---- what waits ----------------------------------------------------------------------------------------------------


def test_windows_just_before_that_did_not_count_a_tenant_wait() -> None:
    sets = [endorsed_set(of_window(0), (0, 1)), endorsed_set(of_window(1), (1,)), endorsed_set(of_window(2), ())]
    waits = {number: uncounted_since(of_window(3), sets, keys().tenant_id(number)) for number in range(3)}
    assert waits == {0: 168, 1: 336, 2: 0}
    assert uncounted_since(of_window(1), sets, keys().tenant_id(0)) == 168  # later sets say nothing of earlier windows
    assert uncounted_since(of_window(4), sets, keys().tenant_id(2)) == 168 * 4  # the window between has no set


def test_sets_of_another_epoch_or_of_other_windows_say_nothing() -> None:
    only = endorsed_set(of_window(0), ())
    assert uncounted_since(of_window(1), [only], keys().tenant_id(0)) == 0
    for strange in (replace(only, epoch=1), replace(only, end_hour=167), replace(only, start_hour=1)):
        assert uncounted_since(of_window(1), [strange], keys().tenant_id(0)) == 168
    first = a_plan(WINDOWS + 1, window=(WINDOWS * 168, WINDOWS * 168 + 168))
    last = endorsed_set(of_window(WINDOWS - 1), ())
    assert uncounted_since(first, [last], keys().tenant_id(0)) == WINDOWS * 168


@given(st.lists(st.sampled_from(["named", "left out", "hidden"]), min_size=WINDOWS, max_size=WINDOWS))
def test_no_window_is_opened_twice_whatever_is_shown_and_hidden(fates: list[str]) -> None:
    """The tenant answers every round; `hidden` is a round that counted it and whose set it does not get to see."""
    tenant, sets, opened = keys().tenant_id(0), list[EndorsedSet](), list[int]()
    for number, fate in enumerate(fates):
        plan = of_window(number)
        counted = range(uncounted_since(plan, sets, tenant) // 168, number + 1)
        if fate != "left out":
            opened += counted
        if fate != "hidden":
            sets.append(endorsed_set(plan, (0,) if fate == "named" else ()))
    assert len(opened) == len(set(opened))
    if "hidden" not in fates and fates[-1] == "named":
        assert sorted(opened) == list(range(WINDOWS))


def test_ended_rounds_travel_as_they_are() -> None:
    both = EndedRounds((ended(of_window(0), (0,)), ended(of_window(1), ())))
    assert decode(EndedRounds, encode(both)) == both
