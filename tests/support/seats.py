"""Trustees' seats change hands: who holds them, what is in custody of the others, and the ceremony of a successor."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from crypto.masking import MaskKey
from crypto.signing import SigningKey
from crypto.threshold import KeyShare
from federation.protocol import custody, succession
from federation.protocol.ceremony import Committee
from federation.protocol.directory import Directory
from federation.protocol.enrolment import SealingKey, TrusteeCard
from provider_server.rounds.provider import Provider
from simulation.run.federation import Federation


@dataclass(frozen=True)
class Holder:
    """The keys of whoever holds a seat."""

    signing: SigningKey
    mask: MaskKey
    sealing: SealingKey
    address: str

    @classmethod
    def new(cls) -> "Holder":
        return cls(
            SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), SealingKey(os.urandom(32)), "s.example:1"
        )

    @property
    def card(self) -> TrusteeCard:
        return TrusteeCard.of(self.signing, self.mask, self.sealing.public, made_hour=0, address=self.address)


class Custody:
    """Those who hold the seats, with their shares of the token key, and what mask trustees left with each other."""

    def __init__(self, holders: Sequence[Holder], shares: Mapping[int, KeyShare], committee: Committee) -> None:
        self.holders = [*holders]
        self.shares = shares
        self.committee = committee
        self.deposits = [self.deposit(index) for index in (3, 4, 5)]

    @classmethod
    def founded(cls, federation: Federation) -> "Custody":
        """As a ceremony leaves it."""
        holders = [
            Holder(one._signing_key, one._mask_key, SealingKey(os.urandom(32)), f"t{one.index}.example:1")
            for one in federation.trustees
        ]
        shares = {one.index: one._share for one in federation.trustees}
        return cls(holders, shares, committee_of(federation.provider.directory))

    def with_successor(self, lost: int, successor: Holder | None) -> list[Holder]:
        return [successor if successor and seat == lost else one for seat, one in enumerate(self.holders, 1)]

    def cards(self, lost: int = 0, successor: Holder | None = None) -> list[TrusteeCard]:
        return [holder.card for holder in self.with_successor(lost, successor)]

    def deposit(self, index: int) -> bytes:
        own = self.holders[index - 1]
        return custody.make_deposit(own.signing, own.mask, self.committee, self.cards(), os.urandom)

    def handovers(self, cards: Sequence[TrusteeCard], dealers: Iterable[int], *, returning: bool = True) -> list[bytes]:
        made = []
        for dealer in dealers:
            own, share = self.holders[dealer - 1], self.shares[dealer]
            deposits = self.deposits if returning else []
            returned = custody.returned_shares(self.committee, cards, deposits, dealer, own.sealing)
            made.append(succession.hand_over(own.signing, share, self.committee, cards, os.urandom, returned))
        return made


def committee_of(directory: Directory) -> Committee:
    return Committee(directory.threshold, directory.group_key, directory.trustees)


@dataclass(frozen=True)
class Succeeded:
    """The successor's keys, the shares of all seats after the handover, and the mask key that came back."""

    holder: Holder
    shares: dict[int, KeyShare]
    recovered: MaskKey | None


def succeed(
    of: Custody, provider: Provider, lost: int, dealers: Iterable[int] = (1, 3, 4), *, returning: bool = True
) -> Succeeded:
    """The ceremony by which a successor takes the seat of the one that is lost, and the entry that tells it."""
    successor = Holder.new()
    cards = of.cards(lost, successor)
    handovers = of.handovers(cards, dealers, returning=returning)
    after = succession.succeeded(of.committee, cards, handovers)
    shares = [
        succession.own_new_share(of.committee, cards, handovers, one.signing.public, one.sealing)
        for one in of.with_successor(lost, successor)
    ]
    deposits = of.deposits if returning else []
    own = successor.signing.public, successor.sealing
    recovered = custody.recovered_key(of.committee, cards, handovers, deposits, *own)
    provider.members.reseat(after.trustees, handovers)
    return Succeeded(successor, {share.index: share for share in shares}, recovered)


def renew_mask_keys(of: Custody, federation: Federation, seats: Iterable[int] = (3, 4, 5)) -> Custody:
    """The trustees of these seats make new mask keys, and all hand over; the custody after it.

    Trustees are left as they are after a restart with the keys and shares to come.
    """
    new = {seat: MaskKey.generate(os.urandom) for seat in seats}
    holders = [replace(one, mask=new.get(seat, one.mask)) for seat, one in enumerate(of.holders, 1)]
    cards = [holder.card for holder in holders]
    handovers = of.handovers(cards, (1, 3, 5))
    federation.provider.members.reseat(succession.succeeded(of.committee, cards, handovers).trustees, handovers)
    shares = [
        succession.own_new_share(of.committee, cards, handovers, one.signing.public, one.sealing) for one in holders
    ]
    for trustee, share in zip(federation.trustees, shares, strict=True):
        trustee._renewed = share
        trustee._mask_keys |= {key.public: key for key in [new.get(trustee.index)] if key}
    committee = committee_of(federation.provider.directory)
    return Custody(holders, {share.index: share for share in shares}, committee)
