"""Rounds in SQL: what came in, what was asked, and how far it got. Every method commits before it returns.

A state changes only from the state that the caller saw, so two processes on one store cannot both take a step. What a
round leaves behind (release, suspicion) is committed together with its last state, and its contributions are dropped;
those of a round that counts warnings when the next one ends, since its record is made of them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from crypto.errors import PharoahError
from crypto.ids import RoundId, TenantId
from provider_server.rounds.store import tables
from provider_server.rounds.store.rows import Rows, put, writing

SUSPICION = "suspicion"


class RoundState(StrEnum):
    """The states of a round."""

    COLLECTING = "collecting"
    ENDORSING = "endorsing"
    UNMASKING = "unmasking"
    GIVING_UP = "giving_up"
    RELEASED = "released"
    REFUSED = "refused"


TRANSITIONS = {
    RoundState.COLLECTING: {RoundState.ENDORSING, RoundState.GIVING_UP},
    RoundState.ENDORSING: {RoundState.UNMASKING, RoundState.GIVING_UP},
    RoundState.UNMASKING: {RoundState.RELEASED, RoundState.REFUSED},
    RoundState.GIVING_UP: {RoundState.REFUSED},
    RoundState.RELEASED: set[RoundState](),
    RoundState.REFUSED: set[RoundState](),
}
ENDED = frozenset(state for state, following in TRANSITIONS.items() if not following)


class Answer(StrEnum):
    """What trustees answer: an endorsement of the request, or of the empty set, or a share."""

    ENDORSEMENT = "endorsement"
    EMPTY = "empty"
    SHARE = "share"


class LostStep(PharoahError):
    """Another process took a step of a round first."""

    default_hint = "only one provider at a time may hold rounds on a store; stop the other one"


@dataclass(frozen=True)
class KeptRound:
    """A round as it is kept. `ownerships` are the signed statements that its rows rest on, until it is over."""

    round_id: RoundId
    state: str
    signed_plan: bytes
    request: bytes | None
    ownerships: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Step:
    """The step that a round takes once all trustees of `wanted` have answered, and `fewest` in all."""

    before: str
    after: str
    wanted: frozenset[int]
    fewest: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a released round leaves: the release, a note on suspects, and its contributions if a record is made of them.

    They are kept until another round ends.
    """

    release: bytes
    suspicion: Mapping[str, Any] = field(default_factory=dict)
    keeps_contributions: bool = False


class RoundStore(Rows):
    """The tables of rounds."""

    def add(
        self,
        round_id: RoundId,
        state: str,
        signed_plan: bytes,
        ownerships: Sequence[bytes] = (),
        *,
        alone: bool = False,
    ) -> None:
        """Keeps a new round; IntegrityError for a second one of its name.

        If it is to be `alone`, LostStep where another one is open: two processes have planned at once.
        """
        row = {
            "round_id": bytes(round_id),
            "state": state,
            "signed_plan": signed_plan,
            "ownerships": msgspec.msgpack.encode(ownerships),
        }
        is_open = sa.select(tables.rounds.c.round_id).where(tables.rounds.c.state.not_in(ENDED))
        with writing(self._engine) as connection:
            if alone and connection.dialect.name == "postgresql":
                connection.execute(sa.text("LOCK TABLE rounds IN EXCLUSIVE MODE"))
            if alone and (other := connection.execute(is_open).scalar()) is not None:
                raise LostStep(f"another process has opened round {RoundId(other)}")
            connection.execute(sa.insert(tables.rounds).values(row))

    def withdraw(self, round_id: RoundId) -> bool:
        """Forgets a round that collects and to which nobody has contributed; whether it was one."""
        kept = tables.rounds.c
        with self._alone(round_id) as connection:
            of = tables.contributions.c.round_id == bytes(round_id)
            if connection.execute(sa.select(tables.contributions.c.tenant).where(of)).first():
                return False
            named = sa.and_(kept.round_id == bytes(round_id), kept.state == RoundState.COLLECTING)
            return connection.execute(sa.delete(tables.rounds).where(named)).rowcount == 1

    def rounds(self) -> list[KeptRound]:
        """All rounds, oldest first."""
        return [_kept(row) for row in self._rows(sa.select(tables.rounds).order_by(tables.rounds.c.number))]

    def get(self, round_id: RoundId) -> KeptRound:
        """One round; KeyError where there is none."""
        for row in self._rows(sa.select(tables.rounds).where(tables.rounds.c.round_id == bytes(round_id))):
            return _kept(row)
        raise KeyError(f"no round {round_id}")

    def move(self, round_id: RoundId, before: str, after: str, request: bytes | None = None) -> None:
        """Takes a round from one state to the next, with the request that it is fixed to; LostStep if it has moved.

        A request is fixed once a trustee has answered it: IntegrityError for another one then.
        """
        with self._engine.begin() as connection:
            _move(connection, round_id, before, after, {} if request is None else {"request": request})

    def finish(self, round_id: RoundId, before: str, after: str, outcome: Outcome) -> None:
        """Takes a round to its end, with all that it leaves, or nothing of it."""
        name = bytes(round_id)
        with self._engine.begin() as connection:
            _move(connection, round_id, before, after, {}, keeps=outcome.keeps_contributions)
            connection.execute(sa.insert(tables.releases).values(round_id=name, release=outcome.release))
            note = json.dumps(outcome.suspicion, sort_keys=True)
            put(connection, tables.notes, {"name": SUSPICION}, note=note)

    def add_contribution(self, round_id: RoundId, tenant: TenantId, message: bytes) -> bytes:
        """Keeps a tenant's contribution unless there is one; returns the one that is kept."""
        row = {"round_id": bytes(round_id), "tenant": bytes(tenant), "message": message}
        with self._alone(round_id) as connection:
            kept = connection.execute(_contribution(round_id, tenant)).first()
            if kept is None:
                connection.execute(sa.insert(tables.contributions).values(row))
        return message if kept is None else kept.message

    def drop_contribution(self, round_id: RoundId, tenant: TenantId, request: bytes) -> None:
        """Takes a tenant's contribution out of a round, and replaces the request that named it by one without.

        IntegrityError once a trustee has endorsed: a request is final then.
        """
        with self._alone(round_id) as connection:
            connection.execute(sa.delete(tables.contributions).where(_of(round_id, tenant)))
            named = tables.rounds.c.round_id == bytes(round_id)
            connection.execute(sa.update(tables.rounds).where(named).values(request=request))

    def contributors(self, round_id: RoundId) -> set[TenantId]:
        """Whose contributions are kept; of a round that is over none, but for the record of the newest."""
        column = tables.contributions.c
        query = sa.select(column.tenant).where(column.round_id == bytes(round_id))
        return set(map(TenantId, self._scalars(query)))

    def contribution(self, round_id: RoundId, tenant: TenantId) -> bytes:
        """A tenant's contribution, as it came."""
        with self._engine.connect() as connection:
            message: bytes = connection.execute(_contribution(round_id, tenant)).one().message
        return message

    def add_answer(
        self, round_id: RoundId, kind: Answer, trustee: int, message: bytes, step: Step | None = None
    ) -> None:
        """Keeps what a trustee answered, and takes the `step` for which it was the last; both are kept, or neither.

        A second answer to the same request changes nothing.
        """
        row = {"round_id": bytes(round_id), "kind": kind.value, "trustee": trustee, "message": message}
        with self._alone(round_id) as connection:
            kept = _answers(connection, round_id, kind)
            if trustee not in kept:
                connection.execute(sa.insert(tables.answers).values(row))
            answered = {trustee, *kept}
            if step is not None and step.wanted <= answered and step.fewest <= len(answered):
                _move(connection, round_id, step.before, step.after, {})

    def answers(self, round_id: RoundId, kind: Answer) -> dict[int, bytes]:
        """What trustees answered, by number."""
        with self._engine.connect() as connection:
            return _answers(connection, round_id, kind)

    def suspicion(self) -> dict[str, Any]:
        """What the rounds so far say about tenants; empty before the first."""
        query = sa.select(tables.notes.c.note).where(tables.notes.c.name == SUSPICION)
        found: dict[str, Any] = json.loads(self._scalar(query) or "{}")
        return found

    @contextmanager
    def _alone(self, round_id: RoundId) -> Iterator[sa.Connection]:
        """A transaction beside which nobody else adds to this round: what is read in it still holds when it ends."""
        row = sa.select(tables.rounds.c.number).where(tables.rounds.c.round_id == bytes(round_id)).with_for_update()
        with writing(self._engine) as connection:
            connection.execute(row)
            yield connection


def _kept(row: "sa.Row[Any]") -> KeptRound:
    owners = msgspec.msgpack.decode(row.ownerships, type=tuple[bytes, ...]) if row.ownerships else ()
    return KeptRound(RoundId(row.round_id), row.state, row.signed_plan, row.request, owners)


def _move(
    connection: sa.Connection,
    round_id: RoundId,
    before: str,
    after: str,
    also: Mapping[str, bytes | None],
    *,
    keeps: bool = False,
) -> None:
    column = tables.rounds.c
    step = sa.update(tables.rounds).where(column.round_id == bytes(round_id), column.state == before)
    over = {"ownerships": None} if after in ENDED else {}
    if connection.execute(step.values(state=after, **also, **over)).rowcount != 1:
        raise LostStep(f"round {round_id} is no longer {before}")
    if after in ENDED:
        ended = tables.contributions.c.round_id.in_(sa.select(column.round_id).where(column.state.in_(ENDED)))
        others = tables.contributions.c.round_id != bytes(round_id)
        dropped = sa.and_(ended, others) if keeps else ended
        connection.execute(sa.delete(tables.contributions).where(dropped))


def _answers(connection: sa.Connection, round_id: RoundId, kind: Answer) -> dict[int, bytes]:
    column = tables.answers.c
    query = sa.select(tables.answers).where(column.round_id == bytes(round_id), column.kind == kind.value)
    return {row.trustee: row.message for row in connection.execute(query.order_by(column.trustee))}


def _of(round_id: RoundId, tenant: TenantId) -> sa.ColumnElement[bool]:
    column = tables.contributions.c
    return sa.and_(column.round_id == bytes(round_id), column.tenant == bytes(tenant))


def _contribution(round_id: RoundId, tenant: TenantId) -> sa.Select[Any]:
    return sa.select(tables.contributions.c.message).where(_of(round_id, tenant))
