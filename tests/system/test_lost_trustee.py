"""A mask trustee is lost in the middle of a series: its key comes back to a successor, and the series goes on."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from crypto.codec import encode
from crypto.errors import AlreadyAnswered, OutOfOrder, PeerFault, PharoahError, PlanRefused, Unreachable
from crypto.ids import RoundId
from crypto.masking import MaskKey
from crypto.ristretto import Scalar
from crypto.signing import SigningKey, name_of, reopened
from crypto.threshold import TrusteeFault
from federation.protocol import custody, succession
from federation.protocol.ceremony import CeremonyRefused, Committee
from federation.protocol.directory import Chain, reseating
from federation.protocol.plan import Plan, Series
from federation.protocol.round_messages import UnmaskCall, UnmaskRequest
from federation.protocol.seats import Handover, ReturnedShare, Seats
from provider_server.store.round_store import Answer, RoundState
from simulation.run.federation import Federation
from tenant_client.rounds.tenant import Tenant
from tests.support.changing import replace
from tests.support.federations import COHORT, WEEKS, Grounds, begin, fail, hold, is_exact
from tests.support.seats import Custody, Holder, Succeeded, succeed
from trustee.trustee import Trustee, TrusteeLimits

LOST = 5


@contextmanager
def as_successor(root: Path, state: Succeeded, federation: Federation) -> Iterator[Trustee]:
    """The successor at work: its own keys, an empty memory, and the directory as an invitation brings it."""
    keys = state.shares[LOST], state.holder.signing, state.holder.mask
    entries, memory = federation.provider.members.chain.entries, root / "successor.db"
    others = [state.recovered] if state.recovered else []
    with closing(Trustee(*keys, entries, memory, os.urandom, TrusteeLimits(), None, others)) as trustee:
        yield trustee


@dataclass
class Gone:
    """A trustee that is lost for ever."""

    index: int

    def follow(self, update: bytes) -> bytes:
        raise Unreachable(f"trustee {self.index} is lost")

    def endorse(self, request: bytes) -> bytes:
        raise Unreachable(f"trustee {self.index} is lost")

    def unmask(self, call: bytes) -> bytes:
        raise Unreachable(f"trustee {self.index} is lost")


def started(tmp_path: Path, horizon: int = 4) -> Grounds:
    grounds = Grounds.founded(tmp_path, COHORT, horizon=horizon)
    with grounds.opened(tmp_path) as federation:
        for number in range(COHORT):
            begin(federation, number)
            fail(federation, number)
    return grounds


@pytest.mark.nightly
@pytest.mark.parametrize("lost_at", ["endorsing", "unmasking"])
def test_a_series_goes_on_after_one_of_its_mask_trustees_is_lost(tmp_path: Path, lost_at: str) -> None:
    """It is lost in the second week, before or after it has endorsed; that week and the third are exact."""
    grounds = started(tmp_path)
    of = Custody.founded(grounds.federation)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        own = list(federation.trustees)
        lost = Gone(LOST)
        if lost_at == "unmasking":  # it endorses, and is lost before it answers
            lost.follow, lost.endorse = own[-1].follow, own[-1].endorse  # type: ignore[method-assign]
        with pytest.raises(Unreachable, match="trustee 5 is lost"):
            hold(federation, WEEKS[1], trustees=[*own[:-1], lost])
        waiting = federation.provider.unfinished()
        assert waiting is not None
        assert waiting.state is RoundState(lost_at)
        state = succeed(of, federation.provider, LOST)
        assert state.recovered is not None
        assert state.recovered.public == own[-1]._mask_key.public
        for trustee in own[:-1]:
            trustee._renewed = state.shares[trustee.index]
        with as_successor(tmp_path, state, federation) as successor:
            trustees = [*own[:-1], successor]
            second, _ = hold(federation, WEEKS[1], trustees=trustees)
            third, _ = hold(federation, WEEKS[2], trustees=trustees)
            assert [done for _, _, done in successor.rounds()] == [True] * 3
            assert [name for name, _, _ in successor.rounds()] == [
                made.plan.round_id for made in (first, second, third)
            ]
        for release in (second, third):
            assert is_exact(federation, release)
            assert release.plan.series is not None
            assert first.plan.series is not None
            assert release.plan.series.name == first.plan.series.name
            assert release.plan.trustees == first.plan.trustees
        assert third.plan.directory != first.plan.directory
        for tenant in federation.tenants[:1]:
            assert_old_key_begins_nothing(federation, tenant, third.plan)


def assert_old_key_begins_nothing(federation: Federation, tenant: Tenant, plan: Plan) -> None:
    """A provider that has the key of a former holder, stolen long ago, plans a new series under it."""
    assert plan.series is not None
    name = RoundId(b"n" * 16)
    series = Series(name, plan.end_hour, (1, 2, 3), 0)
    hours = {"start_hour": plan.end_hour, "end_hour": plan.end_hour + 168}
    new = replace(plan, round_id=name, series=series, **hours)
    with pytest.raises(PlanRefused, match=r"trustees \[5\] are not in the directory with these keys"):
        tenant.contribute(federation.provider._signing_key.sign(new))


@pytest.mark.nightly
def test_without_deposits_a_new_series_begins_with_the_successor(tmp_path: Path) -> None:
    grounds = started(tmp_path)
    of = Custody.founded(grounds.federation)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        own = list(federation.trustees)
        state = succeed(of, federation.provider, LOST, returning=False)
        assert state.recovered is None
        with as_successor(tmp_path, state, federation) as successor:
            second, _ = hold(federation, WEEKS[1], trustees=[*own[:-1], successor])
    assert second.plan.series is not None
    assert first.plan.series is not None
    assert second.plan.series.name != first.plan.series.name
    assert second.plan.trustees[-1].mask_key == state.holder.mask.public


@pytest.mark.nightly
def test_a_recovered_key_is_forgotten_when_its_series_is_over(tmp_path: Path) -> None:
    """The next series is under the successor's own key; what is left of the old one is no key."""
    grounds = started(tmp_path, horizon=2)
    of = Custody.founded(grounds.federation)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        own = list(federation.trustees)
        state = succeed(of, federation.provider, LOST)
        with as_successor(tmp_path, state, federation) as successor:
            trustees = [*own[:-1], successor]
            second, _ = hold(federation, WEEKS[1], trustees=trustees)
            assert second.plan.trustees == first.plan.trustees
            assert successor.holds_former
            third, _ = hold(federation, WEEKS[2], trustees=trustees)
            assert third.plan.trustees[-1].mask_key == state.holder.mask.public
            assert not successor.holds_former
            assert state.recovered not in successor._mask_keys.values()
        with as_successor(tmp_path, state, federation) as again:
            assert not again.holds_former
        assert is_exact(federation, third)


@pytest.mark.nightly
def test_a_mask_key_that_is_renewed_serves_from_the_next_series_on_and_the_old_one_is_forgotten(tmp_path: Path) -> None:
    """Trustee 4 stays in its seat, under a new card. The series that it is in goes on under the key of before."""
    grounds = started(tmp_path, horizon=2)
    of = Custody.founded(grounds.federation)
    new = MaskKey.generate(os.urandom)
    holders = [dataclasses.replace(one, mask=new) if at == 4 else one for at, one in enumerate(of.holders, 1)]
    cards = [holder.card for holder in holders]
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        handovers = of.handovers(cards, (1, 3, 5))
        federation.provider.members.reseat(succession.succeeded(of.committee, cards, handovers).trustees, handovers)
        trustee = federation.trustees[3]
        old, trustee._mask_keys[new.public] = trustee._mask_key, new  # as it is after a restart with the key to come
        second, _ = hold(federation, WEEKS[1])
        assert second.plan.directory != first.plan.directory
        assert second.plan.trustees == first.plan.trustees
        assert trustee.holds_former
        third, _ = hold(federation, WEEKS[2])
        assert third.plan.trustees[1].mask_key == new.public
        assert trustee._mask_keys == {new.public: new}
        assert not trustee.holds_former
        for release in (second, third):
            assert is_exact(federation, release)
        call, request = federation.provider.store.rounds, second.plan.round_id
        asked = call.get(request).request
        assert asked is not None
        words = tuple(call.answers(request, Answer.ENDORSEMENT).values())
        with pytest.raises(PlanRefused, match="has another mask key of trustee 4"):
            trustee.unmask(encode(UnmaskCall(asked, words)))
        assert old.public not in trustee._mask_keys


@pytest.mark.nightly
def test_a_successor_opens_nothing_but_what_was_opened(tmp_path: Path) -> None:
    """It has the key of masks, and no memory: a second set of an old week finds no quorum, whatever it endorses."""
    grounds = started(tmp_path)
    of = Custody.founded(grounds.federation)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0])
        provider = federation.provider
        state = succeed(of, federation.provider, LOST)
        (old,) = provider.store.rounds.rounds()
        asked = provider.store.rounds.answers(old.round_id, Answer.ENDORSEMENT)
        assert old.request is not None
        honest = succession_request(federation, old.request)
        with as_successor(tmp_path, state, federation) as successor:
            word = successor.endorse(honest.second)
            for index in (
                1,
                3,
                4,
            ):  # the second was not asked, and would endorse: two of four
                with pytest.raises(AlreadyAnswered):
                    federation.trustees[index - 1].endorse(honest.second)
            other = federation.trustees[1].endorse(honest.second)
            with pytest.raises(PharoahError):
                successor.unmask(honest.call([*asked.values()][:-1]))
            with pytest.raises(OutOfOrder):
                successor.unmask(honest.call([word, other]))
            assert [done for _, _, done in successor.rounds()] == [False]
    assert first.contributors == COHORT


@dataclass(frozen=True)
class TwoSets:
    """A request that was answered, and another one for the same round that the provider signs."""

    first: bytes
    second: bytes

    def call(self, endorsements: Sequence[bytes]) -> bytes:
        return encode(UnmaskCall(self.second, tuple(endorsements)))


def succession_request(federation: Federation, request: bytes) -> TwoSets:
    asked = reopened(UnmaskRequest, request)
    fewer = replace(asked, ownerships=asked.ownerships[::-1])
    second = federation.provider._signing_key.sign(fewer)
    assert name_of(second) != name_of(request)
    return TwoSets(request, second)


# ---- deposits, and who can open them ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Custody:
    return Custody.founded(Grounds.founded(tmp_path_factory.mktemp("custody"), 2).federation)


def test_two_trustees_cannot_open_the_key_of_a_third_and_three_can(of: Custody) -> None:
    """Two collude, both of them masking: with the third one's shares they have what anybody has."""
    successor = Holder.new()
    cards = of.cards(LOST, successor)
    own = successor.signing.public, successor.sealing
    for dealers in ((3, 4), (1, 2)):
        handovers = of.handovers(cards, dealers)
        with pytest.raises(PeerFault, match=r"2 shares of the mask key .* are there, 3 are needed"):
            custody.recovered_key(of.committee, cards, handovers, of.deposits, *own)
    handovers = of.handovers(cards, (1, 2, 4))
    key = custody.recovered_key(of.committee, cards, handovers, of.deposits, *own)
    assert key is not None
    assert key.public == of.committee.trustees[LOST - 1].mask_key


def test_a_share_comes_back_for_who_loses_its_seat_and_for_nobody_else(of: Custody) -> None:
    """Shares of trustees that stay are in no handover, so a renewal gives nobody's key away."""
    own = of.holders[0]
    renewal = custody.returned_shares(of.committee, of.cards(), of.deposits, 1, own.sealing)
    assert renewal == ()
    replaced = custody.returned_shares(of.committee, of.cards(LOST, Holder.new()), of.deposits, 1, own.sealing)
    assert [share.seat for share in replaced] == [LOST]


def test_a_returned_share_opens_for_the_successor_alone(of: Custody) -> None:
    successor, thief = Holder.new(), Holder.new()
    cards = of.cards(LOST, successor)
    handovers = of.handovers(cards, (1, 2, 4))
    with pytest.raises(PeerFault, match="0 shares of the mask key"):
        custody.recovered_key(of.committee, cards, handovers, of.deposits, successor.signing.public, thief.sealing)


def test_a_wrong_share_is_passed_over_where_three_others_are_right(of: Custody) -> None:
    successor = Holder.new()
    cards = of.cards(LOST, successor)
    own = successor.signing.public, successor.sealing
    good = of.handovers(cards, (1, 2, 3, 4))
    liar = of.holders[0]
    names = Seats(of.committee.trustees).name + succession.seated(of.committee, cards)[0].name
    sealed = successor.card.seal(Scalar.from_int(9), custody._return_info(names, 1, LOST))
    lie = replace(reopened(Handover, good[0]), returned=(ReturnedShare(LOST, sealed),))
    told = [liar.signing.sign(lie), *good[1:]]
    key = custody.recovered_key(of.committee, cards, told, of.deposits, *own)
    assert key is not None
    assert key.public == of.committee.trustees[LOST - 1].mask_key
    with pytest.raises(PeerFault, match="2 shares of the mask key"):
        custody.recovered_key(of.committee, cards, told[:3], of.deposits, *own)


def test_a_deposit_is_of_the_mask_key_in_the_directory_and_its_shares_fit(of: Custody) -> None:
    honest, owner = reopened(custody.Deposit, of.deposits[2]), of.holders[LOST - 1]
    custody.deposited_share(of.committee, of.deposits[2], 1, of.holders[0].sealing)
    other = MaskKey.generate(os.urandom)
    for bad, said in (
        (replace(honest, mask_key=other.public), "deposited another mask key than its own"),
        (replace(honest, commitments=honest.commitments[:2]), "made a deposit for other trustees"),
        (replace(honest, commitments=(*honest.commitments[1:], honest.commitments[0])), "dealt of another key"),
    ):
        with pytest.raises(PeerFault, match=said):
            custody.open_deposit(of.committee, owner.signing.sign(bad))
    swapped = owner.signing.sign(replace(honest, sealed=(honest.sealed[1], honest.sealed[0], *honest.sealed[2:])))
    with pytest.raises(TrusteeFault, match="trustee 5 sealed a share of its mask key to trustee 1 that does not open"):
        custody.deposited_share(of.committee, swapped, 1, of.holders[0].sealing)
    stranger = Holder.new()
    foreign = stranger.signing.sign(replace(honest, owner=stranger.signing.public))
    with pytest.raises(PeerFault, match="holds no seat"):
        custody.open_deposit(of.committee, foreign)


def test_no_deposit_where_colluding_mask_trustees_could_open_it(of: Custody) -> None:
    """A threshold of 2 with three that mask: two of them, who collude anyway, would have the third one's key."""
    few = Committee(2, of.committee.group_key, of.committee.trustees)
    own = of.holders[LOST - 1]
    with pytest.raises(CeremonyRefused, match="a threshold of 2 is not above 2, the mask trustees less one"):
        custody.make_deposit(own.signing, own.mask, few, of.cards(), os.urandom)
    with pytest.raises(CeremonyRefused, match="trustee 1 does not mask"):
        of.deposit(1)


@pytest.mark.parametrize("dealers", [(1, 2, 4), (1, 2)])
def test_a_key_of_before_serves_only_a_series_that_goes_on_and_only_if_it_came_back(
    of: Custody, dealers: tuple[int, ...]
) -> None:
    """Else a provider with a key that was stolen from a former holder could plan new rounds under it."""
    provider = SigningKey.generate(os.urandom)
    chain = Chain.begin(provider.sign(of.committee.founding_entry(provider.public, 13, ())), provider.public)
    cards = of.cards(LOST, Holder.new())
    handovers = of.handovers(cards, dealers) + of.handovers(cards, {1, 2, 4} - {*dealers}, returning=False)
    after = succession.succeeded(of.committee, cards, handovers)
    seats = chain.extended([provider.sign(reseating(chain.directory, after.trustees, handovers))]).directory
    old, new = of.committee.trustees[LOST - 1].mask_key, after.trustees[LOST - 1].mask_key
    came_back = len(dealers) == 3
    assert (seats.masks(LOST, old, goes_on=True), seats.masks(LOST, old, goes_on=False)) == (came_back, False)
    assert seats.masks(LOST, new, goes_on=False)
    assert not seats.masks(4, old, goes_on=True)
