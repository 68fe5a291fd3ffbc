"""Sessions that were called back, in SQL: of a tenant, all that end by an hour from then, which is all that there are.

A row is wanted until those sessions are over by themselves, so the table stays short; older rows go with the next one.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from crypto.ids import TenantId
from provider_server.rounds.store import tables
from provider_server.rounds.store.rows import Rows, put

LIFETIME_S = 3600
SLACK_S = 60  # how much later a process of the provider may hear of it, or its clock be ahead


class Revocations(Rows):
    """The table of sessions that were called back. Threads and processes share it."""

    def add(self, tenants: Iterable[TenantId], now_s: float) -> None:
        """Calls back every session that these tenants have now."""
        with self._engine.begin() as connection:
            revoke(connection, tenants, now_s)

    def all(self) -> dict[TenantId, int]:
        """The second up to which sessions that end by then are over, by tenant."""
        return {TenantId(row.tenant): row.until_s for row in self._rows(sa.select(tables.revoked))}


def revoke(connection: sa.Connection, tenants: Iterable[TenantId], now_s: float) -> None:
    """As `Revocations.add`, within a transaction."""
    until_s = int(now_s) + LIFETIME_S + SLACK_S
    connection.execute(sa.delete(tables.revoked).where(tables.revoked.c.until_s <= now_s))
    for tenant in tenants:
        put(connection, tables.revoked, {"tenant": bytes(tenant)}, until_s=until_s)
