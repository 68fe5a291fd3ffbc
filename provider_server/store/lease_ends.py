"""Ends of leases in SQL: those that are planned change, those that came stay."""

import sqlalchemy as sa

from crypto.ids import LeaseId
from provider_server.store import tables


class LeaseEnds:
    """The ends of recorded leases. Threads and processes share them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def came(self, lease: LeaseId) -> bool:
        """Whether the end of a lease was told, not only planned."""
        query = sa.select(tables.endings.c.lease).where(tables.endings.c.lease == bytes(lease))
        with self._engine.connect() as connection:
            return connection.execute(query).first() is not None

    def change(self, lease: LeaseId, end_h: float) -> None:
        """Another planned end."""
        with self._engine.begin() as connection:
            _set(connection, lease, end_h)

    def end(self, lease: LeaseId, end_h: float, *, requeued: bool) -> None:
        """The end that came, and whether the job waits for another lease; IntegrityError for a second one."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(tables.endings).values(lease=bytes(lease), requeued=requeued))
            _set(connection, lease, end_h)


def _set(connection: sa.Connection, lease: LeaseId, end_h: float) -> None:
    connection.execute(sa.update(tables.leases).where(tables.leases.c.lease == bytes(lease)).values(end_h=end_h))
