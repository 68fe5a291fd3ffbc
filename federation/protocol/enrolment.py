"""Cards: the signed public keys of a trustee or a tenant, exchanged as files.

trustee → all       Signed(TrusteeCard)    its public keys and its address
tenant → provider   Signed(MemberCard)     its public keys, and the public key of its Flower node

Guarantees:

- A card was made by the owner of the key on it, who also holds its mask key.
- The list of cards is the same for every party; no two cards share a key.
- A share sealed to a card (HPKE, RFC 9180, base mode, X25519, HKDF-SHA256, ChaCha20-Poly1305) opens only with the
  card's sealing key and the same `info`.

Not promised: a channel that replaces whole cards is detected only if people compare fingerprints by another channel. A
fingerprint has 128 bits: enough against a second preimage; a collision takes 2^64 tries. A tenant does not prove here
that it holds its node key; Flower requires that. HPKE draws its ephemeral key from the system, not from an argument.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv6Address
from typing import Any, TypeVar

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from crypto.codec import Count, Few, Message, Text, digest, encode
from crypto.errors import BadSignature, DecodeError, PeerFault
from crypto.ids import Digest, MaskPublicKey, SealingPublicKey, SignatureBytes, VerifyKey
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim, check_possession
from crypto.ristretto import SCALAR_BYTES, Scalar
from crypto.signing import SigningKey, open_signed_by
from federation.protocol.directory import Member

M = TypeVar("M", bound=Message)

SEALED_BYTES = 32 + SCALAR_BYTES + 16  # ephemeral key, share, tag

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+)):([0-9]{1,5})")


class OtherFingerprint(PeerFault):
    """The expected fingerprint is not that of the file."""

    default_hint = "the file was changed in transit: get it again by another channel, and compare again"


class SealingKey:
    """An X25519 private key that opens sealed shares; its secret is in no repr."""

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


class TrusteeCard(Message, frozen=True, tag="pharoah/trustee-card/1"):
    """The public keys and address (host:port) of a trustee; travels signed by its own key."""

    verify_key: VerifyKey
    mask_key: MaskPublicKey
    made_hour: Count
    possession: SignatureBytes
    sealing_key: SealingPublicKey
    address: Text

    @classmethod
    def of(
        cls,
        signing_key: SigningKey,
        mask_key: MaskKey,
        sealing_key: SealingPublicKey,
        *,
        made_hour: int,
        address: str,
    ) -> "TrusteeCard":
        """The card of the holder of these keys."""
        claim = MaskKeyClaim(signing_key.public, mask_key.public, made_hour)
        proof = mask_key.prove(claim)
        return cls(claim.owner, claim.mask_key, made_hour, proof, sealing_key, address)

    def __post_init__(self) -> None:
        host_of(self.address)

    def seal(self, share: Scalar, info: bytes) -> bytes:
        """`share`, sealed for this trustee; PeerFault if the sealing key is of small order."""
        try:
            return _SUITE.encrypt(share.encoded, X25519PublicKey.from_public_bytes(self.sealing_key), info)
        except ValueError as error:  # RFC 7748 §6.1: the exchange gives zero whatever the other key is
            raise PeerFault(
                f"the sealing key on {self} is of small order", hint="that trustee must make new keys"
            ) from error

    @property
    def name(self) -> Digest:
        """The digest whose fingerprint the owner reads aloud."""
        return digest(encode(self))

    @property
    def owner(self) -> str:
        """The owner, as text for a person."""
        return f"the trustee at {self.address} (key {self.verify_key.hex()[:16]}…)"

    def __str__(self) -> str:
        return f"the card of {self.owner}"


class MemberCard(Message, frozen=True, tag="pharoah/member-card/1"):
    """A tenant's public keys; travels signed by the tenant. `node_key` is an OpenSSH line, P-384, without comment."""

    member: Member
    node_key: bytes

    def __post_init__(self) -> None:
        try:
            key = load_ssh_public_key(self.node_key)
        except (ValueError, UnsupportedAlgorithm, NotImplementedError) as error:  # the last, of a compressed point
            raise ValueError("the node key is not a public key in OpenSSH form") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ValueError("the node key is not on the curve P-384")
        if key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) != self.node_key:
            raise ValueError("the node key has a comment: remove it")

    def __str__(self) -> str:
        return f"the card of tenant {self.member.tenant.hex()[:12]}…"


class CardList(Message, frozen=True, tag="pharoah/card-list/1"):
    """The cards of all trustees, in the order of their keys: a trustee's index is its place, from 1."""

    cards: Few[TrusteeCard]

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
            hint="add its card everywhere, or leave its dealing out; then all trustees deal again for one list",
        )


def open_trustee_card(signed: bytes) -> TrusteeCard:
    """The card in `signed`; DecodeError, or BadSignature unless its own key and its mask key signed it."""
    card = self_signed(TrusteeCard, signed, lambda verify_key: verify_key)
    check_possession(MaskKeyClaim(card.verify_key, card.mask_key, card.made_hour), card.possession)
    return card


def open_member_card(signed: bytes) -> MemberCard:
    """The card in `signed`; DecodeError, or BadSignature unless its own key and its mask key signed it."""
    card = self_signed(MemberCard, signed, lambda member: member.verify_key)
    card.member.check()
    return card


def card_list(cards: Iterable[TrusteeCard]) -> CardList:
    """The list of these cards, independent of their order; PeerFault if two share a key."""
    ordered = sorted(cards, key=lambda card: card.verify_key)
    for at, card in enumerate(ordered):
        for other in ordered[:at]:
            if card == other:
                raise PeerFault(f"{card} was passed twice", hint="pass each card once")
            if _keys(card) & _keys(other):
                raise PeerFault(
                    f"{other} and {card} have one key",
                    hint="one is a copy or was changed; ask both owners to compare fingerprints",
                )
    return CardList(tuple(ordered))


# ---- names that people read ------------------------------------------------------------------------------------------


def fingerprint(name: Digest) -> str:
    """The first half of a digest, formatted for reading aloud.

    >>> fingerprint(Digest(bytes(range(32))))
    '0001 0203 0405 0607 0809 0a0b 0c0d 0e0f'
    """
    shown = name.hex()
    return " ".join(shown[at : at + 4] for at in range(0, 32, 4))


def check_fingerprint(expected: str, name: Digest) -> None:
    """OtherFingerprint unless `expected` is the fingerprint or the whole digest; spaces and hyphens are ignored."""
    digits = re.sub(r"[\s:-]", "", expected).lower()
    if digits not in (name.hex()[:32], name.hex()):
        raise OtherFingerprint(f"the fingerprint is {fingerprint(name)}, not the expected one")


def host_of(address: str) -> str:
    """The host in host:port, an IPv6 address without brackets; ValueError for an invalid address.

    >>> host_of("[2001:db8::7]:7100")
    '2001:db8::7'
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None or not 1 <= int(parts[3]) < 2**16:
        raise ValueError("an address is host:port, an IPv6 host in brackets")
    return str(IPv6Address(parts[1])) if parts[1] else parts[2]


# ---- checks ----------------------------------------------------------------------------------------------------------


def self_signed(kind: type[M], signed: bytes, key_of: Callable[[Any], VerifyKey]) -> M:
    """The message of type `kind` that is signed by the key in its first field."""
    try:
        return open_signed_by(kind, signed, key_of)
    except BadSignature as error:
        raise BadSignature(
            f"this {kind.__name__} is not signed by its own key",
            hint="the file is damaged or was changed in transit; ask its owner for it again, and compare fingerprints",
        ) from error


def _keys(card: TrusteeCard) -> set[bytes]:
    return {bytes(card.verify_key), bytes(card.mask_key), bytes(card.sealing_key)}
