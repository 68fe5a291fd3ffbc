"""Mask keys in custody: what a mask trustee leaves with the others, so that a series outlives it.

mask trustee → all   Signed(Deposit)      shares of its mask key, sealed for each trustee; each verifies its own
trustee → all        Signed(Handover)     with a successor for a seat: its share of that seat's mask key, sealed for it
successor            the mask key         from as many shares as the threshold says

Guarantees:

- A share belongs to the mask key that the directory shows (`crypto.mask_custody`), or its receiver says so at once.
- A mask key comes back only to a successor, by handovers of as many trustees as the threshold, which stand in the
  directory (`federation.protocol.seats`): everybody sees it.
- There are deposits only where the threshold is above the number of mask trustees less one. So those that collude
  without the last mask trustee have not shares enough for its key.

Not promised: that a mask trustee makes a deposit; without one its series ends with it.
"""

from collections.abc import Iterable, Sequence

from crypto.codec import Few, Message, decode, first_field
from crypto.errors import DecodeError, PeerFault
from crypto.ids import EncodedElement, MaskPublicKey, VerifyKey
from crypto.mask_custody import check_committed, deal_mask_key, recovered
from crypto.masking import MaskKey
from crypto.ristretto import Element, RandomBytes, Scalar
from crypto.signing import Signed, SigningKey, open_signed
from crypto.threshold import TrusteeFault, verify_share
from crypto.voprf import Elements
from federation.protocol.ceremony import CeremonyRefused, Committee
from federation.protocol.enrolment import SEALED_BYTES, SealingKey, TrusteeCard
from federation.protocol.seats import MASK_SEATS, Handover, ReturnedShare, Seats, TrusteeRecord
from federation.protocol.succession import opened_handovers_of, seated

_DEPOSIT_LABEL = b"pharoah/deposited-share/1\0"
_RETURN_LABEL = b"pharoah/returned-share/1\0"


class Deposit(Message, frozen=True, tag="pharoah/mask-deposit/1"):
    """Shares of `mask_key`, which its owner signs; `sealed[i - 1]` is for the holder of seat i alone."""

    owner: VerifyKey
    mask_key: MaskPublicKey
    commitments: Few[EncodedElement]
    sealed: Few[bytes]

    def __post_init__(self) -> None:
        if not self.commitments or any(len(share) != SEALED_BYTES for share in self.sealed):
            raise ValueError(f"a deposit has commitments, and shares of {SEALED_BYTES} bytes")


def admits_deposits(threshold: int, trustees: int) -> bool:
    """Whether so many shares are more than the mask trustees less one have, who may collude anyway.

    >>> admits_deposits(3, 5), admits_deposits(2, 3)
    (True, False)
    """
    return threshold > min(MASK_SEATS, trustees) - 1


def make_deposit(
    signing_key: SigningKey,
    mask_key: MaskKey,
    committee: Committee,
    cards: Iterable[TrusteeCard],
    random_bytes: RandomBytes,
) -> bytes:
    """The signed Deposit of a mask trustee, for the holders on `cards`.

    CeremonyRefused where it does not mask, and where as many trustees as collude anyway could open it.
    """
    record = _record_of(committee, signing_key.public)
    trustees = len(committee.trustees)
    masking = min(MASK_SEATS, trustees)
    if record.mask_key != mask_key.public or record.index <= trustees - masking:
        raise CeremonyRefused(
            f"trustee {record.index} does not mask under this key", hint="deposits are for the last seats"
        )
    if not admits_deposits(committee.threshold, trustees):
        raise CeremonyRefused(
            f"a threshold of {committee.threshold} is not above {masking - 1}, the mask trustees less one",
            hint="mask trustees that collude could open the last one's key: have five trustees, three to sign",
        )
    _, placed = seated(committee, cards)
    dealt = deal_mask_key(mask_key, committee.threshold, trustees, random_bytes)
    sealed = tuple(
        card.seal(share, _deposit_info(record.verify_key, mask_key.public, index))
        for index, (card, share) in enumerate(zip(placed, dealt.shares, strict=True), 1)
    )
    commitments = tuple(EncodedElement(commitment.encoded) for commitment in dealt.commitments)
    return signing_key.sign(Deposit(record.verify_key, mask_key.public, commitments, sealed))


def open_deposit(committee: Committee, signed: bytes) -> tuple[TrusteeRecord, Deposit]:
    """A deposit and its owner, for the mask key of its seat; PeerFault, BadSignature or DecodeError otherwise."""
    deposit = open_signed(Deposit, signed, first_field(Deposit, decode(Signed, signed).body))
    record = _record_of(committee, deposit.owner)
    if record.mask_key != deposit.mask_key:
        raise PeerFault(f"trustee {record.index} deposited another mask key than its own", hint="it deposits again")
    if (len(deposit.commitments), len(deposit.sealed)) != (committee.threshold, len(committee.trustees)):
        raise PeerFault(f"trustee {record.index} made a deposit for other trustees", hint="it deposits again")
    check_committed(deposit.mask_key, _commitments(deposit))
    return record, deposit


def deposited_share(committee: Committee, signed: bytes, own: int, sealing_key: SealingKey) -> Scalar:
    """The share that a deposit holds for seat `own`; TrusteeFault names its owner where it is none."""
    record, deposit = open_deposit(committee, signed)
    info = _deposit_info(deposit.owner, deposit.mask_key, own)
    try:
        share = sealing_key.open(deposit.sealed[own - 1], info)
    except DecodeError as error:
        raise TrusteeFault(
            f"sealed a share of its mask key to trustee {own} that does not open",
            trustee=record.index,
            hint="it deposits again",
        ) from error
    verify_share(committee.threshold, record.index, own, share, _commitments(deposit))
    return share


def returned_shares(
    before: Committee, cards: Iterable[TrusteeCard], deposits: Sequence[bytes], own: int, sealing_key: SealingKey
) -> tuple[ReturnedShare, ...]:
    """The shares that seat `own` holds of the mask keys of those who lose their seats, sealed for their successors."""
    seats, placed = seated(before, cards)
    names = Seats(before.trustees).name + seats.name
    returned = []
    for signed in deposits:
        record, _ = open_deposit(before, signed)
        if seats.trustees[record.index - 1].verify_key != record.verify_key:
            share = deposited_share(before, signed, own, sealing_key)
            sealed = placed[record.index - 1].seal(share, _return_info(names, own, record.index))
            returned.append(ReturnedShare(record.index, sealed))
    return tuple(sorted(returned, key=lambda one: one.seat))


def recovered_key(
    before: Committee,
    cards: Iterable[TrusteeCard],
    handovers: Sequence[bytes],
    deposits: Sequence[bytes],
    own: VerifyKey,
    sealing_key: SealingKey,
) -> MaskKey | None:
    """The mask key of the seat that a successor takes; None where no deposit of it is passed.

    PeerFault where fewer good shares were returned than the threshold; a bad one is passed over.
    """
    cards = list(cards)
    seats, _ = seated(before, cards)
    seat = next(trustee.index for trustee in seats.trustees if trustee.verify_key == own)
    opened = [open_deposit(before, signed) for signed in deposits]
    deposit = next((deposit for record, deposit in opened if record.index == seat), None)
    if deposit is None or before.trustees[seat - 1].verify_key == own:
        return None
    names = Seats(before.trustees).name + seats.name
    shares: dict[int, Scalar] = {}
    for dealer, handover in opened_handovers_of(before, cards, handovers).items():
        share = _returned(handover, names, seat, sealing_key)
        if share is not None and _fits(before.threshold, dealer, share, deposit):
            shares[dealer] = share
    return recovered(deposit.mask_key, before.threshold, shares)


def _returned(handover: Handover, names: bytes, seat: int, sealing_key: SealingKey) -> Scalar | None:
    sealed = next((one.sealed for one in handover.returned if one.seat == seat), b"")
    try:
        return sealing_key.open(sealed, _return_info(names, handover.dealer, seat))
    except DecodeError:
        return None


def _fits(threshold: int, dealer: int, share: Scalar, deposit: Deposit) -> bool:
    try:
        verify_share(threshold, dealer, dealer, share, _commitments(deposit))
    except TrusteeFault:
        return False
    return True


def _record_of(committee: Committee, key: VerifyKey) -> TrusteeRecord:
    for record in committee.trustees:
        if record.verify_key == key:
            return record
    raise PeerFault(f"the key {key.hex()[:16]}… holds no seat", hint="a deposit is a trustee's")


def _commitments(deposit: Deposit) -> Elements:
    return tuple(Element.decode(commitment) for commitment in deposit.commitments)


def _deposit_info(owner: VerifyKey, mask_key: MaskPublicKey, receiver: int) -> bytes:
    return _DEPOSIT_LABEL + owner + mask_key + receiver.to_bytes(8)


def _return_info(names: bytes, dealer: int, seat: int) -> bytes:
    return _RETURN_LABEL + names + dealer.to_bytes(8) + seat.to_bytes(8)
