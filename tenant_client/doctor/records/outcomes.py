"""Records outcomes of hardware tests in the tenant's database before they are sent to the provider.

A row means that an outcome may have left; whether it arrived is not recorded.
"""

from dataclasses import dataclass

from crypto.ids import LeaseId
from federation.base.sqlite import Connection
from federation.protocol.service_messages import Suspicion


@dataclass(frozen=True)
class SentOutcome:
    """What one `confirm --tell` said of a hint, and when, in seconds since 1970."""

    told_at_s: float
    hint: int
    lease: str
    suspicion: Suspicion
    confirmed: bool
    shortfall_percent: float


def note(connection: Connection, outcome: SentOutcome) -> None:
    """Keeps what is about to be told."""
    row = (
        outcome.told_at_s,
        outcome.hint,
        bytes.fromhex(outcome.lease),
        outcome.suspicion.value,
        outcome.confirmed,
        outcome.shortfall_percent,
    )
    connection.execute("INSERT INTO outcomes_sent VALUES (?, ?, ?, ?, ?, ?)", row)


def noted(connection: Connection) -> list[SentOutcome]:
    """All that was told, or may have been, in the order in which it left."""
    rows = connection.execute("SELECT * FROM outcomes_sent ORDER BY rowid")
    return [
        SentOutcome(told_at_s, hint, str(LeaseId(lease)), Suspicion(suspicion), bool(confirmed), shortfall_percent)
        for told_at_s, hint, lease, suspicion, confirmed, shortfall_percent in rows
    ]
