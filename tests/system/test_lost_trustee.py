"""A mask trustee is lost in the middle of an epoch: it costs the open round, and the units of that count in the next.

Four trustees are a quorum of five, and trustees 3 to 5 mask. Epochs have three weekly windows here.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest

from crypto.errors import AlreadyAnswered, CohortTooSmall, PeerFault, Unreachable
from crypto.signing import reopened
from federation.protocol.directory import SeatsChanged
from federation.protocol.endorsed import EndedRound, EndorsedSet, check_ended
from federation.protocol.round_messages import UnmaskRequest
from federation.protocol.services import TrusteeMethod
from federation.transport.introductions import Introducing
from provider_server.program.metrics import Metrics
from provider_server.program.service import Seated
from provider_server.rounds.network.trustee_service import RemoteTrustee
from provider_server.rounds.planning import MaskKeysServed
from provider_server.rounds.provider import RoundUnderWay
from provider_server.rounds.store.round_store import RoundState
from provider_server.rounds.week import give_up
from simulation.run.federation import Federation
from tests.support.federations import COHORT, WEEKS, Grounds, begin, hold, is_exact
from tests.support.seats import Holders, hand_keys, renew_mask_keys, succeed
from tests.support.trustees import Gone
from trustee.trustee import Trustee

LOST = 5


@contextmanager
def succeeded(root: Path, grounds: Grounds, federation: Federation) -> Iterator[list[Trustee]]:
    """A successor takes the seat: the trustees after that, each with its share, who have not heard of it yet."""
    after = succeed(Holders.founded(grounds.federation), federation.provider, LOST)
    staying = [trustee for trustee in federation.trustees if trustee.index != LOST]
    for trustee in staying:
        hand_keys(trustee, after)
    own, entries = after.holders[LOST - 1], federation.provider.members.chain.entries
    keys = after.shares[LOST], own.signing, own.mask
    with closing(Trustee(*keys, entries, root / "successor.db", os.urandom)) as successor:
        yield [*staying, successor]


def test_the_round_of_a_lost_trustee_is_given_up_and_its_units_count_in_the_next(tmp_path: Path) -> None:
    """It is lost while answers to the second week come in; the third counts both weeks, each at the price of one."""
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        with pytest.raises(CohortTooSmall):
            hold(federation, WEEKS[1], silent=[0])
        waiting = federation.provider.unfinished()
        assert waiting is not None
        with succeeded(tmp_path, grounds, federation) as trustees:
            give_up(federation.provider, trustees, waiting)
            assert federation.provider.unfinished() is None
            third, _ = hold(federation, WEEKS[2], trustees=trustees)
            assert all(trustee.conflicts() == [] for trustee in trustees)
        assert {answer.start_hour for answer in third.answered} == {WEEKS[1][0]}
        assert is_exact(federation, first)
        assert is_exact(federation, third)
        assert third.plan.trustees[:2] == first.plan.trustees[:2]
        assert third.plan.trustees[2] != first.plan.trustees[2]


def test_a_running_provider_asks_whoever_holds_a_seat_by_now(tmp_path: Path) -> None:
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        provider, introducing = federation.provider, Introducing(grounds.federation.provider._signing_key, time.time)
        with closing(Seated(provider, introducing, Metrics())) as seated:
            before = [cast(RemoteTrustee, one.inner).peer for one in seated]
            assert [one.index for one in seated] == [1, 2, 3, 4, 5]
            assert [cast(RemoteTrustee, one.inner).peer for one in seated] == before  # connections last
            succeed(Holders.founded(grounds.federation), provider, LOST)
            assert [one.index for one in seated] == [1, 2, 3, 4, 5]
            assert seated[LOST - 1].inner.peer.address == "s.example:1" != before[LOST - 1].address
            with pytest.raises(Unreachable, match="was closed"):
                before[LOST - 1].call(TrusteeMethod.ENDORSE, b"")


def test_a_round_that_was_endorsed_by_a_trustee_that_is_lost_is_opened_by_nobody(tmp_path: Path) -> None:
    """Its set is bound: nobody in it counts again, and its successor, who has other keys, opens nothing of it."""
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        own = federation.trustees
        with pytest.raises(Unreachable):
            hold(federation, WEEKS[0], trustees=[*own[:-1], Gone(own[-1])])
        waiting = federation.provider.unfinished()
        assert waiting is not None
        assert waiting.state is RoundState.UNMASKING
        call = waiting.call()
        with succeeded(tmp_path, grounds, federation) as trustees:
            with pytest.raises(SeatsChanged):
                trustees[-1].endorse(waiting.request)
            with pytest.raises(AlreadyAnswered):
                trustees[-1].unmask(call)
            give_up(federation.provider, trustees, waiting)
            second, _ = hold(federation, WEEKS[1], trustees=trustees)
        assert {answer.start_hour for answer in second.answered} == {WEEKS[1][0]}
        assert is_exact(federation, second)


def test_a_window_that_was_opened_is_not_shown_as_given_up_with_a_successors_word(tmp_path: Path) -> None:
    """It has no memory, and says that nobody was counted; the others do not, or tenants would count twice."""
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        released, _ = hold(federation, WEEKS[0])
        provider = federation.provider
        (opened,) = provider.store.rounds.rounds()
        nobody = provider._signing_key.sign(UnmaskRequest(opened.signed_plan, (), ()))
        with succeeded(tmp_path, grounds, federation) as trustees:
            words = [trustees[-1].endorse(nobody)]
            for trustee in trustees[:-1]:
                trustee.follow(provider.members.update())
                if trustee.rounds():
                    with pytest.raises(AlreadyAnswered):
                        trustee.endorse(nobody)
                else:  # the one that was not asked, since four are enough
                    words.append(trustee.endorse(nobody))
        empty = EndorsedSet.of(released.plan, reopened(UnmaskRequest, nobody))
        with pytest.raises(PeerFault, match="2 trustees endorsed the set that was shown, 4 are needed"):
            check_ended(EndedRound(empty, tuple(words)), provider.members.chain)


def test_the_next_epoch_waits_for_mask_keys_that_are_new_and_loses_nothing(tmp_path: Path) -> None:
    """The provider asks nobody before: no tenant is charged, and no window is held."""
    grounds = Grounds.of_failures(tmp_path, COHORT, windows=(1,), weeks_per_epoch=1)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        for number in range(COHORT):
            begin(federation, number, WEEKS[1])
        with pytest.raises(MaskKeysServed, match=r"of trustees \[3, 4, 5\]"):
            hold(federation, WEEKS[1])
        assert federation.provider.unfinished() is None
        assert [len(tenant.ledger.charges()) for tenant in federation.tenants] == [1] * COHORT
        holders = renew_mask_keys(Holders.founded(grounds.federation), federation)
        second, _ = hold(federation, WEEKS[1])
        assert second.plan.epoch == first.plan.epoch + 1
        assert [one.mask_key for one in second.plan.trustees] == [one.mask.public for one in holders.holders[2:]]
        assert is_exact(federation, second)


def test_a_renewal_waits_for_the_open_round_and_a_succession_does_not(tmp_path: Path) -> None:
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        with pytest.raises(CohortTooSmall):
            hold(federation, WEEKS[0], silent=[0])
        of, head = Holders.founded(grounds.federation), federation.provider.directory.head
        for seats in ((3, 4, 5), ()):  # mask keys, or the shares of the token key alone
            with pytest.raises(RoundUnderWay, match="is still collecting: renewed keys would end it"):
                renew_mask_keys(of, federation, seats)
        assert federation.provider.directory.head == head
        succeed(of, federation.provider, LOST)
        assert not federation.provider.members.chain.has_same_seats(head)
