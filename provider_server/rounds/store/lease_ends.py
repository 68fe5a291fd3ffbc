"""Ends of leases in SQL: those that are planned change, those that came stay. What is said of them is kept with them.

A `told` goes to the lease's tenant with its hints (`hint_store`), in the transaction of the end itself.
"""

import time
from collections.abc import Callable

import sqlalchemy as sa

from crypto.ids import LeaseId, TenantId
from provider_server.rounds.store import tables
from provider_server.rounds.store.hint_store import EndDraft, add_end, alone
from provider_server.rounds.store.rows import Rows


class LeaseEnds(Rows):
    """The ends of recorded leases. Threads and processes share them."""

    def __init__(self, engine: sa.Engine, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(engine)
        self._now_s = now_s

    def came(self, lease: LeaseId) -> bool:
        """Whether the end of a lease was told, not only planned."""
        return bool(self._rows(sa.select(tables.endings.c.lease).where(tables.endings.c.lease == bytes(lease))))

    def change(self, lease: LeaseId, end_h: float, told: EndDraft | None = None) -> None:
        """Another planned end."""
        with alone(self._engine) as connection:
            self._set(connection, lease, end_h, told)

    def end(self, lease: LeaseId, end_h: float, *, requeued: bool, told: EndDraft | None = None) -> None:
        """The end that came, and whether the job waits for another lease; IntegrityError for a second one."""
        with alone(self._engine) as connection:
            connection.execute(sa.insert(tables.endings).values(lease=bytes(lease), requeued=requeued))
            self._set(connection, lease, end_h, told)

    def _set(self, connection: sa.Connection, lease: LeaseId, end_h: float, told: EndDraft | None) -> None:
        of_lease = tables.leases.c.lease == bytes(lease)
        connection.execute(sa.update(tables.leases).where(of_lease).values(end_h=end_h))
        if told is not None:
            tenant = connection.execute(sa.select(tables.leases.c.tenant).where(of_lease)).scalar_one()
            add_end(connection, TenantId(tenant), told, self._now_s())
