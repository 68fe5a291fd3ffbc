"""The oblivious pseudorandom function behind tokens: RFC 9497, suite ristretto255-SHA512, modes OPRF and VOPRF.

Guarantees. The evaluator learns neither input nor output; whoever asks learns nothing of the key but the outputs. In
mode VOPRF one proof shows for a whole batch that the key of `public_key` was used, and `verify_proof` raises when it
was not. Inputs, blinds and keys never show in a `repr`. Results equal those of any other implementation of the RFC.

Not promised. `random_bytes` must never repeat: two proofs from the same bytes reveal the key. `finalize` checks
nothing, so proofs are verified before it. Mode OPRF has no proofs and is here for the RFC's test vectors. On constant
time and secrets in memory, see `crypto.ristretto`.

Batches are short (`MAX_BATCH`): the weight of each pair in a proof depends on that pair alone (RFC 9497
§2.2.1), so a dishonest evaluator can search, by generalised birthdays (Wagner 2002), for m wrong elements whose errors
cancel out. That takes m lists of about 2^(252 / (1 + log2 m)) entries, made anew for each request: 2^42 for 32 pairs,
too many, but 2^23 for 1,024.

    >>> import os
    >>> keys = derive_key_pair(os.urandom(32), b"documentation")
    >>> blinding = blind([b"first", b"second"], os.urandom)
    >>> evaluation = blind_evaluate(keys.secret, blinding.elements, os.urandom)
    >>> verify_proof(keys.public, blinding.elements, evaluation)
    >>> [len(output) for output in finalize(blinding, evaluation.elements)]
    [64, 64]
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha512
from typing import Self

from crypto.errors import DecodeError, PeerFault
from crypto.ids import MAX_BATCH
from crypto.ristretto import (
    SCALAR_BYTES,
    ZERO,
    Element,
    RandomBytes,
    Scalar,
    dot,
    hash_to_group,
    hash_to_scalar,
    mul,
    mul_base,
)

Elements = tuple[Element, ...]

MAX_INPUT_BYTES = 2**16 - 2  # RFC 9497 §5.1

# Domain separation, all of it. Labels that end in "-", and the one for keys, are followed by the context string.
HASH_TO_GROUP = b"HashToGroup-"  # RFC 9497 §4.1
HASH_TO_SCALAR = b"HashToScalar-"  # RFC 9497 §4.1
DERIVE_KEY_PAIR = b"DeriveKeyPair"  # RFC 9497 §3.2.1
SEED = b"Seed-"  # RFC 9497 §2.2.1
COMPOSITE = b"Composite"  # RFC 9497 §2.2.1
CHALLENGE = b"Challenge"  # RFC 9497 §2.2.1
FINALIZE = b"Finalize"  # RFC 9497 §3.3.1


class Mode(Enum):
    """Protocol variant (RFC 9497 §3.1); it is part of every label, so outputs of one mode say nothing about another."""

    OPRF = 0x00
    VOPRF = 0x01

    @property
    def context(self) -> bytes:
        """The context string of RFC 9497 §3.1."""
        return b"OPRFV1-" + bytes([self.value]) + b"-ristretto255-SHA512"


@dataclass(frozen=True)
class KeyPair:
    """A secret key and the public key that proofs refer to."""

    secret: Scalar = field(repr=False)
    public: Element


@dataclass(frozen=True)
class Blinding:
    """One batch on the asking side: `elements` are sent, inputs and blinds stay until `finalize`."""

    inputs: tuple[bytes, ...] = field(repr=False)
    blinds: tuple[Scalar, ...] = field(repr=False)
    elements: Elements


@dataclass(frozen=True)
class Proof:
    """That one key maps every blinded element of a batch to its evaluated one; 64 bytes on the wire."""

    challenge: Scalar
    response: Scalar

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The proof in `data`; DecodeError unless it is two scalars below the order."""
        if len(data) != 2 * SCALAR_BYTES:
            raise DecodeError(f"a proof has {2 * SCALAR_BYTES} bytes, this one has {len(data)}")
        return cls(Scalar.decode(data[:SCALAR_BYTES]), Scalar.decode(data[SCALAR_BYTES:]))

    def encode(self) -> bytes:
        """Challenge, then response."""
        return self.challenge.encoded + self.response.encoded


@dataclass(frozen=True)
class Evaluation:
    """What an evaluator answers: one element per blinded element, in order, and a proof for all of them."""

    elements: Elements
    proof: Proof


def derive_key_pair(seed: bytes, info: bytes, mode: Mode = Mode.VOPRF) -> KeyPair:
    """The key pair of a 32-byte secret `seed` and a public `info` (RFC 9497 §3.2.1); ValueError for another length."""
    if len(seed) != 32:
        raise ValueError(f"a seed has 32 bytes, this one has {len(seed)}")
    for counter in range(256):
        message = seed + _framed(info) + bytes([counter])
        secret = hash_to_scalar(message, DERIVE_KEY_PAIR + mode.context)
        if secret != ZERO:
            return KeyPair(secret, mul_base(secret))
    raise ValueError("this seed and info give no key")


def blind(inputs: Sequence[bytes], random_bytes: RandomBytes, mode: Mode = Mode.VOPRF) -> Blinding:
    """Hide 1 to MAX_BATCH inputs of at most MAX_INPUT_BYTES (RFC 9497 §3.3.1); takes 64 random bytes for each."""
    _check_batch(inputs)
    if any(len(item) > MAX_INPUT_BYTES for item in inputs):
        raise ValueError(f"an input is longer than {MAX_INPUT_BYTES} bytes")
    blinds = tuple(Scalar.random(random_bytes) for _ in inputs)
    points = (hash_to_group(item, HASH_TO_GROUP + mode.context) for item in inputs)
    return Blinding(tuple(inputs), blinds, tuple(map(mul, blinds, points)))


def evaluate(secret: Scalar, blinded: Sequence[Element]) -> Elements:
    """The key applied to each element, unproven: the evaluator of mode OPRF (RFC 9497 §3.3.1)."""
    return tuple(mul(secret, element) for element in blinded)


def blind_evaluate(secret: Scalar, blinded: Sequence[Element], random_bytes: RandomBytes) -> Evaluation:
    """The key applied to 1 to MAX_BATCH elements, with proof (RFC 9497 §3.3.2); takes 64 random bytes."""
    _check_batch(blinded)
    evaluated = evaluate(secret, blinded)
    return Evaluation(evaluated, _prove(secret, blinded, evaluated, random_bytes))


def verify_proof(public_key: Element, blinded: Sequence[Element], evaluation: Evaluation) -> None:
    """PeerFault unless the key behind `public_key` gave every element of `evaluation` (RFC 9497 §2.2.2)."""
    _check_batch(blinded)
    if len(evaluation.elements) != len(blinded):
        raise PeerFault(f"{len(blinded)} elements were sent and {len(evaluation.elements)} came back")
    proof, weights = evaluation.proof, _weights(public_key, blinded, evaluation.elements)
    sent, returned = dot(weights, blinded), dot(weights, evaluation.elements)
    nonce = mul_base(proof.response) + mul(proof.challenge, public_key)
    sent_nonce = mul(proof.response, sent) + mul(proof.challenge, returned)
    if _challenge(public_key, sent, returned, nonce, sent_nonce) != proof.challenge:
        raise PeerFault(
            f"the proof does not show that key {public_key.encoded.hex()} gave these elements",
            hint="use none of them, and compare the public key with the one that its owner publishes",
        )


def finalize(blinding: Blinding, evaluated: Sequence[Element]) -> tuple[bytes, ...]:
    """Outputs of 64 bytes, one per input (RFC 9497 §3.3.1), from elements that were verified before."""
    return tuple(
        _output(item, mul(scalar.inverse(), element))
        for item, scalar, element in zip(blinding.inputs, blinding.blinds, evaluated, strict=True)
    )


def output_of(secret: Scalar, item: bytes, mode: Mode = Mode.VOPRF) -> bytes:
    """What `finalize` gives for `item`, computed by the holder of the key, who sees it (RFC 9497 §3.3.1, Evaluate)."""
    return _output(item, mul(secret, hash_to_group(item, HASH_TO_GROUP + mode.context)))


def _output(item: bytes, element: Element) -> bytes:
    return sha512(_framed(item, element.encoded) + FINALIZE).digest()


def _prove(secret: Scalar, blinded: Sequence[Element], evaluated: Elements, random_bytes: RandomBytes) -> Proof:
    """GenerateProof with ComputeCompositesFast, RFC 9497 §2.2.1; A is the generator, B the public key."""
    public_key = mul_base(secret)
    sent = dot(_weights(public_key, blinded, evaluated), blinded)
    nonce = Scalar.random(random_bytes)
    challenge = _challenge(public_key, sent, mul(secret, sent), mul_base(nonce), mul(nonce, sent))
    return Proof(challenge, nonce - challenge * secret)


def _weights(public_key: Element, blinded: Sequence[Element], evaluated: Elements) -> list[Scalar]:
    """The factors d_i of ComputeComposites, RFC 9497 §2.2.1."""
    seed = sha512(_framed(public_key.encoded, SEED + Mode.VOPRF.context)).digest()
    return [
        _hash_to_scalar(_framed(seed) + number.to_bytes(2) + _framed(sent.encoded, returned.encoded) + COMPOSITE)
        for number, (sent, returned) in enumerate(zip(blinded, evaluated, strict=True))
    ]


def _challenge(*transcript: Element) -> Scalar:
    return _hash_to_scalar(_framed(*(element.encoded for element in transcript)) + CHALLENGE)


def _hash_to_scalar(message: bytes) -> Scalar:
    return hash_to_scalar(message, HASH_TO_SCALAR + Mode.VOPRF.context)


def _framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(2) + part for part in parts)


def _check_batch(batch: Sequence[object]) -> None:
    if not 1 <= len(batch) <= MAX_BATCH:
        raise ValueError(f"a batch has 1 to {MAX_BATCH} elements, this one has {len(batch)}")
