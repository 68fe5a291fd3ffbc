"""A trustee that is lost is replaced, and shares are renewed, by files: nobody changes seats without the others."""

import json
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from crypto.codec import decode, encode
from crypto.errors import BadSignature, PeerFault
from crypto.ids import EncodedElement
from crypto.masking import MaskKey
from crypto.ristretto import Scalar, mul_base
from crypto.signing import SigningKey, reopened
from crypto.threshold import KeyShare, TrusteeFault
from federation.protocol.ceremony import CeremonyRefused, Committee, KeptShare, committee, deal, own_share
from federation.protocol.directory import Chain, Directory, Fork, next_entry, reseating
from federation.protocol.enrolment import SealingKey, TrusteeCard, card_list, open_trustee_card
from federation.protocol.plan import HOURS_PER_WEEK, MaskTrustee
from federation.protocol.round_messages import DirectoryUpdate, UnmaskRequest
from federation.protocol.seats import Handover, Reseating, ReseatingRefused
from federation.protocol.succession import hand_over, own_new_share, seated, succeeded
from provider_server.program import cli as provider_cli
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.workload.descriptor import rungs
from tenant_client.rounds.home import create as create_tenant
from tenant_client.rounds.tokens import TokenSource
from tests.support.changing import replace
from tests.support.factories import a_descriptor, a_plan
from trustee import home as trustee_home
from trustee.cli import app
from trustee.service import serve
from trustee.settings import TrusteeSettings, TrusteeTable
from trustee.trustee import Trustee, TrusteeLimits

T, N = 3, 5
PROVIDER = SigningKey(bytes(31) + b"\7")


@dataclass(frozen=True)
class Party:
    """A trustee with all of its keys."""

    signing: SigningKey
    mask: MaskKey
    sealing: SealingKey
    address: str

    @classmethod
    def new(cls, number: int) -> "Party":
        keys = SigningKey(os.urandom(32)), MaskKey(os.urandom(32)), SealingKey(os.urandom(32))
        return cls(*keys, f"trustee-{number}.example:7100")

    @property
    def card(self) -> TrusteeCard:
        return TrusteeCard.of(self.signing, self.mask, self.sealing.public, made_hour=1000, address=self.address)


@dataclass(frozen=True)
class Seated:
    """A committee, the parties in their seats, and their shares."""

    committee: Committee
    parties: tuple[Party, ...]
    shares: tuple[KeyShare, ...]

    def cards(self, **instead: Party) -> list[TrusteeCard]:
        """Those of all seats; `seat_3=party` is in the place of the third."""
        seats = enumerate(self.parties, 1)
        return [instead.get(f"seat_{index}", party).card for index, party in seats]

    def handovers(self, cards: Sequence[TrusteeCard], dealers: Sequence[int] = (1, 2, 4)) -> list[bytes]:
        return [
            hand_over(self.parties[dealer - 1].signing, self.shares[dealer - 1], self.committee, cards, os.urandom)
            for dealer in dealers
        ]


@cache
def founded() -> Seated:
    parties = sorted((Party.new(number) for number in range(N)), key=lambda party: party.card.verify_key)
    cards = card_list(party.card for party in parties)
    dealings = [deal(party.signing, cards, T, os.urandom) for party in parties]
    shares = [own_share(cards, dealings, party.signing.public, party.sealing) for party in parties]
    return Seated(committee(cards, dealings), tuple(parties), tuple(shares))


def succeed(before: Seated, dealers: Sequence[int] = (1, 2, 4), **instead: Party) -> tuple[Seated, list[bytes]]:
    cards = before.cards(**instead)
    handovers = before.handovers(cards, dealers)
    parties = tuple(instead.get(f"seat_{index}", party) for index, party in enumerate(before.parties, 1))
    shares = [own_new_share(before.committee, cards, handovers, one.signing.public, one.sealing) for one in parties]
    return Seated(succeeded(before.committee, cards, handovers), parties, tuple(shares)), handovers


def begun(before: Committee) -> Chain:
    return Chain.begin(PROVIDER.sign(before.founding_entry(PROVIDER.public, 13, ())), PROVIDER.public)


def entry_of(chain: Chain, after: Committee, handovers: Sequence[bytes]) -> bytes:
    return PROVIDER.sign(reseating(chain.directory, after.trustees, handovers))


# ---- what a handover makes -------------------------------------------------------------------------------------------


def test_a_successor_takes_the_seat_of_who_is_lost_and_the_key_stays() -> None:
    before, successor = founded(), Party.new(9)
    after, handovers = succeed(before, seat_3=successor)
    assert after.committee.group_key == before.committee.group_key
    assert [share.index for share in after.shares] == [1, 2, 3, 4, 5]
    for share in after.shares:
        after.committee.check_share(share)
    keys = {trustee.index: trustee.verify_key for trustee in after.committee.trustees}
    assert keys[3] == successor.signing.public
    assert all(keys[index] == before.parties[index - 1].signing.public for index in (1, 2, 4, 5))
    chain = begun(before.committee)
    seats = chain.extended([entry_of(chain, after.committee, handovers)]).directory
    assert seats.trustees == after.committee.trustees
    assert (seats.group_key, seats.threshold, seats.members) == (before.committee.group_key, T, ())
    after.committee.check_seated(seats)


def test_a_renewal_changes_all_share_keys_and_nobody() -> None:
    before = founded()
    after, _ = succeed(before, dealers=(1, 2, 3, 4, 5))
    for old, new in zip(before.committee.trustees, after.committee.trustees, strict=True):
        assert replace(new, share_key=old.share_key) == old
        assert new.share_key != old.share_key
    with pytest.raises(CeremonyRefused):
        after.committee.check_share(before.shares[0])


def test_files_in_any_order_make_the_same_committee() -> None:
    before, successor = founded(), Party.new(9)
    cards = before.cards(seat_5=successor)
    handovers = before.handovers(cards, (1, 2, 3))
    made = {
        encode(succeeded(before.committee, some_cards, some))
        for some_cards in (cards, cards[::-1])
        for some in (handovers, handovers[::-1])
    }
    assert len(made) == 1


def test_seats_change_hands_twice_and_members_join_in_between() -> None:
    first = founded()
    second, handed = succeed(first, seat_1=Party.new(8), dealers=(2, 3, 5))
    third, handed_again = succeed(second, seat_4=Party.new(9), dealers=(1, 2, 3))
    chain = begun(first.committee)
    chain = chain.extended([entry_of(chain, second.committee, handed)])
    chain = chain.extended([PROVIDER.sign(next_entry(chain.directory))])
    chain = chain.extended([entry_of(chain, third.committee, handed_again)])
    assert chain.directory.trustees == third.committee.trustees
    assert [chain.at(chain.directory.head).number, len(chain.entries)] == [3, 4]


# ---- who may not change anything -------------------------------------------------------------------------------------


def test_a_provider_alone_or_with_two_trustees_changes_nobody() -> None:
    """The attack that matters: seats for its own trustees, so that their shares and masks are its own."""
    before, own = founded(), Party.new(9)
    chain = begun(before.committee)
    after, handovers = succeed(before, seat_3=own)
    for some in ((), handovers[:1], handovers[:2]):
        with pytest.raises(ReseatingRefused, match=f"{len(some)} trustees handed over, 3 are needed"):
            chain.extended([entry_of(chain, after.committee, some)])
    with pytest.raises(PeerFault, match="handed over twice"):
        chain.extended([entry_of(chain, after.committee, [*handovers[:2], handovers[0]])])
    forged = own.signing.sign(reopened(Handover, handovers[2]))
    with pytest.raises(BadSignature):
        chain.extended([entry_of(chain, after.committee, [*handovers[:2], forged])])


def test_a_handover_serves_for_the_seats_that_it_names_and_no_others() -> None:
    before, agreed, other = founded(), Party.new(8), Party.new(9)
    chain = begun(before.committee)
    after, handovers = succeed(before, seat_3=agreed)
    records = list(after.committee.trustees)
    mine = succeed(before, seat_3=other)[0].committee.trustees[2]
    records[2] = replace(mine, share_key=records[2].share_key)
    with pytest.raises(PeerFault, match="made its handover for another change of seats"):
        chain.extended([PROVIDER.sign(reseating(chain.directory, records, handovers))])
    moved = [replace(records[0], address="evil.example:1"), *after.committee.trustees[1:]]
    with pytest.raises(PeerFault, match="made its handover for another change of seats"):
        chain.extended([PROVIDER.sign(reseating(chain.directory, moved, handovers))])
    settled = chain.extended([entry_of(chain, after.committee, handovers)])
    with pytest.raises(PeerFault, match="made its handover for another change of seats"):
        settled.extended([entry_of(settled, before.committee, handovers)])  # nor back again
    with pytest.raises(Fork):
        settled.extended([PROVIDER.sign(replace(decode_entry(settled), number=7))])


def decode_entry(chain: Chain) -> Reseating:
    return reopened(Reseating, chain.entries[-1])


def test_share_keys_are_those_that_were_handed_over() -> None:
    before = founded()
    chain = begun(before.committee)
    after, handovers = succeed(before)
    own = EncodedElement(mul_base(Scalar.from_int(11)).encoded)
    for seat in range(N):
        records = list(after.committee.trustees)
        records[seat] = replace(records[seat], share_key=own)
        with pytest.raises(ReseatingRefused, match="the new share keys are not those"):
            chain.extended([PROVIDER.sign(reseating(chain.directory, records, handovers))])
    with pytest.raises(ReseatingRefused, match="4 seats would take the place of 5"):
        chain.extended([PROVIDER.sign(reseating(chain.directory, after.committee.trustees[:4], handovers))])


def test_a_mask_key_that_was_replaced_takes_no_seat_again() -> None:
    """The provider replays an old card of a trustee whose old mask key it got hold of; the others hand over to it."""
    first = founded()
    fresh = replace(first.parties[4], mask=MaskKey(os.urandom(32)))
    second, handed = succeed(first, seat_5=fresh)
    third, handed_again = succeed(second, seat_5=first.parties[4])
    chain = begun(first.committee)
    chain = chain.extended([entry_of(chain, second.committee, handed)])
    assert chain.directory.retired == {first.parties[4].mask.public}
    with pytest.raises(ReseatingRefused, match=r"brings back mask keys that trustees \[5\] had before"):
        chain.extended([entry_of(chain, third.committee, handed_again)])
    fourth, handed_on = succeed(second, seat_5=replace(fresh, mask=MaskKey(os.urandom(32))))
    chain = chain.extended([entry_of(chain, fourth.committee, handed_on)])
    assert chain.directory.retired == {first.parties[4].mask.public, fresh.mask.public}


def test_a_successor_whose_mask_key_is_anothers_takes_no_seat() -> None:
    before, thief, victim = founded(), Party.new(9), Party.new(10)
    card = changed_card(thief.card, mask_key=victim.card.mask_key, possession=victim.card.possession)
    cards = [*before.cards()[:4], card]
    handovers = before.handovers(cards)
    chain = begun(before.committee)
    with pytest.raises(BadSignature, match="no valid proof of possession"):
        chain.extended([entry_of(chain, succeeded(before.committee, cards, handovers), handovers)])


def changed_card(card: TrusteeCard, **changes: Any) -> TrusteeCard:
    return replace(card, **changes)


# ---- cheats, and who is named ----------------------------------------------------------------------------------------


def test_a_share_that_does_not_open_or_does_not_fit_names_its_dealer() -> None:
    before = founded()
    cards = before.cards()
    handovers = before.handovers(cards)
    honest, victim = reopened(Handover, handovers[1]), before.parties[0]
    swapped = replace(honest, sealed=(honest.sealed[1], honest.sealed[0], *honest.sealed[2:]))
    for bad, fault in ((swapped, "does not open"), (replace(honest, sealed=()), "does not open")):
        told = [handovers[0], before.parties[1].signing.sign(bad), handovers[2]]
        with pytest.raises(TrusteeFault, match=f"trustee 2 .*{fault}") as caught:
            own_new_share(before.committee, cards, told, victim.signing.public, victim.sealing)
        assert caught.value.trustee == 2


def test_a_dealer_of_another_share_is_named_by_everybody() -> None:
    before = founded()
    cards = before.cards()
    handovers = before.handovers(cards)
    other = reopened(Handover, handovers[0])
    lie = replace(reopened(Handover, handovers[1]), commitments=other.commitments)
    told = [handovers[0], before.parties[1].signing.sign(lie), handovers[2]]
    with pytest.raises(TrusteeFault, match="trustee 2 dealt another share than its own"):
        succeeded(before.committee, cards, told)
    chain = begun(before.committee)
    with pytest.raises(TrusteeFault, match="trustee 2 dealt another share than its own"):
        chain.extended([PROVIDER.sign(reseating(chain.directory, before.committee.trustees, told))])


def test_there_is_one_card_for_each_seat() -> None:
    before = founded()
    for cards in (before.cards()[:4], [*before.cards(), Party.new(9).card], []):
        with pytest.raises(PeerFault, match=r"new cards for \d free seats of 5"):
            seated(before.committee, cards)


def test_who_holds_no_share_of_this_committee_hands_nothing_over() -> None:
    before = founded()
    with pytest.raises(CeremonyRefused):
        hand_over(before.parties[1].signing, before.shares[0], before.committee, before.cards(), os.urandom)
    wrong = KeyShare(1, Scalar.from_int(5))
    with pytest.raises(CeremonyRefused):
        hand_over(before.parties[0].signing, wrong, before.committee, before.cards(), os.urandom)
    stranger, handovers = Party.new(9), before.handovers(before.cards())
    with pytest.raises(CeremonyRefused, match="none of the cards"):
        own_new_share(before.committee, before.cards(), handovers, stranger.signing.public, stranger.sealing)


# ---- a trustee at work -----------------------------------------------------------------------------------------------


def a_trustee(
    folder: Path,
    state: Seated,
    index: int,
    chain: Chain,
    renewed: KeyShare | None = None,
    share: KeyShare | None = None,
) -> Trustee:
    party = state.parties[index - 1]
    own = state.shares[index - 1], party.signing, party.mask
    memory = folder / f"{party.address.partition(':')[0]}.db"
    return Trustee(*own, chain.entries, memory, os.urandom, TrusteeLimits(), renewed)


def test_tokens_stay_the_same_over_a_handover_and_the_lost_one_is_asked_in_vain(tmp_path: Path) -> None:
    before = founded()
    after, handovers = succeed(before, seat_3=Party.new(9))
    tenant = create_tenant(tmp_path / "tenant", os.urandom, 0.0)
    chain = Chain.begin(PROVIDER.sign(before.committee.founding_entry(PROVIDER.public, 13, (tenant,))), PROVIDER.public)
    update = encode(DirectoryUpdate((entry_of(chain, after.committee, handovers),)))
    signing = SigningKey((tmp_path / "tenant" / "signing.key").read_bytes())
    with ExitStack() as opened:
        staying = [
            opened.enter_context(closing(a_trustee(tmp_path, before, index, chain, after.shares[index - 1])))
            for index in (1, 2, 4, 5)
        ]
        lost = opened.enter_context(closing(a_trustee(tmp_path, before, 3, chain)))
        first = opened.enter_context(closing(open_database(tmp_path / "first.db")))
        source = TokenSource(chain.directory, [lost, *staying], signing, first, os.urandom)
        tokens = source.ladder(rungs(a_descriptor(), ()), 0)
        for trustee in (*staying, lost):
            trustee.follow(update)
        chain = staying[0].chain
        successor = opened.enter_context(closing(a_trustee(tmp_path, after, 3, chain)))
        fresh = opened.enter_context(closing(open_database(tmp_path / "second.db")))
        late = TokenSource(begun_directory(tmp_path, before, tenant), staying, signing, fresh, os.urandom)
        with pytest.raises(PeerFault, match="wrong evaluation"):
            late.ladder(rungs(a_descriptor(), ()), 0)  # by the share keys of before
        late.follow(chain.directory)
        assert late.ladder(rungs(a_descriptor(), ()), 0) == tokens
        others = TokenSource(
            chain.directory,
            [lost, successor, *staying[2:]],
            signing,
            opened.enter_context(closing(open_database(tmp_path / "third.db"))),
            os.urandom,
        )
        assert others.ladder(rungs(a_descriptor(), ()), 0) == tokens
        assert lost._renewed is None
        with pytest.raises(PeerFault, match="ShareOutdated"):
            TokenSource(
                chain.directory,
                [lost],
                signing,
                opened.enter_context(closing(open_database(tmp_path / "fourth.db"))),
                os.urandom,
            ).ladder(rungs(a_descriptor(), ()), 0)


def begun_directory(folder: Path, before: Seated, tenant: Any) -> Any:
    entry = before.committee.founding_entry(PROVIDER.public, 13, (tenant,))
    return Chain.begin(PROVIDER.sign(entry), PROVIDER.public).directory


def test_the_old_share_is_forgotten_once_the_new_one_is_in_force(tmp_path: Path) -> None:
    before = founded()
    after, handovers = succeed(before)
    chain = begun(before.committee)
    with closing(a_trustee(tmp_path, before, 2, chain, after.shares[1])) as trustee:
        assert trustee._share == before.shares[1]
        trustee.follow(encode(DirectoryUpdate((entry_of(chain, after.committee, handovers),))))
        assert (trustee._share, trustee._renewed) == (after.shares[1], None)
        assert before.shares[1] not in vars(trustee).values()


# ---- the same by files, through the command line ---------------------------------------------------------------------


def called(program: Any, *words: object, code: int = 0) -> str:
    result = CliRunner().invoke(program, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout


@dataclass
class Files:
    """Five homes of trustees and the provider's, below one folder."""

    folder: Path

    def home(self, name: object) -> Path:
        return self.folder / f"trustee-{name}"

    def found(self) -> None:
        for number in range(N):
            called(app, "init", "--home", self.home(number), "--address", f"localhost:{7100 + number}")
        cards = [self.home(number) / "trustee.card" for number in range(N)]
        dealings = [self.folder / f"{number}.dealing" for number in range(N)]
        for number, out in enumerate(dealings):
            called(app, "ceremony", "deal", *cards, "--home", self.home(number), "--threshold", T, "--out", out)
        for number in range(N):
            called(app, "ceremony", "combine", *cards, *dealings, "--home", self.home(number))
        provider = self.folder / "provider"
        called(provider_cli.app, "init", "--home", provider, "--committee", self.home(0) / "committee")
        self.enrol(range(N))

    def enrol(self, numbers: Sequence[object]) -> None:
        out = self.folder / f"invitation-{len(list(self.folder.glob('invitation-*')))}"
        called(provider_cli.app, "enrol", "--home", self.folder / "provider", "--out", out)
        for number in numbers:
            called(app, "join", out, "--home", self.home(number))

    def hand_over(self, dealers: Sequence[object], cards: Sequence[Path]) -> list[Path]:
        files = []
        for dealer in dealers:
            file = self.folder / f"{dealer}-{len(list(self.folder.glob('*.handover')))}.handover"
            called(app, "handover", "give", *cards, "--home", self.home(dealer), "--out", file)
            files.append(file)
        return files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    made.found()
    return made


def seat_of(files: Files, number: int) -> int:
    return trustee_home.kept_share(files.home(number)).index


@pytest.mark.nightly
def test_a_lost_trustee_is_replaced_by_files(files: Files) -> None:
    """The one in the last seat, which masks. What the others keep, what the provider does, what a home goes through."""
    folders = sorted(range(N), key=lambda number: seat_of(files, number))
    lost, stay = folders[-1], folders[:-1]
    before = decode(Committee, (files.home(lost) / "committee").read_bytes())
    gone = before.trustees[-1].mask_key

    called(app, "init", "--home", files.home("new"), "--address", "localhost:7199")
    cards = [files.home(name) / "trustee.card" for name in (*stay, "new")]
    handovers = files.hand_over(stay[:3], cards)
    old_committee = "--committee", files.home(stay[0]) / "committee"
    successor = [*cards, *handovers, "--home", files.home("new"), *old_committee, "--json"]
    shown = json.loads(called(app, "handover", "take", *successor))
    fingerprints = {shown["fingerprint"]}
    for number in stay:
        said = json.loads(called(app, "handover", "take", *cards, *handovers, "--home", files.home(number), "--json"))
        fingerprints.add(said["fingerprint"])
        assert Path(said["committee"]).name == "next.committee"
    assert len(fingerprints) == 1
    old = {number: (files.home(number) / "share.key").read_bytes() for number in stay}
    with closing(trustee_home.open_trustee(files.home(stay[0]), os.urandom, TrusteeLimits())) as waiting:
        assert encode(KeptShare.of(waiting._share)) == old[stay[0]]  # not in force yet

    provider = "--home", files.folder / "provider"
    new_committee = "--committee", files.home("new") / "committee"
    (row,) = json.loads(called(provider_cli.app, "reseat", *handovers, *new_committee, *provider, "--json"))
    assert row["changed"] == [N]
    files.enrol([*stay, "new"])
    for number in stay:
        home = files.home(number)
        assert (home / "share.key").read_bytes() != old[number]
        assert not (home / "next.key").exists()
        assert not (home / "next.committee").exists()
        with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
            assert trustee.chain.directory.group_key == before.group_key
            assert trustee.chain.directory.retired == {gone}
        stored = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        assert not any(share in data for share in old.values() for data in stored), "the old share is erased"
    with closing(trustee_home.open_trustee(files.home("new"), os.urandom, TrusteeLimits())) as trustee:
        assert trustee.has_mask_key
    again = files.hand_over([*stay[:2], "new"], cards)  # and nothing of all this is in the way of the next handover
    called(app, "handover", "take", *cards, *again, "--home", files.home(stay[3]))


def renew(files: Files, number: int) -> None:
    """A trustee makes a new mask key, and all hand over with its new card."""
    called(app, "keys", "renew-mask-key", "--home", files.home(number))
    cards = [files.home(other) / "trustee.card" for other in range(N)]
    handovers = files.hand_over((0, 1, 2), cards)
    for other in range(N):
        called(app, "handover", "take", *cards, *handovers, "--home", files.home(other))
    new_committee = "--committee", files.home(number) / "next.committee"
    called(provider_cli.app, "reseat", *handovers, *new_committee, "--home", files.folder / "provider")
    files.enrol(range(N))


def stored(home: Path) -> list[bytes]:
    return [path.read_bytes() for path in home.rglob("*") if path.is_file()]


@pytest.mark.nightly
def test_a_mask_key_is_renewed_by_files_and_the_one_before_is_erased(files: Files) -> None:
    home = files.home(2)
    old, card = (home / "mask.key").read_bytes(), home / "trustee.card"
    called(app, "keys", "renew-mask-key", "--home", home)
    called(app, "keys", "renew-mask-key", "--home", home, code=2)
    assert (home / "mask.key").read_bytes() == old
    assert open_trustee_card(card.read_bytes()).mask_key != MaskKey(old).public
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        assert len(trustee._mask_keys) == 2  # the one to come is there
    (home / "next.mask").unlink()
    renew(files, 2)
    new = MaskKey((home / "mask.key").read_bytes())
    assert new.public == open_trustee_card(card.read_bytes()).mask_key
    assert not any(old in data for data in stored(home))
    assert not (home / "next.mask").exists()
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        assert trustee._mask_keys.keys() == {new.public}
        assert trustee.chain.directory.retired == {MaskKey(old).public}


@pytest.mark.nightly
def test_a_server_that_goes_on_without_a_restart_erases_the_old_mask_key_and_never_the_new(files: Files) -> None:
    home = files.home(2)
    old = (home / "mask.key").read_bytes()
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as serving:
        renew(files, 2)
        with closing(trustee_home.open_trustee(files.home(0), os.urandom, TrusteeLimits())) as told:
            serving.follow(encode(DirectoryUpdate(told.chain.entries)))
        trustee_home.settle(home, serving.chain.directory)
        trustee_home.erase_spent(home, serving)
        assert not serving.has_mask_key  # it has not read the new one
    assert (home / "mask.key").read_bytes() != old
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as again:
        assert again.has_mask_key


@pytest.mark.nightly
def test_a_mask_key_is_erased_after_its_epoch_and_a_new_one_takes_its_place(files: Files) -> None:
    home, provider = files.home(2), SigningKey((files.folder / "provider" / "signing.key").read_bytes())
    old = (home / "mask.key").read_bytes()
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        directory = trustee.chain.directory
        weeks = directory.weeks_per_epoch
        masking = tuple(MaskTrustee(one.index, one.mask_key) for one in directory.trustees)
        own = {"directory": directory.head, "trustees": masking, "windows": (0, HOURS_PER_WEEK * weeks)}
        plan = replace(a_plan(), end_hour=HOURS_PER_WEEK * weeks, **own)
        trustee.endorse(provider.sign(UnmaskRequest(provider.sign(plan), (), ())))
    for hour, is_there in ((2 * plan.end_hour - 1, True), (2 * plan.end_hour, False)):
        limits = TrusteeLimits(now_hour=partial(float, hour))
        with closing(trustee_home.open_trustee(home, os.urandom, limits)) as trustee:
            assert trustee.has_mask_key == is_there
        assert any(old in data for data in stored(home)) == is_there
    found = json.loads(called(app, "status", "--home", home, "--json", code=1))
    assert any("renew-mask-key" in one for one in found["attention"])
    renew(files, 2)
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        assert trustee.has_mask_key


@pytest.mark.nightly
def test_a_second_handover_does_not_touch_the_first_that_is_in_force_and_not_settled(files: Files) -> None:
    """The server has heard of the first one, and has not been started again; nothing but the second is taken then."""
    home, cards = files.home(1), [files.home(number) / "trustee.card" for number in range(N)]

    def handed_over() -> bytes:
        handovers = files.hand_over((0, 1, 2), cards)
        for number in range(N):
            called(app, "handover", "take", *cards, *handovers, "--home", files.home(number))
        with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as serving:
            new = "--committee", home / "next.committee", "--home", files.folder / "provider"
            called(provider_cli.app, "reseat", *handovers, *new)
            files.enrol([0, 2, 3, 4])
            with closing(trustee_home.open_trustee(files.home(0), os.urandom, TrusteeLimits())) as told:
                serving.follow(encode(DirectoryUpdate(told.chain.entries)))
            return encode(KeptShare.of(serving._share))

    first = handed_over()
    assert (home / "next.key").read_bytes() == first
    called(app, "handover", "take", *cards, *files.hand_over((0, 1, 2), cards), "--home", home)
    assert (home / "share.key").read_bytes() == first
    second = handed_over()
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as again:
        assert encode(KeptShare.of(again._share)) == second != first


def test_one_program_at_a_time_moves_the_shares_of_a_home(files: Files) -> None:
    """A server settles while its owner's verbs do; between two renames nobody else may begin."""
    home, cards = files.home(1), [files.home(number) / "trustee.card" for number in range(N)]
    handovers = files.hand_over((0, 1, 2), cards)
    called(app, "handover", "take", *cards, *handovers, "--home", home)
    upcoming = decode(Committee, (home / "next.committee").read_bytes())
    directory = cast(Directory, SimpleNamespace(trustees=upcoming.trustees))
    with trustee_home._alone(home):
        settling = threading.Thread(target=trustee_home.settle, args=(home, directory))
        settling.start()
        settling.join(0.2)
        assert (home / "next.committee").exists()
    settling.join()
    assert not (home / "next.committee").exists()
    assert trustee_home.kept_committee(home) == upcoming


@pytest.mark.parametrize(("days", "warned"), [(10, True), (300, False)])
def test_a_server_warns_of_its_certificates_end_as_it_starts(
    files: Files, caplog: pytest.LogCaptureFixture, days: int, *, warned: bool
) -> None:
    home, stop = files.home(0), threading.Event()
    called(app, "keys", "renew-certificate", "--home", home, "--days", days)
    stop.set()
    serve(home, TrusteeSettings(TrusteeTable(listen="127.0.0.1:0")), stop)
    assert any(getattr(record, "event", "") == "certificate" for record in caplog.records) == warned


@pytest.mark.nightly
def test_a_server_that_was_killed_as_shares_changed_goes_on_with_the_new_one(files: Files) -> None:
    cards = [files.home(number) / "trustee.card" for number in range(N)]
    handovers = files.hand_over((0, 1, 2), cards)
    for number in range(N):
        called(app, "handover", "take", *cards, *handovers, "--home", files.home(number))
    home = files.home(1)
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as serving:
        called(
            provider_cli.app,
            "reseat",
            *handovers,
            "--committee",
            home / "next.committee",
            "--home",
            files.folder / "provider",
        )
        files.enrol([0])  # brings somebody else the entry
        with closing(trustee_home.open_trustee(files.home(0), os.urandom, TrusteeLimits())) as told:
            serving.follow(encode(DirectoryUpdate(told.chain.entries)))
        new = encode(KeptShare.of(serving._share))
    assert (home / "next.key").read_bytes() == new
    (home / "next.key").replace(home / "share.key")  # and killed between its two files
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as again:
        assert encode(KeptShare.of(again._share)) == new
    assert not (home / "next.committee").exists()


@pytest.mark.nightly
def test_a_file_that_is_no_handover_is_named(files: Files) -> None:
    cards = [files.home(number) / "trustee.card" for number in range(N)]
    garbage = files.folder / "garbage"
    garbage.write_bytes(b"nothing")
    result = CliRunner().invoke(app, [*map(str, ("handover", "take", *cards, garbage, "--home", files.home(0)))])
    assert result.exit_code != 0
    assert "garbage" in result.stderr
