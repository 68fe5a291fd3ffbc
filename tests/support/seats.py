"""Trustees' seats change hands: who holds them, the ceremony of a successor, and that of new mask keys."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from crypto.codec import encode
from crypto.masking import MaskKey
from crypto.signing import SigningKey
from crypto.threshold import KeyShare
from federation.protocol import succession
from federation.protocol.ceremony import Committee
from federation.protocol.directory import Directory
from federation.protocol.enrolment import SealingKey, TrusteeCard
from federation.protocol.round_messages import DirectoryUpdate
from provider_server.rounds.provider import Provider
from simulation.run.federation import Federation
from trustee.trustee import Trustee


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


def mask_key_of(trustee: Trustee) -> MaskKey:
    """The one mask key that a trustee holds, which only a test may take from it."""
    (key,) = trustee._mask_keys.values()
    return key


@dataclass(frozen=True)
class Holders:
    """Those who hold the seats, with their shares of the token key."""

    holders: Sequence[Holder]
    shares: Mapping[int, KeyShare]
    committee: Committee

    @classmethod
    def founded(cls, federation: Federation) -> "Holders":
        """As a ceremony leaves it."""
        holders = [
            Holder(one._signing_key, mask_key_of(one), SealingKey(os.urandom(32)), f"t{one.index}.example:1")
            for one in federation.trustees
        ]
        shares = {one.index: one._share for one in federation.trustees}
        return cls(holders, shares, committee_of(federation.provider.directory))

    def with_successor(self, lost: int, successor: Holder) -> list[Holder]:
        return [successor if seat == lost else one for seat, one in enumerate(self.holders, 1)]

    def handovers(self, cards: Sequence[TrusteeCard], dealers: Iterable[int]) -> list[bytes]:
        dealt = [(self.holders[dealer - 1].signing, self.shares[dealer]) for dealer in dealers]
        return [succession.hand_over(*own, self.committee, cards, os.urandom) for own in dealt]

    def handed_over(self, holders: Sequence[Holder], dealers: Iterable[int]) -> tuple["Holders", list[bytes]]:
        """The seats after the dealers hand over to `holders`, and their handovers."""
        cards = [holder.card for holder in holders]
        handovers = self.handovers(cards, dealers)
        after = succession.succeeded(self.committee, cards, handovers)
        shares = [
            succession.own_new_share(self.committee, cards, handovers, one.signing.public, one.sealing)
            for one in holders
        ]
        return Holders(holders, {share.index: share for share in shares}, after), handovers

    def with_new_masks(self, seats: Iterable[int] = (3, 4, 5)) -> list[Holder]:
        """The same holders, those of `seats` with mask keys that are new."""
        new = {seat: MaskKey.generate(os.urandom) for seat in seats}
        return [replace(one, mask=new.get(seat, one.mask)) for seat, one in enumerate(self.holders, 1)]


def committee_of(directory: Directory) -> Committee:
    return Committee(directory.threshold, directory.group_key, directory.trustees)


def succeed(of: Holders, provider: Provider, lost: int, dealers: Iterable[int] = (1, 3, 4)) -> Holders:
    """A successor takes the seat of the one that is lost, and the provider tells it by an entry of the directory."""
    after, handovers = of.handed_over(of.with_successor(lost, Holder.new()), dealers)
    provider.reseat(after.committee.trustees, handovers)
    return after


def renew_mask_keys(of: Holders, federation: Federation, seats: Iterable[int] = (3, 4, 5)) -> Holders:
    """The trustees of these seats make new mask keys, all hand over, and the trustees hear of the new directory."""
    after, handovers = of.handed_over(of.with_new_masks(seats), (1, 3, 5))
    federation.provider.reseat(after.committee.trustees, handovers)
    for trustee in federation.trustees:
        hand_keys(trustee, after)
        trustee.follow(encode(DirectoryUpdate(federation.provider.members.chain.entries)))
    return after


def hand_keys(trustee: Trustee, after: Holders) -> None:
    """A trustee is as after a restart with the keys to come."""
    trustee._renewed = after.shares[trustee.index]
    key = after.holders[trustee.index - 1].mask
    trustee._mask_keys[key.public] = key
