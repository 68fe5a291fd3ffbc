"""Who publishes an exchange key proves that it holds the private one, and when the key was made.

An X25519 key cannot sign, but each has a twin on edwards25519 that can: u = (1 + y) / (1 − y) (RFC 7748 §4.1). A key
pair is made from an Ed25519 seed (RFC 8032 §5.1.5), whose clamped scalar X25519 takes as it is, and the proof is the
twin's signature over a `MaskKeyClaim`, which names the owner. So nobody can publish another one's key, however it is
encoded, nor that key plus a point of small order: both would need the private key. Of two points with one u the twin is
the one whose x is even, as in XEdDSA; a seed that gives the other is passed over.

One scalar for signatures and exchange: Thormarker, "On using the same key pair for Ed25519 and an X25519 based KEM"
(2021); the signatures have a prefix of their own.
"""

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto.codec import Count, Message, encode
from crypto.errors import BadSignature
from crypto.ids import ExchangeKey, MaskPublicKey, Signature, VerifyKey

_PREFIX = b"pharoah/possession/1\0"
_SEED = b"pharoah/exchange-key/1\0"
_P = 2**255 - 19


class MaskKeyClaim(Message, frozen=True, tag="pharoah/mask-key-claim/2"):
    """This mask key is `owner`'s since `made_hour` (hours since 1970): signed by the owner, and by the key itself."""

    owner: VerifyKey
    mask_key: MaskPublicKey
    made_hour: Count


class ProvableKey:
    """An X25519 private key that can prove that it is held. It never shows its secret."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError("a key is made from 32 bytes")
        self._twin = _even_twin(secret)
        scalar = hashlib.sha512(self._twin.private_bytes_raw()).digest()[:32]
        self._private = X25519PrivateKey.from_private_bytes(scalar)

    @property
    def exchange_key(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def prove(self, claim: MaskKeyClaim) -> Signature:
        """The proof that belongs to `claim`."""
        return Signature(self._twin.sign(_PREFIX + encode(claim)))


def check_possession(claim: MaskKeyClaim, proof: bytes) -> None:
    """Returns if whoever made `proof` holds the key of `claim`; BadSignature otherwise."""
    try:
        Ed25519PublicKey.from_public_bytes(_twin_of(claim.mask_key)).verify(proof, _PREFIX + encode(claim))
    except InvalidSignature as error:
        raise BadSignature(
            f"no valid proof of possession for the mask key {claim.mask_key.hex()[:16]}…",
            hint="ask its owner for a new card; the key may be a copy of another member's",
        ) from error


def _even_twin(secret: bytes) -> Ed25519PrivateKey:
    for attempt in range(256):
        seed = hashlib.sha256(_SEED + bytes([attempt]) + secret).digest()
        twin = Ed25519PrivateKey.from_private_bytes(seed)
        if not twin.public_key().public_bytes_raw()[31] & 0x80:
            return twin
    raise AssertionError("one in two has an even x")


def _twin_of(key: ExchangeKey) -> bytes:
    u = int.from_bytes(key, "little")
    return ((u - 1) * pow(u + 1, -1, _P) % _P).to_bytes(32, "little")
