"""A round that is given up ends with an empty set, its units count in the next, and tenants are shown every set.

Four trustees are a quorum of five, and trustees 3 to 5 mask. Epochs have three weekly windows here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from crypto.codec import decode
from crypto.errors import CohortTooSmall, Unreachable
from federation.protocol.endorsed import EndedRound, EndedRounds, EndorsedSet, check_ended
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.queries import Query
from provider_server.fleet.release import Release
from provider_server.rounds.provider import RoundUnderWay, WeekHeld
from provider_server.rounds.round import Round
from provider_server.rounds.store.round_store import Answer, RoundState
from provider_server.rounds.week import MaskHolder, give_up
from simulation.run.federation import Federation
from tests.support.federations import COHORT, WEEKS, Answerer, Grounds, hold, is_exact
from tests.support.trustees import Gone

TENANTS = COHORT + 1
NEXT_EPOCH = WEEKS[-1][1], WEEKS[-1][1] + 168


@dataclass
class Away:
    """A trustee that answers no request."""

    index: int

    def follow(self, _: bytes) -> bytes:
        raise Unreachable(f"trustee {self.index} is away")

    endorse = unmask = follow


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """All tenants have a failure in each week."""
    grounds = Grounds.of_failures(tmp_path, TENANTS)
    with grounds.opened(tmp_path) as opened:
        yield opened


def without(federation: Federation, *away: int) -> list[MaskHolder]:
    """All trustees, some of whom are away."""
    return [Away(one.index) if one.index in away else one for one in federation.trustees]


def too_few(federation: Federation, window: tuple[int, int], silent: Sequence[int] = (0, 1)) -> Round:
    """A round that waits for contributions."""
    with pytest.raises(CohortTooSmall):
        hold(federation, window, silent=silent)
    return unfinished(federation)


def unfinished(federation: Federation) -> Round:
    round_ = federation.provider.unfinished()
    assert round_ is not None
    return round_


def sets(federation: Federation, window: tuple[int, int]) -> list[EndorsedSet]:
    """What tenants are shown before the round of a window, checked as they check it."""
    provider = federation.provider
    shown = provider.ended(window)
    return [check_ended(one, provider.members.chain) for one in decode(EndedRounds, shown).rounds] if shown else []


def starts(release: Release) -> list[int]:
    """The window from which each counted, from 0, in the order of tenants' names."""
    return [answer.start_hour // 168 for answer in release.answered]


def paid(federation: Federation, release: Release) -> list[list[float]]:
    """What a lease of each tenant has paid in each window, of the price of the release's plan."""
    once = plan_loss(release.plan).rho
    return [[tenant.ledger.spent(*window).rho / once for window in WEEKS] for tenant in federation.tenants]


# ---- given up in time ------------------------------------------------------------------------------------------------


def test_units_of_a_round_that_was_given_up_count_once_in_the_next_at_the_price_of_one(federation: Federation) -> None:
    """Two tenants had answered and been charged, two had not been heard."""
    waiting = too_few(federation, WEEKS[0])
    give_up(federation.provider, federation.trustees, waiting)
    assert waiting.state is RoundState.REFUSED
    assert [one.tenants for one in sets(federation, WEEKS[1])] == [()]
    with pytest.raises(WeekHeld):
        hold(federation, WEEKS[0])
    releases = [hold(federation, window)[0] for window in WEEKS[1:]]
    assert [starts(release) for release in releases] == [[0] * TENANTS, [2] * TENANTS]
    assert all(is_exact(federation, release) for release in releases)
    assert sum(float(one.table("pairs").events.sum()) for one in releases) == pytest.approx(3 * TENANTS, abs=0.5)
    assert paid(federation, releases[0]) == [pytest.approx([1, 1, 1])] * TENANTS
    returned = [sum(charge.is_given_back for charge in tenant.ledger.charges()) for tenant in federation.tenants]
    assert returned == [0, 0, 1, 1]


def test_the_rounds_of_a_whole_epoch_that_are_given_up_but_one_lose_nothing(federation: Federation) -> None:
    for window in WEEKS[:2]:
        give_up(federation.provider, federation.trustees, too_few(federation, window, silent=(2, 3)))
    last, _ = hold(federation, WEEKS[2])
    assert starts(last) == [0] * TENANTS
    assert is_exact(federation, last)
    assert paid(federation, last) == [pytest.approx([1, 1, 1])] * TENANTS


def test_giving_up_waits_for_a_quorum_and_the_next_round_begins_by_finishing_it(federation: Federation) -> None:
    waiting = too_few(federation, WEEKS[0])
    with pytest.raises(Unreachable):
        give_up(federation.provider, without(federation, 2, 5), waiting)
    assert waiting.state is RoundState.GIVING_UP
    assert sets(federation, WEEKS[1]) == []
    with pytest.raises(RoundUnderWay):
        federation.provider.plan(WEEKS[1])
    with pytest.raises(Unreachable):
        hold(federation, WEEKS[1], trustees=without(federation, 2, 5))
    assert len(federation.provider.plans()) == 1
    release, _ = hold(federation, WEEKS[1])
    assert starts(release) == [0] * TENANTS
    assert is_exact(federation, release)


# ---- given up too late -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "begins"), [((3,), 0), ((3, 4), 1)])
def test_who_endorsed_a_set_endorses_no_empty_one_and_without_a_quorum_for_either_nobody_counts_again(
    federation: Federation, bound: tuple[int, ...], begins: int
) -> None:
    with pytest.raises(Unreachable):
        hold(federation, WEEKS[0], trustees=without(federation, bound[-1] + 1))
    round_ = unfinished(federation)
    assert {3, 4, 5} - round_.missing(Answer.ENDORSEMENT) == set(bound)
    give_up(federation.provider, federation.trustees, round_)
    assert round_.state is RoundState.REFUSED
    assert [one.tenants for one in sets(federation, WEEKS[1])] == [()] * (1 - begins)
    release, _ = hold(federation, WEEKS[1])
    assert starts(release) == [begins] * TENANTS
    assert is_exact(federation, release)
    assert paid(federation, release) == [pytest.approx([1, 1, 0])] * TENANTS


def test_a_round_whose_set_is_endorsed_ends_with_that_set_and_nobody_in_it_counts_again(federation: Federation) -> None:
    gone = Gone(federation.trustees[-1])
    with pytest.raises(Unreachable):
        hold(federation, WEEKS[0], trustees=[*federation.trustees[:-1], gone], silent=[0])
    round_ = unfinished(federation)
    assert round_.state is RoundState.UNMASKING
    give_up(federation.provider, federation.trustees, round_)
    (shown,) = sets(federation, WEEKS[1])
    assert set(shown.tenants) == {tenant.id for tenant in federation.tenants[1:]}
    release, _ = hold(federation, WEEKS[1])
    began = {answer.tenant: answer.start_hour for answer in release.answered}
    assert [began[tenant.id] for tenant in federation.tenants] == [0, 168, 168, 168]
    assert is_exact(federation, release)


# ---- what tenants are shown ------------------------------------------------------------------------------------------


def test_every_round_begins_with_all_sets_of_its_epoch_in_order(federation: Federation) -> None:
    asked: list[tuple[Query, bytes]] = []

    def answer(query: Query, payload: bytes) -> bytes:
        asked.append((query, payload))
        return federation.tenants[0].answer(query, payload)

    def heard() -> list[tuple[Query, bytes]]:
        """What one tenant was asked since, up to its contribution."""
        found = [one for one in asked if one[0] is not Query.BUNDLE]
        asked.clear()
        return found

    listening: dict[int, Answerer] = {0: answer}
    hold(federation, WEEKS[0], listening, silent=[3])
    assert [query for query, _ in heard()] == [Query.DIRECTORY, Query.REGISTRATIONS, Query.CONTRIBUTION]
    with pytest.raises(CohortTooSmall):
        hold(federation, WEEKS[1], listening, silent=[1, 2])
    give_up(federation.provider, federation.trustees, unfinished(federation))
    heard()
    release, _ = hold(federation, WEEKS[2], listening)
    said = heard()
    assert [query for query, _ in said] == [Query.DIRECTORY, Query.ENDED, Query.REGISTRATIONS, Query.CONTRIBUTION]
    shown = decode(EndedRounds, said[1][1]).rounds
    assert [(one.endorsed.start_hour, one.endorsed.end_hour) for one in shown] == list(WEEKS[:2])
    assert set(shown[0].endorsed.tenants) == {tenant.id for tenant in federation.tenants[:3]}
    assert shown[1].endorsed.tenants == ()
    began = {answer.tenant: answer.start_hour for answer in release.answered}
    assert [began[tenant.id] for tenant in federation.tenants] == [168, 168, 168, 0]
    assert is_exact(federation, release)
    assert federation.provider.ended(NEXT_EPOCH) == b""


def test_a_round_that_goes_on_shows_the_sets_before_it_once_more(federation: Federation) -> None:
    """Who was away when it began counts what waits all the same."""
    give_up(federation.provider, federation.trustees, too_few(federation, WEEKS[0]))
    too_few(federation, WEEKS[1])
    release, _ = hold(federation, WEEKS[1])
    assert starts(release) == [0] * TENANTS
    assert is_exact(federation, release)


def test_sets_are_read_once_for_all_answers_of_a_round(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes a moment for every tenant in them: for every answer anew it would be the square of that."""
    hold(federation, WEEKS[0])
    asked: list[Round] = []
    ended = Round.ended

    def counted(round_: Round) -> EndedRound | None:
        asked.append(round_)
        return ended(round_)

    monkeypatch.setattr(Round, "ended", counted)
    release, _ = hold(federation, WEEKS[1])
    assert release.contributors == TENANTS
    assert len(asked) == 2  # tenants are shown it, and it is held against their answers
