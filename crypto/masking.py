"""Committee masking: a contribution is hidden by one mask per trustee, and only sums can be unmasked.

Tenant i and trustee j share a secret by X25519 (RFC 7748). For each contribution both expand it with HKDF-SHA256 (RFC
5869) to a fresh 256-bit key of a ChaCha20 stream (RFC 8439), read as little-endian 64-bit words. The tenant sends
cells + Σ_j mask_ij mod 2^64; trustee j later answers Σ_i mask_ij over one agreed set. The sum is exact for every set of
contributors, so tenants speak once and drop-outs cost nothing.

Hiding: as long as one trustee keeps its streams to itself, a masked contribution is indistinguishable from random words
(PRG security of ChaCha20). That holds for keys which an adversary chose, since a stream is bound to all of
`MaskStream`: two keys that agree on one secret (an alias, a copy, a key of small order more) have streams that are
independent of each other, and so have two contributions of a tenant to one round (docs/privacy.md). Not promised:
anything when all trustees collude.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from crypto.codec import Bytes, Count, Message, encode
from crypto.errors import PeerFault
from crypto.ids import Digest, MaskPublicKey, Nonce, RoundId, TenantId
from crypto.possession import ProvableKey

Words = NDArray[np.uint64]

_WORD = np.dtype("<u8")
_BLOCK_CELLS = 2**13
_ZEROS = memoryview(bytes(8 * _BLOCK_CELLS))


class MaskStream(Message, frozen=True, tag="pharoah/mask-stream/1"):
    """Which mask: all that its key is derived from beside the secret. `nonce` is the contribution's."""

    round_id: RoundId
    plan: Digest
    tenant: TenantId
    tenant_key: MaskPublicKey
    nonce: Nonce
    trustee: Count
    trustee_key: MaskPublicKey


class MaskKey(ProvableKey):
    """The private key of a tenant or a trustee, from which masks are made."""

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> "MaskKey":
        """A new key from 32 bytes of `random_bytes`."""
        return cls(random_bytes(32))

    @property
    def public(self) -> MaskPublicKey:
        """The key that the other side needs."""
        return MaskPublicKey(self.exchange_key)

    def mask(self, stream: MaskStream, cells: int) -> Words:
        """The mask that the two keys of `stream`, of which this is one, share: `cells` words, dtype uint64."""
        mask = np.zeros(cells, np.uint64)
        self.add_mask(mask, stream)
        return mask

    def add_mask(self, total: Words, stream: MaskStream) -> None:
        """Adds that mask to `total` in place, mod 2^64, a block at a time, so that the stream stays in the cache."""
        words = Cipher(algorithms.ChaCha20(self.stream_key(stream), bytes(16)), mode=None).encryptor()
        block = bytearray(8 * _BLOCK_CELLS)
        for at in range(0, len(total), _BLOCK_CELLS):
            part = total[at : at + _BLOCK_CELLS]
            words.update_into(_ZEROS[: 8 * len(part)], block)
            part += np.frombuffer(block, _WORD, len(part))

    def stream_key(self, stream: MaskStream) -> bytes:
        """The key of a stream, 32 bytes; PeerFault where the other side's key agrees on nothing (RFC 7748 §6.1)."""
        own = self.public
        if own not in (stream.tenant_key, stream.trustee_key):
            raise ValueError("only the two owners of a mask can make it")
        peer = stream.trustee_key if own == stream.tenant_key else stream.tenant_key
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise PeerFault(
                f"the mask key {peer.hex()} is of small order", hint="its owner must publish another key"
            ) from error
        return HKDF(SHA256(), 32, salt=None, info=encode(stream)).derive(secret)


def mask_cells(cells: Words, key: MaskKey, streams: Sequence[MaskStream]) -> Words:
    """What a tenant sends: its cells plus the mask that it shares with each trustee, mod 2^64."""
    if not streams:
        raise ValueError("cells must not leave without a mask: pass at least one trustee")
    return cells + sum_of_masks(key, streams, len(cells))


def sum_of_masks(key: MaskKey, streams: Iterable[MaskStream], cells: int) -> Words:
    """What a trustee answers: the sum of its masks over the agreed set, mod 2^64. Memory stays at one vector."""
    total = np.zeros(cells, np.uint64)
    for stream in streams:
        key.add_mask(total, stream)
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


def words_from_bytes(data: Bytes) -> Words:
    """Inverse of `words_to_bytes`; on little-endian machines a read-only view."""
    return np.frombuffer(data, _WORD).astype(np.uint64, copy=False)
