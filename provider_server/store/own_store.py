"""Failures that the provider saw itself, in SQL: where it looked, what it saw, and counts of that under noise.

- Hours are recorded once, in order: those of a release, or before the last recorded ones, are closed. So what a bundle
  was learnt from never changes afterwards, and two bundles differ by what is new.
- A count under noise is written once; its noise is never drawn again.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from crypto.errors import Refusal
from crypto.ids import LeaseId, RoundId
from provider_server.fleet.own_failures import OwnFailure, OwnRecord
from provider_server.store import tables


class HoursClosed(Refusal):
    """Own failures of hours that are recorded or released already."""

    default_hint = "record each week before its round is held: run `pharoah-provider own-failures` every day"


class OwnStore:
    """The tables of own failures. Threads and processes share them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def looked_until(self) -> int:
        """The end of the last recorded hours, 0 before the first."""
        with self._engine.connect() as connection:
            return _looked_until(connection)

    def add(self, start_hour: int, end_hour: int, failures: Iterable[OwnFailure]) -> None:
        """Records what was seen in [start_hour, end_hour); HoursClosed for hours that are recorded already."""
        rows = [{"lease": bytes(lease), "at_h": at_h} for lease, at_h in sorted(set(failures))]
        with self._engine.begin() as connection:
            if start_hour < (closed := _looked_until(connection)):
                raise HoursClosed(f"hours before {closed} are recorded already")
            connection.execute(sa.insert(tables.own_hours).values(start_hour=start_hour, end_hour=end_hour))
            if rows:
                connection.execute(sa.insert(tables.own_failures), rows)

    def record(self) -> OwnRecord | None:
        """All that was seen so far, on the leases whose nodes are known; None where the provider never looked."""
        with self._engine.connect() as connection:
            looked = [(float(start), float(end)) for start, end in connection.execute(sa.select(tables.own_hours))]
            if not looked:
                return None
            failures = [OwnFailure(LeaseId(row.lease), row.at_h) for row in connection.execute(_FAILURES)]
            placed = connection.execute(sa.select(tables.placements.c.lease)).scalars()
            return OwnRecord.of(failures, looked, frozenset(map(LeaseId, placed)))

    def add_counts(self, round_id: RoundId, counts: bytes) -> None:
        """Keeps the counts under noise of a round; IntegrityError for a second time."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(tables.own_counts).values(round_id=bytes(round_id), counts=counts))

    def counts(self) -> dict[RoundId, bytes]:
        """The counts under noise by round."""
        with self._engine.connect() as connection:
            return {RoundId(row.round_id): row.counts for row in connection.execute(sa.select(tables.own_counts))}


_FAILURES = sa.select(tables.own_failures).order_by(tables.own_failures.c.at_h, tables.own_failures.c.lease)


def _looked_until(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.max(tables.own_hours.c.end_hour))).scalar() or 0)
