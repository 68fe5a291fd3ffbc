"""Passes: single-use tokens by which a member of the federation asks the provider a question without its name.

They are the Privacy Pass tokens of type 0x0005, VOPRF (ristretto255, SHA-512), of draft-ietf-privacypass-batched-tokens
(-09), issued in batches under one proof; RFC 9576 has the architecture, RFC 9577 the challenge, RFC 9578 the privately
verifiable token. The bytes of challenge and pass are those of the drafts; requests travel in messages of this project
instead of HTTP (`federation.protocol.pass_messages`).

    tenant                       provider
    order ──── 32 elements ────▶ issue       by name, metered, in the week before
    passes ◀── 32, one proof ───
    ⋮
    one pass and a question ───▶ check_pass  without a name, in the week of the pass; spent once

Guarantees. What the issuer sees of an order says nothing about the passes (blinds are uniform), if the proof is right
under the public key that everybody has; `passes_of` raises when it is not. Nobody without the secret key makes a pass
that `check_pass` takes, or more passes than were issued. A pass is bound to its provider, its week and its key.

Not promised: that a pass is spent once, which is for whoever stores what was spent; or that times and addresses of
order and check are unrelated (docs/privacy.md).

    >>> import os
    >>> from crypto.signing import SigningKey
    >>> provider, key = SigningKey.generate(os.urandom).public, week_key(os.urandom(32), 2965)
    >>> asked = order(provider, 2965, key.public, os.urandom)
    >>> bought = passes_of(asked, issue(key.secret, asked.elements, os.urandom))
    >>> check_pass(bought[0], provider, 2965, key) == bought[0][2:34]
    True
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from hmac import compare_digest

from crypto.errors import PassRefused
from crypto.ids import VerifyKey
from crypto.ristretto import Element, RandomBytes, Scalar
from crypto.voprf import (
    Blinding,
    Evaluation,
    KeyPair,
    blind,
    blind_evaluate,
    derive_key_pair,
    finalize,
    output_of,
    verify_proof,
)
from federation.protocol.pass_messages import BATCH, NONCE_BYTES, Pass, PassNonce

TOKEN_TYPE = (0x0005).to_bytes(2)  # draft-ietf-privacypass-batched-tokens, "VOPRF (ristretto255, SHA-512)"
ORIGIN = b"pharoah-check"
SECONDS_PER_WEEK = 7 * 24 * 3600
_KEY_INFO = b"pharoah/pass-key/1\0"
_CONTEXT_LABEL = b"pharoah/pass-week/1\0"


@dataclass(frozen=True)
class Order:
    """The asking side of a batch: `elements` are sent, the rest stays until `passes_of`."""

    public_key: Element
    blinding: Blinding = field(repr=False)

    @property
    def elements(self) -> Sequence[Element]:
        """What the issuer gets to see."""
        return self.blinding.elements


def week_of(at_s: float) -> int:
    """The week since 1970 that a second lies in."""
    return int(at_s // SECONDS_PER_WEEK)


def week_key(seed: bytes, week: int) -> KeyPair:
    """The issuer's keys of a week, from its secret seed of 32 bytes (RFC 9497 §3.2.1)."""
    return derive_key_pair(seed, _KEY_INFO + week.to_bytes(8))


def order(provider: VerifyKey, week: int, public_key: Element, random_bytes: RandomBytes) -> Order:
    """Asks for a whole batch, always: how many were wanted is nobody's business. Takes 96 random bytes for each."""
    heads = [_head(random_bytes(NONCE_BYTES), challenge(provider, week), public_key) for _ in range(BATCH)]
    return Order(public_key, blind(heads, random_bytes))


def issue(secret: Scalar, elements: Sequence[Element], random_bytes: RandomBytes) -> Evaluation:
    """Evaluates a batch under one proof; ValueError unless it is whole. Takes 64 random bytes."""
    if len(elements) != BATCH:
        raise ValueError(f"a batch has {BATCH} elements, this one has {len(elements)}")
    return blind_evaluate(secret, elements, random_bytes)


def passes_of(asked: Order, evaluation: Evaluation) -> tuple[Pass, ...]:
    """The passes of a batch; PeerFault unless all of them come from the key that was asked for."""
    verify_proof(asked.public_key, asked.elements, evaluation)
    outputs = finalize(asked.blinding, evaluation.elements)
    return tuple(Pass(head + output) for head, output in zip(asked.blinding.inputs, outputs, strict=True))


def check_pass(shown: Pass, provider: VerifyKey, week: int, key: KeyPair) -> PassNonce:
    """The nonce of a pass that is genuine; PassRefused for one of another week, provider or key, or a forged one.

    The order of the checks reveals nothing: all but the last are about public values.
    """
    head = _head(shown.nonce, challenge(provider, week), key.public)
    if shown[: len(head)] != head:
        raise PassRefused("the pass is of another week, key or provider")
    if not compare_digest(output_of(key.secret, head), shown[len(head) :]):
        raise PassRefused("the pass was not issued by this provider")
    return shown.nonce


def challenge(provider: VerifyKey, week: int) -> bytes:
    """The TokenChallenge of RFC 9577 §2.1: the issuer by its key, the week as context, the service as origin.

    Both sides compute it, so that passes can be had before there is anything to ask.
    """
    context = hashlib.sha256(_CONTEXT_LABEL + provider + week.to_bytes(8)).digest()
    return TOKEN_TYPE + _framed(2, provider.hex().encode()) + _framed(1, context) + _framed(2, ORIGIN)


def _head(nonce: bytes, of_challenge: bytes, public_key: Element) -> bytes:
    """The `token_input` of RFC 9578 §5.1, which is also what a pass begins with."""
    digests = hashlib.sha256(of_challenge).digest() + hashlib.sha256(public_key.encoded).digest()
    return TOKEN_TYPE + nonce + digests


def _framed(length_bytes: int, value: bytes) -> bytes:
    return len(value).to_bytes(length_bytes) + value
