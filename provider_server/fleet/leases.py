"""Leases: what the provider knows without asking anybody.

A lease is an allocation of nodes to one job. Its labels are the context tokens that the provider gave it and, once the
tenant has registered, the tokens of its workload.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from crypto.ids import LeaseId, TenantId, Token
from federation.protocol.round_messages import UnitParts


@dataclass(frozen=True)
class Lease:
    """Hours count from the federation's start; `end_h` is what is known of the end so far.

    `units` says which nodes hang on which parts of the fabric, where the provider asks for votes; `parts` are the
    tokens of those that count.
    """

    lease: LeaseId
    tenant: TenantId
    nodes: int
    start_h: float
    end_h: float
    labels: Mapping[str, str]
    units: tuple[UnitParts, ...] = ()
    parts: tuple[str, ...] = ()

    def tokens(self, dimension: str) -> tuple[str, ...]:
        """Its levels along a dimension of tokens: one, none, or several parts."""
        if dimension == "part":
            return self.parts
        return (self.labels[dimension],) if dimension in self.labels else ()


def context_tokens(secret: bytes, epoch: int, context: str, level: int) -> dict[str, str]:
    """Labels of a hardware context at a build-up level: HMAC tokens that only the provider reads, anew each epoch."""
    names = {"context": context, "context_level": f"{context}\0{level}"}
    return {label: str(_token(secret, f"{epoch}\0{label}\0{name}")) for label, name in names.items()}


def _token(secret: bytes, text: str) -> Token:
    return Token(hmac.new(secret, b"pharoah/context/1\0" + text.encode(), hashlib.sha256).digest()[: Token.length])


def part_token(secret: bytes, epoch: int, part: str) -> Token:
    """The token of a part of the fabric; anew each epoch, too."""
    return _token(secret, f"{epoch}\0part\0{part}")


def context_links(secret: bytes, before: int, now: int, names: Iterable[str], levels: Iterable[int]) -> dict[str, str]:
    """The tokens in epoch `now` of those in epoch `before`, of contexts by name at build-up levels."""
    return {
        old: token
        for name, level in product(names, levels)
        for old, token in zip(
            context_tokens(secret, before, name, level).values(),
            context_tokens(secret, now, name, level).values(),
            strict=True,
        )
    }
