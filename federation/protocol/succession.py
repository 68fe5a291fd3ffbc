"""Trustees hand their seats over by files: one that is lost is replaced, or all renew their shares, as at each epoch.

trustee → all       Signed(TrusteeCard)    of everybody who shall hold a seat; a successor's is new
trustee → all       Signed(Handover)       from at least the threshold of those who hold shares now
any party           Committee              the seats after it, the same for all
provider → all      Signed(Reseating)      the entry of the directory that puts it in force

Guarantees (`federation.protocol.seats`, `crypto.resharing`):

- The token key and its threshold stay; the shares of before are worth nothing beside those of after.
- The same files give every party the same committee. A handover is sealed to the cards, and bound to the change.
- A trustee that stays keeps its number; a successor takes the number that is free.

Not promised: that a trustee is lost. Its peers say so by handing over without it.
"""

from collections.abc import Iterable, Mapping, Sequence

from crypto import resharing
from crypto.errors import DecodeError, PeerFault
from crypto.ids import EncodedElement, VerifyKey
from crypto.ristretto import RandomBytes, Scalar
from crypto.signing import SigningKey
from crypto.threshold import LEAVE_OUT, GroupKey, KeyShare, TrusteeFault
from crypto.voprf import Elements
from federation.protocol.ceremony import CeremonyRefused, Committee
from federation.protocol.enrolment import SealingKey, TrusteeCard
from federation.protocol.seats import (
    Handover,
    ReseatingRefused,
    Seats,
    TrusteeRecord,
    commitments_of,
    opened_handovers,
)
from federation.protocol.versions import OLDEST

_SEAL_LABEL = b"pharoah/handed-over-share/1\0"


def seated(before: Committee, cards: Iterable[TrusteeCard]) -> tuple[Seats, tuple[TrusteeCard, ...]]:
    """The seats after the handover, still under the share keys of before, and the cards in their order.

    PeerFault unless there is one card for each seat; a stranger's takes the free one, several in order of their keys.
    """
    by_key = {card.verify_key: card for card in cards}
    numbers = {trustee.verify_key: trustee.index for trustee in before.trustees}
    strangers = [by_key[key] for key in sorted(by_key.keys() - numbers.keys())]
    free = sorted(index for key, index in numbers.items() if key not in by_key)
    if len(strangers) != len(free):
        raise PeerFault(
            f"{len(strangers)} new cards for {len(free)} free seats of {len(numbers)}",
            hint="pass one card for each seat: of the trustees that stay, and of the successor of each that does not",
        )
    placed = {numbers[key]: card for key, card in by_key.items() if key in numbers}
    placed.update(zip(free, strangers, strict=True))
    share_keys = {trustee.index: trustee.share_key for trustee in before.trustees}
    records = (_record(index, placed[index], share_keys[index]) for index in sorted(placed))
    return Seats(tuple(records)), tuple(placed[index] for index in sorted(placed))


def hand_over(
    signing_key: SigningKey,
    share: KeyShare,
    before: Committee,
    cards: Iterable[TrusteeCard],
    random_bytes: RandomBytes,
) -> bytes:
    """A trustee's signed Handover to the holders on `cards`; CeremonyRefused where the share is not of `before`."""
    before.check_share(share)
    seats, placed = seated(before, cards)
    if before.trustees[share.index - 1].verify_key != signing_key.public:
        raise CeremonyRefused("the signing key is not that of the seat", hint="use the home that holds the share")
    dealt = resharing.reshare(_key(before), share, random_bytes)
    draft = Handover(share.index, _seats(before).name, seats.name, (), ())
    sealed = tuple(
        card.seal(value, _info(draft, receiver))
        for receiver, (card, value) in enumerate(zip(placed, dealt.shares, strict=True), 1)
    )
    commitments = tuple(EncodedElement(commitment.encoded) for commitment in dealt.commitments)
    return signing_key.sign(Handover(share.index, draft.before, draft.after, commitments, sealed), OLDEST)


def succeeded(before: Committee, cards: Iterable[TrusteeCard], handovers: Sequence[bytes]) -> Committee:
    """The committee after the handovers; errors name the trustee whose file is bad, or how many are missing."""
    cards = list(cards)
    seats, _ = seated(before, cards)
    return _committee(before, seats, _commitments(opened_handovers_of(before, cards, handovers)))


def opened_handovers_of(
    before: Committee, cards: Iterable[TrusteeCard], handovers: Sequence[bytes]
) -> dict[int, Handover]:
    """The handovers to the holders on `cards`, by dealer."""
    seats, _ = seated(before, cards)
    return opened_handovers(_seats(before), seats, handovers)


def own_new_share(
    before: Committee,
    cards: Iterable[TrusteeCard],
    handovers: Sequence[bytes],
    own: VerifyKey,
    sealing_key: SealingKey,
) -> KeyShare:
    """The new share of the holder that signs with `own`; errors as of `succeeded`.

    TrusteeFault names the dealer of a share that does not open or does not fit what the dealer committed to.
    """
    seats, placed = seated(before, cards)
    receiver = next((trustee.index for trustee in seats.trustees if trustee.verify_key == own), 0)
    if not receiver or placed[receiver - 1].sealing_key != sealing_key.public:
        raise CeremonyRefused("none of the cards is that of this home", hint="add the home's own card")
    found = opened_handovers(_seats(before), seats, handovers)
    shares = {dealer: _opened(handover, receiver, sealing_key) for dealer, handover in found.items()}
    return resharing.combine_reshared(_key(before), receiver, shares, _commitments(found))


def _committee(before: Committee, seats: Seats, commitments: Mapping[int, Elements]) -> Committee:
    if len(commitments) < before.threshold:
        raise ReseatingRefused(f"{len(commitments)} trustees handed over, {before.threshold} are needed")
    key = resharing.reshared_key(_key(before), commitments)
    share_keys = [EncodedElement(element.encoded) for element in key.share_public_keys]
    return Committee(before.threshold, before.group_key, seats.under(share_keys).trustees)


def _record(index: int, card: TrusteeCard, share_key: EncodedElement) -> TrusteeRecord:
    own = card.mask_key, card.made_hour, card.possession, card.address
    return TrusteeRecord(index, card.verify_key, share_key, *own)


def _seats(committee: Committee) -> Seats:
    return Seats(committee.trustees)


def _key(committee: Committee) -> GroupKey:
    return _seats(committee).key(committee.threshold, committee.group_key)


def _commitments(handovers: Mapping[int, Handover]) -> dict[int, Elements]:
    return {dealer: commitments_of(handover) for dealer, handover in handovers.items()}


def _opened(handover: Handover, receiver: int, sealing_key: SealingKey) -> Scalar:
    try:
        return sealing_key.open(handover.sealed[receiver - 1], _info(handover, receiver))
    except (DecodeError, IndexError) as error:
        raise TrusteeFault(
            f"sealed a share to trustee {receiver} that does not open",
            trustee=handover.dealer,
            hint=LEAVE_OUT,
        ) from error


def _info(handover: Handover, receiver: int) -> bytes:
    return _SEAL_LABEL + handover.before + handover.after + handover.dealer.to_bytes(8) + receiver.to_bytes(8)
