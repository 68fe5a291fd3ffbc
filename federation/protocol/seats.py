"""The seats of the trustees, and how they change hands: a trustee that is lost is replaced, and shares are renewed.

trustee → all        Signed(Handover)     its share of the token key, dealt anew to the holders of all seats
provider → all       Signed(Reseating)    an entry of the directory: the holders after it, and the handovers behind them

Guarantees:

- Who holds a seat changes only by handovers that as many trustees signed as the threshold says: the provider alone, or
  with fewer of them, changes nobody.
- A handover is bound to all seats as the directory shows them and as they shall be, so it serves for one change only.
- The token key stays, and everybody computes the new share keys from the handovers (`crypto.resharing`).
- The holder of a new mask key proves that it has it. A mask key that a seat gave up never comes back: whoever got hold
  of it since could take off what tenants would put under it.

Not promised: that a successor is who the trustees think it is; they compare fingerprints before they sign.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from crypto.codec import Count, Few, Message, Record, Text, digest, encode
from crypto.errors import DecodeError, PeerFault, Refusal
from crypto.ids import Digest, EncodedElement, MaskPublicKey, SignatureBytes, VerifyKey
from crypto.possession import MaskKeyClaim, check_possession
from crypto.resharing import reshared_key
from crypto.ristretto import Element
from crypto.signing import SigningKey, open_signed_by
from crypto.threshold import GroupKey
from crypto.voprf import Elements

if TYPE_CHECKING:  # masks are numpy's words: who reads a directory makes none
    from crypto.masking import MaskKey

MASK_SEATS = 3  # the last ones, so that of five trustees three sign and three mask


class ReseatingRefused(Refusal):
    """Trustees would change in a way that too few of them signed, or another than they signed."""

    default_hint = "ask the trustees' owners; each that agrees makes a handover for the same cards"


class TrusteeRecord(Record, frozen=True):
    """A trustee: its keys, its share of the signature key, and where it is reached. Index counts from 1.

    `possession` is the mask key's own signature over its `MaskKeyClaim`. `address` is host:port, empty for one in this
    process; the certificate there is one under the root of `verify_key` (`crypto.roots`).
    """

    index: Count
    verify_key: VerifyKey
    share_key: EncodedElement
    mask_key: MaskPublicKey
    made_hour: Count
    possession: SignatureBytes
    address: Text

    @classmethod
    def of(
        cls,
        index: int,
        signing_key: SigningKey,
        mask_key: "MaskKey",
        share_key: EncodedElement,
        *,
        made_hour: int,
        address: str = "",
    ) -> "TrusteeRecord":
        """The record of whoever holds these keys."""
        claim = MaskKeyClaim(signing_key.public, mask_key.public, made_hour)
        proof = mask_key.prove(claim)
        return cls(index, claim.owner, share_key, claim.mask_key, made_hour, proof, address)

    def check(self) -> None:
        """Returns if whoever published the mask key holds it; BadSignature otherwise."""
        check_possession(MaskKeyClaim(self.verify_key, self.mask_key, self.made_hour), self.possession)


class Seats(Message, frozen=True, tag="pharoah/seats/1"):
    """The holders of all seats, in order."""

    trustees: Few[TrusteeRecord]

    def __post_init__(self) -> None:
        if [trustee.index for trustee in self.trustees] != list(range(1, len(self.trustees) + 1)):
            raise ValueError("trustees are numbered from 1, in order")
        for name in ("mask_key", "verify_key"):
            if len({getattr(trustee, name) for trustee in self.trustees}) != len(self.trustees):
                raise ValueError(f"two trustees have one {name}")

    @classmethod
    def of(cls, trustees: Iterable[TrusteeRecord]) -> "Seats":
        """The seats of these trustees, whatever their order."""
        return cls(tuple(sorted(trustees, key=lambda trustee: trustee.index)))

    @property
    def name(self) -> Digest:
        """The digest that handovers are bound to."""
        return digest(encode(self))

    def under(self, share_keys: Sequence[EncodedElement]) -> "Seats":
        """The same holders with these share keys, in order."""
        records = zip(self.trustees, share_keys, strict=True)
        return Seats(tuple(with_share_key(trustee, share_key) for trustee, share_key in records))

    @property
    def share_keys(self) -> tuple[EncodedElement, ...]:
        """The share keys, in order."""
        return tuple(trustee.share_key for trustee in self.trustees)

    def key(self, threshold: int, group_key: EncodedElement) -> GroupKey:
        """The public side of the token key; DecodeError where a share key is none."""
        return GroupKey(threshold, Element.decode(group_key), tuple(map(Element.decode, self.share_keys)))


class Handover(Message, frozen=True, tag="pharoah/handover/2"):
    """A trustee's share of the token key, dealt anew; travels signed by it. `sealed[i - 1]` is for seat i alone.

    `before` names the seats as they are, and `after` those that shall be, still with the share keys from before.
    """

    dealer: Count
    before: Digest
    after: Digest
    commitments: Few[EncodedElement]
    sealed: Few[bytes]


class Reseating(Message, frozen=True, tag="pharoah/reseating/1"):
    """An entry of the directory by which seats change hands, or shares are renewed; members stay as they are."""

    number: Count
    previous: Digest
    trustees: Few[TrusteeRecord]
    handovers: Few[bytes]

    def __post_init__(self) -> None:
        Seats(self.trustees)


def with_share_key(trustee: TrusteeRecord, share_key: EncodedElement) -> TrusteeRecord:
    """The same trustee under another share key."""
    own = trustee.made_hour, trustee.possession, trustee.address
    return TrusteeRecord(trustee.index, trustee.verify_key, share_key, trustee.mask_key, *own)


def opened_handovers(before: Seats, after: Seats, handovers: Iterable[bytes]) -> dict[int, Handover]:
    """The handovers by dealer; BadSignature, DecodeError or PeerFault name one that is not for this change."""
    keys: Mapping[int, VerifyKey] = {trustee.index: trustee.verify_key for trustee in before.trustees}
    found: dict[int, Handover] = {}
    for signed in handovers:
        handover = open_signed_by(Handover, signed, lambda dealer: _key_of(keys, dealer))
        if (handover.before, handover.after) != (before.name, after.under(before.share_keys).name):
            raise PeerFault(
                f"trustee {handover.dealer} made its handover for another change of seats",
                hint="compare the directories' heads and the cards; then all hand over again",
            )
        if handover.dealer in found:
            raise PeerFault(f"trustee {handover.dealer} handed over twice", hint="pass each handover once")
        found[handover.dealer] = handover
    return dict(sorted(found.items()))


def commitments_of(handover: Handover) -> Elements:
    """The dealer's commitments; DecodeError where one is no element."""
    return tuple(Element.decode(commitment) for commitment in handover.commitments)


def check_reseating(key: GroupKey, before: Seats, after: Seats, handovers: Sequence[bytes]) -> None:
    """ReseatingRefused unless the trustees of `before` handed their shares over to those of `after`.

    BadSignature, PeerFault or TrusteeFault where a handover is wrong, or a new holder has no proof for its mask key.
    """
    if len(before.trustees) != len(after.trustees):
        raise ReseatingRefused(f"{len(after.trustees)} seats would take the place of {len(before.trustees)}")
    opened = opened_handovers(before, after, handovers)
    if len(opened) < key.threshold:
        raise ReseatingRefused(f"{len(opened)} trustees handed over, {key.threshold} are needed")
    renewed = reshared_key(key, {dealer: commitments_of(handover) for dealer, handover in opened.items()})
    share_keys = [EncodedElement(element.encoded) for element in renewed.share_public_keys]
    if list(after.share_keys) != share_keys:
        raise ReseatingRefused("the new share keys are not those that were handed over")
    for old, new in zip(before.trustees, after.trustees, strict=True):
        if with_share_key(new, old.share_key) != old:
            new.check()


def _key_of(keys: Mapping[int, VerifyKey], dealer: int) -> VerifyKey:
    if dealer not in keys:
        raise DecodeError(f"there is no seat {dealer}")
    return keys[dealer]
