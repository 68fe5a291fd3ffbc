"""Hints in SQL, and word of ends of leases: numbered together, and kept for thirteen weeks.

    Draft × tenant ─ append ─▶ numbered hints of each tenant ─ after ─▶ whoever watches
    an end ─ LeaseEnds ─ add_end ─▶ LeaseEnd, numbered among the tenant's hints

Guarantees. The hints of a look and the state of the episodes after it are committed in one transaction: a provider that
is killed at any moment goes on from a state whose hints are all there, and so neither loses a hint nor makes it twice.
Numbers increase, since the newest hint of a tenant is never removed. A second provider on the same store cannot append
beside the first one: its state is no longer the one that is there (`LostStep`).

A number is the second since 1970 in which it was given, or the next one above the tenant's newest. So a store of
yesterday that is put back, and has forgotten the hints since and how far their numbers went, gives none of them again,
however old it is: a tenant that acted on what was forgotten misses none of the rest.

Not promised: the same where a tenant had more than one hint or end a second on average since the copy was made, or
where the clock is set back behind what was forgotten.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from threading import Lock

import msgspec
import sqlalchemy as sa

from crypto.codec import decode, encode
from crypto.errors import NotYours
from crypto.ids import LeaseId, TenantId
from federation.protocol.service_messages import (
    Hint,
    LeaseChange,
    LeaseEnd,
    Notice,
    Outcome,
    kind_of_notice,
)
from provider_server.fleet.hints.episodes import Draft
from provider_server.rounds.store import tables
from provider_server.rounds.store.round_store import LostStep
from provider_server.rounds.store.rows import Rows, put, writing

KEPT_H = 13 * 168.0
EPISODES = "episodes"
ENDS = "lease_ends"  # the note that changes with each end that is kept


@dataclass(frozen=True)
class EndDraft:
    """A `LeaseEnd` without its number: the fields are those of `federation.protocol.service_messages.LeaseEnd`."""

    at_h: float
    lease: LeaseId
    change: LeaseChange
    end_h: float
    planned_h: float | None


_STATE = sa.select(tables.episodes.c.state).where(tables.episodes.c.name == EPISODES)
_ENDS = sa.select(tables.notes.c.note).where(tables.notes.c.name == ENDS)
Marks = tuple[bytes | None, str | None]  # what changes with new hints, and with new ends
_FIELDS = tuple(field.name for field in fields(Draft))


class HintStore(Rows):
    """The tables of hints. Threads share it; what is appended is told to subscribers once it is committed."""

    def __init__(self, engine: sa.Engine, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(engine)
        self._now_s = now_s
        self._lock = Lock()
        self._callbacks: list[Callable[[TenantId], None]] = []
        self._seen: tuple[Marks, dict[TenantId, int]] | None = None

    def after(self, tenant: TenantId, number: int) -> Sequence[Notice]:
        """A tenant's hints and ends after `number`, in order: all that are still kept."""
        column = tables.hints.c
        query = sa.select(column.hint).where(column.tenant == bytes(tenant), column.number > number)
        return [_notice(hint) for hint in self._scalars(query.order_by(column.number))]

    def subscribe(self, callback: Callable[[TenantId], None]) -> None:
        """Calls `callback` with each tenant that has new hints, from the thread that appended them."""
        with self._lock:
            self._callbacks.append(callback)

    def look(self) -> None:
        """Tells subscribers of the hints that other processes have appended since the last look; the first tells none.

        What this process appended itself it may tell of twice. A look without news reads two rows: a hint comes with a
        new state, an end with a new count. They are read first, so that what comes in between is told at the next look.
        """
        state = self._marks()
        if self._seen is not None and state == self._seen[0]:
            return
        before, newest = self._seen, self._newest()
        self._seen = state, newest
        if before is not None:
            self._tell({tenant for tenant, number in newest.items() if number > before[1].get(tenant, 0)})

    def _newest(self) -> dict[TenantId, int]:
        column = tables.hints.c
        query = sa.select(column.tenant, sa.func.max(column.number).label("newest")).group_by(column.tenant)
        return {TenantId(row.tenant): row.newest for row in self._rows(query)}

    def _marks(self) -> Marks:
        with self._engine.connect() as connection:
            return connection.scalar(_STATE), connection.scalar(_ENDS)

    def state(self) -> bytes | None:
        """How far the episodes have got; None before the first look."""
        return self._scalar(_STATE)

    def append(self, drafts: Sequence[tuple[TenantId, Draft]], before: bytes | None, after: bytes) -> list[Hint]:
        """Numbers and keeps what a look came to, and the state after it; LostStep, and no change, if `before` is gone.

        Hints that are older than thirteen weeks by the newest of `drafts` are removed.
        """
        with alone(self._engine) as connection:
            if connection.scalar(_STATE) != before:
                raise LostStep("another process makes hints from this store")
            put(connection, tables.episodes, {"name": EPISODES}, state=after)
            made = [_add_hint(connection, tenant, draft, self._now_s()) for tenant, draft in drafts]
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
        with alone(self._engine) as connection:
            row = connection.scalar(sa.select(column.hint).filter_by(**key))
            hint = None if row is None else _notice(row)
            if not isinstance(hint, Hint) or hint.lease != outcome.lease:
                raise NotYours(f"there is no hint {outcome.hint} about lease {outcome.lease}")
            put(connection, tables.outcomes, key, outcome=kept)

    def outcomes(self) -> list[tuple[TenantId, Outcome]]:
        """What tests showed, by tenant and hint, without their sessions."""
        query = sa.select(tables.outcomes).order_by(tables.outcomes.c.tenant, tables.outcomes.c.number)
        return [(TenantId(row.tenant), decode(Outcome, row.outcome)) for row in self._rows(query)]

    def _tell(self, tenants: set[TenantId]) -> None:
        with self._lock:
            callbacks = tuple(self._callbacks)
        for tenant in sorted(tenants):
            for callback in callbacks:
                callback(tenant)


@contextmanager
def alone(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction beside which nobody else writes hints."""
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("LOCK TABLE hints, episodes, outcomes IN EXCLUSIVE MODE"))
        yield connection


def add_end(connection: sa.Connection, tenant: TenantId, end: EndDraft, now_s: float) -> None:
    """Numbers and keeps word of a lease's end, within the transaction of the end itself; what is too old is removed."""
    number = _next_number(connection, tenant, now_s)
    _add(connection, tenant, LeaseEnd(number, end.at_h, end.lease, end.change, end.end_h, end.planned_h))
    put(connection, tables.notes, {"name": ENDS}, note=f"{tenant} {number}")
    _remove_old(connection, end.at_h - KEPT_H)


def _notice(row: bytes) -> Notice:
    return decode(kind_of_notice(row), row)


def _add_hint(connection: sa.Connection, tenant: TenantId, draft: Draft, now_s: float) -> Hint:
    number = _next_number(connection, tenant, now_s)
    hint = Hint(number=number, **{name: getattr(draft, name) for name in _FIELDS})
    _add(connection, tenant, hint)
    return hint


def _next_number(connection: sa.Connection, tenant: TenantId, now_s: float) -> int:
    column = tables.hints.c
    newest = connection.scalar(sa.select(sa.func.max(column.number)).where(column.tenant == bytes(tenant)))
    return max((newest or 0) + 1, math.floor(now_s))


def _add(connection: sa.Connection, tenant: TenantId, notice: Notice) -> None:
    row = {"tenant": bytes(tenant), "number": notice.number, "at_h": notice.at_h, "hint": encode(notice)}
    connection.execute(sa.insert(tables.hints).values(row))


def _remove_old(connection: sa.Connection, before_h: float) -> None:
    """All but the newest of each tenant, from whose number the next one goes on."""
    column, others = tables.hints.c, tables.hints.alias()
    newest = sa.select(sa.func.max(others.c.number)).where(others.c.tenant == column.tenant).scalar_subquery()
    connection.execute(sa.delete(tables.hints).where(column.at_h < before_h, column.number < newest))
