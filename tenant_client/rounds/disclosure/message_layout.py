"""Explains every byte of a contribution, so that its owner can verify what leaves.

The parts have no gap and no overlap: labels, ids, the cells of each marginal, the signature, and the msgpack framing
between them. The layers of the noise, where the plan has them, follow after the cells of all marginals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import msgpack

from crypto.codec import decode
from crypto.signing import Signed
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Contribution, ContributionHeader


@dataclass(frozen=True)
class Part:
    """Bytes [offset, offset + length) of a message: which field they are, and what that means to its owner."""

    offset: int
    length: int
    field: str
    meaning: str


def layout(message: bytes, plan: Plan) -> tuple[Part, ...]:
    """The parts of a contribution to `plan`, in order; they cover every byte of it. DecodeError for another."""
    contribution = decode(Contribution, message)
    signed = decode(Signed, contribution.header)
    header = decode(ContributionHeader, signed.body)
    found: list[Part] = []
    at = 0
    for field, value, meaning in (
        ("label", Contribution.LABEL.encode(), "a contribution: a signed header, and cells"),
        ("label", Signed.LABEL.encode(), "a signed message"),
        ("signature", bytes(signed.signature), "your signature over the digest of the header"),
        ("label", ContributionHeader.LABEL.encode(), "the header of a contribution"),
        ("tenant", bytes(header.tenant), "your id, derived from your signing key"),
        ("round", bytes(header.round_id), "the round that this answers"),
        ("plan", bytes(header.plan), "digest of the plan that was answered"),
        (
            "start",
            msgpack.packb(header.start_hour),
            "the first hour counted; the last ends the plan's window",
        ),
        ("nonce", bytes(header.nonce), "random, for this message only: no other message has the same masks"),
        ("digest", bytes(header.cells), "digest of the cells, so that the signature covers them"),
        ("cells", bytes(contribution.cells), ""),
    ):
        start = message.index(value, at)
        if start > at:
            found.append(Part(at, start - at, "framing", "types and lengths of what follows (msgpack)"))
        found += _words(start, plan) if field == "cells" else [Part(start, len(value), field, meaning)]
        at = start + len(value)
    return tuple(found)


CELLS, LAYER = "cells of ", "noise layer {} of "


def _vectors(plan: Plan) -> list[tuple[str, str]]:
    """The vectors of a contribution, in order: the field, and what each word of it holds."""
    layers = range(1, plan.shares.layers + 1)
    found = [(LAYER.format(layer), "each noise + masks, opened if few answer,") for layer in layers]
    return [(CELLS, "each count + noise + masks"), *found]


def _words(start: int, plan: Plan) -> Iterator[Part]:
    """One part for each vector and marginal: its words in row-major order, eight bytes each."""
    levels = {dimension.name: len(dimension.levels) for dimension in plan.dimensions}
    for field, holds in _vectors(plan):
        for marginal in plan.marginals:
            shape: Sequence[int] = [levels[name] for name in marginal.dimensions]
            size = 8 * prod(shape)
            by = " × ".join(f"{name} ({count})" for name, count in zip(marginal.dimensions, shape, strict=True))
            meaning = f"{marginal.counts} by {by}, row by row; {holds} mod 2^64, little-endian"
            yield Part(start, size, f"{field}{marginal.name}", meaning)
            start += size
