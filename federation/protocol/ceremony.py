"""The ceremony: trustees make the token key, which none of them knows, by exchanging files.

trustee → all       Signed(TrusteeCard)    its public keys (`federation.protocol.enrolment`)
trustee → trustees  Signed(Dealing)        its part of the key: commitments, and a sealed share for each trustee
any party           Committee              the public result of all cards and dealings
trustee, to itself  KeptShare              its share of the key

Guarantees:

- No dealer is trusted (`crypto.threshold`): each trustee checks its shares against the dealers' public commitments.
- A dealing is bound to the exact list of cards; a sealed share to that list, its dealer and its receiver.
- The same files give every party the same committee, byte for byte.
- Every function checks all its inputs; an error names the owner of the bad file and what to do.

Not promised: a dealer that deals differently to different trustees is detected only when they compare the fingerprints
of their committees, before the first use of the key. An invalid share is proof to its receiver only.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from crypto import threshold as sharing
from crypto.codec import Count, Few, Message, Secret, decode, digest, encode, first_field
from crypto.errors import BadSignature, DecodeError, PeerFault, Refusal
from crypto.ids import Digest, EncodedElement, VerifyKey
from crypto.ristretto import SCALAR_BYTES, Element, RandomBytes, Scalar, mul_base
from crypto.signing import Signed, SigningKey, open_signed
from crypto.threshold import GroupKey, KeyShare, TrusteeFault
from crypto.voprf import Elements
from federation.protocol.directory import NOTHING_BEFORE, Directory, DirectoryEntry, Member, TrustChanged
from federation.protocol.enrolment import SEALED_BYTES, CardList, SealingKey, TrusteeCard
from federation.protocol.seats import TrusteeRecord
from federation.protocol.versions import OLDEST

FEWEST_TRUSTEES = 3
AGAIN = "keep its files as proof, inform the others, and repeat the ceremony; leave this trustee out if it cheats"

_SEAL_LABEL = b"pharoah/sealed-share/1\0"


class CeremonyRefused(Refusal):
    """The ceremony would break its guarantees: too few trustees, or keys of another home."""


# ---- dealing ---------------------------------------------------------------------------------------------------------


class Dealing(Message, frozen=True, tag="pharoah/dealing/1"):
    """One trustee's part of the key; travels signed by the dealer. `sealed[i - 1]` is for trustee i alone."""

    dealer: VerifyKey
    cards: Digest
    threshold: Count
    commitments: Few[EncodedElement]
    sealed: Few[bytes]

    def __post_init__(self) -> None:
        if not 1 <= self.threshold == len(self.commitments):
            raise ValueError("there is one commitment for each of `threshold` coefficients")
        if any(len(share) != SEALED_BYTES for share in self.sealed):
            raise ValueError(f"a sealed share has {SEALED_BYTES} bytes")


def kind_of(signed: bytes) -> type[TrusteeCard] | type[Dealing]:
    """The type of a file of the ceremony, by its label; DecodeError for any other file."""
    head = bytes(decode(Signed, signed).body[:40])
    for kind in (TrusteeCard, Dealing):
        if kind.LABEL.encode() in head:
            return kind
    raise DecodeError("neither a trustee's card nor a dealing", hint="pass only files of this ceremony")


def deal(dealer: SigningKey, cards: CardList, threshold: int, random_bytes: RandomBytes) -> bytes:
    """The signed Dealing of one of the trustees on `cards`.

    Raises CeremonyRefused for fewer than three trustees, a threshold below 2 or beyond a majority; PeerFault where the
    dealer has no card or a sealing key is none.
    """
    _check_threshold(threshold, len(cards.cards))
    cards.index(dealer.public)
    dealt = sharing.deal(threshold, len(cards.cards), random_bytes)
    sealed = tuple(
        card.seal(share, _info(cards, dealer.public, index))
        for (index, card), share in zip(cards.numbered(), dealt.shares, strict=True)
    )
    commitments = tuple(EncodedElement(commitment.encoded) for commitment in dealt.commitments)
    return dealer.sign(Dealing(dealer.public, cards.name, threshold, commitments, sealed), OLDEST)


# ---- what the dealings make ------------------------------------------------------------------------------------------


class Committee(Message, frozen=True, tag="pharoah/committee/1"):
    """The trustees with the public keys of their shares, and the group key. It is the same for every party."""

    threshold: Count
    group_key: EncodedElement
    trustees: Few[TrusteeRecord]

    def __post_init__(self) -> None:
        if [trustee.index for trustee in self.trustees] != list(range(1, len(self.trustees) + 1)):
            raise ValueError("trustees are numbered from 1, in order")
        if not 1 <= self.threshold <= len(self.trustees):
            raise ValueError("the threshold must lie between 1 and the number of trustees")

    @property
    def name(self) -> Digest:
        """The digest whose fingerprint trustees compare."""
        return digest(encode(self))

    def founding_entry(self, provider: VerifyKey, weeks_per_epoch: int, joined: Sequence[Member]) -> DirectoryEntry:
        """The first entry of a directory with these trustees, for the provider to sign."""
        settled = provider, self.threshold, self.group_key, self.trustees, weeks_per_epoch
        return DirectoryEntry(0, NOTHING_BEFORE, *settled, tuple(joined), ())

    def check_share(self, share: KeyShare) -> None:
        """CeremonyRefused unless `share` belongs to the trustee of its number in this committee."""
        keys = {trustee.index: trustee.share_key for trustee in self.trustees}
        if keys.get(share.index) != mul_base(share.secret).encoded:
            raise CeremonyRefused(
                "the stored share is not one of this committee",
                hint="share.key and committee come from one ceremony: restore both from the same backup",
            )

    def check_seated(self, directory: Directory) -> None:
        """TrustChanged, naming what differs, unless these trustees and this key are the directory's."""
        if (directory.threshold, directory.group_key) != (self.threshold, self.group_key):
            raise TrustChanged("the directory has another key or threshold than the committee of this ceremony")
        for mine, theirs in zip(self.trustees, directory.trustees, strict=False):
            if mine != theirs:
                raise TrustChanged(f"the directory shows trustee {mine.index} at {mine.address} with another record")
        if len(self.trustees) != len(directory.trustees):
            raise TrustChanged(f"the directory has {len(directory.trustees)} trustees, the ceremony had others")


def committee(cards: CardList, dealings: Iterable[bytes]) -> Committee:
    """The committee by all cards and all signed dealings.

    Raises TrusteeFault, PeerFault, BadSignature or DecodeError, which name the trustee whose file is bad or missing.
    """
    key = _group_key(cards, _checked(cards, dealings))
    share_keys = [EncodedElement(element.encoded) for element in key.share_public_keys]
    records = tuple(
        TrusteeRecord(
            index,
            card.verify_key,
            share_key,
            card.mask_key,
            card.made_hour,
            card.possession,
            card.address,
        )
        for (index, card), share_key in zip(cards.numbered(), share_keys, strict=True)
    )
    return Committee(key.threshold, EncodedElement(key.public_key.encoded), records)


def own_share(cards: CardList, dealings: Iterable[bytes], own: VerifyKey, sealing_key: SealingKey) -> KeyShare:
    """The share of the trustee that signs with `own`, from all dealings; errors as of `committee`.

    TrusteeFault names the dealer of a share that does not open or does not fit what the dealer committed to.
    """
    receiver = cards.index(own)
    if sealing_key.public != cards.cards[receiver - 1].sealing_key:
        raise CeremonyRefused("the sealing key is not the one on the card", hint="use the home that made the card")
    checked = _checked(cards, dealings)
    key = _group_key(cards, checked)
    shares = {dealer: _opened(cards, dealer, dealing, receiver, sealing_key) for dealer, dealing in checked.items()}
    commitments = {dealer: _commitments(cards, dealer, dealing) for dealer, dealing in checked.items()}
    try:
        return sharing.combine_dealings(key.threshold, receiver, shares, commitments)
    except TrusteeFault as fault:
        misfit = f"dealt trustee {receiver} a share that does not fit its commitments"
        raise _fault(cards, fault.trustee, misfit) from fault


class KeptShare(Secret, frozen=True, tag="pharoah/kept-share/1"):
    """A trustee's secret share of the key, as stored in its home."""

    index: Count
    secret: bytes

    def __post_init__(self) -> None:
        if self.index < 1 or len(self.secret) != SCALAR_BYTES:
            raise ValueError("a share has a number from 1 and one scalar")

    @classmethod
    def of(cls, share: KeyShare) -> "KeptShare":
        """The message that keeps `share`."""
        return cls(share.index, share.secret.encoded)

    @property
    def share(self) -> KeyShare:
        """The share; DecodeError if the secret is no scalar."""
        return KeyShare(self.index, Scalar.decode(self.secret))


# ---- checks ----------------------------------------------------------------------------------------------------------


def _checked(cards: CardList, dealings: Iterable[bytes]) -> dict[int, Dealing]:
    """Every trustee's one dealing, by index, made for this list and one threshold."""
    found: dict[int, Dealing] = {}
    for signed in dealings:
        index, dealing = _open_dealing(cards, signed)
        if found.get(index) == dealing:
            raise PeerFault(
                f"the dealing of {cards.cards[index - 1].owner} was passed twice", hint="pass each dealing once"
            )
        if index in found:
            raise _fault(cards, index, "dealt twice, differently")
        found[index] = dealing
    _check_list(cards, found)
    missing = [card.owner for index, card in cards.numbered() if index not in found]
    if missing:
        raise PeerFault(
            f"a dealing is missing for {', '.join(missing)}",
            hint="ask for it: the key needs a dealing of every trustee",
        )
    _check_one_threshold(cards, found)
    for index, dealing in found.items():
        if len(dealing.sealed) != len(cards.cards):
            raise _fault(cards, index, f"sealed {len(dealing.sealed)} shares for {len(cards.cards)} trustees")
    return dict(sorted(found.items()))


def _open_dealing(cards: CardList, signed: bytes) -> tuple[int, Dealing]:
    dealer = first_field(Dealing, decode(Signed, signed).body)
    index = cards.index(dealer)
    try:
        return index, open_signed(Dealing, signed, dealer)
    except BadSignature as error:
        raise BadSignature(
            f"the dealing in the name of {cards.cards[index - 1].owner} is not signed by it",
            hint="it was changed in transit or forged; ask that trustee for it again",
        ) from error


def _check_list(cards: CardList, found: dict[int, Dealing]) -> None:
    others = [cards.cards[index - 1].owner for index in sorted(found) if found[index].cards != cards.name]
    if others:
        raise PeerFault(
            f"dealt for another list of cards than the {len(cards.cards)} here: {', '.join(others)}",
            hint="somebody was given another list: these trustees, or you if they are all the others;"
            " compare the fingerprints of the lists, then all deal again for one list",
        )


def _check_one_threshold(cards: CardList, found: dict[int, Dealing]) -> None:
    ((common, _),) = Counter(dealing.threshold for dealing in found.values()).most_common(1)
    for index, dealing in sorted(found.items()):
        if dealing.threshold != common:
            raise _fault(cards, index, f"dealt for a threshold of {dealing.threshold}, most others for {common}")
    _check_threshold(common, len(cards.cards))


def _check_threshold(threshold: int, trustees: int) -> None:
    if trustees < FEWEST_TRUSTEES:
        raise CeremonyRefused(
            f"{trustees} trustees are too few, {FEWEST_TRUSTEES} are needed",
            hint="with fewer, either one failure stops all or one trustee knows the key",
        )
    most = (trustees + 1) // 2
    if not 2 <= threshold <= most:
        raise CeremonyRefused(
            f"a threshold of {threshold} of {trustees} trustees is not between 2 and {most}",
            hint="below 2 each trustee knows the key; above a majority one dishonest dealer can spoil it",
        )


def _group_key(cards: CardList, dealings: dict[int, Dealing]) -> GroupKey:
    commitments = {dealer: _commitments(cards, dealer, dealing) for dealer, dealing in dealings.items()}
    threshold = next(iter(dealings.values())).threshold
    return sharing.group_key(threshold, len(cards.cards), commitments)


def _commitments(cards: CardList, dealer: int, dealing: Dealing) -> Elements:
    try:
        return tuple(Element.decode(commitment) for commitment in dealing.commitments)
    except DecodeError as error:
        raise _fault(cards, dealer, f"made an invalid commitment: {error.what}") from error


def _info(cards: CardList, dealer: VerifyKey, receiver: int) -> bytes:
    return _SEAL_LABEL + cards.name + dealer + receiver.to_bytes(8)


def _opened(cards: CardList, dealer: int, dealing: Dealing, receiver: int, sealing_key: SealingKey) -> Scalar:
    try:
        return sealing_key.open(dealing.sealed[receiver - 1], _info(cards, dealing.dealer, receiver))
    except DecodeError as error:
        raise _fault(cards, dealer, f"sealed a share to trustee {receiver} that does not open") from error


def _fault(cards: CardList, trustee: int, what: str) -> TrusteeFault:
    return TrusteeFault(f"at {cards.cards[trustee - 1].address} {what}", trustee=trustee, hint=AGAIN)
