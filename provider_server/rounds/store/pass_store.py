"""Which batches of passes were issued to whom, and which passes were spent, in SQL. Processes and threads share it.

- A batch is charged before it is evaluated, and a member gets no more of them in a week than it is granted, whichever
  processes it asks at once: batches are numbered, and each number is there once.
- A nonce is spent once, also by a process that is killed. Nothing stands beside it: neither who spent it nor when.
- Charges of batches survive a power cut. What was spent in the moment before one does not: to wait for the disk costs a
  check 12 ms on a busy one, and what is lost is a few checks that can be made twice.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from crypto.errors import QuotaExceeded
from crypto.ids import Digest, TenantId
from federation.protocol.pass_messages import PassNonce
from provider_server.rounds.store import tables
from provider_server.rounds.store.rows import Rows, writing

# What both databases understand; SQLAlchemy has a construct of its own for each.
_SPEND = sa.text("INSERT INTO spent_passes (week, nonce) VALUES (:week, :nonce) ON CONFLICT DO NOTHING")
_NOT_AT_ONCE = sa.text("SET LOCAL synchronous_commit TO off")
_AGAIN = "wait for the next week: passes are issued once a week, for the week after"


class PassStore(Rows):
    """The two tables."""

    def issue(self, tenant: TenantId, week: int, request: Digest, batches: int) -> None:
        """Charges a batch, but none for a request that was charged; QuotaExceeded beyond `batches` in that week."""
        column = tables.issued_passes.c
        query = sa.select(column.request).where(column.week == week, column.tenant == bytes(tenant))
        row = {"week": week, "tenant": bytes(tenant), "request": bytes(request)}
        try:
            with writing(self._engine) as connection:  # reads first
                charged = [bytes(each.request) for each in connection.execute(query)]
                if bytes(request) in charged:
                    return
                if len(charged) >= batches:
                    raise QuotaExceeded(f"all {batches} batches of passes for week {week} were issued", hint=_AGAIN)
                connection.execute(sa.insert(tables.issued_passes).values({**row, "batch": len(charged)}))
        except sa.exc.IntegrityError:
            raise QuotaExceeded("another batch is being issued to this tenant", hint="ask for one at a time") from None

    def spend(self, spent: Sequence[tuple[int, PassNonce]]) -> list[bool]:
        """Writes passes down as spent, by week and nonce, in one transaction: which of them were not before."""
        with (
            self._engine.connect().execution_options(pharoah_synchronous="NORMAL") as connection,
            connection.begin(),
        ):
            if connection.dialect.name == "postgresql":
                connection.execute(_NOT_AT_ONCE)
            return [
                connection.execute(_SPEND, {"week": week, "nonce": bytes(nonce)}).rowcount == 1 for week, nonce in spent
            ]

    def forget(self, before_week: int) -> None:
        """Deletes what is of earlier weeks, whose passes are worth nothing any more."""
        both = tables.issued_passes, tables.spent_passes
        self._write(*(sa.delete(table).where(table.c.week < before_week) for table in both))

    def counts(self, week: int) -> tuple[int, int]:
        """How many batches were issued for a week, and how many passes of it were spent."""
        with self._engine.connect() as connection:
            issued, spent = (
                connection.execute(sa.select(sa.func.count()).where(table.c.week == week)).scalar_one()
                for table in (tables.issued_passes, tables.spent_passes)
            )
        return issued, spent
