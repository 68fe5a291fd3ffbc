"""Messages as they left, taken apart: every byte belongs to one part, every word of counts to one cell.

The parts are those of `tenant_client.rounds.disclosure.message_layout`, from the very bytes that are
kept to be sent again.
"""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from federation.base.sqlite import reporting
from federation.protocol.plan import Marginal, Plan
from tenant_client.program.pages.views import opened
from tenant_client.rounds.disclosure import owner_view
from tenant_client.rounds.disclosure.message_layout import CELLS
from tenant_client.rounds.disclosure.owner_view import SentBytes

WORD_BYTES, WORDS_AT_ONCE = 8, 128
SHORT = 12


@dataclass(frozen=True)
class Message:
    """A contribution as it left, its parts in order and without gap."""

    round_id: str
    plan: Plan
    data: bytes
    parts: tuple[SentBytes, ...]

    @property
    def sha256(self) -> str:
        """Of all of it."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Word:
    """Eight bytes of counts, at their place in the message, and the cell that they count."""

    offset: int
    hex: str
    cell: str


def message(home: Path, round_id: str) -> Message | None:
    """The contribution to a round; None if that was not answered."""
    with reporting(), closing(opened(home)) as tenant:
        for plan in tenant.plans():
            if str(plan.round_id) == round_id:
                parts = owner_view.sent_bytes(tenant, plan.round_id)
                return Message(round_id, plan, tenant.outbox.sent(plan.round_id) or b"", parts)
    return None


def words(sent: Message, number: int, first: int) -> tuple[Word, ...]:
    """Up to `WORDS_AT_ONCE` words of part `number` from word `first` on; empty for a part that has none."""
    row = sent.parts[number]
    marginal = _marginal(sent.plan, row.part.field)
    if marginal is None:
        return ()
    last = min(first + WORDS_AT_ONCE, row.part.length // WORD_BYTES)
    cells = _cells(sent.plan, marginal, range(first, last))
    return tuple(
        Word(
            row.part.offset + WORD_BYTES * place,
            row.hex[2 * WORD_BYTES * place : 2 * WORD_BYTES * (place + 1)],
            cell,
        )
        for place, cell in zip(range(first, last), cells, strict=True)
    )


def _marginal(plan: Plan, field: str) -> Marginal | None:
    return next((marginal for marginal in plan.marginals if field == f"{CELLS}{marginal.name}"), None)


def _cells(plan: Plan, marginal: Marginal, places: range) -> Iterator[str]:
    """The cells at some places of a table, row by row."""
    levels = {dimension.name: dimension.levels for dimension in plan.dimensions}
    shape = [len(levels[name]) for name in marginal.dimensions]
    if places.stop > prod(shape):
        raise ValueError("a table ends before that")
    for place in places:
        at = np.unravel_index(place, shape)
        yield ", ".join(
            f"{name} {levels[name][int(n)][:SHORT]}" for name, n in zip(marginal.dimensions, at, strict=True)
        )
