"""Rounds that wait for a trustee: later ones are collected behind them, and all are opened in their order.

The parties are real and on disk (`tests/support/federations.py`), so "killed" means opened anew from what is there.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from crypto.codec import encode
from crypto.errors import AlreadyAnswered, CohortTooSmall, Refusal, Unreachable
from federation.protocol.queries import Query
from federation.protocol.round_messages import UnmaskCall
from provider_server.rounds.provider import RoundUnderWay, WeekHeld
from provider_server.store.round_store import Answer, RoundState
from provider_server.week import MaskHolder
from simulation.judge.exactness import exact
from simulation.run.federation import Federation
from tests.support.federations import NEWCOMER, WEEKS, Grounds, hold, is_exact

AWAY = 4
TENANTS = 4


@dataclass(frozen=True)
class Away:
    """A trustee that is away, or goes away once it has endorsed."""

    inner: MaskHolder
    endorses: bool = False

    @property
    def index(self) -> int:
        return self.inner.index

    def follow(self, update: bytes) -> bytes:
        if self.endorses:
            return self.inner.follow(update)
        raise Unreachable(f"trustee {self.index} does not answer")

    def endorse(self, request: bytes) -> bytes:
        if self.endorses:
            return self.inner.endorse(request)
        raise Unreachable(f"trustee {self.index} does not answer")

    def unmask(self, call: bytes) -> bytes:
        raise Unreachable(f"trustee {self.index} does not answer")


def without(federation: Federation, *, endorses: bool = False) -> list[MaskHolder]:
    return [Away(one, endorses) if one.index == AWAY else one for one in federation.trustees]


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    root = tmp_path_factory.mktemp("founded") / "home"
    return Grounds.of_failures(root, TENANTS, 4), root


class Place:
    """A copy of the federation that is closed and opened again."""

    def __init__(self, grounds: Grounds, root: Path) -> None:
        self._grounds, self._root = grounds, root

    @contextmanager
    def opened(self) -> Iterator[Federation]:
        with self._grounds.opened(self._root) as federation:
            yield federation


@pytest.fixture
def place(grounds: tuple[Grounds, Path], tmp_path: Path) -> Place:
    return Place(grounds[0], shutil.copytree(grounds[1], tmp_path / "home"))


def states(federation: Federation) -> list[str]:
    return [kept.state for kept in federation.provider.store.rounds.rounds()]


def weeks_charged(federation: Federation) -> list[list[tuple[int, int]]]:
    return [[(one.start_h, one.end_h) for one in tenant.ledger.charges()] for tenant in federation.tenants]


@pytest.mark.parametrize("first", [RoundState.ENDORSING, RoundState.UNMASKING])
def test_weeks_are_collected_while_a_trustee_is_away_and_opened_in_order_once_it_is_back(
    place: Place, first: RoundState
) -> None:
    """Everybody is killed between any two weeks. Owners sign new statements for each; waiting rounds keep theirs."""
    for at, window in enumerate(WEEKS):
        with place.opened() as federation:
            with pytest.raises(Unreachable):
                hold(federation, window, trustees=without(federation, endorses=first is RoundState.UNMASKING))
            assert states(federation) == [first, *[RoundState.COLLECTED] * at]
    with place.opened() as federation:
        for at, window in enumerate(WEEKS):
            release, _ = hold(federation, window)
            assert (release.plan.start_hour, release.plan.position) == (window[0], at)
            assert release.contributors == TENANTS
            assert is_exact(federation, release)
            assert sum(table.sum() for table in exact(federation.tenants, release)) >= TENANTS
        assert states(federation) == [RoundState.RELEASED] * len(WEEKS)
        assert weeks_charged(federation) == [list(WEEKS)] * TENANTS
        series = {release.plan.series and release.plan.series.name for release in federation.provider.releases()}
        assert len(series) == 1


def test_a_tenant_that_is_silent_while_rounds_wait_carries_its_weeks_over(place: Place) -> None:
    with place.opened() as federation:
        for window, silent in zip(WEEKS, [[], [2], []], strict=True):
            with pytest.raises(Unreachable):
                hold(federation, window, trustees=without(federation), silent=silent)
        for window in WEEKS:
            release, _ = hold(federation, window)
            assert is_exact(federation, release)
        assert weeks_charged(federation)[2] == [WEEKS[0], (WEEKS[1][0], WEEKS[2][1])]
        assert [made.contributors for made in federation.provider.releases()] == [4, 3, 4]


def test_a_round_with_too_few_contributions_goes_on_collecting_behind_one_that_waits(place: Place) -> None:
    with place.opened() as federation:
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[0], trustees=without(federation))
        for silent, state in (([0, 1, 2], RoundState.COLLECTING), ([], RoundState.COLLECTED)):
            with pytest.raises(Unreachable):
                hold(federation, WEEKS[1], trustees=without(federation), silent=silent)
            assert states(federation) == [RoundState.ENDORSING, state]
        assert all(is_exact(federation, hold(federation, window)[0]) for window in WEEKS[:2])


def test_a_round_that_still_collects_is_the_last_one(place: Place) -> None:
    with place.opened() as federation:
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[0], trustees=without(federation))
        with pytest.raises(WeekHeld):
            federation.provider.plan(WEEKS[0])
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[1], trustees=without(federation), silent=[0, 1, 2])
        with pytest.raises(RoundUnderWay):
            federation.provider.plan(WEEKS[2])
        with pytest.raises(CohortTooSmall):
            federation.provider.waiting()[-1].collected()


def test_who_gives_a_waiting_round_up_gives_up_those_behind_it_and_a_new_series_begins(place: Place) -> None:
    """The rounds behind it went on from it: no trustee would open them."""
    with place.opened() as federation:
        provider = federation.provider
        for window in WEEKS[:2]:
            with pytest.raises(Unreachable):
                hold(federation, window, trustees=without(federation))
        waiting = provider.waiting()
        assert provider.refuse(waiting[0]) == [one.plan.round_id for one in waiting]
        assert states(federation) == [RoundState.REFUSED, RoundState.REFUSED]
        release, _ = hold(federation, WEEKS[2])
        assert release.plan.position == 0
        assert release.plan.series != waiting[0].plan.series
        assert is_exact(federation, release)
        assert weeks_charged(federation) == [list(WEEKS)] * TENANTS


def test_a_waiting_round_that_no_trustee_was_asked_about_can_be_given_up_alone(place: Place) -> None:
    """Its place in the series is free: no trustee is bound to it."""
    with place.opened() as federation:
        for window in WEEKS[:2]:
            with pytest.raises(Unreachable):
                hold(federation, window, trustees=without(federation))
        federation.provider.refuse(federation.provider.waiting()[-1])
        first, _ = hold(federation, WEEKS[0])
        third, _ = hold(federation, WEEKS[2])
        assert (first.plan.position, third.plan.position) == (0, 1)
        assert first.plan.series is not None
        assert third.plan.series is not None
        assert first.plan.series.name == third.plan.series.name
        assert is_exact(federation, third)


def test_a_trustee_that_comes_back_endorses_one_of_two_rounds_at_one_place(
    place: Place, grounds: tuple[Grounds, Path], tmp_path: Path
) -> None:
    """A provider goes on twice from one store: with one week for who is here, with the next for who was away."""
    with place.opened() as federation:
        hold(federation, WEEKS[0])
        shutil.copytree(tmp_path / "home" / "provider", tmp_path / "fork" / "provider")
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[1], trustees=without(federation))
        (one,) = federation.provider.waiting()
        with closing(grounds[0].provider(tmp_path / "fork")) as fork:
            for tenant in federation.tenants:
                fork.register(tenant.answer(Query.REGISTRATIONS, fork.registration_request(WEEKS[2])))
            other = fork.open_round(fork.plan(WEEKS[2]))
            for tenant in federation.tenants:
                fork.receive(other, tenant.answer(Query.CONTRIBUTION, other.signed_plan))
            fork.close_round(other)
            assert (one.plan.position, other.plan.position) == (1, 1)
            assert one.plan.series == other.plan.series
            trustees = {trustee.index: trustee for trustee in federation.trustees}
            word = trustees[AWAY].endorse(other.request)
            for refused in (one, other):
                with pytest.raises(AlreadyAnswered, match="or at its place in its series"):
                    trustees[AWAY if refused is one else 3].endorse(refused.request)
            words = [*federation.provider.store.rounds.answers(one.plan.round_id, Answer.ENDORSEMENT).values(), word]
            for asked in (one, other):
                for index in (3, AWAY, 5):
                    with pytest.raises(Refusal):
                        trustees[index].unmask(encode(UnmaskCall(asked.request, tuple(words))))


def test_who_joins_or_leaves_while_rounds_wait_disturbs_none_of_them(place: Place) -> None:
    """A plan names the directory under which it is held: who left after it was in it, who joined is in the next."""
    with place.opened() as federation:
        provider, left = federation.provider, federation.tenants[3].id
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[0], trustees=without(federation))
        provider.members.enrol([NEWCOMER], left=[left])
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[1], trustees=without(federation))
        releases = [hold(federation, window)[0] for window in WEEKS]
        assert [left in {answer.tenant for answer in made.answered} for made in releases] == [True, False, False]
        assert [made.contributors for made in releases] == [4, 3, 3]
        assert all(is_exact(federation, made) for made in releases)


def test_clocks_that_are_wrong_by_an_hour_stop_nobody_and_by_more_delay_their_owner_only(place: Place) -> None:
    """The round is held the moment its week is over."""
    with place.opened() as federation:
        wrong_h = {0: 1.0, 1: -1.0, 2: -1.5}
        for window in WEEKS[:2]:
            for number, hours in wrong_h.items():
                federation.tenants[number]._clock = partial(float.__add__, float(window[1]), hours)
            release, _ = hold(federation, window)
            assert release.contributors == TENANTS - 1
            assert is_exact(federation, release)
        federation.tenants[2]._clock = partial(float, WEEKS[2][1])
        for number in (0, 1):
            federation.tenants[number]._clock = partial(float, WEEKS[2][1])
        release, _ = hold(federation, WEEKS[2])
        assert release.contributors == TENANTS
        assert is_exact(federation, release)
        assert weeks_charged(federation)[2] == [(WEEKS[0][0], WEEKS[2][1])]
        assert weeks_charged(federation)[0] == list(WEEKS)
