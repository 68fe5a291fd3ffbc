"""Audits one contribution after the provider and its accomplice trustees have removed every mask that they can compute.

One contribution travels under a share of the noise: what a mask shows, it shows of nearly exact counts. The plan names
three trustees. One is honest. Of the accomplices one is what it says, and the other one shows the honest one's key as
its own: under another encoding (the top bit, which X25519 ignores), with the point of order two added, or as it is.
Types, directory and proofs of possession refuse all of that, so the audit forces it into the streams behind their
backs: the masks alone must hide.

Before masks were bound to both keys (`pharoah/mask/1`) two such trustees had one mask, x + 2M left the tenant, and the
lowest bit was bare. `insecure_mask` is that derivation, kept to show that this audit convicts it.
"""

import os
from collections.abc import Callable

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto.codec import digest, encode
from crypto.ids import Digest, MaskPublicKey, Nonce, RoundId
from crypto.masking import MaskKey, Words, add_words, words_from_bytes
from crypto.signing import name_of
from federation.protocol.noise import SystemSampler, contribution
from federation.protocol.plan import MaskTrustee, Plan
from simulation.studies.audit.bounds import Tally
from simulation.studies.audit.parties import Parties
from simulation.studies.audit.path import Coins, canary_counts, contributed

_P = 2**255 - 19
_OLD_LABEL = b"pharoah/mask/1\0"
_BITS = [np.uint64(bit) for bit in range(64)]

Spelling = Callable[[MaskPublicKey], MaskPublicKey]


# ---- other byte strings for one key ----------------------------------------------------------------------------------


def as_it_is(key: MaskPublicKey) -> MaskPublicKey:
    """A copy."""
    return key


def with_top_bit(key: MaskPublicKey) -> MaskPublicKey:
    """The same point to everybody who follows RFC 7748; no type of the project would take it."""
    return bytes.__new__(MaskPublicKey, bytes([*key[:31], key[31] | 0x80]))


def plus_order_two(key: MaskPublicKey) -> MaskPublicKey:
    """The key plus the point (0, 0), of order two: u becomes 1/u, and even scalars agree on the same secret."""
    return MaskPublicKey(pow(int.from_bytes(key, "little"), -1, _P).to_bytes(32, "little"))


# ---- what is seen of one contribution --------------------------------------------------------------------------------


def seen_by_accomplices(parties: Parties, plan: Plan, coins: Coins, accomplices: int) -> Words:
    """The counts of one contribution when the last so many of its three trustees tell the provider their masks."""
    return _seen(parties, plan, coins, dict(list(parties.mask_keys.items())[3 - accomplices :]))


def seen_under_an_alias(parties: Parties, plan: Plan, coins: Coins, spelling: Spelling) -> Words:
    """The same when the last trustee shows the first one's key, spelt so, and the one between tells its masks."""
    honest, accomplice, alias = plan.trustees
    listed = honest, accomplice, MaskTrustee(alias.index, spelling(honest.mask_key))
    forced = msgspec.structs.replace(plan, trustees=listed)
    return _seen(parties, forced, coins, {accomplice.index: parties.mask_keys[accomplice.index]})


def _seen(parties: Parties, plan: Plan, coins: Coins, known: dict[int, MaskKey]) -> Words:
    named, nonce = name_of(parties.provider.sign(plan)), Nonce(os.urandom(Nonce.length))
    sent = contributed(plan, named, parties.tenants[0], nonce, canary_counts(plan, coins), SystemSampler())
    masks = [known[of.trustee].mask(of, plan.words) for of in sent.streams if of.trustee in known]
    return (sent.cells - add_words([np.zeros(plan.words, np.uint64), *masks]))[: len(coins)]


def seen_under_the_old_derivation(_parties: Parties, plan: Plan, coins: Coins, spelling: Spelling) -> Words:
    """The same as under an alias, with masks that no public key is bound to, between keys of its own."""
    tenant, honest, accomplice = (X25519PrivateKey.generate() for _ in range(3))
    own = contribution(plan, canary_counts(plan, coins), SystemSampler())
    bound = plan.round_id, digest(encode(plan)), plan.words
    shown = [_public(honest), _public(accomplice), spelling(_public(honest))]
    sent = add_words([own, *(insecure_mask(tenant, key, *bound) for key in shown)])
    return (sent - insecure_mask(accomplice, _public(tenant), *bound))[: len(coins)]


def _public(key: X25519PrivateKey) -> MaskPublicKey:
    return MaskPublicKey(key.public_key().public_bytes_raw())


def insecure_mask(own: X25519PrivateKey, peer: MaskPublicKey, round_id: RoundId, plan: Digest, words: int) -> Words:
    """The mask as it was before it was bound to keys, names and nonce: to round and plan alone."""
    secret = own.exchange(X25519PublicKey.from_public_bytes(peer))
    stream_key = HKDF(SHA256(), 32, salt=None, info=_OLD_LABEL + round_id + plan).derive(secret)
    stream = Cipher(algorithms.ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
    return words_from_bytes(stream.update(bytes(8 * words)))


def bits_tally(words: Words, coins: Coins) -> Tally:
    """Of 64 tests, each of which flags the cells in whose word its bit is set."""
    right, wrong = (
        np.array([int((words[some] >> bit & np.uint64(1)).sum()) for bit in _BITS], np.int64)
        for some in (coins, ~coins)
    )
    return Tally(int(coins.sum()), int((~coins).sum()), right, wrong)
