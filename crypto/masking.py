"""Committee masking: a contribution is hidden by one mask per trustee, and only sums can be unmasked.

Tenant i and trustee j share a key by X25519 (RFC 7748). For each round both expand it with HKDF-SHA256 (RFC 5869),
bound to round and plan, to a fresh 256-bit key of a ChaCha20 stream (RFC 8439), read as little-endian 64-bit words. The
tenant sends cells + Σ_j mask_ij mod 2^64; trustee j later answers Σ_i mask_ij over one agreed set. The sum is exact for
every set of contributors, so tenants speak once and drop-outs cost nothing.

Hiding: as long as one trustee keeps its streams to itself, a masked contribution is indistinguishable from random words
(PRG security of ChaCha20, one key per round and plan, never reused). Not promised: anything when all trustees collude.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from crypto.errors import PeerFault
from crypto.ids import Digest, MaskPublicKey, RoundId

Words = NDArray[np.uint64]

_WORD = np.dtype("<u8")
_LABEL = b"pharoah/mask/1\0"
_BLOCK_CELLS = 2**13
_ZEROS = memoryview(bytes(8 * _BLOCK_CELLS))


class MaskKey:
    """An X25519 private key. It never shows its secret."""

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> "MaskKey":
        """A new key from 32 bytes of `random_bytes`."""
        return cls(random_bytes(32))

    @property
    def public(self) -> MaskPublicKey:
        """The key that the other side needs."""
        return MaskPublicKey(self._private.public_key().public_bytes_raw())

    def mask(self, peer: MaskPublicKey, round_id: RoundId, plan: Digest, cells: int) -> Words:
        """The mask that this key and `peer` share for a round and a plan: `cells` words, dtype uint64."""
        mask = np.zeros(cells, np.uint64)
        self.add_mask(mask, peer, round_id, plan)
        return mask

    def add_mask(self, total: Words, peer: MaskPublicKey, round_id: RoundId, plan: Digest) -> None:
        """Adds that mask to `total` in place, mod 2^64, a block at a time, so that the stream stays in the cache."""
        stream_key = HKDF(SHA256(), 32, salt=None, info=_LABEL + round_id + plan).derive(self._exchange(peer))
        stream = Cipher(algorithms.ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
        block = bytearray(8 * _BLOCK_CELLS)
        for at in range(0, len(total), _BLOCK_CELLS):
            part = total[at : at + _BLOCK_CELLS]
            stream.update_into(_ZEROS[: 8 * len(part)], block)
            part += np.frombuffer(block, _WORD, len(part))

    def _exchange(self, peer: MaskPublicKey) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:  # RFC 7748 §6.1: the result is zero whatever our key is
            raise PeerFault(
                f"the mask key {peer.hex()} hides nothing", hint="its owner must publish another"
            ) from error


def mask_cells(cells: Words, key: MaskKey, trustees: Sequence[MaskPublicKey], round_id: RoundId, plan: Digest) -> Words:
    """What a tenant sends: its cells plus the mask that it shares with each trustee, mod 2^64."""
    if not trustees:
        raise ValueError("cells without a mask must not leave: name at least one trustee")
    masked = cells.copy()
    for trustee in trustees:
        key.add_mask(masked, trustee, round_id, plan)
    return masked


def sum_of_masks(
    key: MaskKey, contributors: Iterable[MaskPublicKey], round_id: RoundId, plan: Digest, cells: int
) -> Words:
    """What a trustee answers: the sum of its masks over the agreed set, mod 2^64. Memory stays at one vector."""
    total = np.zeros(cells, np.uint64)
    for contributor in contributors:
        key.add_mask(total, contributor, round_id, plan)
    return total


def add_words(vectors: Iterable[Words]) -> Words:
    """Cell-wise sum mod 2^64 of at least one vector."""
    first, *rest = vectors
    total = first.copy()
    for vector in rest:
        total += vector
    return total


def words_to_bytes(words: Words) -> bytes:
    """Little-endian wire form."""
    return words.astype(_WORD, copy=False).tobytes()


def words_from_bytes(data: bytes) -> Words:
    """Inverse of `words_to_bytes`; on little-endian machines a read-only view."""
    return np.frombuffer(data, _WORD).astype(np.uint64, copy=False)
