"""Hints in SQL: numbered, appended together with the state that they came from, and kept for thirteen weeks.

    Draft × tenant ─ append ─▶ Hint 1, 2, 3, … of each tenant ─ after ─▶ whoever watches

Guarantees. The hints of a look and the state of the episodes after it are committed in one transaction: a provider that
is killed at any moment goes on from a state whose hints are all there, and so neither loses a hint nor makes it twice.
Numbers have no gap, since the newest hint of a tenant is never removed. A second provider on the same store cannot
append beside the first one: its state is no longer the one that is there (`LostStep`).

Not promised: that a store which was restored from a backup knows the hints made since then. Tenants that have seen
them miss as many of those that follow.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from threading import Lock

import msgspec
import sqlalchemy as sa

from crypto.codec import decode, encode
from crypto.errors import NotYours
from crypto.ids import TenantId
from crypto.online import Hint, Outcome
from provider_server import tables
from provider_server.hints import Draft
from provider_server.round_store import LostStep

KEPT_H = 13 * 168.0
EPISODES = "episodes"
_FIELDS = tuple(field.name for field in fields(Draft))


class HintStore:
    """The tables of hints. Threads share it; what is appended is told to subscribers once it is committed."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._callbacks: list[Callable[[TenantId], None]] = []

    def after(self, tenant: TenantId, number: int) -> Sequence[Hint]:
        """A tenant's hints after `number`, in order: without a gap, but for those that are kept no longer."""
        column = tables.hints.c
        query = sa.select(column.hint).where(column.tenant == bytes(tenant), column.number > number)
        with self._engine.connect() as connection:
            return [decode(Hint, row.hint) for row in connection.execute(query.order_by(column.number))]

    def subscribe(self, callback: Callable[[TenantId], None]) -> None:
        """Calls `callback` with each tenant that has new hints, from the thread that appended them."""
        with self._lock:
            self._callbacks.append(callback)

    def state(self) -> bytes | None:
        """How far the episodes have got; None before the first look."""
        with self._engine.connect() as connection:
            return _state(connection)

    def append(self, drafts: Sequence[tuple[TenantId, Draft]], before: bytes | None, after: bytes) -> list[Hint]:
        """Numbers and keeps what a look came to, and the state after it; LostStep, and no change, if `before` is gone.

        Hints that are older than thirteen weeks by the newest of `drafts` are removed.
        """
        with self._alone() as connection:
            if _state(connection) != before:
                raise LostStep("another process watches the leases of this store")
            connection.execute(sa.delete(tables.episodes).where(tables.episodes.c.name == EPISODES))
            connection.execute(sa.insert(tables.episodes).values(name=EPISODES, state=after))
            made = [_add(connection, tenant, draft) for tenant, draft in drafts]
            if drafts:
                _remove_old(connection, max(draft.at_h for _, draft in drafts) - KEPT_H)
        self._tell({tenant for tenant, _ in drafts})
        return made

    def take_outcome(self, tenant: TenantId, outcome: Outcome) -> None:
        """Keeps what a test showed, in place of what was said before of the same hint; NotYours for other hints.

        The session that it came with is a secret for a while, and is not kept.
        """
        column, key = tables.hints.c, {"tenant": bytes(tenant), "number": outcome.hint}
        kept = encode(msgspec.structs.replace(outcome, session=b""))
        with self._alone() as connection:
            query = sa.select(column.hint).where(column.tenant == key["tenant"], column.number == key["number"])
            hint: bytes | None = connection.scalar(query)
            if hint is None or decode(Hint, hint).lease != outcome.lease:
                raise NotYours(f"there is no hint {outcome.hint} about lease {outcome.lease}")
            of_hint = sa.and_(tables.outcomes.c.tenant == key["tenant"], tables.outcomes.c.number == key["number"])
            connection.execute(sa.delete(tables.outcomes).where(of_hint))
            connection.execute(sa.insert(tables.outcomes).values(**key, outcome=kept))

    def outcomes(self) -> list[tuple[TenantId, Outcome]]:
        """What tests showed, by tenant and hint, without their sessions."""
        query = sa.select(tables.outcomes).order_by(tables.outcomes.c.tenant, tables.outcomes.c.number)
        with self._engine.connect() as connection:
            return [(TenantId(row.tenant), decode(Outcome, row.outcome)) for row in connection.execute(query)]

    def _tell(self, tenants: set[TenantId]) -> None:
        with self._lock:
            callbacks = tuple(self._callbacks)
        for tenant in sorted(tenants):
            for callback in callbacks:
                callback(tenant)

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        """A transaction beside which nobody else writes hints."""
        with (
            self._engine.connect().execution_options(pharoah_begin="IMMEDIATE") as connection,
            connection.begin(),
        ):
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("LOCK TABLE hints, episodes, outcomes IN EXCLUSIVE MODE"))
            yield connection


def _state(connection: sa.Connection) -> bytes | None:
    found: bytes | None = connection.scalar(
        sa.select(tables.episodes.c.state).where(tables.episodes.c.name == EPISODES)
    )
    return found


def _add(connection: sa.Connection, tenant: TenantId, draft: Draft) -> Hint:
    column = tables.hints.c
    newest = connection.scalar(sa.select(sa.func.max(column.number)).where(column.tenant == bytes(tenant)))
    hint = Hint(number=(newest or 0) + 1, **{name: getattr(draft, name) for name in _FIELDS})
    row = {"tenant": bytes(tenant), "number": hint.number, "at_h": hint.at_h, "hint": encode(hint)}
    connection.execute(sa.insert(tables.hints).values(row))
    return hint


def _remove_old(connection: sa.Connection, before_h: float) -> None:
    """All but the newest of each tenant, from whose number the next one goes on."""
    column, others = tables.hints.c, tables.hints.alias()
    newest = sa.select(sa.func.max(others.c.number)).where(others.c.tenant == column.tenant).scalar_subquery()
    connection.execute(sa.delete(tables.hints).where(column.at_h < before_h, column.number < newest))
