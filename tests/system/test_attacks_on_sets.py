"""Attacks on who was counted: hidden or forged sets, memories that were set back, keys that have served.

A unit counts once at most, and pays once, whatever the provider shows and to whom; all through real parties. Five
tenants fail once in each week. Where nobody attacks, a week releases five failures, and every tenant has paid for it
once.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from crypto.codec import encode
from crypto.errors import AlreadyAnswered, CohortTooSmall, Equivocation, PeerFault, PlanRefused, Unreachable
from crypto.signing import name_of, reopened
from federation.protocol.directory import SeatsChanged
from federation.protocol.endorsed import EndedRound, EndedRounds, EndorsedSet
from federation.protocol.plan import Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import Endorsement, UnmaskRequest
from provider_server.fleet.release import Release
from provider_server.rounds import provider as provider_module
from provider_server.rounds.planning import MaskKeysServed
from provider_server.rounds.provider import Provider, RoundUnderWay
from provider_server.rounds.store.round_store import LostStep, RoundState
from provider_server.rounds.week import give_up
from simulation.run.federation import Federation
from tenant_client.rounds.tenant import Tenant
from tests.support.federations import WEEKS, Answerer, Grounds, begin, hold, is_exact
from tests.support.seats import Holders, renew_mask_keys

TENANTS = 5
FIRST, SECOND, _ = WEEKS


@pytest.fixture
def grounds(tmp_path: Path) -> Grounds:
    return Grounds.of_failures(tmp_path, TENANTS)


@pytest.fixture
def five(grounds: Grounds, tmp_path: Path) -> Iterator[Federation]:
    with grounds.opened(tmp_path) as federation:
        yield federation


def counted(federation: Federation, release: Release) -> int:
    """The failures of a release, which is exact."""
    assert is_exact(federation, release)
    return round(float(release.table("pairs").events.sum()))


def prices(federation: Federation, start_h: int, end_h: int) -> set[float]:
    """What a unit of these hours has paid at most, at the tenants."""
    return {round(tenant.ledger.spent(start_h, end_h).at(1e-8), 6) for tenant in federation.tenants}


def unheard(tenant: Tenant) -> Answerer:
    """Contributes, and nobody gets it in time."""

    def answer(verb: Query, payload: bytes) -> bytes:
        said = tenant.answer(verb, payload)
        if verb is Query.CONTRIBUTION:
            raise Unreachable("the answer comes too late")
        return said

    return answer


def words_of(federation: Federation, nobody: bytes, dishonest: Sequence[int]) -> list[bytes]:
    """What trustees sign of an empty set after another: the dishonest sign, the others if they endorsed no other."""
    words, false = [], the_empty_set(nobody)
    for trustee in federation.trustees:
        if trustee.index in dishonest:
            said = Endorsement(trustee.index, false.round_id, name_of(nobody), false.name)
            words.append(trustee._signing_key.sign(said))
            continue
        try:
            words.append(trustee.endorse(nobody))
        except AlreadyAnswered:
            continue
    return words


def the_empty_set(nobody: bytes) -> EndorsedSet:
    asked = reopened(UnmaskRequest, nobody)
    return EndorsedSet.of(reopened(Plan, asked.plan), asked)


def given_up(federation: Federation) -> bytes:
    """The request by which a provider would give up the round that it has just opened."""
    (kept,) = federation.provider.store.rounds.rounds()
    return federation.provider._signing_key.sign(UnmaskRequest(kept.signed_plan, (), ()))


def test_the_honest_weeks_of_this_module_count_everybody_once(five: Federation) -> None:
    assert [counted(five, hold(five, week)[0]) for week in (FIRST, SECOND)] == [TENANTS, TENANTS]
    assert prices(five, *FIRST) == prices(five, *SECOND) == prices(five, 0, SECOND[1])
    assert len(prices(five, *FIRST)) == 1


# ---- what the provider shows, and to whom --------------------------------------------------------------------------


def test_a_false_set_that_one_tenant_is_shown_has_too_few_words(five: Federation) -> None:
    """It says that nobody was counted, so that the tenant counts again. Who endorsed the true one signs no other."""
    hold(five, FIRST)
    nobody, victim = given_up(five), five.tenants[0]
    words = words_of(five, nobody, dishonest=())
    assert len(words) == 1  # of the one trustee of five that was not asked
    with pytest.raises(PeerFault, match="1 trustees endorsed the set that was shown, 4 are needed"):
        victim.answer(Query.ENDED, encode(EndedRounds((EndedRound(the_empty_set(nobody), tuple(words)),))))
    assert victim.endorsed.sets() == []
    second, _ = hold(five, SECOND)
    assert counted(five, second) == TENANTS


def test_a_set_that_is_hidden_from_the_one_who_is_not_in_it_costs_a_week_and_counts_nothing_twice(
    five: Federation,
) -> None:
    """Not promised: that the provider shows a set. The tenant pays no second time for what nobody counted."""
    victim = five.tenants[0]

    def shown_nothing(verb: Query, payload: bytes) -> bytes:
        if verb is Query.ENDED:
            raise Unreachable("never asked")
        return victim.answer(verb, payload)

    first, _ = hold(five, FIRST, {0: unheard(victim)})
    second, _ = hold(five, SECOND, {0: shown_nothing})
    assert [counted(five, made) for made in (first, second)] == [TENANTS - 1, TENANTS]
    assert {answer.start_hour for answer in second.answered} == {SECOND[0]}
    assert len(prices(five, 0, SECOND[1])) == 1


@pytest.mark.parametrize("dishonest", [(5,), (4, 5), (3, 4, 5)])
def test_trustees_that_sign_two_sets_are_no_quorum_or_have_signed_the_proof(
    five: Federation, dishonest: Sequence[int]
) -> None:
    """Two may sign what they like. Three of five beside one who was not asked are more than the federation stands."""
    hold(five, FIRST)
    nobody, victim = given_up(five), five.tenants[0]
    words = tuple(words_of(five, nobody, dishonest))
    false = encode(EndedRounds((EndedRound(the_empty_set(nobody), words),)))
    true = five.provider.ended(SECOND)
    if len(words) < five.provider.directory.quorum:
        with pytest.raises(PeerFault):
            victim.answer(Query.ENDED, false)
        assert victim.answer(Query.ENDED, true)
        assert len(victim.endorsed.sets()) == 1
        return
    victim.answer(Query.ENDED, true)
    with pytest.raises(Equivocation, match="different sets for the window"):
        victim.answer(Query.ENDED, false)
    assert len(victim.endorsed.rounds()) == 2  # kept with the words that prove it
    second, silences = hold(five, SECOND)
    assert {(silence.node_id, silence.detail) for silence in silences} == {(0, "Equivocation")}
    assert counted(five, second) == TENANTS - 1


# ---- what comes too late, and what is given up ---------------------------------------------------------------------


def test_an_answer_that_comes_after_the_set_counts_once_in_the_next_window_at_the_same_price(five: Federation) -> None:
    first, _ = hold(five, FIRST, {0: unheard(five.tenants[0])})
    late = five.tenants[0].outbox.sent(first.plan.round_id)
    assert late is not None
    (kept,) = five.provider.store.rounds.rounds()
    with pytest.raises(RuntimeError, match="is released, not collecting"):
        five.provider.receive(five.provider._round(kept), late)
    second, _ = hold(five, SECOND)
    third, _ = hold(five, WEEKS[2])
    assert [counted(five, made) for made in (first, second, third)] == [TENANTS - 1, TENANTS + 1, TENANTS]
    assert [charge.is_given_back for charge in five.tenants[0].ledger.charges()] == [True, False, False]
    assert prices(five, *FIRST) == prices(five, 0, SECOND[1])
    assert len(prices(five, 0, SECOND[1])) == 1


def test_a_round_that_is_given_up_counts_once_in_the_next_window_at_the_same_price(five: Federation) -> None:
    with pytest.raises(CohortTooSmall):
        hold(five, FIRST, silent=[0, 1, 2])
    waiting = five.provider.unfinished()
    assert waiting is not None
    with pytest.raises(RoundUnderWay):
        five.provider.plan(SECOND)
    give_up(five.provider, five.trustees, waiting)
    second, _ = hold(five, SECOND)
    assert {answer.start_hour for answer in second.answered} == {FIRST[0]}
    assert counted(five, second) == 2 * TENANTS
    assert len(prices(five, *FIRST) | prices(five, 0, SECOND[1])) == 1


# ---- memories that were set back -----------------------------------------------------------------------------------


@contextmanager
def put_back(folder: Path) -> Iterator[None]:
    """After it, the folder is as it was before."""
    yesterday = folder.with_name(f"{folder.name} of yesterday")
    shutil.copytree(folder, yesterday)
    yield
    shutil.rmtree(folder)
    yesterday.rename(folder)


def test_a_tenant_whose_ledger_was_restored_learns_what_it_has_spent_and_counts_nothing_again(
    grounds: Grounds, tmp_path: Path
) -> None:
    with put_back(tmp_path / "tenants" / "000"), grounds.opened(tmp_path) as federation:
        hold(federation, FIRST)
    with grounds.opened(tmp_path) as federation:
        victim = federation.tenants[0]
        assert victim.ledger.charges() == []
        second, _ = hold(federation, SECOND)
        assert {answer.start_hour for answer in second.answered} == {SECOND[0]}
        assert counted(federation, second) == TENANTS
        assert victim.ledger.spent(*FIRST).epsilon == victim.policy.epsilon_per_window
        (of_first, _) = federation.provider.store.rounds.rounds()
        with pytest.raises(PlanRefused, match="the round is over"):
            victim.contribute(of_first.signed_plan)


def test_a_provider_whose_store_was_put_back_opens_no_second_set_of_a_window(grounds: Grounds, tmp_path: Path) -> None:
    """Tenants have paid for the window, and trustees have endorsed it: the round of today gets no answer and no set."""
    with put_back(tmp_path / "provider"), grounds.opened(tmp_path) as federation:
        hold(federation, FIRST)
    with grounds.opened(tmp_path) as federation:
        with pytest.raises(CohortTooSmall, match="at least 3 needed"):
            hold(federation, FIRST)
        waiting = federation.provider.unfinished()
        assert waiting is not None
        with pytest.raises(AlreadyAnswered):
            federation.trustees[-1].endorse(waiting.empty_request)
        give_up(federation.provider, federation.trustees, waiting)
        assert waiting.state is RoundState.REFUSED
        assert waiting.ended() is None
        second, _ = hold(federation, SECOND)
        assert counted(federation, second) == TENANTS
        assert len(prices(federation, 0, SECOND[1])) == 1


def test_of_two_providers_on_one_store_one_opens_the_round_and_one_fixes_its_set(
    grounds: Grounds, tmp_path: Path, five: Federation
) -> None:
    with closing(grounds.provider(tmp_path)) as other:
        asked = other.registration_request(FIRST)
        for tenant in five.tenants:
            other.register(tenant.answer(Query.REGISTRATIONS, asked))
        plans = [party.plan(FIRST) for party in (five.provider, other)]
        round_ = five.provider.open_round(plans[0])
        with pytest.raises(LostStep):
            other.open_round(plans[1])
        with pytest.raises(RoundUnderWay):
            other.plan(SECOND)
        fixed_by_both(five, other, round_.signed_plan)
    release, _ = hold(five, FIRST)
    assert counted(five, release) == TENANTS - 1
    assert all(trustee.conflicts() == [] for trustee in five.trustees)


def fixed_by_both(five: Federation, other: Provider, signed_plan: bytes) -> None:
    """One more answer comes between two processes that fix the set: the set of the first one stands."""
    answers = [tenant.answer(Query.CONTRIBUTION, signed_plan) for tenant in five.tenants]
    rounds = [party.unfinished() for party in (five.provider, other)]
    first, second = (one for one in rounds if one is not None)
    for answer in answers[1:]:
        five.provider.receive(first, answer)
    first.close(five.provider.group)
    with pytest.raises((LostStep, RuntimeError)):
        other.receive(second, answers[0])
    with pytest.raises((LostStep, RuntimeError)):
        second.close(other.group)
    assert len(first.contributors) == TENANTS - 1


# ---- keys that have served -----------------------------------------------------------------------------------------


def test_a_round_under_mask_keys_of_another_epoch_is_planned_answered_and_endorsed_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grounds = Grounds.of_failures(tmp_path, TENANTS, windows=(1,), weeks_per_epoch=1)
    with grounds.opened(tmp_path) as federation:
        hold(federation, FIRST)
        for number in range(TENANTS):
            begin(federation, number, SECOND)
        with pytest.raises(MaskKeysServed):
            hold(federation, SECOND)
        with monkeypatch.context() as dishonest:
            dishonest.setattr(provider_module, "check_mask_keys", lambda _plan, _before: None)
            with pytest.raises(CohortTooSmall):
                hold(federation, SECOND)
        waiting = federation.provider.unfinished()
        assert waiting is not None
        assert waiting.contributors == ()
        assert all(len(tenant.ledger.charges()) == 1 for tenant in federation.tenants)
        with pytest.raises(PlanRefused, match="served another epoch"):
            federation.tenants[0].contribute(waiting.signed_plan)


def test_a_plan_of_before_new_seats_is_answered_by_nobody_who_has_heard_of_them(five: Federation) -> None:
    """Whoever kept the retired keys could take off what is put under them."""
    hold(five, FIRST)
    for tenant in five.tenants:
        five.provider.register(tenant.answer(Query.REGISTRATIONS, five.provider.registration_request(SECOND)))
    before = five.provider.plan(SECOND)
    renew_mask_keys(Holders.founded(five), five)
    five.provider.open_round(before)
    with pytest.raises(CohortTooSmall):
        hold(five, SECOND)
    signed_plan = five.provider._signing_key.sign(before)
    for tenant in five.tenants:
        with pytest.raises((SeatsChanged, PlanRefused)):
            tenant.contribute(signed_plan)
        assert len(tenant.ledger.charges()) == 1
