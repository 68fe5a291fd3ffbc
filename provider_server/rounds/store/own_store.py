"""Failures that the provider saw itself, in SQL: where it looked, what it saw, and what operators learn from it.

Hours are recorded once, in order: those before the last recorded ones are closed. Nothing here is for tenants.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from crypto.errors import Refusal
from crypto.ids import LeaseId
from provider_server.fleet.own_failures import OwnFailure, OwnRecord
from provider_server.rounds.store import tables
from provider_server.rounds.store.rows import Rows


class HoursClosed(Refusal):
    """Own failures of hours that are recorded already."""

    default_hint = "hours are recorded once, in order: name later ones"


class OwnStore(Rows):
    """The tables of own failures, and of findings for operators. Threads and processes share them."""

    def looked_until(self) -> int:
        """The end of the last recorded hours, 0 before the first."""
        return int(self._scalar(_LOOKED_UNTIL) or 0)

    def add(self, start_hour: int, end_hour: int, failures: Iterable[OwnFailure]) -> None:
        """Records what was seen in [start_hour, end_hour); HoursClosed for hours that are recorded already."""
        rows = [{"lease": bytes(lease), "at_h": at_h} for lease, at_h in sorted(set(failures))]
        with self._engine.begin() as connection:
            if start_hour < (closed := int(connection.scalar(_LOOKED_UNTIL) or 0)):
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

    def add_findings(self, number: int, findings: bytes) -> None:
        """Keeps what operators see beside the bundle of that number; IntegrityError for a second time."""
        self._write(sa.insert(tables.operators).values(number=number, findings=findings))

    def findings_kept(self) -> int:
        """How many of them there are."""
        return self._scalar(sa.select(sa.func.count()).select_from(tables.operators)) or 0

    def findings(self) -> dict[int, bytes]:
        """What operators see, by the number of the bundle that it stands beside."""
        return {row.number: row.findings for row in self._rows(sa.select(tables.operators))}


_FAILURES = sa.select(tables.own_failures).order_by(tables.own_failures.c.at_h, tables.own_failures.c.lease)
_LOOKED_UNTIL = sa.select(sa.func.max(tables.own_hours.c.end_hour))
