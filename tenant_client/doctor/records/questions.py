"""Records requests to the provider's online service in the tenant's database before they are sent: sums per hour.

A row means that requests may have left; whether they arrived, and their content, is not recorded. A retried request
counts once.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from federation.base.clock import now_hour
from federation.base.sqlite import Connection, reporting
from federation.protocol.services import ProviderMethod
from tenant_client.doctor.records.database import open_database


@dataclass(frozen=True)
class SentQuestions:
    """What left for `receiver`, host:port, within one hour since 1970: questions of a kind, and their bytes in all."""

    hour: int
    receiver: str
    kind: str
    questions: int
    sent_bytes: int


def noting(database: Path, receiver: str) -> Callable[[str, int], None]:
    """What `Peer` calls before a question leaves, which does not if this raises StorageFailed."""

    def note(method: str, length: int) -> None:
        kind = ProviderMethod(method).name.lower().replace("_", "-")
        with reporting(), closing(open_database(database)) as connection:
            connection.execute(
                "INSERT INTO questions_sent VALUES (?, ?, ?, 1, ?) ON CONFLICT (hour, receiver, kind)"
                " DO UPDATE SET questions = questions + 1, sent_bytes = sent_bytes + excluded.sent_bytes",
                (int(now_hour()), receiver, kind, length),
            )

    return note


def noted(connection: Connection) -> list[SentQuestions]:
    """All that left, or may have, by hour."""
    rows = connection.execute("SELECT * FROM questions_sent ORDER BY hour, receiver, kind")
    return [SentQuestions(*row) for row in rows]
