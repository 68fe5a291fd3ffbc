"""How the parties of a federation come by their keys and pin each other: messages as files, by whatever channel.

trustee → all       Signed(TrusteeCard)    its public keys, where it is reached, its TLS certificate
tenant → provider   Signed(MemberCard)     its public keys, and the key by which Flower knows its node
trustee → trustees  Signed(Dealing)        its part of the signature key: commitments, and a sealed share for each
anybody             Committee              what all cards and all dealings together make
trustee, to itself  KeptShare              its share of the key
provider → all      Signed(Invitation)     the directory, and where to join

Guarantees. No dealer is trusted (`crypto.threshold`): each trustee checks each share that it was dealt against public
commitments. A dealing is bound to the exact list of cards that its dealer saw, and a sealed share (HPKE, RFC 9180, base
mode, X25519, HKDF-SHA256, ChaCha20-Poly1305) to that list, its dealer and its receiver. Whoever computes the committee
from the same files gets the same bytes. Every function checks all that it is given; its error names whose file is bad.

Not promised. A channel that replaces whole cards by its own is noticed only if people compare fingerprints by another
one; each trustee also compares the committee, since a dealer may deal twice. A fingerprint is 128 bits: enough against a
second message for a given one, while somebody who prepares both needs 2^64 tries. That a share does not open or fit is
proof to its receiver alone. HPKE draws its ephemeral key from the system; all other randomness is an argument.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from crypto import threshold as sharing
from crypto.codec import Message, decode, digest, encode
from crypto.directory import NOTHING_BEFORE, Chain, Directory, DirectoryEntry, Member, TrustChanged, TrusteeRecord
from crypto.errors import BadSignature, DecodeError, PeerFault, Refusal
from crypto.ids import Digest, EncodedElement, Id, MaskPublicKey, VerifyKey
from crypto.ristretto import SCALAR_BYTES, Element, RandomBytes, Scalar, mul_base
from crypto.signing import Signed, SigningKey, open_signed, open_signed_by
from crypto.threshold import GroupKey, KeyShare, TrusteeFault
from crypto.voprf import Elements

M = TypeVar("M", bound=Message)

FEWEST_TRUSTEES = 3
SEALED_BYTES = 32 + SCALAR_BYTES + 16  # ephemeral key, share, tag
AGAIN = "keep its files, tell the others, and repeat the ceremony with new dealings, without this trustee if it cheats"

_SEAL_LABEL = b"pharoah/sealed-share/1\0"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_NAMES = {"pharoah/trustee-card/1": "card", "pharoah/member-card/1": "card", "pharoah/invitation/1": "invitation"}
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+)):([0-9]{1,5})")


class CeremonyRefused(Refusal):
    """The ceremony would not give what it promises: too few trustees, or keys that are not one's own."""


class OtherFingerprint(PeerFault):
    """What was read aloud is not the fingerprint of what lies here."""

    default_hint = "somebody changed a file on its way: fetch it again by another channel, and compare again"


class SealingPublicKey(Id):
    """An X25519 public key (RFC 7748) to which dealers seal a trustee's shares."""

    length = 32


class SealingKey:
    """An X25519 private key that opens sealed shares. It never shows its secret."""

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)

    @property
    def public(self) -> SealingPublicKey:
        """The key on the card."""
        return SealingPublicKey(self._private.public_key().public_bytes_raw())

    def open(self, sealed: bytes, info: bytes) -> Scalar:
        """The share that was sealed under `info`; DecodeError if there is none."""
        try:
            return Scalar.decode(_SUITE.decrypt(sealed, self._private, info))
        except InvalidTag as error:
            raise DecodeError("a sealed share does not open") from error


# ---- cards ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrusteeCard:
    """The public face of a trustee; travels signed by its own key. `address` is host:port, `certificate` one PEM."""

    LABEL: ClassVar[str] = "pharoah/trustee-card/1"
    verify_key: VerifyKey
    mask_key: MaskPublicKey
    sealing_key: SealingPublicKey
    address: str
    certificate: str

    def __post_init__(self) -> None:
        host_of(self.address)
        _check_certificate(self.certificate)

    def __str__(self) -> str:
        return f"the trustee at {self.address} (key {self.verify_key.hex()[:16]}…)"


@dataclass(frozen=True)
class MemberCard:
    """A tenant's public keys; travels signed by the tenant. `node_key` is an OpenSSH line, P-384, without comment."""

    LABEL: ClassVar[str] = "pharoah/member-card/1"
    member: Member
    node_key: bytes

    def __post_init__(self) -> None:
        try:
            key = load_ssh_public_key(self.node_key)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError("the node key is no public key in OpenSSH form") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ValueError("the node key is not on the curve P-384")
        if key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) != self.node_key:
            raise ValueError("the node key has something beside the key: leave the comment out")


@dataclass(frozen=True)
class CardList:
    """The cards of all trustees, in the order of their keys: a trustee's index is its place, from 1."""

    LABEL: ClassVar[str] = "pharoah/card-list/1"
    cards: tuple[TrusteeCard, ...]

    def __post_init__(self) -> None:
        keys = [card.verify_key for card in self.cards]
        if keys != sorted(set(keys)):
            raise ValueError("cards are sorted by key, and no two have one key")
        for kind in ("mask_key", "sealing_key"):
            if len({getattr(card, kind) for card in self.cards}) != len(self.cards):
                raise ValueError(f"two cards have one {kind}")

    @property
    def name(self) -> Digest:
        """The digest that dealings are bound to."""
        return digest(encode(self))

    def numbered(self) -> Iterator[tuple[int, TrusteeCard]]:
        """Each card with its index."""
        return enumerate(self.cards, 1)

    def index(self, key: VerifyKey) -> int:
        """The number of the trustee that signs with `key`; PeerFault if it has no card here."""
        for index, card in self.numbered():
            if card.verify_key == key:
                return index
        raise PeerFault(
            f"the key {key.hex()[:16]}… has no card in this list of {len(self.cards)}",
            hint="add the card of its trustee everywhere, or leave its dealing out; then all deal for one list",
        )


def open_trustee_card(signed: bytes) -> TrusteeCard:
    """The card in `signed`; DecodeError, or BadSignature if it is not signed by the key that it shows."""
    return _self_signed(TrusteeCard, signed, lambda card: card.verify_key, str)


def open_member_card(signed: bytes) -> MemberCard:
    """The card in `signed`; DecodeError, or BadSignature if card or mask key are not signed by the tenant's key."""
    card = _self_signed(
        MemberCard,
        signed,
        lambda card: card.member.verify_key,
        lambda card: f"tenant {card.member.tenant.hex()[:12]}…",
    )
    card.member.check()
    return card


def card_list(cards: Iterable[TrusteeCard]) -> CardList:
    """The list that these cards make, whatever their order; PeerFault where two have a key in common."""
    ordered = sorted(cards, key=lambda card: card.verify_key)
    for at, card in enumerate(ordered):
        for other in ordered[:at]:
            if card == other:
                raise PeerFault(f"the card of {card} is here twice", hint="name each card once")
            if _keys(card) & _keys(other):
                raise PeerFault(
                    f"two cards have one key: {other} and {card}",
                    hint="one of them is a copy, or was changed; ask both owners to compare fingerprints",
                )
    return CardList(tuple(ordered))


# ---- dealing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dealing:
    """One trustee's part of the key; travels signed by the dealer. `sealed[i - 1]` is for trustee i alone."""

    LABEL: ClassVar[str] = "pharoah/dealing/1"
    dealer: VerifyKey
    cards: Digest
    threshold: int
    commitments: tuple[EncodedElement, ...]
    sealed: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.threshold == len(self.commitments):
            raise ValueError("there is one commitment for each of `threshold` coefficients")
        if any(len(share) != SEALED_BYTES for share in self.sealed):
            raise ValueError(f"a sealed share has {SEALED_BYTES} bytes")


def deal(dealer: SigningKey, cards: CardList, threshold: int, random_bytes: RandomBytes) -> bytes:
    """The signed Dealing of one of the trustees on `cards`.

    Raises CeremonyRefused for fewer than three trustees, a threshold below 2 or beyond a majority; PeerFault where the
    dealer has no card or a sealing key is none.
    """
    _check_threshold(threshold, len(cards.cards))
    cards.index(dealer.public)
    dealt = sharing.deal(threshold, len(cards.cards), random_bytes)
    sealed = tuple(
        _sealed(card, share, _info(cards, dealer.public, index))
        for (index, card), share in zip(cards.numbered(), dealt.shares, strict=True)
    )
    commitments = tuple(EncodedElement(commitment.encoded) for commitment in dealt.commitments)
    return dealer.sign(Dealing(dealer.public, cards.name, threshold, commitments, sealed))


# ---- what the dealings make -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Committee:
    """The trustees with their shares' public keys, and the key that they have in common: the same for everybody."""

    LABEL: ClassVar[str] = "pharoah/committee/1"
    threshold: int
    group_key: EncodedElement
    trustees: tuple[TrusteeRecord, ...]

    def __post_init__(self) -> None:
        if [trustee.index for trustee in self.trustees] != list(range(1, len(self.trustees) + 1)):
            raise ValueError("trustees are numbered from 1, in order")
        if not 1 <= self.threshold <= len(self.trustees):
            raise ValueError("the threshold must lie between 1 and the number of trustees")

    @property
    def name(self) -> Digest:
        """What trustees compare, as a fingerprint."""
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
                "the share that is kept here is not one of this committee",
                hint="share.key and committee come from one ceremony: restore both from the same backup",
            )

    def check_seated(self, directory: Directory) -> None:
        """TrustChanged, naming the first trustee that differs, unless these trustees and this key are the directory's."""
        if (directory.threshold, directory.group_key) != (self.threshold, self.group_key):
            raise TrustChanged("the directory has another key or threshold than the committee of this ceremony")
        for mine, theirs in zip(self.trustees, directory.trustees, strict=False):
            if mine != theirs:
                raise TrustChanged(f"the directory shows trustee {mine.index} at {mine.address} with another record")
        if len(self.trustees) != len(directory.trustees):
            raise TrustChanged(f"the directory has {len(directory.trustees)} trustees, the ceremony had others")


def committee(cards: CardList, dealings: Iterable[bytes]) -> Committee:
    """What anybody computes from the cards and from the signed dealings of all of them.

    Raises TrusteeFault, PeerFault, BadSignature or DecodeError, which name the trustee whose file is bad or missing.
    """
    key = _group_key(cards, _checked(cards, dealings))
    share_keys = [EncodedElement(element.encoded) for element in key.share_public_keys]
    records = tuple(
        TrusteeRecord(index, card.verify_key, share_key, card.mask_key, card.address, card.certificate)
        for (index, card), share_key in zip(cards.numbered(), share_keys, strict=True)
    )
    return Committee(key.threshold, EncodedElement(key.public_key.encoded), records)


def own_share(cards: CardList, dealings: Iterable[bytes], own: VerifyKey, sealing_key: SealingKey) -> KeyShare:
    """The share of the trustee that signs with `own`, from all dealings; errors as of `committee`.

    TrusteeFault names the dealer of a share that does not open or does not fit what the dealer committed to.
    """
    receiver = cards.index(own)
    if sealing_key.public != cards.cards[receiver - 1].sealing_key:
        raise CeremonyRefused("this sealing key is not the one on the card", hint="use the home that made the card")
    checked = _checked(cards, dealings)
    key = _group_key(cards, checked)
    shares = {dealer: _opened(cards, dealer, dealing, receiver, sealing_key) for dealer, dealing in checked.items()}
    commitments = {dealer: _commitments(cards, dealer, dealing) for dealer, dealing in checked.items()}
    try:
        return sharing.combine_dealings(key.threshold, receiver, shares, commitments)
    except TrusteeFault as fault:
        misfit = f"dealt trustee {receiver} a share that does not fit its commitments"
        raise _fault(cards, fault.trustee, misfit) from fault


@dataclass(frozen=True)
class KeptShare:
    """A trustee's share of the key as it keeps it, and as nobody else may see it."""

    LABEL: ClassVar[str] = "pharoah/kept-share/1"
    index: int
    secret: bytes = field(repr=False)

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


# ---- joining --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invitation:
    """What a tenant or a trustee needs to join; travels signed by the provider that the first entry names.

    `entries` are the directory's, oldest first; `superlink` and `online` are host:port; `certificate` is the PEM of the
    provider's TLS certificate.
    """

    LABEL: ClassVar[str] = "pharoah/invitation/1"
    entries: tuple[bytes, ...]
    superlink: str
    online: str
    certificate: str

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("an invitation brings the directory from its first entry on")
        host_of(self.superlink)
        host_of(self.online)
        _check_certificate(self.certificate)

    @property
    def provider(self) -> VerifyKey:
        """The key of the inviting provider, as the first entry names it."""
        return decode(DirectoryEntry, decode(Signed, self.entries[0]).body).provider


def open_invitation(signed: bytes) -> Invitation:
    """The invitation in `signed`; DecodeError, or BadSignature unless the provider of its directory signed it."""
    return _self_signed(Invitation, signed, lambda one: one.provider, lambda _: "the provider")


def accept(invitation: Invitation) -> Chain:
    """The directory that the invitation brings. Compare the fingerprint of its head with others before pinning it.

    Raises Fork, TrustChanged or BadSignature for entries that do not lead on from one another.
    """
    return Chain.begin(invitation.entries[0], invitation.provider).extended(invitation.entries[1:])


# ---- telling files and names apart ----------------------------------------------------------------------------------


def kind_of(signed: bytes) -> type[TrusteeCard] | type[Dealing]:
    """Which file of the ceremony this is, by its label; DecodeError for any other."""
    head = decode(Signed, signed).body[:40]
    for kind in (TrusteeCard, Dealing):
        if kind.LABEL.encode() in head:
            return kind
    raise DecodeError("this is neither a trustee's card nor a dealing", hint="name the files of this ceremony alone")


def fingerprint(name: Digest) -> str:
    """The first half of a digest, as people read it to each other.

    >>> fingerprint(Digest(bytes(range(32))))
    '0001 0203 0405 0607 0809 0a0b 0c0d 0e0f'
    """
    shown = name.hex()
    return " ".join(shown[at : at + 4] for at in range(0, 32, 4))


def check_fingerprint(said: str, name: Digest) -> None:
    """OtherFingerprint unless `said` is the fingerprint of `name`, or all of its digits; spaces and hyphens are free."""
    digits = re.sub(r"[\s:-]", "", said).lower()
    if digits not in (name.hex()[:32], name.hex()):
        raise OtherFingerprint(f"the fingerprint is {fingerprint(name)}, not the one that was said")


def host_of(address: str) -> str:
    """The host in host:port, an IPv6 address without its brackets; ValueError for what is no address.

    >>> host_of("[2001:db8::7]:7100")
    '2001:db8::7'
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None or not 1 <= int(parts[3]) < 2**16:
        raise ValueError("an address is host:port, an IPv6 host in brackets")
    return parts[1] or parts[2]


# ---- checks ---------------------------------------------------------------------------------------------------------


def _self_signed(kind: type[M], signed: bytes, key_of: Callable[[M], VerifyKey], who: Callable[[M], str]) -> M:
    try:
        return open_signed_by(kind, signed, key_of)
    except BadSignature as error:
        claimed = decode(kind, decode(Signed, signed).body)
        raise BadSignature(
            f"the {_NAMES[kind.LABEL]} of {who(claimed)} is not signed by its own key",
            hint="it was changed on its way or damaged; ask for it again, and compare fingerprints",
        ) from error


def _check_certificate(pem: str) -> None:
    """ValueError unless `pem` is one certificate and nothing else: TLS would trust each one of several."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except (ValueError, x509.InvalidVersion) as error:
        raise ValueError("the certificate is none in PEM form") from error
    if certificate.public_bytes(Encoding.PEM) != pem.encode():
        raise ValueError("there must be one certificate in PEM form and nothing beside it")


def _keys(card: TrusteeCard) -> set[bytes]:
    return {bytes(card.verify_key), bytes(card.mask_key), bytes(card.sealing_key)}


def _checked(cards: CardList, dealings: Iterable[bytes]) -> dict[int, Dealing]:
    """Every trustee's one dealing, by index, made for this list and one threshold."""
    found: dict[int, Dealing] = {}
    for signed in dealings:
        index, dealing = _open_dealing(cards, signed)
        if found.get(index) == dealing:
            raise PeerFault(f"the dealing of {cards.cards[index - 1]} is here twice", hint="name each dealing once")
        if index in found:
            raise _fault(cards, index, "dealt twice, differently")
        found[index] = dealing
    _check_list(cards, found)
    missing = [str(card) for index, card in cards.numbered() if index not in found]
    if missing:
        raise PeerFault(f"no dealing of {', '.join(missing)}", hint="ask for it; the key needs every trustee's part")
    _check_one_threshold(cards, found)
    for index, dealing in found.items():
        if len(dealing.sealed) != len(cards.cards):
            raise _fault(cards, index, f"sealed {len(dealing.sealed)} shares for {len(cards.cards)} trustees")
    return dict(sorted(found.items()))


def _open_dealing(cards: CardList, signed: bytes) -> tuple[int, Dealing]:
    claimed = decode(Dealing, decode(Signed, signed).body)
    index = cards.index(claimed.dealer)
    try:
        return index, open_signed(Dealing, signed, claimed.dealer)
    except BadSignature as error:
        raise BadSignature(
            f"the dealing in the name of {cards.cards[index - 1]} is not signed by it",
            hint="it was changed or forged on its way; ask that trustee for it again",
        ) from error


def _check_list(cards: CardList, found: dict[int, Dealing]) -> None:
    others = [str(cards.cards[index - 1]) for index, dealing in sorted(found.items()) if dealing.cards != cards.name]
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
            hint="with fewer, one that fails stops everybody or one alone knows the key",
        )
    most = (trustees + 1) // 2
    if not 2 <= threshold <= most:
        raise CeremonyRefused(
            f"a threshold of {threshold} of {trustees} trustees is not between 2 and {most}",
            hint="below 2 each trustee knows the key; beyond a majority of honest ones a dealer can spoil it",
        )


def _group_key(cards: CardList, dealings: dict[int, Dealing]) -> GroupKey:
    commitments = {dealer: _commitments(cards, dealer, dealing) for dealer, dealing in dealings.items()}
    threshold = next(iter(dealings.values())).threshold
    return sharing.group_key(threshold, len(cards.cards), commitments)


def _commitments(cards: CardList, dealer: int, dealing: Dealing) -> Elements:
    try:
        return tuple(Element.decode(commitment) for commitment in dealing.commitments)
    except DecodeError as error:
        raise _fault(cards, dealer, f"made a commitment that is none: {error.what}") from error


def _info(cards: CardList, dealer: VerifyKey, receiver: int) -> bytes:
    return _SEAL_LABEL + cards.name + dealer + receiver.to_bytes(8)


def _sealed(card: TrusteeCard, share: Scalar, info: bytes) -> bytes:
    try:
        return _SUITE.encrypt(share.encoded, X25519PublicKey.from_public_bytes(card.sealing_key), info)
    except ValueError as error:  # RFC 7748 §6.1: the exchange gives zero whatever the other key is
        raise PeerFault(
            f"the sealing key on the card of {card} hides nothing", hint="that trustee must make new keys"
        ) from error


def _opened(cards: CardList, dealer: int, dealing: Dealing, receiver: int, sealing_key: SealingKey) -> Scalar:
    try:
        return sealing_key.open(dealing.sealed[receiver - 1], _info(cards, dealing.dealer, receiver))
    except DecodeError as error:
        raise _fault(cards, dealer, f"sealed a share to trustee {receiver} that does not open") from error


def _fault(cards: CardList, trustee: int, what: str) -> TrusteeFault:
    return TrusteeFault(f"at {cards.cards[trustee - 1].address} {what}", trustee=trustee, hint=AGAIN)
