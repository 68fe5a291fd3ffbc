"""The function of `crypto.voprf` under a key that nobody holds: t of n trustees evaluate, fewer learn nothing.

Every trustee deals Shamir shares of a secret of its own with commitments to them (Feldman 1987); the key is the sum of
those secrets (joint Feldman, Pedersen 1991) and each trustee keeps the sum of the shares that it was dealt. A tenant
verifies the proof of every trustee and interpolates in the exponent (TOPPSS, Jarecki et al. 2017).

Guarantees. Nobody ever holds the whole key, neither while it is made nor while it is used. Any t honest answers give
the output that the single key would give. A wrong dealt share and a wrong evaluation raise TrusteeFault, which names
the trustee. No secret shows in a `repr`.

Not promised. A trustee that deals last can bias the public key. That does not hurt a pseudorandom function: it shifts
the uniform sum of the honest secrets by an offset that it knows, so whoever breaks the shifted key breaks the uniform
one. At most t - 1 of the n >= 2t - 1 trustees may be corrupt; the others then hold t shares of every dealt secret, so
that no dealer has to prove that it knows its own. Commitments need a broadcast, which the caller provides: before its
first use trustees compare the GroupKey that each of them computed. Secrets stay in Python's memory; constant time is
libsodium's alone, for operations on the group and on scalars.

    >>> import os
    >>> from crypto.voprf import blind, blind_evaluate, finalize
    >>> dealings = {dealer: deal(2, 3, os.urandom) for dealer in (1, 2, 3)}
    >>> commitments = {dealer: dealing.commitments for dealer, dealing in dealings.items()}
    >>> key = group_key(2, 3, commitments)
    >>> shares = [
    ...     combine_dealings(2, i, {dealer: dealing.shares[i - 1] for dealer, dealing in dealings.items()}, commitments)
    ...     for i in (1, 2, 3)
    ... ]
    >>> blinding = blind([b"descriptor"], os.urandom)
    >>> answers = {share.index: blind_evaluate(share.secret, blinding.elements, os.urandom) for share in shares}
    >>> one = finalize(blinding, combine_evaluations(key, blinding.elements, {i: answers[i] for i in (1, 2)}))
    >>> one == finalize(blinding, combine_evaluations(key, blinding.elements, {i: answers[i] for i in (2, 3)}))
    True
"""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from crypto.errors import PeerFault, WrongShare
from crypto.ristretto import IDENTITY, ORDER, Element, RandomBytes, Scalar, dot, mul_base
from crypto.voprf import Elements, Evaluation, verify_proof

LEAVE_OUT = "every trustee leaves this dealer out of the sum; tell its owner"


class TrusteeFault(WrongShare):
    """A trustee dealt or evaluated wrongly; `trustee` is its index, from 1."""

    def __init__(self, what: str, *, trustee: int, hint: str | None = None) -> None:
        super().__init__(f"trustee {trustee} {what}", hint=hint)
        self.trustee = trustee
        self._reason = what

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self._reason, trustee=self.trustee, hint=self.hint), ()


@dataclass(frozen=True)
class Dealing:
    """One trustee's contribution to a key: `shares[i - 1]` goes to trustee i in private, `commitments` to everybody."""

    shares: tuple[Scalar, ...] = field(repr=False)
    commitments: Elements


@dataclass(frozen=True)
class KeyShare:
    """What trustee `index` (from 1) keeps: the value at `index` of a polynomial whose value at 0 is the key."""

    index: int
    secret: Scalar = field(repr=False)


@dataclass(frozen=True)
class GroupKey:
    """The public side of a shared key; `share_public_keys[i - 1]` verifies the proofs of trustee i."""

    threshold: int
    public_key: Element
    share_public_keys: Elements

    def share_public_key(self, trustee: int) -> Element:
        """The key for one trustee's proofs; TrusteeFault where there is no such trustee."""
        if not 1 <= trustee <= len(self.share_public_keys):
            raise TrusteeFault(f"is not one of the {len(self.share_public_keys)} of this key", trustee=trustee)
        return self.share_public_keys[trustee - 1]


def deal(threshold: int, trustees: int, random_bytes: RandomBytes) -> Dealing:
    """Share a fresh random secret; takes 64 random bytes per degree. ValueError unless 2 threshold - 1 <= trustees."""
    return deal_secret(Scalar.random(random_bytes), threshold, trustees, random_bytes)


def deal_secret(secret: Scalar, threshold: int, trustees: int, random_bytes: RandomBytes) -> Dealing:
    """Share `secret`, which the first commitment fixes; random bytes and errors as of `deal`."""
    if not 1 <= threshold <= (trustees + 1) // 2:
        raise ValueError(f"a threshold of t >= 1 needs at least 2t - 1 trustees, this is {threshold} of {trustees}")
    coefficients = [secret, *(Scalar.random(random_bytes) for _ in range(threshold - 1))]
    shares = tuple(_value_at(coefficients, Scalar.from_int(index)) for index in range(1, trustees + 1))
    return Dealing(shares, tuple(map(mul_base, coefficients)))


def verify_share(threshold: int, dealer: int, receiver: int, share: Scalar, commitments: Elements) -> None:
    """TrusteeFault naming `dealer` unless `share` is the value at `receiver` of the polynomial it committed to."""
    _check_degree(threshold, dealer, commitments)
    if mul_base(share) != dot(_powers(receiver, threshold), commitments):
        raise TrusteeFault(
            f"dealt a share to trustee {receiver} that does not fit its commitments",
            trustee=dealer,
            hint=LEAVE_OUT,
        )


def combine_dealings(
    threshold: int, receiver: int, shares: Mapping[int, Scalar], commitments: Mapping[int, Elements]
) -> KeyShare:
    """Verify and add the shares dealt to `receiver`; both mappings are by dealer, the same for every trustee.

    TrusteeFault names a dealer of a missing or wrong share. PeerFault where fewer than `threshold` dealt: they could
    agree on the key among themselves.
    """
    _check_dealers(threshold, commitments)
    for dealer, committed in sorted(commitments.items()):
        if dealer not in shares:
            raise TrusteeFault(f"dealt no share to trustee {receiver}", trustee=dealer, hint=LEAVE_OUT)
        verify_share(threshold, dealer, receiver, shares[dealer], committed)
    return KeyShare(receiver, reduce(operator.add, (shares[dealer] for dealer in commitments)))


def group_key(threshold: int, trustees: int, commitments: Mapping[int, Elements]) -> GroupKey:
    """The public side of the sum of all dealings; `commitments` by dealer. Anybody can compute it.

    TrusteeFault names a dealer of another degree; PeerFault where too few dealt or where the dealings cancel out.
    """
    _check_dealers(threshold, commitments)
    for dealer, committed in sorted(commitments.items()):
        _check_degree(threshold, dealer, committed)
    joint = tuple(reduce(operator.add, column) for column in zip(*commitments.values(), strict=True))
    share_keys = tuple(dot(_powers(index, threshold), joint) for index in range(1, trustees + 1))
    if IDENTITY in (joint[0], *share_keys):
        raise PeerFault("the dealings cancel out and give no key", hint="repeat the key generation from the start")
    return GroupKey(threshold, joint[0], share_keys)


def combine_evaluations(key: GroupKey, blinded: Sequence[Element], evaluations: Mapping[int, Evaluation]) -> Elements:
    """The elements that the whole key would have given, from the evaluations of at least `key.threshold` trustees.

    Every proof is verified against its trustee's share key. TrusteeFault names the first trustee, by index, whose proof
    is bad: leave it out and call again. PeerFault where too few answered.
    """
    if len(evaluations) < key.threshold:
        raise PeerFault(
            f"{len(evaluations)} trustees answered, {key.threshold} are needed",
            hint="ask more trustees, or try again when more are reachable",
        )
    for trustee in sorted(evaluations):
        _verify_evaluation(key, trustee, blinded, evaluations[trustee])
    chosen = sorted(evaluations)[: key.threshold]
    weights = lagrange_at_zero(chosen)
    columns = zip(*(evaluations[trustee].elements for trustee in chosen), strict=True)
    return tuple(dot(weights, column) for column in columns)


def lagrange_at_zero(indices: Collection[int]) -> list[Scalar]:
    """Weights that turn the values at distinct `indices` of a polynomial into its value at zero."""
    weights = []
    for mine in indices:
        numerator = denominator = 1
        for other in indices:
            if other != mine:
                numerator, denominator = numerator * other, denominator * (other - mine)
        weights.append(Scalar.from_int(numerator * pow(denominator, -1, ORDER)))
    return weights


def _verify_evaluation(key: GroupKey, trustee: int, blinded: Sequence[Element], evaluation: Evaluation) -> None:
    share_key = key.share_public_key(trustee)
    try:
        verify_proof(share_key, blinded, evaluation)
    except PeerFault as fault:
        raise TrusteeFault(f"sent a wrong evaluation: {fault.what}", trustee=trustee) from fault


def _check_dealers(threshold: int, commitments: Mapping[int, Elements]) -> None:
    if len(commitments) < threshold:
        raise PeerFault(
            f"{len(commitments)} trustees dealt, {threshold} are needed so that fewer cannot know the key",
            hint="repeat the key generation with trustees that follow it",
        )


def _check_degree(threshold: int, dealer: int, commitments: Elements) -> None:
    if len(commitments) != threshold:
        raise TrusteeFault(
            f"committed to {len(commitments)} coefficients instead of {threshold}",
            trustee=dealer,
            hint=LEAVE_OUT,
        )


def _value_at(coefficients: Sequence[Scalar], place: Scalar) -> Scalar:
    """Horner's rule, from the highest coefficient down."""
    return reduce(lambda value, coefficient: value * place + coefficient, reversed(coefficients))


def _powers(index: int, count: int) -> list[Scalar]:
    return [Scalar.from_int(index**exponent) for exponent in range(count)]
